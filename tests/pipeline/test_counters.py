"""Counters: rows from ncu's CSV pages, what they mean, and what a machine says that can't count.

``ncu/made_by_hand.*.csv`` were written by hand after the layout of ncu's pages, with three keys that are no
measurement's; a program that answers as ncu does hands them out.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from pipeline import counters as stage
from pipeline.config import CountersConfig, run_stage
from pipeline.measure import choice, counters, grid, ncu
from pipeline.measure.device import Device
from pipeline.measure.ncu import Unavailable
from tests import factory

PAGES = Path(__file__).parent / "ncu"
RAW, DETAILS = ((PAGES / f"made_by_hand.{page}.csv").read_text() for page in ("raw", "details"))
A, B, C = (letter * 16 for letter in "abc")


def fake(folder: Path, version: str = "2025.3.1.0", does: str = 'touch "$report.ncu-rep"') -> Path:
    """A program in place of ncu: its version, its report (what ``does`` makes of it), and its pages."""
    program = folder / "bin" / "ncu"
    program.parent.mkdir(parents=True, exist_ok=True)
    program.write_text(
        f"""#!/bin/sh
echo "$@" >>'{folder}/calls'
report=
for word in "$@"; do
  [ "$last" = --export ] && report=$word
  case "$last $word" in
    *--version) echo 'NVIDIA (R) Nsight Compute'; echo 'Version {version} (build 1)'; exit ;;
    '--page raw') cat '{PAGES}/made_by_hand.raw.csv'; exit ;;
    '--page details') cat '{PAGES}/made_by_hand.details.csv'; exit ;;
  esac
  last=$word
done
{does}
"""
    )
    program.chmod(0o755)
    return program


@pytest.fixture
def on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that has a GPU as far as the stage asks."""
    gpu = Device(kind="cuda", name="NVIDIA H200", index=0)
    monkeypatch.setattr(stage.device, "resolve", lambda wanted: gpu)
    monkeypatch.setattr(stage.device, "fingerprint", lambda device: factory.environment())


def command(
    folder: Path, monkeypatch: pytest.MonkeyPatch, *options: str, code: int = 0
) -> list[dict[str, Any]]:
    """Run the stage for softmax; its rows."""
    fixed = [
        "kernel=softmax",
        "preset=smoke",
        "size=64",
        f"output={folder}/results",
        f"artifacts={folder}/artifacts",
    ]
    monkeypatch.setattr(sys, "argv", ["counters", *fixed, *options])
    with pytest.raises(SystemExit) as ended:
        run_stage("counters", CountersConfig, stage.run)
    assert ended.value.code == code
    found = folder.glob("results/counters/softmax/*.jsonl")
    return [json.loads(line) for path in found for line in path.read_text().splitlines()]


def test_a_kernels_numbers_are_read_in_their_units() -> None:
    (row,) = counters.by_point(RAW, DETAILS)[A]
    assert row["function"] == row["demangled"] == "_softmax_online"
    assert row["duration_us"] == pytest.approx(34.128)
    assert (row["memory_throughput_pct"], row["compute_throughput_pct"]) == (91.2, 31.4)
    assert row["dram_gbps"] == pytest.approx(3900)
    assert (row["grid_size"], row["block_size_threads"], row["registers"]) == (4096, 256, 25)
    assert (row["shared_static_bytes"], row["shared_dynamic_bytes"]) == (0, 32)
    assert (row["achieved_occupancy_pct"], row["theoretical_occupancy_pct"]) == (88.2, 100)
    assert row["limited_by"] == "registers and warps"
    assert (row["sectors_per_load"], row["sectors_per_store"]) == (16, 16)
    assert row["local_bytes"] == 0
    assert row["stalls"] == {"long_scoreboard": 14.2, "barrier": 0.5}, "the longest first, one kind of ratio"


def test_a_point_has_a_row_for_each_kernel_it_launched_and_what_is_outside_is_left_out() -> None:
    found = counters.by_point(RAW, DETAILS)
    assert {key: len(rows) for key, rows in found.items()} == {A: 1, B: 2}
    assert [row["function"] for row in found[B]] == [
        "vectorized_elementwise_kernel<4, tanh>",
        "vectorized_elementwise_kernel<4, mul>",
    ]
    assert [row["launch"] for row in found[B]] == [0, 1]
    assert found[B][1]["local_bytes"] == 96 * 32


