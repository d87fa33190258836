"""The table at the end of a sweep, as a terminal and as a file get it."""

import io
import math
import re

import pytest
from rich.console import Console

from kernel_pipeline.records.base import Values
from pipeline.reporting.cells import counted
from pipeline.reporting.numbers import number, percent, speedup
from pipeline.reporting.sweep_output import MAX_REMARKS, MAX_ROWS, disturbances, show_table
from pipeline.reporting.terminal import Terminal
from tests.factory import flat, grid, measurement

PROVIDERS = ("torch", "torch_compile", "triton_row", "triton_online")


def printed(rows, **options) -> str:
    out = io.StringIO()
    show_table(Console(file=out, **options), rows, "torch", "reports/report.html")
    return out.getvalue()


def body(text: str) -> list[list[str]]:
    """The table's cells; cells are two spaces apart."""
    return [
        re.split(r" {2,}", line.strip())
        for line in text.splitlines()
        if re.match(r"(softmax|gelu|squ|matmul)", line)
    ]


def test_every_cell_follows_from_the_ledger():
    rows = grid(providers=PROVIDERS, dtypes=("float32", "bfloat16"))
    best: dict[tuple, dict] = {}
    for row in map(flat, rows):
        group = (row["dtype"], row["columns"], row["provider"])
        if group not in best or row["median_us"] < best[group]["median_us"]:
            best[group] = row
    expected = []
    for (dtype, size, provider), row in sorted(
        best.items(), key=lambda item: (item[0][:2], item[1]["median_us"])
    ):
        parts = [f"{row['block_size']}x" if "block_size" in row else "", f"{row.get('num_warps')}w"]
        name = f"{provider} {''.join(parts)}" if "num_warps" in row else provider
        ratio = best[(dtype, size, "torch")]["median_us"] / row["median_us"]
        expected.append((str(size), name + " (baseline)" * (provider == "torch"), dtype, row, ratio))
    cells = body(printed(rows, width=100))
    assert [tuple(line[1:4]) for line in cells] == [line[:3] for line in expected]
    for line, (*_, row, ratio) in zip(cells, expected, strict=True):
        assert float(line[4]) == pytest.approx(row["median_us"], rel=5e-3)
        assert float(line[5]) == pytest.approx(row["gbps"], rel=5e-3)
        assert float(line[6].removesuffix(" %")) == pytest.approx(100 * row["ceiling_fraction"], abs=0.06)
        assert float(line[7]) == pytest.approx(ratio, abs=0.006)


@pytest.mark.parametrize("options", [{"width": 100}, {"width": 20}, {"width": 100, "force_terminal": True}])
def test_nothing_is_cut_off_at_100_columns_or_in_a_pipe(options):
    rows = grid(
        kernels=("softmax",),
        providers=("torch", "triton_online"),
        sizes=(65536, 1048576),
        dtypes=("bfloat16",),
        block_sizes=(65536,),
        num_warps=(16,),
    )
    text = printed(rows, color_system=None, **options)
    assert "…" not in text and "\x1b" not in text
    # A sentence may be broken between words, a row of the table never.
    assert max(map(len, text.splitlines())) <= 100
    assert sorted({line[2] for line in body(text)}) == ["torch (baseline)", "triton_online 65536x16w"]
    assert {len(line) for line in body(text)} == {8}


def test_a_narrow_terminal_folds_and_does_not_cut():
    text = printed(grid(), width=70, force_terminal=True, color_system=None)
    assert "…" not in text
    assert max(map(len, text.splitlines())) <= 70
    for line in body(printed(grid())):
        for cell in (line[1], *line[3:]):
            assert cell in text


