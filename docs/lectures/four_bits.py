"""Weights in four bits: groups with a scale, two tricks of unpacking, and the bytes of a product."""

from __future__ import annotations

import torch

ROWS, COLUMNS, GROUP = 256, 1024, 128

torch.manual_seed(0)
w = torch.randn(ROWS, COLUMNS)
x = torch.randn(16, COLUMNS)
for group in (COLUMNS, GROUP, 32):
    grouped = w.view(ROWS, -1, group)
    scale = grouped.abs().amax(2, keepdim=True) / 7
    number = (grouped / scale).round().clamp(-8, 7) + 8  # 0 to 15: four bits
    restored = ((number - 8) * scale).view_as(w)
    error = ((x @ restored.T - x @ w.T).norm() / (x @ w.T).norm()).item()
    bits = 4 + 16 / group
    print(f"group of {group:4}: {bits:.2f} bits a weight, error of the product {error:.1%}")

numbers = torch.arange(16, dtype=torch.int16)
by_bits = (numbers | 0x4300).view(torch.bfloat16)  # the bits of a bfloat16: no conversion
print("0x4300 | number, as bfloat16:", by_bits[[0, 1, 15]].tolist())
print("less 136:", (by_bits - 136)[[0, 1, 15]].tolist())

for m in (1, 16, 256, 4096):
    n = k = 8192
    sixteen, four = (2 * m * n * k / (n * k * bits / 8) for bits in (16, 4))
    print(f"m = {m:4}: {sixteen:5.0f} operations a byte of 16-bit weights, {four:5.0f} of 4-bit")
