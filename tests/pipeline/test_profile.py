"""torch.profiler for real on the CPU; what only a GPU's trace holds, through a trace made by hand."""

from __future__ import annotations

import gzip
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from kernels.point import Point
from pipeline import profile
from pipeline.config import ProfileConfig, run_stage
from pipeline.measure import choice, launches, profiler
from pipeline.measure.profiler import Profiled, a_call
from tests.factory import CPU, measurement


def command(
    folder: Path, monkeypatch: pytest.MonkeyPatch, kernel: str, *options: str, code: int = 0
) -> dict[tuple[str, int], dict[str, Any]]:
    """Run the stage on the CPU with the smallest grid; its rows by provider and size."""
    fixed = ["preset=smoke", "device=cpu", f"output={folder}/results", f"artifacts={folder}/artifacts"]
    monkeypatch.setattr(sys, "argv", ["profile", f"kernel={kernel}", *fixed, *options])
    with pytest.raises(SystemExit) as ended:
        run_stage("profile", ProfileConfig, profile.run)
    assert ended.value.code == code
    found = [
        json.loads(line)
        for path in folder.glob("results/profile/*/*.jsonl")
        for line in path.open().readlines()
    ]
    return {(row["provider"], row["size"]): row for row in found}


def test_square_is_pow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    rows = command(
        tmp_path, monkeypatch, "square", "provider=[torch_square,torch_mul,triton_flat]", "size=64"
    )
    square = rows["torch_square", 64]
    assert square["chain"] == "aten::square > aten::pow"
    assert square["outermost"] == ["aten::square"]
    assert "(aten::square > aten::pow)" in square["sentence"]
    assert rows["torch_mul", 64]["chain"] == "aten::mul"
    by_name = {row["name"]: row for row in square["operators"]}
    assert by_name["aten::pow"]["calls"] == profiler.ACTIVE
    assert by_name["aten::pow"]["shapes"].startswith("[[64, 64]")
    assert by_name["aten::square"]["cpu_us"] >= by_name["aten::pow"]["cpu_us"] > 0
    assert by_name["aten::pow"]["self_cpu_bytes"] >= profiler.ACTIVE * 64 * 64 * 4
    assert square["device_us"] is None and square["launches"] is None, "a CPU launches nothing"

    refused = rows["triton_flat", 64]
    assert (refused["status"], refused["reason"], refused["operators"]) == ("unavailable", "needs a GPU", [])

    table = (tmp_path / "artifacts" / square["table"]).read_text()
    assert "Self CPU time total" in table and "aten::pow" in table
    trace = json.loads(gzip.decompress((tmp_path / "artifacts" / square["trace"]).read_bytes()))
    assert "host_name" not in trace
    steps = [e for e in trace["traceEvents"] if str(e.get("name")).startswith("ProfilerStep#")]
    assert len({event["name"] for event in steps}) == profiler.ACTIVE, (
        "waiting and warming up are not recorded"
    )
    printed = capfd.readouterr()
    assert "torch_square-float32 64: a call is 1 operator (aten::square > aten::pow)" in printed.out
    assert "profiler_start" not in printed.err


def test_manual_gelu_is_many_operators_and_the_fused_one_is_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = command(tmp_path, monkeypatch, "gelu", "provider=[manual,torch,torch_compile]", "size=64")
    manual, fused = rows["manual", 64], rows["torch", 64]
    # x**3, * 0.044715, x + ., * sqrt(2 / pi), tanh, 1 + ., 0.5 * x, and the product.
    assert len(manual["outermost"]) == 8
    assert fused["outermost"] == ["aten::gelu"]
    assert manual["chain"] is None, "there is no one operator to follow"
    compiled = rows["torch_compile", 64]
    assert compiled["outermost"] == ["Torch-Compiled Region"]
    # So small a tensor may take less time than what is around the graph: the chain may end before it.
    assert compiled["sentence"].startswith("a call is 1 operator (Torch-Compiled Region")
    assert "CompiledFxGraph" in {operator["name"] for operator in compiled["operators"]}