def test_a_long_table_shows_the_best_provider_only_and_says_where_the_rest_is():
    sizes = tuple(2**i for i in range(6, 6 + MAX_ROWS // len(PROVIDERS)))
    assert "Only the best" not in printed(grid(providers=PROVIDERS, sizes=sizes))
    rows = grid(providers=PROVIDERS, sizes=(*sizes, 37))
    text = printed(rows)
    cells = body(text)
    assert len(cells) == len(sizes) + 1
    assert {line[2].split()[0] for line in cells} == {"triton_online"}
    assert (
        f"Only the best provider at each problem is shown; all {MAX_ROWS + 4} rows: reports/report.html."
        in text
    )


def test_what_has_no_time_is_told_once_a_reason():
    rows = grid(providers=("torch",))
    rows += grid(providers=("cuda",), status="timeout")
    rows += [measurement(provider="triton_row", num_warps=w, status="verified") for w in (4, 8)]
    rows += [
        measurement(provider="cpp", size=s, status="runtime_error", error=f"{s} columns > 99")
        for s in (128, 256)
    ]
    lines = printed(rows).splitlines()
    assert "cuda: 12 points took too long: cuda could not do this: timeout" in lines
    assert "triton_row: 2 points verified under the interpreter, not timed" in lines
    assert "cpp: 2 points failed at run time: for example 128 columns > 99" in lines


def test_many_reasons_are_counted():
    words = [chr(ord("a") + i) * 3 for i in range(MAX_REMARKS + 3)]
    rows = [measurement(provider=f"p_{w}", status="compile_error", error=w) for w in words]
    text = printed(rows)
    assert text.count("failed to compile") == MAX_REMARKS
    assert "and 3 more points without a time, for 3 other reasons: reports/report.html." in text


def test_a_row_not_to_be_trusted_is_marked():
    text = printed([measurement(provider="cuda", median_us=12.34, valid=False), measurement()])
    assert re.search(r"cuda 1024x4w +float32 +12\.3! ", text)
    assert text.count("!") == 3, "the time, the ratio and the reason"
    assert "! 1 row not to be trusted: the clock moved by 8 % while it was timed" in text


def test_no_baseline_and_no_ceiling_leave_their_cells_empty():
    row = measurement(provider="cuda")
    assert row.rate is not None
    unknown = row.rate.replace(bound=None, ceiling_fraction=None)
    text = printed([row.replace(rate=unknown)])
    assert "nan" not in text.lower() and len(body(text)[0]) == 6


def test_both_rates_have_a_column_and_a_row_has_the_one_of_its_workload():
    rows = [measurement("matmul", "torch", 4096, "bfloat16")]
    rows += [measurement("matmul", "torch", 8192, "bfloat16", m=16, workload="decode")]
    text = printed(rows)
    header = next(line for line in text.splitlines() if line.startswith("kernel"))
    assert "GB/s" in header and "TFLOP/s" in header
    decode, square = sorted(body(text), key=lambda cells: len(cells[1]), reverse=True)
    assert decode[1] == "m=16 n=8192 k=8192" and square[1] == "4096"
    (moved,) = (row.rate.gbps for row in rows if row.workload == "decode" and row.rate)
    (computed,) = (row.rate.tflops for row in rows if row.workload == "square" and row.rate)
    assert decode[5] == number(moved) and square[5] == number(computed)
    assert "TFLOP/s" not in printed([measurement()])


def test_without_a_timed_point_it_says_so():
    assert printed([]) == "Nothing was measured.\n"
    text = printed([measurement(status="out_of_memory", error="asked for 9 GiB")])
    assert text == "No point was timed.\ntorch: 1 point ran out of memory: asked for 9 GiB\n"


def test_figures_have_the_digits_that_people_read():
    numbers = {0.012345: "0.0123", 1.2345: "1.23", 9.996: "10.0", 99.96: "100", 123456.0: "123456"}
    numbers |= {0.0: "0.00", None: "", math.nan: ""}
    shares = {0.954: "95.4 %", 1.02: "102.0 %", 0.0712: "7.1 %", 0.0002: "< 0.1 %", None: ""}
    ratios = {1.0: "1.00", 0.983: "0.98", 0.996: "1.00", 0.0512: "0.051", 9.996: "10.0", 12.34: "12.3"}
    for function, known in ((number, numbers), (percent, shares), (speedup, {**ratios, math.nan: ""})):
        assert {value: function(value) for value in known} == known


def test_text_is_no_markup_and_no_command_to_the_terminal():
    row = measurement("of_old", "torch", 64)
    problem = Values({"n": 64, "dtype": "[/x] [bold]"})
    row = row.replace(point=row.point.replace(problem=problem))
    assert "[/x] [bold]" in printed([row], width=120)
    out = io.StringIO()
    Terminal(file=out, force_terminal=True, width=80).print(
        "\x1b[2J [/x] :smile:\nnext", style="bold", highlight=False
    )
    assert out.getvalue() == "\x1b[1m\\x1b[2J [/x] :smile:\x1b[0m\n\x1b[1mnext\x1b[0m\n"


def test_a_sweep_ends_with_the_share_of_its_times_that_others_disturbed() -> None:
    rows = [measurement(size=size, valid=size != 64) for size in (64, 128, 256, 512)]
    marked = rows[1].outcome.state
    assert marked is not None
    rows[1] = rows[1].with_state(marked.distrusted("it was busy"))
    rows[2] = rows[2].with_state(marked.replace(neighbours=2))
    rows.append(measurement(size=1024, status="timeout"))
    assert disturbances(rows) == [
        "2 of 4 times (50%) are not to be trusted: 1 because the clock moved by 8 % while it was timed; "
        "1 because it was busy. remeasure=true measures again.",
        "1 of 4 times were taken while other processes computed on the GPU.",
    ]
    assert disturbances(rows[2:3] + rows[3:]) == [
        "1 of 2 times were taken while other processes computed on the GPU."
    ]
    timing = rows[3].outcome.timing
    assert timing is not None
    large = rows[3].replace(outcome=rows[3].outcome.replace(timing=timing.replace(large_ring=True)))
    assert [line.partition(":")[0] for line in disturbances([large, rows[4]])] == [
        "1 of 1 time was taken over a larger ring of inputs than usual"
    ]
    assert disturbances([]) == []


def test_reasons_that_differ_in_their_numbers_alone_are_one() -> None:
    some = ["calls took 169.6 us", "it was busy", "calls took 2194 us", "calls took 202 us", None]
    assert counted(some) == {
        "for example calls took 169.6 us": 3,
        "it was busy": 1,
        "no reason was recorded": 1,
    }


def test_a_throttled_time_is_an_upper_bound_that_may_win() -> None:
    rows = [
        measurement(provider="cuda", num_warps=4, median_us=10.0),
        measurement(provider="cuda", num_warps=8, median_us=8.0, throttle="sw_power_cap"),
        measurement(median_us=24.0),
    ]
    text = printed(rows)
    assert re.search(r"cuda 1024x8w +float32 +<= 8\.00 .* 3\.00!", text) and "10.0" not in text
    assert "! 1 row not to be trusted: the GPU was held back while it was timed, twice: sw_power_cap" in text
    assert "baseline" in text and text.count("!") == 2
