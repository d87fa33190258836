"""Twice the input, by providers that each do one thing wrong on a GPU, with right ones between them."""

from __future__ import annotations

from itertools import count

import torch

from kernels.contract import Kernel, Provider, Tolerance, normal_input, numel, read_once_write_once
from kernels.point import Shape

calls = count()


def shape(size: int) -> Shape:
    return (size,)


def reference(x: torch.Tensor) -> torch.Tensor:
    return x.double() * 2


def tolerance(dtype: torch.dtype) -> Tolerance:
    return Tolerance(rtol=1e-6, atol=0.0)


def right(x: torch.Tensor) -> torch.Tensor:
    return x * 2


def right_once(x: torch.Tensor) -> torch.Tensor:
    return x * 2 if next(calls) == 0 else x * 3


def writes_once(x: torch.Tensor) -> torch.Tensor:
    """Later its output is what the memory held, which the first call filled with right values."""
    out = torch.empty_like(x)
    if not hasattr(writes_once, "done"):
        writes_once.done = True  # type: ignore[attr-defined]
        torch.mul(x, 2, out=out)
    return out


def remembers(x: torch.Tensor) -> torch.Tensor:
    """Computes once and returns the same tensor ever after."""
    if not hasattr(remembers, "out"):
        remembers.out = x * 2  # type: ignore[attr-defined]
    out: torch.Tensor = remembers.out  # type: ignore[attr-defined]
    return out


def never_writes(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


def synchronizes(x: torch.Tensor) -> torch.Tensor:
    """Right, but no graph can hold it."""
    x.sum().item()
    return x * 2


def allocates(x: torch.Tensor) -> torch.Tensor:
    return torch.empty(1 << 45, dtype=torch.float32, device=x.device)


def triton_right(x: torch.Tensor) -> torch.Tensor:
    from kernels.gpu_faults.triton import right

    return right(x)


def illegal_access(x: torch.Tensor) -> torch.Tensor:
    from kernels.gpu_faults.triton import illegal_access

    return illegal_access(x)


def endless(x: torch.Tensor) -> torch.Tensor:
    from kernels.gpu_faults.triton import endless

    return endless(x)


def too_much_shared(x: torch.Tensor) -> torch.Tensor:
    from kernels.gpu_faults.triton import too_much_shared

    return too_much_shared(x)


def does_not_compile(x: torch.Tensor) -> torch.Tensor:
    from kernels.gpu_faults.triton import does_not_compile

    return does_not_compile(x)


TORCH = (right, right_once, writes_once, remembers, never_writes, synchronizes, allocates)
TRITON = (illegal_access, triton_right, endless, too_much_shared, does_not_compile)

kernel = Kernel(
    name="gpu_faults",
    size_means="elements",
    shape=shape,
    inputs=normal_input,
    reference=reference,
    bytes=read_once_write_once,
    flops=numel,
    tolerance=tolerance,
    providers=(
        *(Provider(call.__name__, call, devices=("cuda",)) for call in TORCH),
        *(Provider(call.__name__, call, source="triton.py", devices=("cuda",)) for call in TRITON),
        Provider("right_at_the_end", right),
    ),
    baseline="right",
)
