"""The 2:4 sparse product in Triton, which has no sparse instruction.

Registers expand values and metadata to dense weights for the tensor cores: this saves bytes but no
operations. A tile belongs to the output's transpose, so that the weights are the first operand, which comes
from registers.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from kernel_pipeline.tensors import launch_grid

from ..matmul.triton import grouped
from .checks import checked

GROUP_M = 8
"""Rows of tiles per group: concurrent programs share tiles of x and w in L2."""


@triton.jit  # type: ignore[untyped-decorator]
def _gemm(  # noqa: PLR0913, PLR0917  # Triton kernel arguments
    out: tl.tensor,
    x: tl.tensor,
    values: tl.tensor,
    metadata: tl.tensor,
    m: tl.tensor,
    n: tl.tensor,
    k: tl.tensor,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GROUP_M: tl.constexpr,
    EVEN: tl.constexpr,
    WIDEN: tl.constexpr,
) -> None:
    """A program computes one tile, with float32 sums. EVEN: no tile reaches past an end. WIDEN is for
    Triton's interpreter, whose dot reads a bfloat16's bits as an integer."""
    tile_m, tile_n = grouped(tl.program_id(0), tl.cdiv(m, BLOCK_M), tl.cdiv(n, BLOCK_N), GROUP_M)
    row = tile_m.to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)[None, :]
    column = tile_n.to(tl.int64) * BLOCK_N + tl.arange(0, BLOCK_N)[:, None]
    depth = tl.arange(0, BLOCK_K)
    kept = tl.arange(0, BLOCK_K // 2)[None, :]
    four = tl.arange(0, BLOCK_K // 4)[None, :]
    tiles_k = tl.cdiv(k, 64)
    # The word with the bits of four neighbours, and the place of these bits in it.
    word = four // 16 * 32 + column % 8 * 4 + four % 16 // 4
    shift = column % 16 // 8 * 16 + four % 4 * 4

    total = tl.zeros([BLOCK_N, BLOCK_M], tl.float32)
    for start in range(0, k, BLOCK_K):
        values_from = values + column * (tiles_k * 32) + start // 2 + kept
        words_from = metadata + (column // 16 * tiles_k + start // 64) * 32 + word
        x_from = x + row * k + (start + depth)[:, None]
        if EVEN:
            of_values = tl.load(values_from)
            words = tl.load(words_from)
            of_x = tl.load(x_from)
        else:
            inside = (column < n) & (start + 2 * kept < tiles_k * 64)
            of_values = tl.load(values_from, mask=inside, other=0.0)
            words = tl.load(words_from, mask=(column < n) & (start + 4 * four < tiles_k * 64), other=0)
            of_x = tl.load(x_from, mask=(row < m) & ((start + depth)[:, None] < k), other=0.0)
        code = (words >> shift.to(tl.int32)) & 15
        first, second = tl.split(of_values.reshape(BLOCK_N, BLOCK_K // 4, 2))
        at_0 = tl.where(code % 4 == 0, first, 0.0)
        at_1 = tl.where(code % 4 == 1, first, tl.where(code // 4 == 1, second, 0.0))
        at_2 = tl.where(code % 4 == 2, first, tl.where(code // 4 == 2, second, 0.0))
        at_3 = tl.where(code // 4 == 3, second, 0.0)
        of_w = tl.join(tl.join(at_0, at_2), tl.join(at_1, at_3)).reshape(BLOCK_N, BLOCK_K)
        if not EVEN:
            of_w = tl.where((start + depth)[None, :] < k, of_w, 0.0)
        of_w = of_w.to(x.dtype.element_ty)
        if WIDEN:
            of_w = of_w.to(tl.float32)
            of_x = of_x.to(tl.float32)
        total = tl.dot(of_w, of_x, total)

    tl.store(
        out + row * n + column,
        total.to(out.dtype.element_ty),
        mask=(row < m) & (column < n),
    )


def gemm(
    x: torch.Tensor,
    values: torch.Tensor,
    metadata: torch.Tensor,
    block_m: int,
    block_n: int,
    block_k: int,
    num_warps: int,
    num_stages: int,
) -> torch.Tensor:
    """Return the product, one program per ``block_m`` by ``block_n`` tile.

    Raises ValueError for inputs that don't fit together and for an unsupported dtype.
    """
    x, values, metadata = checked(x, values, metadata)
    (m, k), n = x.shape, values.shape[0]
    out = x.new_empty((m, n))
    if out.numel() > 0:
        _gemm[launch_grid(triton.cdiv(m, block_m) * triton.cdiv(n, block_n))](
            out,
            x,
            values,
            metadata,
            m,
            n,
            k,
            BLOCK_M=block_m,
            BLOCK_N=block_n,
            BLOCK_K=block_k,
            GROUP_M=GROUP_M,
            EVEN=m % block_m == 0 and n % block_n == 0 and k % block_k == 0,
            WIDEN=not isinstance(_gemm, triton.JITFunction),
            num_warps=num_warps,
            num_stages=num_stages,
        )
    return out
