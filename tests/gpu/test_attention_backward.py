"""attention_backward's cuda_flash on a GPU: lengths, layouts, large scores, and the same bits each time."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest
import torch

from kernel_pipeline import loading
from kernels.attention.parameters import Problem
from kernels.attention_backward.parameters import CUDA_TILES, WarpSpecialized
from tests.gpu.test_attention import CUDA, OF_DTYPES, apart, between, lengths_of, padded, shifted
from tests.kernels.kernel_cases import Case, gpu

pytestmark = [pytest.mark.gpu, pytest.mark.builds]

LOADED = loading.load("attention_backward")
FLASH = Case(LOADED, LOADED.kernel.provider("cuda_flash"))


def flash(
    problem: Problem,
    tiles: WarpSpecialized,
    inputs: loading.Tensors | None = None,
    expected: loading.Tensors | None = None,
) -> loading.Tensors:
    """cuda_flash gives the reference's answer, or the test is skipped."""
    if not FLASH.runs_here:
        pytest.skip("needs Hopper")
    assert FLASH.provider.fits(problem, tiles, gpu()) is None
    given = FLASH.inputs(problem) if inputs is None else inputs
    return FLASH.verify(problem, given, dataclasses.asdict(tiles), expected)


def tiles_of(head_dim: int, deterministic: bool = False) -> list[WarpSpecialized]:
    """The tiles for a head_dim."""
    return [
        WarpSpecialized(block_m=block_m, stages=stages, deterministic=deterministic)
        for block_m, stages in CUDA_TILES[head_dim]
    ]


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("lengths", "dtype"), OF_DTYPES)
@pytest.mark.parametrize("head_dim", CUDA_TILES)
def test_tiles(head_dim: int, dtype: str, lengths: tuple[int, int, int, int, int], causal: bool) -> None:
    if not FLASH.runs_here:
        pytest.skip("needs Hopper")
    problem = lengths_of(lengths, head_dim, causal, dtype)
    inputs = FLASH.inputs(problem)
    expected = FLASH.in_form.expected(problem, inputs)
    for deterministic in (False, True):
        for tiles in tiles_of(head_dim, deterministic):
            flash(problem, tiles, inputs, expected)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("head_dim", CUDA_TILES)
@pytest.mark.parametrize("lying", [between, shifted, apart, padded])
def test_takes_every_layout(
    lying: Callable[[torch.Tensor], torch.Tensor], head_dim: int, causal: bool
) -> None:
    problem = lengths_of((2, 4, 4, 200, 300), head_dim, causal)
    tiles = tiles_of(head_dim, deterministic=True)[0]
    q, k, v, out, lse, d_out = FLASH.inputs(problem)
    expected = flash(problem, tiles, (q, k, v, out, lse, d_out))
    laid = (lying(q), lying(k), lying(v), lying(out), lse.mT.contiguous().mT, lying(d_out))
    assert all(map(torch.equal, flash(problem, tiles, laid), expected))


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("head_dim", CUDA_TILES)
def test_takes_large_scores(head_dim: int, causal: bool) -> None:
    """Scores of hundreds, whose exponentials are beyond float32 without their rows' logarithms."""
    if not FLASH.runs_here:
        pytest.skip("needs Hopper")
    problem = lengths_of((1, 2, 2, 300, 700), head_dim, causal)
    q, k, v, _, _, d_out = FLASH.inputs(problem)
    hidden = torch.ones(300, 700, dtype=torch.bool, device=CUDA).triu(401)
    for keys in (20 * k, 20 * k.abs(), -20 * k.abs(), 0 * k):
        scores = q.abs().double() @ keys.double().mT / head_dim**0.5
        if causal:
            scores.masked_fill_(hidden, -torch.inf)
        out = (scores.softmax(-1) @ v.double()).to(q.dtype)
        inputs = (q.abs(), keys, v, out, scores.logsumexp(-1).float(), d_out)
        made = FLASH.call(problem, inputs, dataclasses.asdict(tiles_of(head_dim)[0]))
        for x, exact in zip(made, FLASH.in_form.expected(problem, inputs), strict=True):
            assert (x.double() - exact).norm() <= 0.02 * exact.norm() + 1e-3


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("head_dim", CUDA_TILES)
def test_gives_the_same_bits_each_time(head_dim: int, causal: bool) -> None:
    """A race of copies and products would show in some of many calls."""
    if not FLASH.runs_here:
        pytest.skip("needs Hopper")
    problem = lengths_of((4, 16, 4, 700, 900), head_dim, causal)
    inputs = FLASH.inputs(problem)
    for tiles in tiles_of(head_dim, deterministic=True):
        first = flash(problem, tiles, inputs)
        for _ in range(100):
            again = FLASH.call(problem, inputs, dataclasses.asdict(tiles))
            assert all(map(torch.equal, again, first))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("head_dim", CUDA_TILES)
