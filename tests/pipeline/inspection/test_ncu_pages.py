"""Rows from ncu's CSV pages, and what they mean.

``ncu/recorded.*.csv`` are pages that Nsight Compute 2025.3.1 wrote on an H200: of its reports on square,
layernorm and softmax one launch each, under their own IDs 0, 3 and 4. Nothing in them was edited, but they
were cut. The raw page's 2264 columns were cut to those that identify the launch (the first 13) and those
whose names contain dram__bytes, gpu__compute_memory_throughput, gpu__dram_throughput, gpu__time_duration,
launch__, sm__throughput, sm__warps_active, sm__maximum_warps, l1tex__t_, lts__t_sector_hit_rate or
smsp__average_warps: the columns that the reader looks for, and similar ones. Whole lines of the details page
are left out: rules that promise no speedup, but for SOLBottleneck, and the numbers of all sections but Speed
Of Light.

``ncu/made_by_hand.*.csv`` were written by hand after the same layout for what none of the reports shows:
ncu's remark before the page, a point that launches two kernels, a kernel outside of any range, stalls counted
a second way, "n/a" in place of a number, a launch without rules and a rule of two lines.
"""

import csv
import io
from pathlib import Path
from typing import Any

import pytest

from pipeline.inspection import ncu_pages as counters
from pipeline.store.evidence import CounterRow

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
        "warps wait most for long scoreboard (2.6 cycles per instruction)",
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


def edited(column: str, value: str, unit: str | None = None, page: str = RAW) -> str:
    """A page with another value in a column, of layernorm's launch alone, and with another unit."""
    names, units, *rows = csv.reader(io.StringIO(page))
    place = names.index(column)
    units[place] = units[place] if unit is None else unit
    for row in rows:
        if any(LAYERNORM in cell for cell in row):
            row[place] = value
    text = io.StringIO()
    csv.writer(text, quoting=csv.QUOTE_ALL, lineterminator="\n").writerows([names, units, *rows])
    return text.getvalue()


def written(found: dict[str, list[dict[str, Any]]]) -> int:
    """How many rows there are, each of which a ledger takes."""
    common = {"kernel": "square", "role": "best", "status": "ok", "sentence": "", "environment": ""}
    return sum(bool(CounterRow(**row, **common).line()) for rows in found.values() for row in rows)


@pytest.mark.parametrize(
    "text",
    [
        *(
            "",
            " ",
            "nan",
            "NaN",
            "inf",
            "-inf",
            "n/a",
            "-1",
            "1e30",
            "1e999",
            "12 %",
            "0x10",
            "1_000",
            "\u0663",
        ),
        *("12,5", "1,2345", "1.234,5", "1.234.567", "1,234;5,678", "(32; 64)", "no value", "\0", "a,b"),
    ],
)
def test_a_value_that_cant_be_read_is_absent_and_all_others_stay(text: str) -> None:
    whole = counters.by_point(RAW, DETAILS)
    columns = {field: metric for field, (metric, _) in counters.METRICS.items()}
    for field in ("duration_us", "l1_hit_pct", "dram_read_bytes", "registers", "waves_per_sm"):
        found = counters.by_point(edited(columns[field], text), DETAILS)
        (changed,), (before,) = found[LAYERNORM], whole[LAYERNORM]
        follow = {"runtime_improvement_us"} if field == "duration_us" else set()
        assert {name for name in before if changed[name] != before[name]} == {field, *follow}
        assert changed[field] is None
        assert written(found) == 3 and {**found, LAYERNORM: []} == {**whole, LAYERNORM: []}


def test_what_follows_from_a_value_that_cant_be_read_is_absent_too() -> None:
    def changed(column: str, text: str) -> dict[str, Any]:
        return counters.by_point(edited(column, text), DETAILS)[LAYERNORM][0]

    assert changed("launch__occupancy_limit_registers", "nan").get("limited_by") is None
    assert changed("l1tex__t_sectors_pipe_lsu_mem_local_op_st.sum", "nan")["local_bytes"] is None
    assert changed("l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum", "1e-300")["sectors_per_load"] is None
    assert changed("dram__bytes.sum.per_second", "nan")["dram_gbps"] == pytest.approx(3824.776, abs=0.001)
    stall = "smsp__average_warps_issue_stalled_long_scoreboard_per_issue_active.ratio"
    assert "long_scoreboard" not in changed(stall, "nan")["stalls"]
    promised = counters.by_point(RAW, DETAILS.replace('"42.52"', '"nan"'))[SOFTMAX][0]
    assert promised["estimated_speedup_pct"] == 13.65
    assert [rule.speedup_pct for rule in promised["rules"]] == [None, 13.65, None, 3.207, None]


