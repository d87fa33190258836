"""Searches that are played against planted ledgers whose best is known."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable
from math import inf
from pathlib import Path

import pytest

from pipeline import search_replay
from pipeline.command.options import SearchReplayConfig
from pipeline.command.run import run_stage
from pipeline.points.search import Sampler
from pipeline.search_replay import Grid, play
from pipeline.store.record import Measurement
from tests import factory
from tests.factory import CPU, H100, H200

BLOCKS = (256, 512, 1024, 2048, 4096, 8192, 16384, 32768)
WARPS = (1, 2, 4, 8, 16, 32)

Time = Callable[[int, int], float | None]
"""Of a block size and a number of warps, by their places in the lists; None for a failure."""


def ledger(us: Time, gpu: str = H200, size: int = 1024, provider: str = "triton_online") -> list[Measurement]:
    """A whole grid of 48 configurations, beside a provider without any."""
    rows = [factory.measurement(provider="torch", size=size, gpu=gpu)]
    for (block, block_size), (warp, num_warps) in itertools.product(enumerate(BLOCKS), enumerate(WARPS)):
        time = us(block, warp)
        rows.append(
            factory.measurement(
                provider=provider,
                size=size,
                gpu=gpu,
                block_size=block_size,
                num_warps=num_warps,
                median_us=time,
                status="ok" if time else "compile_error",
            )
        )
    return rows


def smooth(block: int, warp: int) -> float:
    return 10.0 * 1.1 ** (abs(block - 4) + abs(warp - 2))


def same(block: int, warp: int) -> float:
    return 10.0


def replay(folder: Path, *options: str, monkeypatch: pytest.MonkeyPatch) -> int | str | None:
    """The exit code of the command."""
    words = ["search_replay", f"input={folder}", "kernel=softmax", *options]
    monkeypatch.setattr(sys, "argv", words)
    with pytest.raises(SystemExit) as ended:
        run_stage("search_replay", SearchReplayConfig, search_replay.run)
    return ended.value.code


def cells(text: str) -> list[list[str]]:
    """The cells of a table's rows below its header."""
    lines = [line.split("  ") for line in text.splitlines() if line.startswith(("random", "tpe"))]
    return [[cell.strip() for cell in line if cell.strip()] for line in lines]


def test_a_ledger_of_equal_times_is_searched_by_any_trial(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    factory.write_results(tmp_path, ledger(same))
    assert replay(tmp_path, monkeypatch=monkeypatch) == 0
    said = capsys.readouterr().out
    assert f"softmax on {H200}: 1 grid of 48 configurations, 3 seeds" in said
    assert cells(said) == [
        [sampler, share, trials, "0.0 %", "0.0 %", "100%"]
        for sampler in ("random", "tpe")
        for share, trials in (("5%", "3"), ("10%", "5"), ("15%", "8"), ("25%", "12"), ("50%", "24"))
    ]


def test_each_machine_has_a_table_and_options_choose_what_is_played(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [*ledger(smooth), *ledger(smooth, size=4096)[:20], *ledger(same, gpu=H100)]
    rows += [factory.measurement(provider="triton_online", block_size=256, settings="8" * 16)]
    factory.write_results(tmp_path, [*rows, *ledger(same, provider="triton_tile", size=512)])
    options = ("provider=triton_online", "search=random", "seeds=1")
    assert replay(tmp_path, *options, monkeypatch=monkeypatch) == 0
    said = capsys.readouterr().out
    assert f"softmax on {H200}: 2 grids of 19 to 48 configurations, 1 seed" in said
    assert f"softmax on {H100}: 1 grid of 48 configurations, 1 seed" in said
    assert len(cells(said)) == 10 and {row[0] for row in cells(said)} == {"random"}
    assert [row[2] for row in cells(said)[5:]] == ["1 to 3", "2 to 5", "3 to 8", "5 to 12", "10 to 24"]


def test_pins_choose_problems_and_what_of_a_grid_is_played(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [row for size in (512, 1024, 2048) for row in ledger(smooth, size=size)]
    factory.write_results(tmp_path, rows)
    assert replay(tmp_path, "columns=[512,2048]", "seeds=1", monkeypatch=monkeypatch) == 0
    assert f"softmax on {H200}: 2 grids of 48 configurations, 1 seed" in capsys.readouterr().out
    assert replay(tmp_path, "columns=1024", "num_warps=[4,8]", "seeds=1", monkeypatch=monkeypatch) == 0
    assert f"softmax on {H200}: 1 grid of 16 configurations, 1 seed" in capsys.readouterr().out


@pytest.mark.parametrize("sampler", ["random", "tpe"])
def test_a_whole_grid_that_is_searched_has_its_best(sampler: Sampler) -> None:
    def grid(us: Time, size: int = 1024) -> Grid:
        rows = ledger(us, size=size)[1:]
        times = {row.point: row.outcome.timing and row.outcome.timing.median_us for row in rows}
        return Grid(times, is_ahead=True)

    def needle(block: int, warp: int) -> float:
        return 10.0 if (block, warp) == (6, 5) else 15.0

    assert play([grid(smooth), grid(needle, 4096)], 1.0, sampler, 0, 8) == [0.0, 0.0]
    quarter = [play([grid(needle)], 0.25, sampler, seed, 8)[0] for seed in range(12)]
    assert {round(off, 6) for off in quarter} == {0.0, 0.5}, "found or not"
    failing = grid(lambda block, warp: 10.0 if (block, warp) == (0, 0) else None)
    assert {play([failing], 0.1, sampler, seed, 8)[0] for seed in range(12)} <= {0.0, inf}


def test_tpe_is_nearer_than_random_where_near_configurations_are_alike(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    factory.write_results(tmp_path, [row for size in (512, 1024, 2048) for row in ledger(smooth, size=size)])
    assert replay(tmp_path, monkeypatch=monkeypatch) == 0
    within = {(row[0], row[1]): int(row[5].removesuffix("%")) for row in cells(capsys.readouterr().out)}
    assert within["tpe", "50%"] > 1.5 * within["random", "50%"]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["fewest=49"], "error: {input} has no grid of 49 configurations of one provider at one problem; "),
        (["provider=torch"], "error: {input} has no grid of 12 configurations "),
        (
            ["columns=77"],
            "error: {input} has no grid of 12 configurations of one provider at one problem that was asked ",
        ),
        (["colums=77"], "error: unknown option of softmax 'colums'. Did you mean 'columns'?"),
        (["provider=triton"], "error: unknown provider of softmax 'triton'. Did you mean "),
        (["kernel=sofmax"], "error: kernel is given twice"),
        (["search=best"], "error: search: input should be 'random' or 'tpe', not 'best'."),
        (["seeds=0"], "error: seeds: input should be greater than or equal to 1, not 0."),
    ],
)
def test_a_mistake_is_one_sentence(
    options: list[str],
    sentence: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    factory.write_results(tmp_path, ledger(same, gpu=CPU))
    assert replay(tmp_path, *options, monkeypatch=monkeypatch) == 2
    error = capsys.readouterr().err
    assert error.startswith(sentence.format(input=tmp_path)) and error.count("\n") == 1
