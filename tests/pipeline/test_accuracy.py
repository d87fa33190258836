"""The accuracy command's verdicts on points, and a run of it with real workers on a CPU."""

import subprocess
import sys
from pathlib import Path

import pytest

from kernel_pipeline.records.base import Values
from kernel_pipeline.records.point import Point
from pipeline import ROOT
from pipeline.accuracy import AccuracyRow, read_readings, summary
from tests.processes import completed

POINT = Point(
    kernel="square", provider="torch_square", problem=Values({"rows": 64, "columns": 64, "dtype": "float32"})
)


def row(*times: float, switched: tuple[float, ...] = (), stamps: tuple[float, ...] = ()) -> AccuracyRow:
    gross, recorded, duration = stamps or (None, None, None)
    return AccuracyRow(
        point=POINT,
        times_us=times,
        switched_us=switched,
        gross_us=gross,
        recorded_us=recorded,
        duration_us=duration,
    )


@pytest.mark.parametrize(
    ("times", "is_steady"),
    [
        ((1.63,) * 10, True),
        ((1.63,) * 9 + (1.98,), True),  # nine of ten agree
        ((1.63,) * 8 + (1.98, 1.98), False),
        ((1.63,) * 8 + (1.648, 1.612), True),  # 0.02 us, more than 1 %
        ((1.63,) * 8 + (1.655, 1.655), False),
        ((100.0,) * 5 + (100.9,) * 5, True),  # 1 %
        ((100.0,) * 5 + (102.1,) * 5, False),
    ],
)
def test_nine_of_ten_workers_have_to_agree(times: tuple[float, ...], is_steady: bool) -> None:
    assert row(*times).is_steady is is_steady


@pytest.mark.parametrize(("switched", "is_unmoved"), [(1.645, True), (1.66, False), (1.60, False)])
def test_what_mode_switchers_may_move(switched: float, is_unmoved: bool) -> None:
    found = row(*(1.63,) * 10, switched=(switched, switched))
    assert found.is_unmoved is is_unmoved
    assert found.holds is is_unmoved


@pytest.mark.parametrize(
    ("stamps", "is_as_stamped", "is_slowed"),
    [
        ((1.63, 1.63, 1.632), True, False),
        ((1.98, 1.98, 1.632), False, False),  # in the slow mode
        ((1.32, 1.63, 1.632), True, True),
        ((1.32, 1.33, 1.632), False, False),  # 0.31 us too short
        ((54.6, 56.5, 56.4), True, True),  # CUPTI makes it slower
        ((54.6, 54.7, 54.9), True, False),
    ],
)
def test_what_cupti_may_say(stamps: tuple[float, ...], is_as_stamped: bool, is_slowed: bool) -> None:
    found = row(stamps[0], stamps[0], stamps=stamps)
    assert (found.is_as_stamped, found.is_slowed) == (is_as_stamped, is_slowed)


def test_the_summary_counts_points() -> None:
    rows = [
        row(1.0, 1.0, switched=(1.0,), stamps=(1.0, 1.0, 1.0)),
        row(1.0, 2.0, switched=(3.0,), stamps=(9.0, 9.0, 1.0)),
    ]
    spread, switched, stamped = summary(rows)
    assert spread.startswith("spread: at 1 of 2 points")
    assert switched.startswith("switched: at 1 of 2 points")
    assert stamped.startswith("CUPTI: at 1 of 2 points")


def command(*words: str) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-m", *words]
    return completed(line, cwd=ROOT)


@pytest.mark.long
@pytest.mark.slow
def test_fresh_workers_measure_points_of_a_sweep_and_a_stopped_command_goes_on(tmp_path: Path) -> None:
    swept = command(
        *("pipeline.sweep", "kernel=square", "preset=smoke", "device=cpu", "tracking=none"),
        *("provider=[torch_square,torch_mul]", f"output={tmp_path}"),
    )
    assert swept.returncode == 0, swept.stderr
    words = ["pipeline.accuracy", "kernel=square", "device=cpu", "points=2", "workers=3"]
    words += [f"input={tmp_path}", f"output={tmp_path}/accuracy"]
    done = command(*words)
    assert done.returncode in (0, 1), done.stderr  # times on a busy machine vary widely
    (path,) = (tmp_path / "accuracy").glob("*.jsonl")
    # Each point has all its times, except those that the command reports as doubtful on a busy machine.
    lost = done.stdout.count("had to wait for a core")
    times = [one for one in read_readings(path) if one.kind == "fresh"]
    assert len(times) + lost >= 2 * 3
    assert all(one.time_us for one in times)
    assert f"Readings: {path}" in done.stdout
    # A kill during the last write loses only that reading, which is taken again.
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:-1]) + lines[-1][:-20])
    again = command(*words)
    kept = len(lines) - 1
    assert f"{kept} readings are in {path}; {2 * 4 - kept} are missing." in " ".join(again.stdout.split())
    assert len(list(read_readings(path))) >= len(lines)


def test_a_machine_without_rows_is_told_what_to_do_first(tmp_path: Path) -> None:
    done = command("pipeline.accuracy", "kernel=square", "device=cpu", f"input={tmp_path}")
    assert done.returncode == 2
    assert done.stderr.startswith(f"error: {tmp_path} has no times of cpu-")
    assert "run python -m pipeline.sweep kernel=square output=" in done.stderr