def test_rules_come_with_what_they_promise() -> None:
    found = counters.by_point(RAW, DETAILS)
    (row,) = found[A]
    assert [(rule.name, rule.kind, rule.speedup_pct) for rule in row["rules"]] == [
        ("SOLBottleneck", "INF", None),
        ("CPIStall", "OPT", 8.8),
    ]
    assert "\n" not in row["rules"][1].text
    assert row["runtime_improvement_us"] == pytest.approx(34.128 * 0.088)
    assert found[B][0]["estimated_speedup_pct"] == 51.5, "what a local rule promises is not the kernel's"
    assert found[B][1]["rules"] == ()


def test_what_limits_a_kernel_is_said_with_the_number() -> None:
    found = counters.by_point(RAW, DETAILS)
    assert counters.bound(found[A][0]) == (
        "memory",
        "memory limits it: memory throughput 91 %, compute throughput 31 %",
    )
    small = "its grid is too small: 0.05 waves, memory throughput 3 %, compute throughput 2 %"
    assert counters.bound(found[B][0]) == ("grid", small)
    waiting = found[B][0] | {"waves_per_sm": 4.0}
    kind, sentence = counters.bound(waiting)
    assert kind == "latency"
    assert sentence.endswith("occupancy 6 %, warps wait most for long scoreboard (8.9 warps)")
    busy = found[A][0] | {"compute_throughput_pct": 95.0}
    assert counters.bound(busy)[0] == "compute"
    assert counters.bound({})[0] is None


def test_a_report_without_some_counters_leaves_them_empty() -> None:
    header, units, *rest = RAW.splitlines()[1:]
    few = "\n".join(",".join(line.split('","')[0:1]) for line in (header, units, *rest))
    assert counters.by_point(few, "") == {}
    basic = RAW.replace("l1tex__t_sectors", "other__t_sectors").replace("dram__bytes", "other__bytes")
    (row,) = counters.by_point(basic, "")[A]
    assert (row["sectors_per_load"], row["local_bytes"], row["dram_gbps"]) == (None, None, None)
    assert row["memory_throughput_pct"] == 91.2


def test_the_stage_joins_the_report_to_its_points(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, on_a_gpu: None, capsys: pytest.CaptureFixture[str]
) -> None:
    keys = iter((A, B, C))
    monkeypatch.setattr(grid, "key", lambda *_: next(keys))
    monkeypatch.setenv("PATH", str(fake(tmp_path).parent), prepend=":")
    rows = command(tmp_path, monkeypatch, "provider=[triton_online,triton_row]")
    assert {row["tool"] for row in rows} == {"ncu 2025.3.1"}
    assert [(row["key"], row["status"]) for row in rows] == [(A, "ok"), (B, "ok"), (B, "ok")]
    first = rows[0]
    assert (first["provider"], first["bound"]) == ("triton_row", "memory")
    assert first["report"] == "counters/softmax/nvidia-h200.ncu-rep"
    assert (tmp_path / "artifacts" / first["report"]).exists()
    printed = capsys.readouterr().out
    assert "memory limits it: memory throughput 91 %" in printed

    profiling = next(line for line in (tmp_path / "calls").read_text().splitlines() if "--export" in line)
    for words in ("--profile-from-start off", "--nvtx", "--clock-control none", "--set full"):
        assert words in profiling
    assert "-m pipeline.measure.counted" in profiling


def test_a_counter_that_the_gpu_lacks_costs_only_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, on_a_gpu: None
) -> None:
    """ncu gives up over an unknown counter; the set alone is tried then."""
    does = 'case "$*" in *--metrics*) echo "==ERROR== Failed to find metric x"; exit 1 ;; esac\n'
    fake(tmp_path, does=does + 'touch "$report.ncu-rep"')
    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=":")
    rows = command(tmp_path, monkeypatch)
    assert all(row["status"] == "error" for row in rows), "the report holds other keys than today's"
    assert all(row["reason"] == "the report holds no kernel of it" for row in rows)
    assert (tmp_path / "calls").read_text().count("--export") == 2


