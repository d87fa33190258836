"""The number of parts of a block of keys in attention_backward's cuda_flash."""

import pytest

from kernels.attention.parameters import Problem
from kernels.attention_backward.parts import part_steps, parts

H200 = 132
"""Multiprocessors."""


def problem(
    batch: int, heads: int, kv_heads: int, seq: int, causal: bool = False, head_dim: int = 128
) -> Problem:
    return Problem(
        batch=batch, heads=heads, kv_heads=kv_heads, seq_q=seq, seq_k=seq, head_dim=head_dim, causal=causal
    )


MEASURED = [
    (problem(1, 16, 16, 768), 64, {1: 45.0, 2: 52.5, 4: 53.9}),
    (problem(1, 16, 16, 768, causal=True), 64, {1: 44.5, 2: 36.8, 3: 38.9, 4: 43.0}),
    (problem(1, 8, 8, 320), 64, {1: 24.0, 2: 21.1, 3: 19.8, 4: 19.8}),
    (problem(8, 16, 2, 96), 64, {1: 51.9, 2: 34.4, 3: 30.2, 4: 26.0, 8: 24.4}),
    (problem(4, 32, 8, 320, causal=True, head_dim=64), 128, {1: 49.9, 2: 39.4, 3: 41.4, 4: 43.0, 8: 50.2}),
    (problem(2, 64, 8, 4096, causal=True), 80, {1: 2678, 2: 2487, 4: 2542}),
    (problem(1, 32, 4, 2048), 64, {1: 573, 2: 313, 4: 324}),
]
"""Times in us on an H200, by the number of parts."""


@pytest.mark.parametrize(("at", "block_m", "us"), MEASURED, ids=str)
def test_the_chosen_number_was_nearly_the_fastest(at: Problem, block_m: int, us: dict[int, float]) -> None:
    assert us[parts(at, block_m, False, H200)] <= 1.06 * min(us.values())


def test_the_parts_come_out_even_in_rounds() -> None:
    """17 blocks of keys of two key heads: 8 parts would make 272 blocks, 8 more than two rounds."""
    at = problem(1, 32, 2, 2052, head_dim=64)
    chosen = parts(at, 128, False, H200)
    assert 34 * chosen % H200 > 100
    assert part_steps(at, 128, chosen, H200) < 0.8 * part_steps(at, 128, 8, H200)


def test_turns_need_whole_heads() -> None:
    at = problem(1, 12, 2, 100, causal=True)
    assert parts(at, 64, False, H200) not in (1, 2, 3, 6)
    assert parts(at, 64, True, H200) in (2, 3, 6)
    assert parts(problem(1, 8, 8, 320, causal=True), 64, True, H200) == 1


def test_a_full_gpu_and_a_single_tile_have_one_part() -> None:
    assert parts(problem(8, 16, 16, 2048), 64, False, H200) == 1
    assert parts(problem(1, 1, 1, 64), 64, False, H200) == 1
