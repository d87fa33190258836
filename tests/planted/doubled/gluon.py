"""Twice a vector in Gluon, which has no interpreter."""

from __future__ import annotations

import torch
import triton
from triton.experimental import gluon
from triton.experimental.gluon import language as gl

BLOCK = 1024
WARPS = 4


@gluon.jit
def _double(out, x, elements, BLOCK: gl.constexpr, layout: gl.constexpr):  # type: ignore[no-untyped-def]
    offset = gl.program_id(0) * BLOCK + gl.arange(0, BLOCK, layout=layout)
    inside = offset < elements
    gl.store(out + offset, gl.load(x + offset, mask=inside) * 2, mask=inside)


def double(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    layout = gl.BlockedLayout([BLOCK // 32 // WARPS], [32], [WARPS], [0])
    grid = (triton.cdiv(x.numel(), BLOCK),)
    _double[grid](out, x, x.numel(), BLOCK=BLOCK, layout=layout, num_warps=WARPS)
    return out
