"""A tile of a matrix product, with a loop over K.

A program computes a tile of M x N of c = a @ b. It goes along K in steps of STEP: in each it loads a tile
of a and a tile of b, and adds their product. K is no multiple of STEP. In float32, tl.dot needs
input_precision="ieee" to round as the check does.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl


@triton.jit
def _matmul(c, a, b, m, n, k, M: tl.constexpr, N: tl.constexpr, STEP: tl.constexpr):
    row = tl.program_id(0) * M + tl.arange(0, M)[:, None]
    column = tl.program_id(1) * N + tl.arange(0, N)[None, :]
    total = tl.zeros((M, N), tl.float32)
    for start in range(0, k, STEP):
        # YOURS: load the tiles a[row, start...] and b[start..., column], and add their product to `total`.
        along = start + tl.arange(0, STEP)
        a_tile = tl.load(a + row * k + along[None, :], mask=(row < m) & (along[None, :] < k), other=0.0)
        b_tile = tl.load(b + along[:, None] * n + column, mask=(along[:, None] < k) & (column < n), other=0.0)
        total += tl.dot(a_tile, b_tile, input_precision="ieee")
        # END
    tl.store(c + row * n + column, total, mask=(row < m) & (column < n))


def yours(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Launch a program for each tile of 16 x 32."""
    (m, k), n = a.shape, b.shape[1]
    c = torch.empty((m, n), device=a.device)
    _matmul[(triton.cdiv(m, 16), triton.cdiv(n, 32))](c, a, b, m, n, k, M=16, N=32, STEP=16)
    return c


def expected(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """The product in float64."""
    return a.double() @ b.double()


def cases():
    """Whole tiles, and tiles with a rest in every direction."""
    for m, n, k in ((16, 32, 32), (20, 40, 32), (20, 40, 50)):
        # Slices: behind the matrices there are numbers, not the end of memory.
        yield torch.randn(2 * m, k)[:m], torch.randn(2 * k, n)[:k]


TOPIC, STEP = "Triton", 6

MISTAKE = """
along = start + tl.arange(0, STEP)
a_tile = tl.load(a + row * k + along[None, :], mask=row < m, other=0.0)
b_tile = tl.load(b + along[:, None] * n + column, mask=column < n, other=0.0)
total += tl.dot(a_tile, b_tile, input_precision="ieee")
"""

HINTS = (
    "STEP numbers along K are columns of a's tile, along[None, :], and rows of b's, along[:, None].",
    "a's tile is at a + row * k + along[None, :], and b's at b + along[:, None] * n + column.",
    "In the last step some of `along` are beyond k. They must add nothing: mask them, with other=0.0.",
)
