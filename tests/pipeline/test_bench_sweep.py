"""The comparison with the textbook's loop: what both are given. What they take, only a GPU can say."""

from __future__ import annotations

import sys

import pytest

from pipeline.bench_sweep import accepted, run
from pipeline.config import BenchSweepConfig, run_stage


def test_both_get_the_points_that_a_sweep_does_not_refuse() -> None:
    axes = {"size": [1024, 4096], "block_size": [1024, 8192], "num_warps": [1, 4]}
    # 8192 elements are too many for one warp, whatever the size.
    launches = [(1024, 1), (1024, 4), (8192, 4)]
    assert accepted(axes) == [(size, *launch) for size in (1024, 4096) for launch in launches]


def test_without_a_gpu_it_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["bench_sweep", "device=cpu"])
    with pytest.raises(SystemExit) as ended:
        run_stage("bench_sweep", BenchSweepConfig, run)
    assert ended.value.code == 2
    assert capsys.readouterr().err.startswith("error: timing Triton needs a GPU, and device=cpu is ")