@pytest.mark.parametrize(
    ("column", "text", "unit", "field", "wanted"),
    [
        ("gpu__time_duration.sum", "63,968", "ns", "duration_us", 63.968),
        ("gpu__time_duration.sum", "63968", "nsecond", "duration_us", 63.968),
        ("gpu__time_duration.sum", "63.97", "us", "duration_us", 63.97),
        ("gpu__time_duration.sum", "63.97", "usecond", "duration_us", 63.97),
        ("gpu__time_duration.sum", "1.5", "ms", "duration_us", 1500),
        ("gpu__time_duration.sum", "1.5", "second", "duration_us", 1.5e6),
        ("gpu__time_duration.sum", "63,968", "cycle", "duration_us", None),
        ("dram__bytes_read.sum", "134.31", "Mbyte", "dram_read_bytes", 134.31e6),
        ("dram__bytes_read.sum", "134,308,864", "byte", "dram_read_bytes", 134308864),
        ("dram__bytes.sum.per_second", "3.82", "Tbyte/s", "dram_gbps", 3820),
        ("dram__bytes.sum.per_second", "3.82E+12", "byte/second", "dram_gbps", 3820),
        ("launch__shared_mem_per_block_dynamic", "16.38", "Kbyte/block", "shared_dynamic_bytes", 16380),
    ],
)
def test_a_number_is_the_one_that_ncu_means(
    column: str, text: str, unit: str, field: str, wanted: float | None
) -> None:
    found = counters.by_point(edited(column, text, unit), DETAILS)[LAYERNORM][0][field]
    assert found == (wanted if wanted is None else pytest.approx(wanted))


LINES = RAW.splitlines(keepends=True)


BAD = {
    "an empty line": (RAW + "\n", {SQUARE, LAYERNORM, SOFTMAX}),
    "empty lines": ("\n".join(LINES), {SQUARE, LAYERNORM, SOFTMAX}),
    "carriage returns": (RAW.replace("\n", "\r\n"), {SQUARE, LAYERNORM, SOFTMAX}),
    "a remark": (RAW + "==WARNING== Found outstanding GPU clock reset\n", {SQUARE, LAYERNORM, SOFTMAX}),
    "a long name": (
        RAW.replace("_layernorm_tile", "f<" + "int, " * 40_000 + "int>"),
        {SQUARE, LAYERNORM, SOFTMAX},
    ),
    "a quote": (RAW.replace("_layernorm_tile", '_layer"norm'), {SQUARE, SOFTMAX}),
    "a cell too many": (RAW.replace("_layernorm_tile", 'of","two'), {SQUARE, SOFTMAX}),
    "cut off": ("".join(LINES[:-1]) + LINES[-1][: len(LINES[-1]) // 2], {SQUARE, LAYERNORM}),
    "no columns": ("".join(LINES[1:]), set()),
    "no names of columns": (RAW.replace('"ID"', '"ID"x', 1), set()),
    "nothing": ("", set()),
    "a name": ('"ID"', set()),
}


@pytest.mark.parametrize(("page", "kept"), BAD.values(), ids=BAD)
def test_one_bad_row_of_a_page_costs_no_other(page: str, kept: set[str]) -> None:
    whole = counters.by_point(RAW, DETAILS)
    found = counters.by_point(page, DETAILS)
    assert {key for key in found if found[key]} == kept and written(found) == len(kept)
    assert all(found[key] == whole[key] for key in kept - {LAYERNORM})
    of_one = counters.by_point(counters.of_points(page, [SQUARE]), DETAILS)
    assert of_one == ({SQUARE: whole[SQUARE]} if kept else {})
    assert counters.by_point(RAW, page).keys() == whole.keys(), "as the page of rules, too"
