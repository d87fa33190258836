"""What is said of two times: an estimate of their ratio, and a verdict; without what computes them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Verdict = Literal["same", "faster", "slower", "undecided"]


@dataclass(frozen=True)
class Estimate:
    """A ratio of times with its interval, and how probable one so far from 1 is where there is no difference
    beyond the rule's bound (1 where it is not beyond)."""

    rounds: int
    ratio: float
    low: float
    high: float
    probability: float
