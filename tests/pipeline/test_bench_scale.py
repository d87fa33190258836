"""The benchmark of the pipeline itself: what it simulates is a sweep, and what it makes up are ledgers."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pipeline import ROOT, bench_scale
from pipeline.command.options import BenchScaleConfig, PresetConfig
from pipeline.execution import synthetic
from pipeline.store import results, runs


def config(**options: Any) -> BenchScaleConfig:
    usual = {
        "kernel": "softmax",
        "preset": PresetConfig(name="standard"),
        "provider": ("torch", "triton_online"),
        "only": ("sweep",),
        "gpus": 6,
        "models": 2,
        "points": 60,
        "point_s": 1.0,
        "rows": (100,),
        "published": 0,
        "scratch": None,
    }
    return BenchScaleConfig(**usual | options)


def test_every_model_measures_every_point_once(tmp_path: Path) -> None:
    found = bench_scale.swept(config(), tmp_path)
    assert (found.rows, found.devices) == (120, 6)
    assert found.driver_s > 0 and 0 <= found.idle < 1
    loaded = results.load(tmp_path, pytest.fail)
    assert len(loaded.measurements) == 120
    slugs = {synthetic.device(model).slug for model in range(2)}
    assert set(loaded.gpus) == slugs
    of_models = [{row.point for row in loaded.measurements if row.origin.gpu == slug} for slug in slugs]
    assert of_models[0] == of_models[1] and len(of_models[0]) == 60
    devices = {row.origin.device for row in loaded.measurements}
    assert devices == {"cuda:0", "cuda:1", "cuda:2"}, "all of a model's GPUs had points"
    records = runs.records(runs.folder_in(tmp_path), pytest.fail)
    assert sum(len(runs.rows(path, heading, pytest.fail)) for path, heading in records.items()) == 120


def test_ledgers_that_are_made_up_are_whole_and_always_the_same_but_for_when(tmp_path: Path) -> None:
    sizes = [bench_scale.filled(config(), 100, tmp_path / name) for name in ("a", "b")]
    assert (
        sizes[0]
        == sizes[1]
        == sum(path.stat().st_size for path in (tmp_path / "a" / "timings").rglob("*.jsonl"))
    )
    one, other = (results.load(tmp_path / name, pytest.fail) for name in ("a", "b"))
    assert [row.outcome for row in one.measurements] == [row.outcome for row in other.measurements]
    assert len(one.measurements) == 100
    assert set(one.environments) == set(one.ceilings) == set(one.gpus)


def test_a_grid_has_as_many_points_as_were_asked_for() -> None:
    for count in (1, 60, 500):
        wanted = bench_scale.grid(config(), count)
        assert len(wanted.points) == len(set(wanted.points)) == count
        assert set(wanted.workloads) == set(wanted.points)


@pytest.mark.slow
def test_fifty_gpus_wait_for_one_driver_hardly_ever(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "pipeline.bench_scale", "only=[sweep,report]", "gpus=50", "points=2000"]
    command += ["rows=1000", f"scratch={tmp_path}"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "50 GPUs of 5 models, 2000 points each" in done.stdout and ": 10000 rows in " in done.stdout
    share = re.search(r"GPUs: idle for ([\d.]+)% of it", done.stdout)
    # Two thousand points of a second each on ten GPUs: what a driver takes is far below that anywhere.
    assert share is not None and float(share[1]) < 50
    assert re.search(r"│ report +│ +1,000 │", done.stdout)
    assert list(tmp_path.iterdir()) == [], "nothing is left behind"
