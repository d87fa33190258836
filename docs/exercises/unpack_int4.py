"""Unpack four-bit weights, two per byte.

A program unpacks BLOCK bytes into 2 x BLOCK weights. Byte i holds weight 2i in its lower four bits and
weight 2i + 1 in its upper four, each as a number from 0 to 15 that stands for -8 to 7. A weight is that
number times the scale of its group of 32 weights.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl


@triton.jit
def _unpack(out, packed, scales, weights, BLOCK: tl.constexpr):
    number = tl.program_id(0) * 2 * BLOCK + tl.arange(0, 2 * BLOCK)
    inside = number < weights
    # YOURS: load the byte of each weight and the scale of its group, and compute `result`.
    byte = tl.load(packed + number // 2, mask=inside, other=0)
    nibble = (byte >> (number % 2 * 4)) & 15
    scale = tl.load(scales + number // 32, mask=inside, other=0.0)
    result = (nibble.to(tl.int32) - 8).to(tl.float32) * scale
    # END
    tl.store(out + number, result, mask=inside)


def yours(packed: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """Launch a program for every 64 bytes."""
    out = torch.empty(2 * packed.numel(), device=packed.device)
    _unpack[(triton.cdiv(packed.numel(), 64),)](out, packed, scales, out.numel(), BLOCK=64)
    return out


def expected(packed: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """The weights in float64."""
    nibbles = torch.stack([packed & 15, packed >> 4], dim=1).reshape(-1)
    return (nibbles.double() - 8) * scales.double().repeat_interleave(32)


def cases():
    """All bytes, and random ones that do not fill a block."""
    yield torch.arange(256, dtype=torch.uint8), torch.rand(16) + 0.5
    yield torch.randint(256, (80,), dtype=torch.uint8), torch.randn(5)


TOPIC, STEP = "Triton", 7

MISTAKE = """
byte = tl.load(packed + number // 2, mask=inside, other=0)
nibble = (byte >> (number % 2 * 4)) & 15
scale = tl.load(scales + number // 32, mask=inside, other=0.0)
result = (nibble.to(tl.uint8) - 8).to(tl.uint8).to(tl.float32) * scale
"""

HINTS = (
    "Weight `number` is in byte number // 2. An odd one is in the upper half: shift it down by 4.",
    "& 15 keeps four bits. A byte has no sign: convert before you subtract 8.",
    "result = (nibble.to(tl.int32) - 8).to(tl.float32) * scale, where scale is scales[number // 32].",
)
