"""A matrix with bits at random, and the same inverted with the set bits of each row."""

from __future__ import annotations

import torch

from kernel_pipeline.tensors import dtype_of

from . import Matrix


def inputs(problem: Matrix, device: torch.device, seed: int) -> tuple[torch.Tensor, ...]:
    dtype = dtype_of(problem.dtype)
    if device.type == "meta":
        return (torch.empty(problem.shape, dtype=dtype, device=device),)
    generator = torch.Generator(device=device).manual_seed(seed)
    shape = (problem.rows, problem.columns * dtype.itemsize)
    bits = torch.randint(0, 256, shape, generator=generator, device=device)
    return (bits.to(torch.uint8).view(dtype),)


def outputs(problem: Matrix) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
    return {"out": (problem.shape, dtype_of(problem.dtype)), "bits": ((problem.rows,), torch.int64)}


def workspaces(problem: Matrix) -> list[tuple[tuple[int, ...], torch.dtype]]:
    return [((problem.rows, problem.columns), torch.int64)]


def reference(x: torch.Tensor) -> dict[str, torch.Tensor]:
    wide = x.view(torch.int64) if x.dtype == torch.uint64 else x.long()
    width = 8 * x.itemsize
    places = torch.arange(width, device=x.device)
    bits = (wide.unsqueeze(-1) >> places & 1).sum(dim=(1, 2))
    return {"bits": bits, "out": wide ^ (-1 if width == 64 else (1 << width) - 1)}