@pytest.mark.parametrize(
    ("says", "reason", "fix"),
    [
        (
            "==ERROR== ERR_NVGPUCTRPERM - The user does not have permission",
            "may not read",
            "--cap-add=SYS_ADMIN",
        ),
        ("==ERROR== Driver resource was unavailable.", "another tool holds", "dcgmi profile --pause"),
        (
            "==ERROR== Profiling is not supported on device 0.",
            "Profiling is not supported on device 0",
            "see",
        ),
        ("Killed", "Killed", "see what ncu itself says"),
    ],
)
def test_where_ncu_may_not_count_the_rows_say_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, on_a_gpu: None, says: str, reason: str, fix: str
) -> None:
    fake(tmp_path, does=f"echo '{says}'; exit 1")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=":")
    rows = command(tmp_path, monkeypatch)
    assert rows
    for row in rows:
        assert row["status"] == "unavailable"
        assert reason in row["reason"]
        assert fix in row["fix"]
        assert row["duration_us"] is None


def test_without_a_gpu_the_stage_completes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = command(tmp_path, monkeypatch, "device=cpu")
    assert {row["status"] for row in rows} == {"unavailable"}
    assert {row["reason"] for row in rows} == {"this machine has no NVIDIA GPU"}
    assert "counters are unavailable: this machine has no NVIDIA GPU" in capsys.readouterr().out


def test_ncu_is_found_newest_first_and_an_old_one_is_refused(tmp_path: Path) -> None:
    fake(tmp_path / "a", "2024.1.0.0")
    fake(tmp_path / "opt/2025.3.1", "2025.3.1.0").rename(tmp_path / "opt/2025.3.1/ncu")
    found = ncu.find_ncu({"PATH": str(tmp_path / "a/bin")}, tmp_path / "opt")
    assert (found.name, found.path) == ("ncu 2025.3.1", tmp_path / "opt/2025.3.1/ncu")
    with pytest.raises(Unavailable, match=r"ncu was not found: install Nsight Compute"):
        ncu.find_ncu({"PATH": ""}, tmp_path / "nothing")
    fake(tmp_path / "b", "2021.2.0.0")
    with pytest.raises(Unavailable, match=r"ncu 2021\.2\.0 is too old: install 2022\.3 or newer"):
        ncu.find_ncu({"PATH": str(tmp_path / "b/bin")}, tmp_path / "nothing")


def test_a_foreign_report_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    program = fake(tmp_path)
    page = f"cat '{PAGES}/made_by_hand.raw.csv'; exit"
    refusal = "echo '==ERROR== Unknown file format.'; exit 1"
    program.write_text(program.read_text().replace(page, refusal))
    monkeypatch.setenv("PATH", str(program.parent), prepend=":")
    report = tmp_path / "foreign.ncu-rep"
    report.write_bytes(b"half of a report")
    command(tmp_path, monkeypatch, "device=cpu", f"report={report}", code=2)
    assert capsys.readouterr().err == (
        f"error: {report} is not a whole report of Nsight Compute's: "
        "ncu counted nothing (Unknown file format).\n"
    )
    command(tmp_path, monkeypatch, "device=cpu", "report=nowhere.ncu-rep", code=2)
    assert capsys.readouterr().err == "error: report=nowhere.ncu-rep is not there.\n"


def test_sets_are_a_name_or_a_list() -> None:
    assert ncu.selection(["basic"], []) == ["--set", "basic"]
    assert ncu.selection(["SpeedOfLight", "dram__bytes_read.sum"], ["--metrics", "a__b"]) == [
        *("--section", "SpeedOfLight", "--metrics", "a__b,dram__bytes_read.sum")
    ]


def test_best_and_default_are_told_apart() -> None:
    """Of the roles that the report shows, each point has its own."""
    rows = [
        factory.measurement("softmax", "cuda", block_size=b, num_warps=4, median_us=us)
        for b, us in ((512, 5.0), (1024, 7.0))
    ]
    timed = {row.point: row for row in rows}
    found = choice.best_default_baseline(list(timed), timed, "torch", {"cuda"}.__contains__)
    assert {one.role: one.point.block_size for one in found} == {"best": 512, "default": 1024}
