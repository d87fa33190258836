"""The comparison with the textbook's loop: what both are given. What they take, only a GPU can say."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from pipeline import bench_sweep
from pipeline.command.options import BenchSweepConfig, PresetConfig
from pipeline.command.run import run_stage
from pipeline.execution import textbook
from pipeline.execution.benchmark import Seconds
from pipeline.machine import device
from pipeline.points.plan import Target
from tests.planted import outside


def options(kernel: str, provider: str, preset: str, **pin: Any) -> BenchSweepConfig:
    return BenchSweepConfig(
        kernel=kernel, provider=provider, preset=PresetConfig(name=preset), pin=pin, repeats=1, device="cuda"
    )


def test_both_get_the_points_that_a_sweep_does_not_refuse() -> None:
    pins = {"size": [1024, 4096], "dtype": "float32", "block_size": [1024, 8192], "num_warps": [1, 4]}
    config = options("softmax", "triton_online", "standard", **pins)
    points = bench_sweep.accepted(config, Target("cuda"))
    # 8192 elements are too many for one warp, whatever the size.
    launches = [(1024, 1), (1024, 4), (8192, 4)]
    assert [(one.problem["columns"], *one.parameters.values()) for one in points] == [
        (size, *launch) for size in (1024, 4096) for launch in launches
    ]
    assert bench_sweep.textbook(config, points[:1]) == {
        "where": "softmax",
        "provider": "triton_online",
        "points": [
            {
                "problem": {"rows": 4096, "columns": 1024, "dtype": "float32"},
                "parameters": {"block_size": 1024, "num_warps": 1},
            }
        ],
    }
    assert bench_sweep.options(config) == [
        *("kernel=softmax", "preset=standard", "provider=triton_online", "size=[1024,4096]"),
        *("dtype=[float32]", "block_size=[1024,8192]", "num_warps=[1,4]"),
    ]


def test_any_kernel_can_be_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The commands that would be run on a GPU; the textbook's loop is run here."""
    gpu = device.Device(kind="cuda", name="NVIDIA H200", index=0)
    monkeypatch.setattr(device, "resolve", lambda wanted: gpu)
    monkeypatch.setattr(device, "capabilities", lambda chosen: None)
    monkeypatch.setattr(bench_sweep, "calibrated", lambda chosen, folder: None)
    made = outside.write(tmp_path)
    commands = []

    def timed(words: list[str], environment: dict[str, str]) -> Seconds:
        commands.append(words)
        if words[0] == "pipeline.execution.textbook":
            plan = json.loads(Path(words[1]).read_text())
            textbook.sweep(plan, torch.device("cpu"), lambda call: float(call().numel()))
        return Seconds(2.0, 3.0)

    monkeypatch.setattr(bench_sweep, "timed", timed)
    # Without the pins of conf/, which are softmax's.
    words = [f"kernel={made}", "provider=pieces", "preset=smoke", "~pin", "size=[8,16]", "dtype=float32"]
    monkeypatch.setattr(sys, "argv", ["bench_sweep", *words, "device=cuda"])
    with pytest.raises(SystemExit) as ended:
        run_stage("bench_sweep", BenchSweepConfig, bench_sweep.run)
    printed = capsys.readouterr()
    assert ended.value.code == 0, printed.err
    lines = [line for line in printed.out.splitlines() if line.startswith("double/pieces")]
    assert lines[0] == "double/pieces n=8 dtype=float32 parts=1 8.0"
    assert len(lines) == 8 and "8 points measured in " in printed.out
    sweep = commands[1]
    assert sweep[0] == "pipeline.sweep" and f"kernel={made}" in sweep
    assert {"provider=pieces", "size=[8,16]", "dtype=[float32]", "device=cuda:0"} <= set(sweep)
    assert not any(word.startswith("num_warps") for word in sweep)


def test_the_textbook_verifies(tmp_path: Path) -> None:
    made = outside.write(tmp_path)
    (made / "pieces.py").write_text("def double(x, parts):\n    return x * 3\n")
    point = {"problem": {"n": 8, "dtype": "float32"}, "parameters": {"parts": 1}}
    never: Callable[..., float] = pytest.fail
    with pytest.raises(AssertionError, match="Mismatched elements: 8 / 8"):
        textbook.sweep(
            {"where": str(made), "provider": "pieces", "points": [point]}, torch.device("cpu"), never
        )


def test_without_a_gpu_it_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["bench_sweep", "device=cpu"])
    with pytest.raises(SystemExit) as ended:
        run_stage("bench_sweep", BenchSweepConfig, bench_sweep.run)
    assert ended.value.code == 2
    assert capsys.readouterr().err.startswith("error: do_bench needs a GPU, and device=cpu is ")
