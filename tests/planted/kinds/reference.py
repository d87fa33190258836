"""A vector with values of all its dtype's range, and the same backwards, exactly."""

from __future__ import annotations

import torch

from kernel_pipeline.tensors import dtype_of

from . import Vector


def inputs(problem: Vector, device: torch.device, seed: int) -> tuple[torch.Tensor, ...]:
    dtype = dtype_of(problem.dtype)
    if device.type == "meta":
        return (torch.empty(problem.elements, dtype=dtype, device=device),)
    generator = torch.Generator(device=device).manual_seed(seed)
    if dtype == torch.bool:
        return (torch.randint(0, 2, (problem.elements,), generator=generator, device=device).bool(),)
    if dtype.is_floating_point or dtype.is_complex:
        parts = torch.randn((problem.elements, 2), generator=generator, device=device)
        if dtype.is_complex:
            return (torch.view_as_complex(parts).to(dtype),)
        return (parts[:, 0].abs().exp().to(dtype),)
    bits = torch.randint(0, 256, (problem.elements, dtype.itemsize), generator=generator, device=device)
    return (bits.to(torch.uint8).view(dtype).reshape(-1),)


def outputs(problem: Vector) -> list[tuple[tuple[int, ...], torch.dtype]]:
    return [((problem.elements,), dtype_of(problem.dtype))]


def reference(x: torch.Tensor) -> torch.Tensor:
    if x.is_complex():
        return x.to(torch.complex128).flip(0)
    if x.is_floating_point():
        return x.double().flip(0)
    return (x.view(torch.int64) if x.dtype == torch.uint64 else x.long()).flip(0)
