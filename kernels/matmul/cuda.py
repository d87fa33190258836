"""The matrix product's operators in CUDA C++, which know no arithmetic but ``ieee``."""

from __future__ import annotations

import torch

from kernels.matmul.checks import check_ieee


def cuda_naive(a: torch.Tensor, b: torch.Tensor, arithmetic: str) -> torch.Tensor:
    """A thread an element of the output, without shared memory. Raises ValueError for inputs that are no
    (m, k) and (k, n) matrix of one dtype, and for another arithmetic."""
    check_ieee(a, b, arithmetic)
    out: torch.Tensor = torch.ops.matmul.cuda_naive(a, b)
    return out


def cuda_tiled(a: torch.Tensor, b: torch.Tensor, arithmetic: str, tile: int) -> torch.Tensor:
    """A thread an element of the output, with ``tile`` by ``tile`` tiles of both inputs in shared memory.
    Raises what ``cuda_naive`` raises."""
    check_ieee(a, b, arithmetic)
    out: torch.Tensor = torch.ops.matmul.cuda_tiled(a, b, tile)
    return out
