"""Other inputs in place of normal ones. What a GPU makes of them, only a GPU can say."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch

from pipeline import bench_inputs
from pipeline.bench_inputs import KINDS
from pipeline.command.options import BenchInputsConfig
from pipeline.command.run import run_stage
from pipeline.execution.instance import fill
from pipeline.execution.protocol import InputValues

Tensors = tuple[torch.Tensor, ...]


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


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float8_e4m3fn])
def test_every_dtype_holds_them(dtype: torch.dtype) -> None:
    (x,) = filled((torch.ones(32).to(dtype),), "integers")
    assert x.dtype == dtype and set(x.float().tolist()) <= set(range(-4, 5))


@pytest.mark.slow
def test_each_kind_has_a_row_and_stands_beside_normal_values(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["device=cpu", "kernel=square", "provider=torch_mul", "size=64", "repeats=2"]
    monkeypatch.setattr(sys, "argv", ["bench_inputs", *words, f"output={tmp_path}/o"])
    with pytest.raises(SystemExit) as ended:
        run_stage("bench_inputs", BenchInputsConfig, bench_inputs.run)
    assert ended.value.code == 0
    (path,) = (tmp_path / "o/square").glob("*.json")
    rows = json.loads(path.read_text())
    assert [row["inputs"] for row in rows] == ["normal", "integers", "zeros"]
    assert all(len(row["burst_us"]) == 2 and row["sustained_us"] is None for row in rows)
    said = capsys.readouterr().out
    assert "square/torch_mul on cpu-" in said and "1.000" in said