def test_parts_of_a_block_of_keys(head_dim: int, causal: bool, dtype: str) -> None:
    """Of heads, of the queries of a head, and more parts than the last keys have tiles of queries."""
    if not FLASH.runs_here:
        pytest.skip("needs Hopper")
    problem = lengths_of((2, 16, 2, 333, 400), head_dim, causal, dtype)
    for one in (problem, dataclasses.replace(problem, kv_heads=16)):
        inputs = FLASH.inputs(one)
        expected = FLASH.in_form.expected(one, inputs)
        for tiles in tiles_of(head_dim):
            for split in (2, 3, 8):
                parts = dataclasses.replace(tiles, split=split)
                if FLASH.provider.fits(one, parts, gpu()) is None:
                    flash(one, parts, inputs, expected)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("head_dim", CUDA_TILES)
def test_parts_give_the_same_bits_each_time_and_take_every_layout(head_dim: int, causal: bool) -> None:
    if not FLASH.runs_here:
        pytest.skip("needs Hopper")
    problem = lengths_of((2, 16, 2, 333, 400), head_dim, causal)
    inputs = FLASH.inputs(problem)
    for tiles in tiles_of(head_dim, deterministic=True):
        parts = dataclasses.replace(tiles, split=4)
        first = flash(problem, parts, inputs)
        for _ in range(20):
            assert all(map(torch.equal, FLASH.call(problem, inputs, dataclasses.asdict(parts)), first))
        q, k, v, out, lse, d_out = inputs
        laid = (padded(q), padded(k), shifted(v), padded(out), lse, apart(d_out))
        assert all(map(torch.equal, flash(problem, parts, laid), first))
        # Parts within a head: dq is a sum in any order.
        parts = dataclasses.replace(tiles, split=3, deterministic=False)
        _, *first = flash(problem, parts, laid)
        for _ in range(20):
            assert all(map(torch.equal, FLASH.call(problem, inputs, dataclasses.asdict(parts))[1:], first))


def test_refuses_parts_that_there_are_none_of() -> None:
    if not FLASH.runs_here:
        pytest.skip("needs Hopper")
    problem = lengths_of((2, 16, 2, 333, 400), 64, causal=True)
    inputs = FLASH.inputs(problem)
    for split, deterministic, why in (
        (3, True, "3 of 8 heads"),
        (25, False, "25 of 24"),
        (-1, False, "-1 of 24"),
    ):
        tiles = {"block_m": 128, "stages": 2, "deterministic": deterministic, "split": split}
        with pytest.raises(RuntimeError, match=f"parts? .*, not {why}"):
            FLASH.call(problem, inputs, tiles)
    flash(problem, WarpSpecialized(block_m=128, stages=2, split=8), inputs)


def test_refuses_tiles_that_there_are_none_of() -> None:
    if not FLASH.runs_here:
        pytest.skip("needs Hopper")
    problem = lengths_of((1, 1, 1, 64, 64), 64, causal=False)
    tiles = WarpSpecialized(block_m=64, stages=2)
    with pytest.raises(RuntimeError, match="no tiles of 64 queries in 2 stages for a head_dim of 64"):
        FLASH.call(problem, FLASH.inputs(problem), dataclasses.asdict(tiles))