def test_stacks_and_a_folder_for_tensorboard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    board = tmp_path / "board"
    options = ("provider=torch", "size=64", "stacks=true", f"tensorboard={board}")
    rows = command(tmp_path, monkeypatch, "gelu", *options)
    assert len(list(board.glob("*.pt.trace.json"))) == 1
    trace = json.loads(gzip.decompress((tmp_path / "artifacts" / rows["torch", 64]["trace"]).read_bytes()))
    frames = [event for event in trace["traceEvents"] if event.get("cat") == "python_function"]
    assert frames
    assert not any("rich/" in event["name"] for event in frames), "nothing of ours runs beside a call"
    row = rows["torch", 64]
    names = {operator["name"] for operator in row["operators"]}
    assert "aten::gelu" in names and not names & {event["name"] for event in frames}
    assert row["sentence"].endswith("of it in aten::gelu")
    assert ".py(" not in (tmp_path / "artifacts" / row["table"]).read_text(), "frames are in the trace"


def test_a_folder_for_tensorboard_that_is_none_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    board = tmp_path / "file" / "board"
    options = ("provider=torch", "size=64", f"tensorboard={board}")
    assert command(tmp_path, monkeypatch, "gelu", *options, code=2) == {}
    said = f"error: tensorboard={board} can't be written to (Not a directory): name another folder.\n"
    assert capsys.readouterr().err == said


def test_an_unknown_provider_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command(tmp_path, monkeypatch, "gelu", "provider=touch", code=2) == {}
    assert "Did you mean 'torch'?" in capsys.readouterr().err


def kernel_event(name: str, correlation: int, at: float, us: float) -> list[dict[str, Any]]:
    """A launch as the profiler's trace of a GPU holds it: the host's call, and the kernel it led to."""
    call = {"cat": "cuda_runtime", "name": "cudaLaunchKernel", "tid": 1, "ts": at, "dur": 5.0}
    run = {"cat": "kernel", "name": name, "tid": 7, "ts": at + 100, "dur": us}
    shape = {"grid": [64, 2, 1], "block": [128, 1, 1], "registers per thread": 22, "shared memory": 48}
    return [
        call | {"ph": "X", "args": {"correlation": correlation}},
        run | {"ph": "X", "args": {"correlation": correlation, **shape}},
    ]


def trace_of_a_gpu() -> dict[str, Any]:
    """Made by hand: two ranges; kernels end after their range, as they do."""

    def host(cat: str, name: str, ts: float, dur: float) -> dict[str, Any]:
        return {"ph": "X", "cat": cat, "name": name, "tid": 1, "ts": ts, "dur": dur}

    return {
        "traceEvents": [
            host("user_annotation", "point:aa", 0.0, 50.0),
            host("cpu_op", "aten::square", 1.0, 20.0),
            host("cpu_op", "aten::pow", 2.0, 18.0),
            *kernel_event("void at::native::vectorized_elementwise_kernel<4, pow>(int, float)", 1, 10.0, 3.5),
            host("user_annotation", "point:bb", 60.0, 30.0),
            host("cpu_op", "aten::mul", 61.0, 5.0),
            *kernel_event("mul", 2, 62.0, 2.0),
            *kernel_event("tanh", 3, 70.0, 4.0),
            *kernel_event("mul", 4, 80.0, 2.0),
            *kernel_event("outside", 5, 95.0, 2.0),
        ]
    }


def test_launches_belong_to_the_range_that_launched_them() -> None:
    found = launches.parse(trace_of_a_gpu())
    assert {key: [one.name for one in made] for key, made in found.items()} == {
        "aa": ["void at::native::vectorized_elementwise_kernel<4, pow>(int, float)"],
        "bb": ["mul", "tanh", "mul"],
    }
    (one,) = found["aa"]
    assert (one.threads, one.blocks, one.registers, one.shared, one.duration_us) == (128, 128, 22, 48, 3.5)


