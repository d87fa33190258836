"""Twice the input, in next to no time: for sweeps that are stopped, resumed and repeated."""

from __future__ import annotations

import torch

from kernels.contract import Kernel, Provider, Tolerance, normal_input, numel, read_once_write_once
from kernels.point import Shape


def shape(size: int) -> Shape:
    return (size,)


def reference(x: torch.Tensor) -> torch.Tensor:
    return x.double() * 2


def tolerance(dtype: torch.dtype) -> Tolerance:
    return Tolerance(rtol=1e-6, atol=0.0)


def mul(x: torch.Tensor) -> torch.Tensor:
    return x * 2


def blocks(x: torch.Tensor, block_size: int) -> torch.Tensor:
    from kernels.quick.blocks import add

    return add(x)


kernel = Kernel(
    name="quick",
    size_means="elements",
    shape=shape,
    inputs=normal_input,
    reference=reference,
    bytes=read_once_write_once,
    flops=numel,
    tolerance=tolerance,
    providers=(
        Provider("mul", mul),
        Provider("blocks", blocks, axes=("block_size",), source="blocks.py"),
    ),
    baseline="mul",
)
