"""torch.profiler on the CPU: the content of a row, and the points that are profiled again."""

import gzip
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from kernel_pipeline.contract import Kernel
from kernel_pipeline.machine import device
from pipeline import ROOT, profile
from pipeline.command.options import ProfileConfig
from pipeline.command.run import run_each
from pipeline.inspection import flame, profiler
from pipeline.points.choice import Chosen
from pipeline.store import results
from tests.commands import exit_code
from tests.planted import outside
from tests.repository import commit

Rows = dict[tuple[str, int], dict[str, Any]]


def options(folder: Path, kernel: str) -> list[str]:
    fixed = ["preset=smoke", "device=cpu", f"output={folder}/results", f"artifacts={folder}/artifacts"]
    return [f"kernel={kernel}", *fixed]


def rows(folder: Path) -> Rows:
    """Return the rows below a folder, by provider and the problem's last number."""
    found = {}
    for path in folder.glob("results/profile/*/*.jsonl"):
        for row in map(json.loads, path.read_text().splitlines()):
            numbers = [value for value in row["point"]["problem"].values() if isinstance(value, int)]
            found[row["point"]["provider"], numbers[-1]] = row
    return found


def command(folder: Path, kernel: str, *words: str, code: int = 0) -> Rows:
    """Run the stage on the CPU with the smallest preset. Return its rows."""
    words = (*options(folder, kernel), *words)
    assert exit_code(run_each, "profile", ProfileConfig, profile.run, *words) == code
    return rows(folder)


