"""The operator of the product in tf32 by Hopper's tensor cores."""

from __future__ import annotations

import torch

from .checks import check_product
from .descriptors import lying


def cuda_wgmma_tf32(a: torch.Tensor, b: torch.Tensor, arithmetic: str, block_n: int) -> torch.Tensor:
    """Return the product of float32 in tf32 by Hopper's tensor cores, in tiles of 128 by ``block_n``.

    wgmma takes float32 only with k innermost: a matrix that lies otherwise is first transposed, by a launch
    of its own. Raises ValueError for inputs that are not an (m, k) and a (k, n) matrix of float32, and for
    another arithmetic."""
    check_product(a, b, arithmetic)
    if (a.dtype, arithmetic) != (torch.float32, "tf32"):
        raise ValueError(
            f"this kernel multiplies float32 in tf32, not {a.dtype} with arithmetic={arithmetic}"
        )
    if a.numel() == 0 or b.numel() == 0:
        return a.new_zeros((a.shape[0], b.shape[1]))
    out: torch.Tensor = torch.ops.matmul.cuda_wgmma_tf32(*lying(a), *lying(b), block_n)
    return out
