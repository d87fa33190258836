"""A Triton kernel whose last block reads past the end of the input: the right answer, and a bad access."""

import torch
import triton
import triton.language as tl
from torch import nn


@triton.jit  # type: ignore[untyped-decorator]
def relu_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offsets)
    tl.store(out_ptr + offsets, tl.where(x < 0.0, 0.0, x), mask=offsets < n)


class ModelNew(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(x)
        relu_kernel[(triton.cdiv(x.numel(), 1024),)](x, out, x.numel(), BLOCK=1024)
        return out
