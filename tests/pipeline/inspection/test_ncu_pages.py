"""Rows from ncu's CSV pages, and what they mean.

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
"""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.inspection import ncu_pages as counters

PAGES = Path(__file__).parent / "ncu"
RAW, DETAILS = ((PAGES / f"recorded.{page}.csv").read_text() for page in ("raw", "details"))
BY_HAND = [(PAGES / f"made_by_hand.{page}.csv").read_text() for page in ("raw", "details")]
SQUARE, LAYERNORM, SOFTMAX = "e590b62ea6524fec", "9acf7a496546aac2", "042f75208056a6bf"
"""Keys of the recorded points: cuda of square at size 256, triton_tile of layernorm at 8192, torch's softmax
at 8192."""
B = "b" * 16


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
