"""The maximum and the sum of a row in one pass, number by number, and what happens without the maximum."""

from __future__ import annotations

import math

import torch

ROW = [1.0, 3.0, 2.0, 6.0, 4.0]

maximum, total = -math.inf, 0.0
print(f"{'x':>4}{'maximum':>9}{'factor':>9}{'sum':>9}")
for x in ROW:
    larger = max(maximum, x)
    factor = math.exp(maximum - larger)
    total = total * factor + math.exp(x - larger)
    maximum = larger
    print(f"{x:4.0f}{maximum:9.0f}{factor:9.4f}{total:9.4f}")

row = torch.tensor(ROW)
torch.testing.assert_close(torch.exp(row - maximum) / total, torch.softmax(row, 0))
print("exp(x - maximum) / sum: as torch's")
large = 100 * row
print("without the maximum, of 100 x:", (large.exp() / large.exp().sum()).tolist())
