"""The sparse product's inputs and its reference in float64."""

from __future__ import annotations

import torch

from kernel_pipeline.tensors import dtype_of, normal

from .problem import TILE_K, TILE_N, Problem, up

PLACES = ((0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3))
"""The places of two kept weights of four neighbours."""


def patterns(problem: Problem, device: torch.device, seed: int) -> torch.Tensor:
    """Return uniform patterns, 4 bits for each four neighbours of w, as int32, n by k / 4."""
    shape = (problem.n, up(problem.k, TILE_K) // 4)
    if device.type == "meta":
        return torch.empty(shape, dtype=torch.int32, device=device)
    generator = torch.Generator(device=device).manual_seed(seed + 1)
    codes = torch.tensor([first + 4 * second for first, second in PLACES], dtype=torch.int32, device=device)
    return codes[torch.randint(0, len(PLACES), shape, generator=generator, device=device)]


def inputs(problem: Problem, device: torch.device, seed: int) -> tuple[torch.Tensor, ...]:
    """Return x, the kept values, and the metadata."""
    shapes = [(problem.m, problem.k), problem.values_shape]
    return *normal(shapes, problem.dtype, device, seed), pack(patterns(problem, device, seed))


def outputs(problem: Problem) -> list[tuple[tuple[int, ...], torch.dtype]]:
    """Return the shape and dtype of the m by n output."""
    return [((problem.m, problem.n), dtype_of(problem.dtype))]


def pack(codes: torch.Tensor) -> torch.Tensor:
    """Pack patterns, n by k / 4, into words for tiles of 16 rows and 64 columns (see the kernel)."""
    n, groups = codes.shape
    rows, columns = up(n, TILE_N) // TILE_N, groups * 4 // TILE_K
    if codes.is_meta:
        return torch.empty((rows, columns, 32), dtype=torch.int32, device=codes.device)
    first = PLACES[0][0] + 4 * PLACES[0][1]
    whole = torch.nn.functional.pad(codes.long(), (0, 0, 0, rows * TILE_N - n), value=first)
    # Row tile, half, row, column tile, f, place in the half.
    parts = whole.view(rows, 2, 8, columns, 4, 4)
    shifts = 16 * torch.arange(2).view(2, 1, 1, 1, 1) + 4 * torch.arange(4)
    words = (parts << shifts.to(codes.device)).sum(dim=(1, 5))  # row tile, row, column tile, f
    return words.permute(0, 2, 1, 3).reshape(rows, columns, 32).to(torch.int32).contiguous()


def unpack(metadata: torch.Tensor, n: int) -> torch.Tensor:
    """Return the patterns of the words, n by k / 4."""
    rows, columns = metadata.shape[:2]
    words = metadata.view(rows, columns, 8, 4).permute(0, 2, 1, 3)
    halves = [
        torch.stack([words >> (16 * half + 4 * place) & 15 for place in range(4)], dim=4) for half in range(2)
    ]
    # Row tile, half, row, column tile, f, place
    return torch.stack(halves, dim=1).reshape(rows * TILE_N, columns * 16)[:n]


def dense(values: torch.Tensor, metadata: torch.Tensor) -> torch.Tensor:
    """Return the dense weights, n by the padded k, with zeros for the dropped weights."""
    n = values.shape[0]
    codes = unpack(metadata, n).long()
    w = values.new_zeros((n, codes.shape[1], 4))
    places = torch.stack([codes & 3, codes >> 2], dim=2)
    w.scatter_(2, places, values.view(n, -1, 2))
    return w.view(n, -1)


def reference(x: torch.Tensor, values: torch.Tensor, metadata: torch.Tensor) -> torch.Tensor:
    """Return the product in float64."""
    w = dense(values.contiguous(), metadata.contiguous())[:, : x.shape[1]]
    return x.double() @ w.double().t()
