"""Counters: rows from ncu's CSV pages, what they mean, and what a machine says that can't count.

``ncu/recorded.*.csv`` are pages that Nsight Compute 2025.3.1 wrote on an H200: of its reports on square,
layernorm and softmax one launch each, under their own IDs 0, 3 and 4. Nothing in them was edited, but they
were cut. Of the raw page's 2264 columns those are left that say which launch it is (the first 13) and those
whose names hold dram__bytes, gpu__compute_memory_throughput, gpu__dram_throughput, gpu__time_duration,
launch__, sm__throughput, sm__warps_active, sm__maximum_warps, l1tex__t_, lts__t_sector_hit_rate or
smsp__average_warps: what the reader looks for, and what is easily taken for it. Of the details page whole
lines are left out: rules that promise no speedup, but for SOLBottleneck, and the numbers of all sections but
Speed Of Light.

``ncu/made_by_hand.*.csv`` were written by hand after the same layout for what none of the reports shows:
ncu's remark before the page, a point that launches two kernels, a kernel outside of any range, stalls counted
a second way, "n/a" in place of a number, a launch without rules and a rule of two lines.

A program that answers as ncu does hands out the recorded pages.
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
RAW, DETAILS = ((PAGES / f"recorded.{page}.csv").read_text() for page in ("raw", "details"))
BY_HAND = [(PAGES / f"made_by_hand.{page}.csv").read_text() for page in ("raw", "details")]
SQUARE, LAYERNORM, SOFTMAX = "e590b62ea6524fec", "9acf7a496546aac2", "042f75208056a6bf"
"""Keys of the recorded points: cuda of square at size 256, triton_tile of layernorm at 8192, torch's softmax
at 8192; ``results/counters`` has the same launches."""
B = "b" * 16


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
    '--page raw') cat '{PAGES}/recorded.raw.csv'; exit ;;
    '--page details') cat '{PAGES}/recorded.details.csv'; exit ;;
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
    (row,) = counters.by_point(RAW, DETAILS)[LAYERNORM]
    assert row["function"] == row["demangled"] == "_layernorm_tile"
    assert row["duration_us"] == pytest.approx(63.968)
    assert (row["memory_throughput_pct"], row["compute_throughput_pct"]) == (79.53, 24.7)
    assert row["dram_throughput_pct"] == 79.53
    assert row["dram_gbps"] == pytest.approx(3824.776, abs=0.001)
    assert (row["dram_read_bytes"], row["dram_write_bytes"]) == (134308864, 110354432)
    assert (row["l1_hit_pct"], row["l2_hit_pct"]) == (48.48, 51.24)
    assert (row["grid_size"], row["block_size_threads"], row["registers"]) == (4096, 128, 168)
    assert row["waves_per_sm"] == 10.34
    assert (row["shared_static_bytes"], row["shared_dynamic_bytes"]) == (0, 16)
    assert (row["achieved_occupancy_pct"], row["theoretical_occupancy_pct"]) == (17.68, 18.75)
    assert row["limited_by"] == "registers"
    assert row["sectors_per_load"] == 12599296 / 802816
    assert row["sectors_per_store"] == 16
    assert row["local_bytes"] == (131092 + 130872) * 32


def test_names_come_without_namespaces() -> None:
    found = counters.by_point(RAW, DETAILS)
    (ours,), (torchs,) = found[SQUARE], found[SOFTMAX]
    assert ours["demangled"].startswith(
        "void kernels::elementwise<float, 4, 1, square::Square>(const T1 *, T1 *"
    )
    assert ours["function"] == "elementwise<float, 4, 1, Square>"
    assert torchs["function"] == (
        "cunn_SoftMaxForwardReg<float, float, float, SoftMaxForwardEpilogue, long, 8>"
    )


def test_accesses_of_4_bytes_take_4_sectors_and_of_16_bytes_16() -> None:
    found = counters.by_point(RAW, DETAILS)
    sectors = {key: (row["sectors_per_load"], row["sectors_per_store"]) for key, (row,) in found.items()}
    assert (sectors[SOFTMAX], sectors[SQUARE]) == ((4, 4), (16, 16))


def test_stalls_come_longest_first() -> None:
    (row,) = counters.by_point(RAW, DETAILS)[SQUARE]
    assert list(row["stalls"].items())[:4] == [
        ("long_scoreboard", 14.61),
        ("no_instruction", 4.33),
        ("wait", 2.34),
        ("imc_miss", 2.07),
    ]
    assert "barrier" not in row["stalls"], "what no warp waited for is left out"
    (cpi,) = (rule for rule in row["rules"] if rule.name == "CPIStall")
    assert "each warp of this workload spends 14.6 cycles being stalled" in cpi.text, "they are cycles"


def test_a_point_has_a_row_for_each_kernel_it_launched_and_what_is_outside_is_left_out() -> None:
    found = counters.by_point(*BY_HAND)
    assert {key: len(rows) for key, rows in found.items()} == {B: 2}
    assert [row["function"] for row in found[B]] == [
        "vectorized_elementwise_kernel<4, tanh>",
        "vectorized_elementwise_kernel<4, mul>",
    ]
    assert [row["launch"] for row in found[B]] == [0, 1]
    assert [row["stalls"] for row in found[B]] == [{"long_scoreboard": 8.9}, {"long_scoreboard": 8.1}], (
        "one kind of ratio"
    )
    recorded = counters.by_point(RAW, DETAILS)
    assert {key: len(rows) for key, rows in recorded.items()} == {SQUARE: 1, LAYERNORM: 1, SOFTMAX: 1}


def test_rules_come_with_what_they_promise() -> None:
    found = counters.by_point(RAW, DETAILS)
    (row,) = found[SOFTMAX]
    assert [(rule.name, rule.kind, rule.scope, rule.speedup_pct) for rule in row["rules"]] == [
        ("SOLBottleneck", "OPT", "", None),
        ("MemoryL2Compression", "OPT", "global", 13.65),
        ("IssueSlotUtilization", "OPT", "local", 42.52),
        ("FPInstructions", "OPT", "global", 3.207),
        ("TheoreticalOccupancy", "OPT", "global", 42.52),
    ]
    assert row["rules"][-1].text.endswith("(50.0%) is limited by the number of required registers.")
    assert row["estimated_speedup_pct"] == 42.52
    assert row["runtime_improvement_us"] == pytest.approx(137.28 * 0.4252)

    (small,) = found[SQUARE]
    assert max(rule.speedup_pct or 0 for rule in small["rules"]) == 99.42
    assert small["estimated_speedup_pct"] == 88.03, "what a local rule promises is not the kernel's"

    first, second = counters.by_point(*BY_HAND)[B]
    assert first["rules"][1].text == "Limited by the number of required registers."
    assert second["rules"] == ()


def test_what_limits_a_kernel_is_said_with_the_number() -> None:
    found = counters.by_point(RAW, DETAILS)
    (small,), (full,), (waiting,) = found[SQUARE], found[LAYERNORM], found[SOFTMAX]
    assert counters.bound(full) == (
        "memory",
        "memory limits it: memory throughput 80 %, compute throughput 25 %",
    )
    assert counters.bound(small) == (
        "grid",
        "its grid is too small: 0.06 waves, memory throughput 3 %, compute throughput 1 %",
    )
    assert next(iter(waiting["stalls"])) == "not_selected", (
        "most of all they wait for no data, but their turn"
    )
    assert counters.bound(waiting) == (
        "latency",
        "latency limits it: memory throughput 38 %, compute throughput 54 %, occupancy 49 %, "
        "warps wait most for long scoreboard (2.6 cycles an instruction)",
    )
    busy = full | {"compute_throughput_pct": 95.0}
    assert counters.bound(busy)[0] == "compute"
    assert counters.bound({})[0] is None


def test_what_limits_a_kernel_is_what_ncu_itself_says() -> None:
    says = {
        SQUARE: "This kernel grid is too small to fill the available resources",
        LAYERNORM: "Memory is more heavily utilized than Compute",
        SOFTMAX: "below 60.0% of peak typically indicate latency issues",
    }
    for key, (row,) in counters.by_point(RAW, DETAILS).items():
        (rule,) = (rule for rule in row["rules"] if rule.name == "SOLBottleneck")
        assert says[key] in rule.text


def test_a_report_without_some_counters_leaves_them_empty() -> None:
    header, units, *rest = RAW.splitlines()
    few = "\n".join(",".join(line.split('","')[0:1]) for line in (header, units, *rest))
    assert counters.by_point(few, "") == {}
    basic = RAW.replace("l1tex__t_sectors", "other__t_sectors").replace("dram__bytes", "other__bytes")
    (row,) = counters.by_point(basic, "")[LAYERNORM]
    assert (row["sectors_per_load"], row["local_bytes"], row["dram_gbps"]) == (None, None, None)
    assert row["memory_throughput_pct"] == 79.53


def test_the_stage_joins_the_report_to_its_points(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, on_a_gpu: None, capsys: pytest.CaptureFixture[str]
) -> None:
    keys = iter((LAYERNORM, SOFTMAX))
    monkeypatch.setattr(grid, "key", lambda *_: next(keys))
    monkeypatch.setenv("PATH", str(fake(tmp_path).parent), prepend=":")
    rows = command(tmp_path, monkeypatch, "provider=[triton_online,triton_row]")
    assert {row["tool"] for row in rows} == {"ncu 2025.3.1"}
    assert [(row["key"], row["status"]) for row in rows] == [(LAYERNORM, "ok"), (SOFTMAX, "ok")]
    first = rows[0]
    assert (first["provider"], first["bound"]) == ("triton_row", "memory")
    assert first["report"] == "counters/softmax/nvidia-h200.ncu-rep"
    assert (tmp_path / "artifacts" / first["report"]).exists()
    printed = capsys.readouterr().out
    assert "memory limits it: memory throughput 80 %" in printed

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
    assert all(row["reason"] == "ncu saw no kernel of it" for row in rows)
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
    printed = capsys.readouterr().out
    assert "counters are unavailable: this machine has no NVIDIA GPU" in printed
    assert ".ncu-rep" not in printed, "there is no report"


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
    page = f"cat '{PAGES}/recorded.raw.csv'; exit"
    refusal = "echo '==ERROR== Unknown file format.'; exit 1"
    program.write_text(program.read_text().replace(page, refusal))
    monkeypatch.setenv("PATH", str(program.parent), prepend=":")
    report = tmp_path / "foreign.ncu-rep"
    report.write_bytes(b"half of a report")
    command(tmp_path, monkeypatch, "device=cpu", f"report={report}", code=2)
    assert capsys.readouterr().err == (
        f"error: {report} is not a whole report of Nsight Compute's (ncu: Unknown file format): "
        "name another, or leave report= out to count anew.\n"
    )
    command(tmp_path, monkeypatch, "device=cpu", "report=nowhere.ncu-rep", code=2)
    assert capsys.readouterr().err == "error: report=nowhere.ncu-rep is not there.\n"


@pytest.mark.parametrize("cut", [False, True], ids=["of another commit", "cut after its header"])
def test_a_report_of_other_points_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], cut: bool
) -> None:
    assert {row["status"] for row in command(tmp_path, monkeypatch, "device=cpu")} == {"unavailable"}
    capsys.readouterr()
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    program = fake(tmp_path / "tool")
    if cut:
        page = f"cat '{PAGES}/recorded.raw.csv'"
        program.write_text(program.read_text().replace(page, f"head -n 2 '{PAGES}/recorded.raw.csv'"))
    monkeypatch.setenv("PATH", str(program.parent), prepend=":")
    report = tmp_path / "tool" / "other.ncu-rep"
    report.touch()
    command(tmp_path, monkeypatch, "device=cpu", f"report={report}", code=2)
    said = capsys.readouterr().err
    assert said.startswith(f"error: report={report} holds no kernel of these points: it was made on another ")
    assert said.count("\n") == 1
    assert before == {path: path.read_bytes() for path in before}
    assert not list(tmp_path.rglob("*.csv"))


def test_where_no_kernel_was_launched_the_rows_say_what_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, on_a_gpu: None, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(grid, "key", lambda *_: B)
    failures = json.dumps({B: "RuntimeError: no such launch"})
    does = f"""for last in "$@"; do :; done; echo '{failures}' >"$last"\n"""
    fake(tmp_path, does=does + "echo '==WARNING== No kernels were profiled.'")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=":")
    (row,) = command(tmp_path, monkeypatch, "provider=triton_row", "num_warps=4")
    assert (row["status"], row["reason"]) == ("error", "RuntimeError: no such launch")
    assert row["report"] is None and ".ncu-rep" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("sets", "said"),
    [
        ("fulll", "sets: unknown set 'fulll'. Did you mean 'full'? Known: basic, detailed, full."),
        ("[basic,WarpStateStats]", "sets: 'basic' is a whole set; write it alone, or a list of sections"),
    ],
)
def test_a_slip_in_sets_is_one_sentence(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    sets: str,
    said: str,
) -> None:
    assert command(tmp_path, monkeypatch, "device=cpu", f"sets={sets}", code=2) == []
    assert capsys.readouterr().err.startswith(f"error: {said}")


def test_sets_are_a_name_or_a_list() -> None:
    assert ncu.selection(["basic"], []) == ["--set", "basic"]
    assert ncu.selection(["SpeedOfLight", "dram__bytes_read.sum"], ["--metrics", "a__b"]) == [
        *("--section", "SpeedOfLight", "--metrics", "a__b,dram__bytes_read.sum")
    ]


def test_launches_that_further_grids_add_are_looked_into() -> None:
    grids = [
        {"size": [256, 8192], "dtype": ["float32", "bfloat16"], "num_warps": [4], "rows": [None]},
        {"size": [256, 781], "dtype": ["float32"], "num_warps": [1], "rows": [None]},
        {"size": [781], "dtype": ["float32"], "num_warps": [1], "rows": [None]},
        {"size": [8192], "dtype": ["float32"], "num_warps": [8], "rows": [37]},
        {"size": [8192], "dtype": ["bfloat16"], "num_warps": [2], "rows": [None]},
    ]
    first, second = choice.grids_of_first(grids, [256, 8192], ["float32"])
    assert first == {**grids[0], "dtype": ["float32"]}
    assert second == {**grids[1], "size": [256]}


def test_best_and_default_are_told_apart() -> None:
    """Of the roles that the report shows, each point has its own."""
    rows = [
        factory.measurement("softmax", "cuda", block_size=b, num_warps=4, median_us=us)
        for b, us in ((512, 5.0), (1024, 7.0))
    ]
    timed = {row.point: row for row in rows}
    found = choice.best_default_baseline(list(timed), timed, "torch", {"cuda"}.__contains__)
    assert {one.role: one.point.block_size for one in found} == {"best": 512, "default": 1024}
