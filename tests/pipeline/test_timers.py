"""The comparison of timers: which points it takes, and its rows. How they differ, only a GPU can say."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from pipeline import timers
from pipeline.command.options import TimersConfig
from pipeline.command.run import run_stage
from pipeline.points import catalog
from pipeline.points.choice import of_provider
from pipeline.points.plan import Target
from pipeline.points.point import Point
from tests.planted import outside


def chosen(kind: str, kernel: str, provider: str | None = None, **pin: Any) -> list[Point]:
    pins = {name: value if isinstance(value, list) else [value] for name, value in pin.items()}
    return of_provider(catalog.find(kernel), "standard", provider, pins, Target(kind))


def test_the_defaults_are_the_baseline_at_few_problems_and_a_providers_own_parameters() -> None:
    points = chosen("cuda", "softmax")
    assert [(one.provider, one.problem["columns"]) for one in points] == [
        ("torch", columns) for columns in (256, 8192, 262144)
    ]
    (point,) = chosen("cuda", "softmax", "triton_online", size=512)
    assert dict(point.parameters) == {"block_size": 1024, "num_warps": 4}
    wider = chosen("cuda", "softmax", "triton_online", size=512, block_size=[2048, 4096])
    assert [one.parameters["block_size"] for one in wider] == [2048, 4096]
    (point,) = chosen("cpu", "matmul", "torch", m=16, size=64)
    assert dict(point.problem) == {"m": 16, "n": 64, "k": 64, "dtype": "bfloat16", "arithmetic": "ieee"}


def command(monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    monkeypatch.setattr(sys, "argv", ["timers", "preset=smoke", "device=cpu", "repeats=2", *words])
    with pytest.raises(SystemExit) as ended:
        run_stage("timers", TimersConfig, timers.run)
    return int(str(ended.value.code))


@pytest.mark.slow
def test_rows_and_plot_of_a_kernel_outside_of_the_repository(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made = outside.write(tmp_path)
    pins = ("size=[8,64]", "parts=[1,4]")
    assert command(monkeypatch, f"kernel={made}", "provider=pieces", *pins, f"output={tmp_path}/out") == 0
    (path,) = (tmp_path / "out/double").glob("*.json")
    rows = json.loads(path.read_text())
    assert [(row["problem"]["n"], row["parameters"]["parts"], row["timer"]) for row in rows] == [
        (n, parts, "perf_counter") for n in (8, 64) for parts in (1, 4)
    ]
    assert all(row["median_us"] > 0 and row["cupti_us"] is None for row in rows)
    plot = path.with_suffix(".svg").read_text()
    assert "parts=4 float32 64" in plot
    assert "double/pieces on cpu-" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["kernel=square", "provider=triton_flat"], "triton_flat of square can't be timed: needs a GPU."),
        (["kernel=square", "provider=cud"], "unknown provider of square 'cud'. Did you mean 'cuda'?"),
        (["kernel=softmax", "num_warps=4"], "num_warps is no parameter of torch; "),
    ],
)
def test_what_can_not_be_timed_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: list[str], said: str
) -> None:
    assert command(monkeypatch, *words) == 2
    assert capsys.readouterr().err.startswith(f"error: {said}")
