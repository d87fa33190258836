"""Helpers for references and providers: seeded inputs, checks of arguments, launch grids."""

from __future__ import annotations

from collections.abc import Sequence

import torch

FLOATS = ("float32", "bfloat16", "float16")
"""The dtypes whose values float32 holds exactly."""


def dtype_of(name: str) -> torch.dtype:
    """Return the torch dtype with this name."""
    found: torch.dtype = getattr(torch, name)
    return found


def normal(
    shapes: Sequence[Sequence[int]], dtype: str, device: torch.device, seed: int
) -> tuple[torch.Tensor, ...]:
    """Return tensors of standard normal values. Equal seeds give equal values on the same kind of device."""
    wanted = dtype_of(dtype)
    if device.type == "meta":
        return tuple(torch.empty(tuple(shape), dtype=wanted, device=device) for shape in shapes)
    generator = torch.Generator(device=device).manual_seed(seed)
    return tuple(
        torch.randn(tuple(shape), generator=generator, device=device, dtype=torch.float32).to(wanted)
        for shape in shapes
    )


def check_matrix(kernel: str, x: torch.Tensor) -> None:
    """Raise ValueError for a tensor that is not a matrix with at least one column."""
    if x.dim() != 2:
        raise ValueError(f"{kernel} needs rows and columns, got shape {tuple(x.shape)}")
    if x.shape[1] == 0:
        raise ValueError(f"{kernel} needs at least one column, got shape {tuple(x.shape)}")


def check_affine(kernel: str, name: str, parameter: torch.Tensor, x: torch.Tensor) -> None:
    """Raise ValueError for a weight or bias that does not have one element for each column of x, in x's
    dtype."""
    if parameter.shape != x.shape[1:] or parameter.dtype != x.dtype:
        raise ValueError(
            f"{kernel} needs a {name} of shape ({x.shape[1]},) and {x.dtype}, "
            f"got shape {tuple(parameter.shape)} and {parameter.dtype}"
        )


def check_dtype(x: torch.Tensor) -> None:
    """Raise ValueError for a dtype whose values float32 does not hold exactly."""
    if str(x.dtype).removeprefix("torch.") not in FLOATS:
        raise ValueError(f"needs {', '.join(FLOATS)}, got {str(x.dtype).removeprefix('torch.')}")


def without_padding(x: torch.Tensor) -> torch.Tensor:
    """Return the matrix, copied if it is a bfloat16 matrix on a CPU with padding after each row. On AMX
    oneDNN's matrix product multiplies some of the padding by zero (torch 2.13), and NaN times zero is NaN.
    """
    if x.is_cpu and x.dtype == torch.bfloat16 and x.stride(0) > x.shape[1] and x.stride(1) == 1:
        return x.contiguous()
    return x


def launch_grid(programs: int) -> tuple[int]:
    """Return a one-dimensional launch grid. Raises ValueError for more programs than CUDA can launch."""
    if programs > 2**31 - 1:
        raise ValueError(f"a launch has at most 2**31 - 1 programs, and this launch needs {programs}")
    return (programs,)


def persistent_programs(x: torch.Tensor, each: int = 1) -> int:
    """Return the number of programs of a persistent kernel: ``each`` per multiprocessor of x's GPU. Without a
    GPU return 2, so that a program takes several tiles."""
    if x.device.type != "cuda":
        return 2
    return torch.cuda.get_device_properties(x.device).multi_processor_count * each
