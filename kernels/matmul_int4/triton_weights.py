"""Unpack four-bit weights in Triton.

A shift moves the weight at bits 4 s of a word to the four highest bits of a float32's fraction. With the
exponent of 16 that float32 is 16 + q, and no integer is converted. It is 24 more than q - 8, so 24 scales are
subtracted from the zero, once for the eight weights of a word. Each weight then costs a shift, a logical
operation and a multiply-add.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit  # type: ignore[untyped-decorator]
def words_at(
    packed: tl.tensor, row: tl.tensor, column: tl.tensor, tiles_k: tl.tensor, BLOCK_K: tl.constexpr
) -> tl.tensor:
    """Return pointers to the words that hold ``BLOCK_K`` columns of some rows of w, from ``column`` on.

    The 16 words of a row in a tile of the packing are contiguous.
    """
    word = tl.arange(0, BLOCK_K // 8)[None, :]
    tile = row // 8 * tiles_k + column // 128 + word // 16
    return packed + tile * 128 + row % 8 * 16 + word % 16


@triton.jit  # type: ignore[untyped-decorator]
def pairs_at(
    scales: tl.tensor,
    row: tl.tensor,
    column: tl.tensor,
    n: tl.tensor,
    BLOCK_K: tl.constexpr,
    GROUP: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor]:
    """Return a pointer to the scale and zero of each of these words, as one 32-bit number, and the word's
    group. Word 4 t + p of a tile has weights of columns 32 p to 32 p + 31."""
    word = tl.arange(0, BLOCK_K // 8)[None, :]
    group = (column + word // 16 * 128 + word % 4 * 32) // GROUP
    return scales + group.to(tl.int64) * n + row, group


@triton.jit  # type: ignore[untyped-decorator]
def scale_and_zero(pair: tl.tensor, BFLOAT16: tl.constexpr) -> tuple[tl.tensor, tl.tensor]:
    """Return the scale, and the zero less 24 scales, in float32."""
    if BFLOAT16:
        scale = (pair << 16).to(tl.float32, bitcast=True)
        zero = (pair & -65536).to(tl.float32, bitcast=True)
    else:
        scale = pair.to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)
        zero = (pair >> 16).to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)
    return scale, zero - 24.0 * scale


@triton.jit  # type: ignore[untyped-decorator]
def weight(words: tl.tensor, scale: tl.tensor, zero: tl.tensor, PLACE: tl.constexpr) -> tl.tensor:
    """Return one weight of each word, at bits 4 PLACE, in float32."""
    moved = words << 19 - 4 * PLACE if PLACE < 5 else words >> 4 * PLACE - 19
    raised = ((moved & 0x780000) | 0x41800000).to(tl.float32, bitcast=True)
    return raised * scale + zero


@triton.jit  # type: ignore[untyped-decorator]
def weights(
    words: tl.tensor, scale: tl.tensor, zero: tl.tensor, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr
) -> tl.tensor:
    """Return all weights of the words of BLOCK_N rows, in order, in float32.

    The thread that loads a word holds its weights in the registers that the tensor core reads, so no weight
    moves.
    """
    # PLACE is 4 b + 2 h + e.
    of_00 = tl.join(weight(words, scale, zero, 0), weight(words, scale, zero, 4))
    of_01 = tl.join(weight(words, scale, zero, 1), weight(words, scale, zero, 5))
    of_10 = tl.join(weight(words, scale, zero, 2), weight(words, scale, zero, 6))
    of_11 = tl.join(weight(words, scale, zero, 3), weight(words, scale, zero, 7))
    every = tl.join(tl.join(of_00, of_01), tl.join(of_10, of_11))
    apart = every.reshape(BLOCK_N, BLOCK_K // 128, 4, 4, 2, 2, 2)
    # The dimensions are row, tile, t, p, b, e, h; a column is 128 tile + 32 p + 16 h + 8 e + 2 t + b.
    return tl.permute(apart, (0, 1, 3, 6, 5, 2, 4)).reshape(BLOCK_N, BLOCK_K)