def test_square_is_pow(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    found = command(tmp_path, "square", "provider=[torch_square,torch_mul,triton_flat]", "size=64")
    assert found.keys() == {("torch_square", 64), ("torch_mul", 64)}
    square = found["torch_square", 64]
    assert square["chain"] == "aten::square > aten::pow"
    assert square["outermost"] == ["aten::square"]
    assert "(aten::square > aten::pow)" in square["sentence"]
    assert found["torch_mul", 64]["chain"] == "aten::mul"
    by_name = {row["name"]: row for row in square["operators"]}
    assert by_name["aten::pow"]["calls"] == profiler.ACTIVE
    assert by_name["aten::pow"]["shapes"].startswith("[[64, 64]")
    assert by_name["aten::square"]["cpu_us"] >= by_name["aten::pow"]["cpu_us"] > 0
    assert by_name["aten::pow"]["self_cpu_bytes"] >= profiler.ACTIVE * 64 * 64 * 4
    assert "device_us" not in square and "launches" not in square, "a CPU launches nothing"

    table = (tmp_path / "artifacts" / square["table"]).read_text()
    assert "Self CPU time total" in table and "aten::pow" in table
    trace = json.loads(gzip.decompress((tmp_path / "artifacts" / square["trace"]).read_bytes()))
    assert "host_name" not in trace
    steps = [e for e in trace["traceEvents"] if str(e.get("name")).startswith("ProfilerStep#")]
    assert len({event["name"] for event in steps}) == profiler.ACTIVE, (
        "waiting and warming up are not recorded"
    )
    printed = capfd.readouterr()
    assert "torch_square float32 64: a call is 1 operator (aten::square > aten::pow)" in printed.out
    assert "Left out: triton_flat (needs a GPU)." in printed.out
    assert "profiler_start" not in printed.err


def test_manual_gelu_is_many_operators_and_the_fused_one_is_one(tmp_path: Path) -> None:
    found = command(tmp_path, "gelu", "provider=[manual,torch,torch_compile]", "size=64")
    manual, fused = found["manual", 64], found["torch", 64]
    # The operators are x**3, * 0.044715, x + ., * sqrt(2 / pi), tanh, 1 + ., 0.5 * x, and the product.
    assert len(manual["outermost"]) == 8
    assert fused["outermost"] == ["aten::gelu"]
    assert "chain" not in manual, "there is no one operator to follow"
    compiled = found["torch_compile", 64]
    assert compiled["outermost"] == ["Torch-Compiled Region"]
    # For so small a tensor the overhead around the graph may take longer than the graph, so the chain may end
    # early.
    assert compiled["sentence"].startswith("a call is 1 operator (Torch-Compiled Region")
    assert "CompiledFxGraph" in {operator["name"] for operator in compiled["operators"]}


def test_stacks_and_a_folder_for_tensorboard_are_always_made(tmp_path: Path) -> None:
    board = tmp_path / "board"
    fixed = ("provider=torch", "size=64")
    before = command(tmp_path, "gelu", *fixed)["torch", 64]
    row = command(tmp_path, "gelu", *fixed, "stacks=true", f"tensorboard={board}")["torch", 64]
    assert before["key"] == row["key"]
    assert len(list(board.glob("*.pt.trace.json"))) == 1
    trace = json.loads(gzip.decompress((tmp_path / "artifacts" / row["trace"]).read_bytes()))
    frames = [event for event in trace["traceEvents"] if event.get("cat") == "python_function"]
    assert frames
    assert not any("rich/" in event["name"] for event in frames), "nothing of ours runs beside a call"
    names = {operator["name"] for operator in row["operators"]}
    assert "aten::gelu" in names and not names & {event["name"] for event in frames}
    assert row["sentence"].endswith("of it in aten::gelu")
    assert ".py(" not in (tmp_path / "artifacts" / row["table"]).read_text(), "frames are in the trace"

    assert "flame_graph" not in before
    picture = ElementTree.parse(tmp_path / "artifacts" / row["flame_graph"])
    bars = [str(bar.text) for bar in picture.iter("{http://www.w3.org/2000/svg}title")]
    assert any(re.fullmatch(r"kernels/gelu/torch\.py\(\d+\): gelu: .* us per call, .*%", bar) for bar in bars)
    assert any(bar.startswith("aten::gelu: ") for bar in bars)
    assert not any("profiler" in bar or "0x" in bar for bar in bars), "nothing of what looks on"


def test_a_flame_graph_stacks_what_lies_in_each_other_and_adds_what_is_alike() -> None:
    def event(name: str, category: str, begin: float, us: float) -> dict[str, Any]:
        return {"ph": "X", "name": name, "cat": category, "ts": begin, "dur": us, "tid": 1}

    calls = [
        event("point:key", "user_annotation", begin, 100)
        | {
            "of": [
                event("f at 0xab12", "python_function", begin + 10, 40),
                event("aten::mul", "cpu_op", begin + 20, 10),
                event("aten::mul", "cpu_op", begin + 35, 10),
                event("waits", "python_function", begin + 60, 30),
            ]
        }
        for begin in (0.0, 1000.0)
    ]
    outside = event("before", "cpu_op", 500, 10)
    events = [outside, *calls, *(one for call in calls for one in call["of"])]
    root, count = flame.stacks({"traceEvents": events})
    assert (count, root.us, list(root.below)) == (2, 80, ["f"])
    function = root.below["f"]
    assert (function.us, {name: one.us for name, one in function.below.items()}) == (80, {"aten::mul": 40})
    drawn = flame.svg({"traceEvents": events}, "a < b").decode()
    assert "a &lt; b: 2 calls, 80 us" in drawn and "aten::mul: 20 us per call, 50.0%" in drawn


def test_a_folder_for_tensorboard_that_is_none_is_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    board = tmp_path / "file" / "board"
    words = ("provider=torch", "size=64", f"tensorboard={board}")
    assert command(tmp_path, "gelu", *words, code=2) == {}
    said = f"error: tensorboard={board} can't be written to (Not a directory): name another folder.\n"
    assert capsys.readouterr().err == said


def test_an_unknown_provider_is_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command(tmp_path, "gelu", "provider=touch", code=2) == {}
    assert "Did you mean 'torch'?" in capsys.readouterr().err


def test_where_no_provider_runs_there_is_nothing_to_profile(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command(tmp_path, "square", "provider=triton_flat") == {}
    assert "Left out: triton_flat (needs a GPU)." in capsys.readouterr().out


def test_only_what_changed_is_profiled_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = outside.write(tmp_path)

    def again(*words: str) -> tuple[Rows, int]:
        """Run the command. Return the rows and the number of new rows that it reports."""
        capsys.readouterr()
        found = command(tmp_path, str(made), *words)
        said = capsys.readouterr().out
        if "Nothing to profile" in said:
            cloned = not any(path.is_file() for path in (tmp_path / "artifacts").rglob("*"))
            assert said.count("\n") == 1 + cloned
            assert ("Tables and traces are not in this clone" in said) == cloned
            return found, 0
        match = re.search(r"(\d+) of (\d+) points profiled", said)
        assert match and int(match[2]) == len(found)
        return found, int(match[1])

    first, count = again()
    # The CPU leaves out the largest problem. pieces has its default, because nothing was timed.
    places = {(name, n) for name in ("whole", "pieces") for n in (8, 64)}
    assert (first.keys(), count) == (places, 4)
    assert first["pieces", 8]["point"]["parameters"] == {"parts": 2}
    assert again() == (first, 0)

    outside.edit(made)
    second, count = again()
    assert count == 2
    for name, n in places:
        assert (second[name, n] == first[name, n]) == (name == "whole")
    assert again() == (second, 0)

    commit(tmp_path, "results")
    (tmp_path / "artifacts").rename(tmp_path / "elsewhere")
    assert again() == (second, 0), "a clone has the rows alone"
    shutil.rmtree(tmp_path / "artifacts")
    (tmp_path / "elsewhere").rename(tmp_path / "artifacts")
    shutil.rmtree(tmp_path / ".git")

    (tmp_path / "artifacts" / second["whole", 64]["table"]).unlink()
    third, count = again()
    assert (count, third["whole", 8]) == (1, second["whole", 8])
    assert third["whole", 64] != second["whole", 64]

    fewer, count = again("size=8")
    assert (fewer.keys(), count) == ({("whole", 8), ("pieces", 8)}, 0)
    assert fewer.items() <= third.items(), "the others are no longer chosen"
    kept = {path.name for path in (tmp_path / "artifacts").rglob("*") if path.is_file()}
    assert kept == {Path(row[what]).name for row in fewer.values() for what in ("table", "trace")}


def test_a_first_look_is_at_those_that_lead_and_keeps_what_is_known_of_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = str(outside.write(tmp_path))
    asked: list[float] = []
    of_kernel = profile.of_kernel

    def with_near(config: ProfileConfig, chosen: device.Device) -> None:
        preset = config.preset.model_copy(update={"near": 1.5})
        of_kernel(config.model_copy(update={"preset": preset}), chosen)

    def leading(kernel: Kernel, chosen: list[Chosen], timed: object, near: float) -> list[Chosen]:
        asked.append(near)
        return [one for one in chosen if one.point.provider == "whole"]

    monkeypatch.setattr(profile, "leading", leading)
    monkeypatch.setattr(profile, "of_kernel", with_near)
    few = command(tmp_path, made, "size=8")
    assert few.keys() == {("whole", 8)} and asked == [1.5]
    named = command(tmp_path, made, "size=8", "provider=[whole,pieces]")
    assert named.keys() == {("whole", 8), ("pieces", 8)} and asked == [1.5]
    assert command(tmp_path, made, "size=8") == named


def test_a_cpus_rows_go_to_this_hosts_own_results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(results, "ROOT", tmp_path)
    monkeypatch.setattr(results, "LOCAL", tmp_path / "local")
    made = outside.write(tmp_path)
    assert command(tmp_path, str(made), "provider=whole", "size=8") == {}
    assert (tmp_path / "results/profile/double").is_dir(), "DVC finds the folder that it asked for"
    assert rows(tmp_path / "local").keys() == {("whole", 8)}
    table = rows(tmp_path / "local")["whole", 8]["table"]
    assert (tmp_path / "artifacts" / table).is_file()


def test_a_row_that_failed_is_tried_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = outside.write(tmp_path)
    reference = made / "reference.py"
    text = reference.read_text()
    reference.write_text(
        text.replace("    return normal(", '    raise RuntimeError("no inputs")\n    return normal(')
    )
    found = command(tmp_path, str(made), "provider=whole", "size=8")
    assert found["whole", 8]["status"] == "error"
    assert found["whole", 8]["sentence"] == "not profiled: RuntimeError: no inputs"
    assert "Nothing" not in capsys.readouterr().out
    command(tmp_path, str(made), "provider=whole", "size=8")
    printed = capsys.readouterr().out
    assert "0 of 1 points profiled, 1 failed: " in printed


def test_a_range_may_be_called_anything(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = outside.write(tmp_path)
    names = [
        'a "quoted" \\ name',
        "one\ttwo\nthree",
        "größe \u202e",
        "point:0123456789abcdef",
        "ProfilerStep#0",
    ]
    (made / "whole.py").write_text(
        "from torch.profiler import record_function as span\n\n\ndef double(x):\n"
        + "".join(f"    with span({name!r}):\n        y = x * 2\n" for name in names)
        + "    return y\n"
    )
    found = command(tmp_path, str(made), "provider=[whole,pieces]", "size=8")
    assert "2 of 2 points profiled: " in capsys.readouterr().out
    row = found["whole", 8]
    assert row["status"] == "ok" and row["outermost"] == ["aten::mul"] * len(names)
    assert 'a "quoted" \\ name' in {operator["name"] for operator in row["operators"]}
    trace = json.loads(gzip.decompress((tmp_path / "artifacts" / row["trace"]).read_bytes()))
    assert 'a "quoted" / name' in {event["name"] for event in trace["traceEvents"]}


@pytest.mark.slow
@pytest.mark.parametrize("stage", ["profile", "counters"])
def test_where_there_is_nothing_to_do_torch_is_not_even_imported(tmp_path: Path, stage: str) -> None:
    """Counters never have anything to do on a CPU."""
    made = outside.write(tmp_path)

    def run() -> subprocess.CompletedProcess[str]:
        words = [f"pipeline.{stage}", *options(tmp_path, str(made)), "provider=whole", "size=8"]
        return subprocess.run(
            [sys.executable, "-X", "importtime", "-m", *words],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=True,
        )

    def imported(done: subprocess.CompletedProcess[str]) -> set[str]:
        return set(re.findall(r"^import time:.*\| +(\S+)$", done.stderr, re.MULTILINE))

    first = run()
    assert ("torch" in imported(first)) == (stage == "profile")
    second = run()
    assert "rich" in imported(second) and "torch" not in imported(second)
    assert ("Nothing to profile" in second.stdout) == (stage == "profile")
