"""The matrix product in Triton: one program for each tile of the output.

The kernels run on the current CUDA device, take matrices with any strides and return a contiguous tensor.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from kernel_pipeline.tensors import launch_grid

from .checks import check_product


def empty_product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Return an empty tensor for the product, which is bfloat16 for float8 inputs."""
    dtype = torch.bfloat16 if a.dtype == torch.float8_e4m3fn else a.dtype
    return a.new_empty((a.shape[0], b.shape[1]), dtype=dtype)


def precision(arithmetic: str) -> str:
    """Return ``tl.dot``'s input_precision: ``ieee`` also for float8, which has no value of its own."""
    return "tf32" if arithmetic == "tf32" else "ieee"


def imprecise_sums(a: torch.Tensor, arithmetic: str, block_k: int) -> int | None:
    """Return the number of float8 products that the tensor cores may add before their sum is added in
    float32. None leaves it to Triton, which keeps all sums in the tensor cores."""
    return block_k if a.dtype == torch.float8_e4m3fn and arithmetic == "ieee" else None


def is_interpreted(kernel: object) -> bool:
    """Whether Triton's interpreter runs the kernel."""
    return not isinstance(kernel, triton.JITFunction)


def operands(kernel: object, a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return both matrices as the kernel takes them. Triton's interpreter reads a float8 NaN as a number, so
    it gets float32."""
    if is_interpreted(kernel) and a.dtype == torch.float8_e4m3fn:
        return a.float(), b.float()
    return a, b


@triton.jit  # type: ignore[untyped-decorator]
def grouped(program: tl.tensor, tiles_m: tl.tensor, tiles_n: tl.tensor, GROUP_M: tl.constexpr) -> tl.tensor:
    """Return the row and the column of a program's tile. Programs go column by column through GROUP_M rows of
    tiles, then through the next rows. Programs that run at the same time then need few rows of a and few
    columns of b, which fit in L2."""
    programs_of_group = GROUP_M * tiles_n
    first = program // programs_of_group * GROUP_M
    rows = min(tiles_m - first, GROUP_M)  # the last group may have fewer rows
    within = program % programs_of_group
    return first + within % rows, within // rows


@triton.jit  # type: ignore[untyped-decorator]
def _naive(  # noqa: PLR0913, PLR0917  # Triton kernel arguments
    out: tl.tensor,
    a: tl.tensor,
    b: tl.tensor,
    scale_a: tl.tensor,
    scale_b: tl.tensor,
    m: tl.tensor,
    n: tl.tensor,
    k: tl.tensor,
    a_row: tl.tensor,
    a_column: tl.tensor,
    b_row: tl.tensor,
    b_column: tl.tensor,
    SIDE: tl.constexpr,
    BLOCK_K: tl.constexpr,
    ARITHMETIC: tl.constexpr,
    IMPRECISE: tl.constexpr,
    WIDEN: tl.constexpr,
) -> None:
    """A program computes one square tile, BLOCK_K products per step. Tiles go row by row, every load is
    masked, and no load is prefetched."""
    tiles_n = tl.cdiv(n, SIDE)
    tile_m, tile_n = tl.program_id(0) // tiles_n, tl.program_id(0) % tiles_n
    row = tile_m.to(tl.int64) * SIDE + tl.arange(0, SIDE)[:, None]
    column = tile_n.to(tl.int64) * SIDE + tl.arange(0, SIDE)[None, :]
    total = tl.zeros([SIDE, SIDE], tl.float32)
    for start in range(0, k, BLOCK_K):
        depth = start + tl.arange(0, BLOCK_K).to(tl.int64)
        of_a = tl.load(
            a + row * a_row + depth[None, :] * a_column, mask=(row < m) & (depth[None, :] < k), other=0.0
        )
        of_b = tl.load(
            b + depth[:, None] * b_row + column * b_column,
            mask=(depth[:, None] < k) & (column < n),
            other=0.0,
        )
        if WIDEN:
            of_a = of_a.to(tl.float32)
            of_b = of_b.to(tl.float32)
        total = tl.dot(of_a, of_b, total, input_precision=ARITHMETIC, max_num_imprecise_acc=IMPRECISE)
    if scale_a is not None:
        total *= tl.load(scale_a) * tl.load(scale_b)
    tl.store(out + row * n + column, total.to(out.dtype.element_ty), mask=(row < m) & (column < n))


def naive(
    a: torch.Tensor,
    b: torch.Tensor,
    scale_a: torch.Tensor | None = None,
    scale_b: torch.Tensor | None = None,
    *,
    arithmetic: str,
    side: int,
    num_warps: int,
) -> torch.Tensor:
    """Return the product, one program per tile of ``side`` by ``side``, as in a first kernel. Raises as
    ``tiled`` does."""
    check_product(a, b, arithmetic, scale_a, scale_b)
    (m, k), n = a.shape, b.shape[1]
    out = empty_product(a, b)
    a, b = operands(_naive, a, b)
    if out.numel() > 0:
        _naive[launch_grid(triton.cdiv(m, side) * triton.cdiv(n, side))](
            out,
            a,
            b,
            scale_a,
            scale_b,
            m,
            n,
            k,
            *a.stride(),
            *b.stride(),
            SIDE=side,
            BLOCK_K=32,
            ARITHMETIC=precision(arithmetic),
            IMPRECISE=imprecise_sums(a, arithmetic, 32),
            WIDEN=is_interpreted(_naive),
            num_warps=num_warps,
            num_stages=1,
        )
    return out


@triton.jit  # type: ignore[untyped-decorator]
def tile_of(  # noqa: PLR0913, PLR0917  # Triton kernel arguments
    a: tl.tensor,
    b: tl.tensor,
    m: tl.tensor,
    n: tl.tensor,
    k: tl.tensor,
    begin: tl.tensor,
    row: tl.tensor,
    column: tl.tensor,
    a_row: tl.tensor,
    a_column: tl.tensor,
    b_row: tl.tensor,
    b_column: tl.tensor,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    EVEN_M: tl.constexpr,
    EVEN_N: tl.constexpr,
    EVEN_K: tl.constexpr,
    ARITHMETIC: tl.constexpr,
    IMPRECISE: tl.constexpr,
    WIDEN: tl.constexpr,
) -> tl.tensor:
    """Return the float32 sums of the products from ``begin`` to ``k`` for these rows and columns of a tile.

    EVEN_M: no tile reaches past the last row, so rows need no mask. EVEN_N and EVEN_K mean the same for
    columns and for k. WIDEN is for Triton's interpreter, whose dot reads a bfloat16's bits as an integer.
    """
    depth = tl.arange(0, BLOCK_K).to(tl.int64)
    first = tl.cast(begin, tl.int64)
    a_from = a + row * a_row + (first + depth[None, :]) * a_column
    b_from = b + (first + depth[:, None]) * b_row + column * b_column
    a_step = tl.cast(a_column, tl.int64) * BLOCK_K
    b_step = tl.cast(b_row, tl.int64) * BLOCK_K

    total = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for start in range(begin, k, BLOCK_K):
        # Both matrices are read as 0 past the end, so their products there are 0.
        if EVEN_M and EVEN_K:
            of_a = tl.load(a_from)
        elif EVEN_K:
            of_a = tl.load(a_from, mask=row < m, other=0.0)
        elif EVEN_M:
            of_a = tl.load(a_from, mask=depth[None, :] < k - start, other=0.0)
        else:
            of_a = tl.load(a_from, mask=(row < m) & (depth[None, :] < k - start), other=0.0)
        if EVEN_N and EVEN_K:
            of_b = tl.load(b_from)
        elif EVEN_K:
            of_b = tl.load(b_from, mask=column < n, other=0.0)
        elif EVEN_N:
            of_b = tl.load(b_from, mask=depth[:, None] < k - start, other=0.0)
        else:
            of_b = tl.load(b_from, mask=(column < n) & (depth[:, None] < k - start), other=0.0)
        if WIDEN:
            of_a = of_a.to(tl.float32)
            of_b = of_b.to(tl.float32)
        total = tl.dot(of_a, of_b, total, input_precision=ARITHMETIC, max_num_imprecise_acc=IMPRECISE)
        a_from += a_step
        b_from += b_step
    return total


@triton.jit  # type: ignore[untyped-decorator]
def _tiled(  # noqa: PLR0913, PLR0917  # Triton kernel arguments
    out: tl.tensor,
    a: tl.tensor,
    b: tl.tensor,
    scale_a: tl.tensor,
    scale_b: tl.tensor,
    m: tl.tensor,
    n: tl.tensor,
    k: tl.tensor,
    a_row: tl.tensor,
    a_column: tl.tensor,
    b_row: tl.tensor,
    b_column: tl.tensor,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GROUP_M: tl.constexpr,
    EVEN_M: tl.constexpr,
    EVEN_N: tl.constexpr,
    EVEN_K: tl.constexpr,
    ARITHMETIC: tl.constexpr,
    IMPRECISE: tl.constexpr,
    WIDEN: tl.constexpr,
) -> None:
    """A program computes one tile, BLOCK_K products per step, in float32, and rounds its sums once."""
    tile_m, tile_n = grouped(tl.program_id(0), tl.cdiv(m, BLOCK_M), tl.cdiv(n, BLOCK_N), GROUP_M)
    # 64 bits: row * a_row passes 2**31 in a matrix of more than 2**31 elements.
    row = tile_m.to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)[:, None]
    column = tile_n.to(tl.int64) * BLOCK_N + tl.arange(0, BLOCK_N)[None, :]
    total = tile_of(
        a,
        b,
        m,
        n,
        k,
        0,
        row,
        column,
        a_row,
        a_column,
        b_row,
        b_column,
        BLOCK_M,
        BLOCK_N,
        BLOCK_K,
        EVEN_M,
        EVEN_N,
        EVEN_K,
        ARITHMETIC,
        IMPRECISE,
        WIDEN,
    )
    if scale_a is not None:
        total *= tl.load(scale_a) * tl.load(scale_b)
    to = out + row * n + column
    result = total.to(out.dtype.element_ty)
    if EVEN_M and EVEN_N:
        tl.store(to, result)
    else:
        tl.store(to, result, mask=(row < m) & (column < n))


def tiled(  # noqa: PLR0913  # inputs and parameters
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
) -> torch.Tensor:
    """Return the product of an (m, k) and a (k, n) matrix, one program per ``block_m`` by ``block_n`` tile.
    Raises ValueError for other inputs and for an arithmetic that their dtype does not have."""
    check_product(a, b, arithmetic, scale_a, scale_b)
    (m, k), n = a.shape, b.shape[1]
    out = empty_product(a, b)
    a, b = operands(_tiled, a, b)
    if out.numel() > 0:
        _tiled[launch_grid(triton.cdiv(m, block_m) * triton.cdiv(n, block_n))](
            out,
            a,
            b,
            scale_a,
            scale_b,
            m,
            n,
            k,
            *a.stride(),
            *b.stride(),
            BLOCK_M=block_m,
            BLOCK_N=block_n,
            BLOCK_K=block_k,
            GROUP_M=group_m,
            EVEN_M=m % block_m == 0,
            EVEN_N=n % block_n == 0,
            EVEN_K=k % block_k == 0,
            ARITHMETIC=precision(arithmetic),
            IMPRECISE=imprecise_sums(a, arithmetic, block_k),
            WIDEN=is_interpreted(_tiled),
            num_warps=num_warps,
            num_stages=num_stages,
        )
    return out
