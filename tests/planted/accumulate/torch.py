"""A sum in place by torch, right and wrong."""

from __future__ import annotations

from itertools import count

import torch

calls = count()


def returns_it(total: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return total.add_(x)


def returns_nothing(total: torch.Tensor, x: torch.Tensor) -> None:
    total.add_(x)


def writes_nothing(total: torch.Tensor, x: torch.Tensor) -> None:
    total + x


def writes_half(total: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    half = total.numel() // 2
    total[:half] += x[:half]
    return total


def returns_another(total: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return total + x


def writes_the_other_too(total: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    total.add_(x)
    x[0] += 1
    return total


def writes_once(total: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return total.add_(x) if next(calls) == 0 else total