def test_the_sentence_names_what_a_call_launches() -> None:
    trace = trace_of_a_gpu()
    made = launches.parse(trace)
    assert profiler.nesting(trace) == (("aten::mul",), "aten::mul"), "the last call's"
    many = Profiled((), "", b"", tuple(made["bb"] * profiler.ACTIVE), ("aten::mul",), None, 5.0)
    assert profile.sentence(many, "cuda") == (
        "a call (aten::mul) launches 3 device kernels: mul x2, tanh; 8.00 us on the device, "
        "5.00 us on the host until the last launch"
    )
    assert [(one.name, one.launches, one.us) for one in a_call(many.launches)] == [
        ("mul", 2.0, 4.0),
        ("tanh", 1.0, 4.0),
    ]
    single = Profiled(
        (), "", b"", tuple(made["aa"] * profiler.ACTIVE), ("aten::square",), "aten::square > aten::pow", 20.0
    )
    assert profile.sentence(single, "cuda").startswith(
        "a call (aten::square > aten::pow) launches 1 device kernel: "
        "vectorized_elementwise_kernel<4, pow>; 3.50 us on the device"
    )


def test_host_time_ends_with_the_last_launch_and_is_the_median_call() -> None:
    """A launch that is no operator's, as Triton's is, counts; what follows it doesn't."""

    def host(cat: str, name: str, ts: float, dur: float) -> dict[str, Any]:
        return {"ph": "X", "cat": cat, "name": name, "tid": 1, "ts": ts, "dur": dur, "args": {}}

    def call(number: int, ts: float, launch_at: float) -> list[dict[str, Any]]:
        return [
            host("user_annotation", "point:aa", ts, 200.0),
            host("cpu_op", "aten::empty_like", ts + 2, 5.0),
            *kernel_event("_gelu_flat", number, ts + launch_at, 1.0),
            host("cuda_runtime", "cudaGetLastError", ts + 150, 1.0),
            host("cuda_runtime", "cudaDeviceSynchronize", ts + 160, 30.0),
        ]

    calls = [*call(1, 0.0, 85.0), *call(2, 300.0, 30.0), *call(3, 600.0, 40.0)]
    assert profiler.host_us({"traceEvents": calls}) == 45.0
    without = [event for event in calls if event["cat"] in ("user_annotation", "cpu_op")]
    assert profiler.host_us({"traceEvents": without}) == 5.0, "on a CPU the operators are the work"


def test_points_are_chosen_by_the_ledger() -> None:
    def row(provider: str, us: float, **axes: int) -> Any:
        return measurement("softmax", provider, 1024, gpu=CPU, median_us=us, **axes)

    rows = [
        row("torch", 10.0),
        row("triton_online", 9.0, block_size=1024, num_warps=4),
        row("triton_online", 6.0, block_size=2048, num_warps=8),
        row("cuda", 7.0, block_size=512, num_warps=8),
    ]
    timed = {one.point: one for one in rows}
    points = list(timed)
    chosen = choice.best_default_baseline(points, timed, "torch", lambda name: not name.startswith("torch"))
    assert {one.role: (one.point.provider, one.point.block_size) for one in chosen} == {
        "best": ("triton_online", 2048),
        "default": ("triton_online", 1024),
        "baseline": ("torch", None),
    }
    each = {one.point.provider: one.point.block_size for one in choice.each_provider(points, timed)}
    assert each == {"torch": None, "triton_online": 2048, "cuda": 512}
    without = choice.each_provider(points, {})
    assert {one.point.provider: one.point.block_size for one in without}["triton_online"] == 1024
    assert choice.few([1, 2, 4, 8, 16]) == [1, 4, 16]
    assert choice.few([7]) == [7]
    point = Point("softmax", "triton_online", 1024, "float32", 1024, 4)
    only = choice.best_default_baseline([point], {point: timed[point]}, "torch", lambda name: True)
    assert [one.role for one in only] == ["best, default"], "one point, looked into once"
