"""Benchmarks of the measuring code: their points and rows. The times need a GPU and are not tested."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from kernel_pipeline.execution.instance import fill
from kernel_pipeline.execution.protocol import InputValues
from kernel_pipeline.execution.supervisor import Supervisor
from kernel_pipeline.records.ceilings import Rates
from kernel_pipeline.records.point import Point
from pipeline import benchmarks
from pipeline.benchmarks import KINDS
from pipeline.command.options import BenchmarksConfig
from pipeline.command.run import run_stage
from pipeline.command.words import positional
from pipeline.points import catalog
from pipeline.points.choice import of_provider
from pipeline.points.plan import Target
from tests.commands import exit_code
from tests.planted import outside

Tensors = tuple[torch.Tensor, ...]


def command(*words: str) -> int:
    """Run the command in this process. Return its exit code."""
    given = positional(words, "benchmark")
    return exit_code(run_stage, "benchmarks", BenchmarksConfig, benchmarks.run, *given)


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


@pytest.mark.slow
def test_timers_have_rows_of_a_kernel_outside_of_the_repository(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = outside.write(tmp_path)
    words = ("preset=smoke", "device=cpu", "repeats=2", "provider=pieces", "size=[8,64]", "parts=[1,4]")
    assert command("timers", f"kernel={made}", *words, f"output={tmp_path}/out") == 0
    (path,) = (tmp_path / "out/timers/double").glob("*.json")
    rows = json.loads(path.read_text())
    assert [(row["problem"]["n"], row["parameters"]["parts"], row["timer"]) for row in rows] == [
        (n, parts, "perf_counter") for n in (8, 64) for parts in (1, 4)
    ]
    assert all(row["median_us"] > 0 and row["cupti_us"] is None for row in rows)
    assert "double/pieces on cpu-" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ["timers", "kernel=square", "provider=triton_flat"],
            "triton_flat of square can't be timed: needs a",
        ),
        (
            ["timers", "kernel=square", "provider=cud"],
            "unknown provider of square 'cud'. Did you mean 'cuda'",
        ),
        (["timers", "kernel=softmax", "num_warps=4"], "num_warps is not a parameter of torch; "),
        ([], "write python -m pipeline.benchmarks ceilings, timers or inputs"),
        (["timrs"], "benchmark: input should be 'ceilings', 'timers' or 'inputs', not 'timrs'."),
    ],
)
def test_a_mistake_is_one_sentence(capsys: pytest.CaptureFixture[str], words: list[str], said: str) -> None:
    assert command(*words, "device=cpu") == 2
    assert capsys.readouterr().err.startswith(f"error: {said}")


def filled(inputs: Tensors, kind: InputValues) -> Tensors:
    copies = tuple(x.clone() for x in inputs)
    fill(copies, kind, seed=0)
    return copies


def test_only_floating_point_values_are_replaced_and_layouts_stay() -> None:
    x, index = torch.randn(8, 6).t(), torch.arange(8)
    of_kind = {kind: filled((x, index), kind) for kind in KINDS}
    assert torch.equal(of_kind["normal"][0], x)
    assert not of_kind["zeros"][0].any()
    integers = of_kind["integers"][0]
    assert torch.equal(integers, integers.round()) and integers.abs().max() <= 4
    assert len(set(integers.flatten().tolist())) > 3
    assert torch.equal(integers, filled((x, index), "integers")[0]), "the same each time"
    for inputs in of_kind.values():
        assert inputs[0].stride() == x.stride() and torch.equal(inputs[1], index)


@pytest.mark.slow
def test_each_kind_of_inputs_has_a_row_and_stands_beside_normal_values(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["device=cpu", "kernel=square", "provider=torch_mul", "size=64", "repeats=2"]
    assert command("inputs", *words, f"output={tmp_path}/o") == 0
    (path,) = (tmp_path / "o/inputs/square").glob("*.json")
    rows = json.loads(path.read_text())
    assert [row["inputs"] for row in rows] == ["normal", "integers", "zeros"]
    assert all(len(row["burst_us"]) == 2 and row["sustained_us"] is None for row in rows)
    said = capsys.readouterr().out
    assert "square/torch_mul on cpu-" in said and "1.000" in said


@pytest.mark.slow
def test_ceilings_are_measured_again_and_keep_the_noise(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert command("ceilings", "device=cpu", f"output={tmp_path}") == 0
    (path,) = (tmp_path / "ceilings").glob("cpu*.json")
    first = json.loads(path.read_text())
    assert first["copy_gbps"] > 0 and first["matmul_tflops"]["float32"] > 0
    assert f"Written to {path}." in capsys.readouterr().out
    path.write_text(json.dumps(first | {"copy_gbps": 0.001, "noise": {"memory": 0.5}}))
    monkeypatch.setattr(Supervisor, "rates", lambda _: (Rates(copy_gbps=7.0, matmul_tflops={}), False))
    assert command("ceilings", "device=cpu", f"output={tmp_path}") == 0
    again = json.loads(path.read_text())
    assert again["copy_gbps"] == 7.0 and again["noise"] == {"memory": 0.5}
