"""The four-bit product's inputs and its reference in float64."""

from __future__ import annotations

import math

import torch

from kernel_pipeline.tensors import dtype_of, normal

from .problem import GROUPS, TILE_K, TILE_N, Problem, up

SPREAD = 1 / math.sqrt(22.5)
"""The standard deviation of scales and zeros. With a uniform q, ``(q - 8) * scale + zero`` has variance 1."""

MIDDLE = 8
"""The q of a weight that equals its zero."""


def weights(problem: Problem, device: torch.device, seed: int) -> torch.Tensor:
    """Return uniform integers from 0 to 15, as int32, n by k."""
    shape = (problem.n, problem.k)
    if device.type == "meta":
        return torch.empty(shape, dtype=torch.int32, device=device)
    generator = torch.Generator(device=device).manual_seed(seed + 1)
    return torch.randint(0, 16, shape, dtype=torch.int32, generator=generator, device=device)


def inputs(problem: Problem, device: torch.device, seed: int) -> tuple[torch.Tensor, ...]:
    """Return x, the packed weights, and the scales and zeros."""
    x, scales = normal([(problem.m, problem.k), problem.scales_shape], problem.dtype, device, seed)
    return x, pack(weights(problem, device, seed)), scales * SPREAD


def outputs(problem: Problem) -> list[tuple[tuple[int, ...], torch.dtype]]:
    """Return the shape and dtype of the m by n output."""
    return [((problem.m, problem.n), dtype_of(problem.dtype))]


def pack(q: torch.Tensor) -> torch.Tensor:
    """Pack weights from 0 to 15 into words of eight, in tiles of 8 rows by 128 columns (see the kernel)."""
    n, k = q.shape
    shape = (up(n, TILE_N) // TILE_N, up(k, TILE_K) // TILE_K, 32, 4)
    if q.is_meta:
        return torch.empty(shape, dtype=torch.int32, device=q.device)
    whole = torch.nn.functional.pad(q, (0, up(k, TILE_K) - k, 0, up(n, TILE_N) - n), value=MIDDLE)
    # i % 128 = 32 p + 16 h + 8 e + 2 t + b
    parts = whole.view(shape[0], 8, shape[1], 4, 2, 2, 4, 2)  # row tile, row, column tile, p, h, e, t, b
    words = torch.zeros((*parts.shape[:4], 4), dtype=torch.int64, device=q.device)
    for b in range(2):
        for h in range(2):
            for e in range(2):
                words |= parts[:, :, :, :, h, e, :, b].long() << (16 * b + 8 * h + 4 * e)
    return words.to(torch.int32).permute(0, 2, 1, 4, 3).reshape(shape).contiguous()


def unpack(packed: torch.Tensor, n: int, k: int) -> torch.Tensor:
    """Return the weights of the words, n by k, as int32."""
    rows, columns = packed.shape[:2]
    words = packed.view(rows, columns, 8, 4, 4).permute(0, 2, 1, 4, 3)  # row tile, row, column tile, p, t
    parts = [
        torch.stack([words >> (16 * b + 8 * h + 4 * e) & 15 for b in range(2)], dim=-1)
        for h in range(2)
        for e in range(2)
    ]
    whole = torch.stack(parts, dim=4)  # row tile, row, column tile, p, h and e, t, b
    return whole.reshape(rows * TILE_N, columns * TILE_K)[:n, :k].contiguous()


def dequantised(q: torch.Tensor, scales_and_zeros: torch.Tensor, granularity: str) -> torch.Tensor:
    """Return the weights that q stands for, n by k, in float64."""
    k = q.shape[1]
    group = GROUPS[granularity] or up(k, TILE_K)
    each = scales_and_zeros.double().repeat_interleave(group, dim=0)[:k]
    return (q.double() - MIDDLE) * each[..., 0].t() + each[..., 1].t()


def reference(
    x: torch.Tensor, packed: torch.Tensor, scales_and_zeros: torch.Tensor, granularity: str
) -> torch.Tensor:
    """Return the product in float64."""
    q = unpack(packed, scales_and_zeros.shape[1], x.shape[1])
    return x.double() @ dequantised(q, scales_and_zeros, granularity).t()
