"""The square in Triton, as a first lecture writes it: one program per row.

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


def square(x: torch.Tensor) -> torch.Tensor:
    """The square of a contiguous matrix, one program per row."""
    rows, columns = x.shape
    out = torch.empty_like(x)
    _square_rows[(rows,)](out, x, x.stride(0), columns, BLOCK_SIZE=triton.next_power_of_2(columns))
    return out


if __name__ == "__main__":
    device = "cuda" if torch.cuda.is_available() else "cpu"
    x = torch.randn(64, 781, device=device)
    torch.testing.assert_close(square(x), torch.square(x))
    print(f"square of {tuple(x.shape)} on {device}: as torch's")
