"""The matrix product's inputs and its reference in float64."""

from __future__ import annotations

import torch

from kernel_pipeline.tensors import dtype_of, normal

from .problem import FLOAT8, Problem

CHUNK = 1 << 26
"""Elements of a that are converted to float64 at a time, half a gigabyte. Only b and the output are held
whole."""


def inputs(problem: Problem, device: torch.device, seed: int) -> tuple[torch.Tensor, ...]:
    """Return both matrices, standard normal, in the layout of the problem. For float8 the scale of each
    matrix follows: the largest magnitude becomes the dtype's largest number."""
    shapes = [
        shape if lies == "n" else shape[::-1]
        for shape, lies in zip(problem.shapes, problem.layout, strict=True)
    ]
    made = normal(shapes, "float32" if problem.dtype == FLOAT8 else problem.dtype, device, seed)
    a, b = (x if lies == "n" else x.t() for x, lies in zip(made, problem.layout, strict=True))
    if problem.dtype != FLOAT8:
        return a, b
    (of_a, scale_a), (of_b, scale_b) = scaled(a), scaled(b)
    return of_a, of_b, scale_a, scale_b


def scaled(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the tensor as float8, and the scale that multiplies its values."""
    dtype = dtype_of(FLOAT8)
    scale = x.abs().amax() / torch.finfo(dtype).max
    return (x / scale).to(dtype), scale


def outputs(problem: Problem) -> list[tuple[tuple[int, ...], torch.dtype]]:
    """Return the shape and dtype of the m by n output."""
    return [((problem.m, problem.n), dtype_of(problem.output_dtype))]


def reference(
    a: torch.Tensor,
    b: torch.Tensor,
    scale_a: torch.Tensor | None = None,
    scale_b: torch.Tensor | None = None,
    *,
    arithmetic: str,
) -> torch.Tensor:
    """Return the product in float64, whatever the arithmetic of the providers."""
    del arithmetic
    wide = b.double()
    out = wide.new_empty((a.shape[0], b.shape[1]))
    rows = max(1, CHUNK // max(1, a.shape[1]))
    for top in range(0, a.shape[0], rows):
        torch.mm(a[top : top + rows].double(), wide, out=out[top : top + rows])
    if scale_a is not None and scale_b is not None:
        out *= scale_a.double() * scale_b.double()
    return out
