"""Sparsify weights by torch: each of four neighbours is compared with the others."""

from __future__ import annotations

import torch

from ..matmul_sparse.reference import pack
from .checks import checked
from .reference import filled_up


def sparsify(w: torch.Tensor, step: str) -> torch.Tensor | tuple[torch.Tensor, ...]:
    """Return w pruned, or values and metadata of w or of its transpose. Raises ValueError unless the input is
    a matrix of a dtype that ``matmul_sparse`` multiplies."""
    checked(w)
    of = w.t() if step == "transpose" else w
    four = filled_up(of)
    a, b, c, d = four.abs().unbind(dim=2)
    # Each number says whether one value beats another; the first of equal values wins.
    ab, ac, ad, bc, bd, cd = (x.int() for x in (a >= b, a >= c, a >= d, b >= c, b >= d, c >= d))
    beats = torch.stack([ab + ac + ad, 1 - ab + bc + bd, 2 - ac - bc + cd, 3 - ad - bd - cd], dim=2)
    kept = beats > 1
    if step == "prune":
        return torch.where(kept, four, 0.0).view(four.shape[0], -1)[:, : of.shape[1]].contiguous()
    first = torch.where(kept[..., 0], 0, torch.where(kept[..., 1], 1, 2))
    second = torch.where(kept[..., 3], 3, torch.where(kept[..., 2], 2, 1))
    places = torch.stack([first, second], dim=2)
    return four.gather(2, places).view(four.shape[0], -1), pack((first + 4 * second).int())
