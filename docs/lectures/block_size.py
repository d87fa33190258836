"""The square by a program per row, with BLOCK_SIZE fixed: which elements are written.

TRITON_INTERPRET=1 runs it in Python, on any host.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl


@triton.jit
def _square_rows(out, x, row_stride, columns, BLOCK_SIZE: tl.constexpr):
    row = tl.program_id(0)
    column = tl.arange(0, BLOCK_SIZE)
    inside = column < columns
    values = tl.load(x + row * row_stride + column, mask=inside)
    tl.store(out + row * row_stride + column, values * values, mask=inside)


print("columns   BLOCK_SIZE fixed: written   next power of two: written")
for columns in (781, 1024, 2048, 4096, 16384):
    x = torch.randn(4, columns, device="cuda" if torch.cuda.is_available() else "cpu")
    shares = []
    for block_size in (1024, triton.next_power_of_2(columns)):
        out = torch.full_like(x, torch.nan)
        _square_rows[(x.shape[0],)](out, x, x.stride(0), columns, BLOCK_SIZE=block_size)
        shares.append(out.isfinite().float().mean().item())
    print(f"{columns:7}{shares[0]:28.1%}{shares[1]:29.1%}")
