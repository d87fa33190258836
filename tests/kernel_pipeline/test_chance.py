"""The tests of distributions: right draws pass as often as they say, and wrong draws do not."""

import math

import torch

from kernel_pipeline.chance import RARE, chi_squared, kolmogorov_smirnov

GENERATOR = torch.Generator().manual_seed(20260101)


def normal(x: torch.Tensor) -> torch.Tensor:
    return 0.5 * (1 + torch.erf(x / math.sqrt(2)))


def test_right_draws_fail_at_a_significance_as_often_as_it_says() -> None:
    chances = torch.tensor([0.1, 0.2, 0.3, 0.4])
    counts = [
        torch.multinomial(chances, 2000, replacement=True, generator=GENERATOR).bincount(minlength=4)
        for _ in range(2000)
    ]
    samples = [torch.randn(500, generator=GENERATOR) for _ in range(2000)]
    for found in (
        [chi_squared(one, chances) for one in counts],
        [kolmogorov_smirnov(one, normal) for one in samples],
    ):
        for significance in (0.5, 0.1, 0.01):
            share = sum(one < significance for one in found) / len(found)
            error = math.sqrt(significance / len(found))
            assert abs(share - significance) < 5 * error, (significance, share)
        assert min(found) > 1e-6


def test_wrong_draws_are_rarer_than_the_limit() -> None:
    assert chi_squared(torch.tensor([5200, 4800]), [0.5, 0.5]) > RARE  # four standard deviations
    assert chi_squared(torch.tensor([5350, 4650]), [0.5, 0.5]) < RARE  # seven
    sample = torch.randn(20000, generator=GENERATOR)
    assert kolmogorov_smirnov(sample, normal) > 1e-6
    assert kolmogorov_smirnov(sample * 1.1, normal) < RARE
    assert kolmogorov_smirnov(sample + 0.1, normal) < RARE


def test_known_significances() -> None:
    """One degree of freedom is the square of a normal variable; Kolmogorov's 5 % lie beyond 1.358."""
    assert abs(chi_squared(torch.tensor([598, 402]), [0.5, 0.5]) / math.erfc(6.198 / math.sqrt(2)) - 1) < 1e-2
    n = 10000
    shifted = torch.arange(n, dtype=torch.float64) / n + 1.358 / (math.sqrt(n) + 0.12)
    assert abs(kolmogorov_smirnov(shifted, lambda x: x) - 0.05) < 1e-3
