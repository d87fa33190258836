"""The matrix product in Triton with the tensor memory accelerator (TMA): a persistent program on each
multiprocessor computes tile after tile.

Descriptors copy tiles, one instruction per tile, without registers or address arithmetic in the threads. The
compiler sees the loop over tiles and the loop over k as one loop (``flatten``): while a tile is rounded and
stored, the copies of the next tile are under way.

A descriptor needs rows that begin at multiples of 16 bytes. Inputs with other rows are first copied to padded
rows; an output with other rows is stored by threads.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from kernel_pipeline.tensors import persistent_programs

from .checks import check_product
from .descriptors import ALIGNMENT, describable
from .triton import (
    empty_product,
    grouped,
    imprecise_sums,
    is_interpreted,
    operands,
    precision,
)


@triton.jit  # type: ignore[untyped-decorator]
def _store_columns(  # noqa: PLR0913, PLR0917  # Triton kernel arguments
    to: tl.tensor,
    out: tl.tensor,
    values: tl.tensor,
    top: tl.tensor,
    left: tl.tensor,
    m: tl.tensor,
    n: tl.tensor,
    BLOCK_M: tl.constexpr,
    COLUMNS: tl.constexpr,
    BY_TMA: tl.constexpr,
) -> None:
    """Round some columns of a tile and store them, by TMA or by threads, up to the matrix's end."""
    result = values.to(out.dtype.element_ty)
    if BY_TMA:
        to.store([top, left], result)
    else:
        # The tile's offset needs 64 bits; offsets within it take 32, which halves their registers.
        row, column = tl.arange(0, BLOCK_M)[:, None], tl.arange(0, COLUMNS)[None, :]
        corner = out + tl.cast(top, tl.int64) * n + left
        tl.store(corner + row * n + column, result, mask=(row < m - top) & (column < n - left))


@triton.jit  # type: ignore[untyped-decorator]
def _halves(values: tl.tensor, ROWS: tl.constexpr, COLUMNS: tl.constexpr) -> tl.tensor:
    """Return the left and the right half of the columns, without moving elements between threads."""
    return values.reshape(ROWS, 2, COLUMNS // 2).permute(0, 2, 1).split()


@triton.jit  # type: ignore[untyped-decorator]
def _persistent(  # noqa: PLR0913, PLR0917  # Triton kernel arguments
    to: tl.tensor,
    of_a: tl.tensor,
    of_b: tl.tensor,
    out: tl.tensor,
    scale_a: tl.tensor,
    scale_b: tl.tensor,
    m: tl.tensor,
    n: tl.tensor,
    k: tl.tensor,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GROUP_M: tl.constexpr,
    PARTS: tl.constexpr,
    A_TRANSPOSED: tl.constexpr,
    B_TRANSPOSED: tl.constexpr,
    BY_TMA: tl.constexpr,
    ARITHMETIC: tl.constexpr,
    IMPRECISE: tl.constexpr,
    WIDEN: tl.constexpr,
) -> None:
    """A program computes every tile whose number is its own plus a multiple of the number of programs.

    A_TRANSPOSED: the descriptor describes a's transpose, whose rows are contiguous in memory. B_TRANSPOSED
    means the same for b.
    """
    tiles_m, tiles_n = tl.cdiv(m, BLOCK_M), tl.cdiv(n, BLOCK_N)
    for tile in tl.range(tl.program_id(0), tiles_m * tiles_n, tl.num_programs(0), flatten=True):
        tile_m, tile_n = grouped(tile, tiles_m, tiles_n, GROUP_M)
        top, left = tile_m * BLOCK_M, tile_n * BLOCK_N
        total = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
        for start in range(0, k, BLOCK_K):
            a = of_a.load([start, top]).T if A_TRANSPOSED else of_a.load([top, start])
            b = of_b.load([left, start]).T if B_TRANSPOSED else of_b.load([start, left])
            if WIDEN:
                a = a.to(tl.float32)
                b = b.to(tl.float32)
            total = tl.dot(a, b, total, input_precision=ARITHMETIC, max_num_imprecise_acc=IMPRECISE)
        if scale_a is not None:
            total *= tl.load(scale_a) * tl.load(scale_b)
        if PARTS == 1:
            _store_columns(to, out, total, top, left, m, n, BLOCK_M, BLOCK_N, BY_TMA)
        else:
            HALF: tl.constexpr = BLOCK_N // 2
            first, second = _halves(total, BLOCK_M, BLOCK_N)
            if PARTS == 2:
                _store_columns(to, out, first, top, left, m, n, BLOCK_M, HALF, BY_TMA)
                _store_columns(to, out, second, top, left + HALF, m, n, BLOCK_M, HALF, BY_TMA)
            else:
                QUARTER: tl.constexpr = BLOCK_N // 4
                one, two = _halves(first, BLOCK_M, HALF)
                three, four = _halves(second, BLOCK_M, HALF)
                _store_columns(to, out, one, top, left, m, n, BLOCK_M, QUARTER, BY_TMA)
                _store_columns(to, out, two, top, left + QUARTER, m, n, BLOCK_M, QUARTER, BY_TMA)
                _store_columns(to, out, three, top, left + HALF, m, n, BLOCK_M, QUARTER, BY_TMA)
                _store_columns(to, out, four, top, left + HALF + QUARTER, m, n, BLOCK_M, QUARTER, BY_TMA)


def persistent(  # noqa: PLR0913  # inputs and parameters
    a: torch.Tensor,
    b: torch.Tensor,
    scale_a: torch.Tensor | None = None,
    scale_b: torch.Tensor | None = None,
    *,
    arithmetic: str,
    block_m: int,
    block_n: int,
    block_k: int,
    group_m: int,
    num_warps: int,
    num_stages: int,
    epilogue_parts: int,
) -> torch.Tensor:
    """Return the product, by one persistent program per multiprocessor. Raises ValueError unless the inputs
    are an (m, k) and a (k, n) matrix, and for an arithmetic that their dtype does not have."""
    check_product(a, b, arithmetic, scale_a, scale_b)
    (m, k), n = a.shape, b.shape[1]
    out = empty_product(a, b)
    a, b = operands(_persistent, a, b)
    if out.numel() == 0:
        return out
    if k == 0:
        return out.zero_()
    of_a, a_transposed = describable(a)
    of_b, b_transposed = describable(b)
    if block_m * n >= 2**31:
        raise ValueError(f"takes rows of fewer than {2**31 // block_m} columns, got {n}")
    by_tma = n * out.itemsize % ALIGNMENT == 0
    part = block_n // epilogue_parts
    programs = min(persistent_programs(a), triton.cdiv(m, block_m) * triton.cdiv(n, block_n))
    _persistent[programs,](
        TensorDescriptor.from_tensor(out, [block_m, part]) if by_tma else None,
        TensorDescriptor.from_tensor(of_a, [block_k, block_m] if a_transposed else [block_m, block_k]),
        TensorDescriptor.from_tensor(of_b, [block_n, block_k] if b_transposed else [block_k, block_n]),
        out,
        scale_a,
        scale_b,
        m,
        n,
        k,
        BLOCK_M=block_m,
        BLOCK_N=block_n,
        BLOCK_K=block_k,
        GROUP_M=group_m,
        PARTS=epilogue_parts,
        A_TRANSPOSED=a_transposed,
        B_TRANSPOSED=b_transposed,
        BY_TMA=by_tma,
        ARITHMETIC=precision(arithmetic),
        IMPRECISE=imprecise_sums(a, arithmetic, block_k),
        WIDEN=is_interpreted(_persistent),
        num_warps=num_warps,
        num_stages=num_stages,
    )
    return out
