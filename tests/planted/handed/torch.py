"""Bits inverted and counted by torch, right and wrong."""

from __future__ import annotations

import torch

SIGNED = {2: torch.int16, 4: torch.int32, 8: torch.int64}


def inverted(x: torch.Tensor, counts: torch.Tensor, *, out: torch.Tensor, bits: torch.Tensor) -> None:
    signed = x.view(SIGNED[x.itemsize])
    torch.bitwise_not(signed, out=out.view(signed.dtype))
    places = torch.arange(8 * x.itemsize, device=x.device, dtype=signed.dtype)
    torch.sum(signed.unsqueeze(-1) >> places & 1, dim=2, out=counts)
    torch.sum(counts, dim=1, out=bits)


def last_row_unwritten(
    x: torch.Tensor, counts: torch.Tensor, *, out: torch.Tensor, bits: torch.Tensor
) -> None:
    inverted(x[:-1], counts[:-1], out=out[:-1], bits=bits[:-1])


def returned(
    x: torch.Tensor, counts: torch.Tensor, *, out: torch.Tensor, bits: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return new memory in place of writing the outputs."""
    found = torch.empty_like(out), torch.empty_like(bits)
    inverted(x, counts, out=found[0], bits=found[1])
    return found


def workspace_taken_as_zeros(
    x: torch.Tensor, counts: torch.Tensor, *, out: torch.Tensor, bits: torch.Tensor
) -> None:
    before = counts.clone()
    inverted(x, counts, out=out, bits=bits)
    bits += before.sum(dim=1)
