"""Tests of random outputs, for the ``comparison`` of a kernel that declares ``draws``.

Each returns the probability that draws of the declared distribution are at least as far from it as those that
were observed. A provider is wrong if it is below ``RARE``.

    if chi_squared(torch.stack([kept.sum(), (~kept).sum()]), [0.9, 0.1]) < RARE:
        return f"keeps {kept.double().mean():.2%} of the elements, not 90%"
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch

RARE = 1e-9
"""A right provider fails a test at this significance once in a billion times. A point has about twenty."""

TERMS = 100
"""Terms of Kolmogorov's series. They fall as fast as a bell curve."""


def chi_squared(counts: torch.Tensor, chances: Sequence[float] | torch.Tensor) -> float:
    """Return the significance of counts in Pearson's chi-squared test.

    ``counts`` are the numbers of draws by outcome, shape (outcomes,), and ``chances`` the probabilities of
    the outcomes, of which none is 0. Each outcome should be expected a hundred times: at few counts the
    test's distribution is not yet that of chi-squared, so rare outcomes are counted together.
    """
    observed = counts.double().cpu()
    expected = torch.as_tensor(chances, dtype=torch.float64).cpu() * observed.sum()
    distance = ((observed - expected).square() / expected).sum()
    freedom = torch.tensor(len(observed) - 1.0, dtype=torch.float64)
    return float(torch.special.gammaincc(freedom / 2, distance / 2))


def kolmogorov_smirnov(sample: torch.Tensor, below: Callable[[torch.Tensor], torch.Tensor]) -> float:
    """Return the significance of a sample in Kolmogorov and Smirnov's test, for a hundred draws or more.

    ``sample`` holds draws from a continuous distribution, in any shape. ``below(x)`` returns the probability
    of a draw below each x, in float64. The limiting distribution is taken at Stephens' corrected distance
    (Journal of the Royal Statistical Society B 32, 1970).
    """
    chances = below(sample.double().reshape(-1).sort().values).cpu()
    count = len(chances)
    steps = torch.arange(count + 1, dtype=torch.float64) / count
    distance = float(torch.maximum(steps[1:] - chances, chances - steps[:-1]).max())
    scaled = (math.sqrt(count) + 0.12 + 0.11 / math.sqrt(count)) * distance
    if scaled < 0.2:
        return 1.0  # the series converges slowly here, and the probability is 1 to ten digits
    terms = (2.0 * (-1.0) ** (k - 1) * math.exp(-2.0 * (k * scaled) ** 2) for k in range(1, TERMS))
    return min(1.0, max(0.0, sum(terms)))
