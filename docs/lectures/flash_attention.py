"""Attention with the whole matrix of scores, in two passes over the keys, and in one."""

from __future__ import annotations

import torch

QUERIES, KEYS, DIM, BLOCK = 256, 1024, 64, 128

torch.manual_seed(0)
q, k, v = (torch.randn(n, DIM, dtype=torch.float64) for n in (QUERIES, KEYS, KEYS))
q *= DIM**-0.5
blocks = list(zip(k.split(BLOCK), v.split(BLOCK), strict=True))


def whole() -> torch.Tensor:
    """All scores, then softmax, then the weighted sum of the values."""
    return torch.softmax(q @ k.T, 1) @ v


def two_passes() -> torch.Tensor:
    """The first pass finds each row's maximum and sum, the second computes the scores again and uses them."""
    maximum = torch.full((QUERIES, 1), -torch.inf, dtype=q.dtype)
    total = torch.zeros_like(maximum)
    for keys, _ in blocks:
        scores = q @ keys.T
        larger = torch.maximum(maximum, scores.amax(1, keepdim=True))
        total = total * torch.exp(maximum - larger) + torch.exp(scores - larger).sum(1, keepdim=True)
        maximum = larger
    out = torch.zeros_like(q)
    for keys, values in blocks:
        out += torch.exp(q @ keys.T - maximum) / total @ values
    return out


def one_pass() -> torch.Tensor:
    """The weighted sum is computed in the same pass, and corrected by the same factor as the sum."""
    maximum = torch.full((QUERIES, 1), -torch.inf, dtype=q.dtype)
    total, sums = torch.zeros_like(maximum), torch.zeros_like(q)
    for keys, values in blocks:
        scores = q @ keys.T
        larger = torch.maximum(maximum, scores.amax(1, keepdim=True))
        factor, weights = torch.exp(maximum - larger), torch.exp(scores - larger)
        total = total * factor + weights.sum(1, keepdim=True)
        sums = sums * factor + weights @ values
        maximum = larger
    return sums / total


print("form            scores at once   products with k   largest error")
for form, held, products in ((whole, KEYS, 1), (two_passes, BLOCK, 2), (one_pass, BLOCK, 1)):
    error = (form() - whole()).abs().max().item()
    print(f"{form.__name__:16}{QUERIES * held:14}{products:18}   {'below 1e-12' if error < 1e-12 else error}")
