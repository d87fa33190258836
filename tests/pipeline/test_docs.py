"""The figures of docs/ are those of results/ and reports/, and a page on which they are not is named."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from pipeline import ROOT, UserError, docs, report
from pipeline.command.options import DocsConfig, ReportConfig
from pipeline.docs import NOTHING, Figures, filled
from pipeline.store.finals import Final
from pipeline.store.record import Launch, Measurement
from tests import factory
from tests.factory import CPU, H100, H200

BLOCK = "<!-- figures: {} -->\n<!-- end -->\n"
PROVIDERS = "providers kernel=softmax workload=columns columns=[256,1024] dtype=float32"


def test_no_committed_page_is_stale() -> None:
    docs.run(
        DocsConfig(
            input=ROOT / "results",
            reports=ROOT / "reports",
            docs=(ROOT / "README.md", ROOT / "docs"),
            check=True,
        )
    )


@pytest.mark.slow
def test_a_stale_figure_is_caught_by_its_page_and_put_right(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "docs", tmp_path / "docs")
    page = tmp_path / "docs" / "kernels" / "softmax.md"
    right = page.read_text()
    rate = re.findall(r"\| (\d{4}) \| \d\d\.\d % \|", right)[3]
    page.write_text(right.replace(f"| {rate} |", f"| {int(rate) + 1} |", 1))
    stale = page.read_text()
    assert stale != right

    def run(*options: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "pipeline.docs", f"docs={tmp_path / 'docs'}", *options]
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)

    checked = run("check=true")
    assert (checked.returncode, checked.stdout, checked.stderr.count("\n")) == (2, "", 1), checked.stderr
    assert checked.stderr.startswith(f"error: {page} is stale: ")
    assert page.read_text() == stale, "a check writes nothing"

    assert run().stdout == f"{page}: its figures are new.\n"
    assert page.read_text() == right
    assert run("check=true").returncode == 0


@pytest.fixture(scope="module")
def reported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of results and of their report."""
    folder = tmp_path_factory.mktemp("reported")
    rows = factory.grid(
        gpus=(H200, H100, CPU), sizes=(256, 1024), block_sizes=(1024,), providers=("torch", "cuda")
    )
    results = factory.write_results(folder / "results", rows)
    report.run(ReportConfig(input=results, output=folder / "reports", device="cpu"))
    return folder


@pytest.fixture
def figures(reported: Path, tmp_path: Path) -> Figures:
    """Of a copy of both, to write to."""
    shutil.copytree(reported, tmp_path, dirs_exist_ok=True)
    return Figures(tmp_path / "results", tmp_path / "reports")


def test_each_machines_figures_are_there_and_no_cpus(figures: Figures) -> None:
    for name in ("floor", "best", "providers"):
        table = figures.table(PROVIDERS.replace("providers", name))
        assert re.findall(r"^\*(.*?)[,.]", table, re.MULTILINE) == [
            "NVIDIA H100 80GB HBM3",
            "NVIDIA H200",
        ]
        assert all(f"\n| {size} |" in table for size in (256, 1024))
        assert "bfloat16" not in table
    assert "*NVIDIA H200, a copy at 4270 GB/s; bytes are the limit of each.*" in figures.table(
        "floor kernel=softmax workload=columns dtype=float32"
    )


def test_a_table_has_the_providers_that_were_asked_for(figures: Figures) -> None:
    table = figures.table(f"{PROVIDERS} provider=[cuda,torch]")
    assert "| columns | dtype | `torch` | `cuda` |" in table
    for torch, cuda in re.findall(r"^\| \d+ \| float32 \| (\S+) \| (\S+) \|$", table, re.MULTILINE):
        assert cuda == f"**{cuda.strip('*')}**" and float(torch) > float(cuda.strip("*"))


def test_finals_come_before_the_sweeps_best(figures: Figures) -> None:
    row = factory.measurement("softmax", "cuda", 1024)
    factory.write_finals(figures.input, [factory.final(row, 1.5)])
    table = figures.table(PROVIDERS)
    assert table.count("By finals at the 1 of 2 problems with §, else by sweeps, not side by side") == 1
    assert "| 1024 § | float32 |" in table and "**1.50**" in table
    assert table.count("us. By sweeps, not side by side.") == 1, "the other machine had none"


def test_a_map_has_the_fastest_provider_of_each_problem(figures: Figures) -> None:
    table = figures.table(PROVIDERS.replace("providers", "map", 1))
    assert table.count("the fastest provider, and the time of `torch` over its own. By sweeps") == 2
    header, _, (row) = [line.strip("|").split("|") for line in table.splitlines() if line.startswith("|")][
        -3:
    ]
    assert [cell.strip() for cell in header] == ["dtype", "columns = 256", "columns = 1024"]
    assert row[0].strip() == "float32"
    times = figures.table(PROVIDERS)
    for cell, size in zip(row[1:], (256, 1024), strict=True):
        torch, cuda = re.findall(rf"^\| {size} \| float32 \| (\S+) \| (\S+) \|$", times, re.MULTILINE)[-1]
        assert cell.strip().startswith("`cuda` ")
        ratio = float(torch) / float(cuda.strip("*"))
        assert float(cell.split()[1]) == pytest.approx(ratio, rel=0.02)
    assert "`torch` |" in figures.table(f"{PROVIDERS.replace('providers', 'map', 1)} provider=[torch]")


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_a_grid_has_the_dtypes_side_by_side_and_counts_the_large_problems(tmp_path: Path) -> None:
    fast, slow = (4 * 8192 * 4096 * 2 / factory.COPY_GBPS[H200] / 1e3 / share for share in (0.98, 0.9))
    rows = [
        factory.measurement("softmax", "torch", 8192, median_us=2 * fast),
        factory.measurement("softmax", "cuda", 8192, median_us=fast),
        factory.measurement("softmax", "cuda", 16384, "bfloat16", median_us=slow),
        factory.measurement("softmax", "cuda", 256, median_us=2.0),
    ]
    results = factory.write_results(tmp_path / "results", rows)
    report.run(ReportConfig(input=results, output=tmp_path / "reports", device="cpu"))
    table = Figures(results, tmp_path / "reports").table("grid kernel=softmax workload=columns")
    (long,) = [cells(line) for line in table.splitlines() if line.startswith("| 8192 |")]
    assert long[1].startswith("`cuda ") and long[3:] == ["98.0 %", "2.00", "", "", "", ""]
    assert table.endswith(
        "Of the 2 problems that move more than 256 MB the fastest reaches 97 % of the ceiling at 1. "
        "Below it are 16384 bfloat16 (90.0 %)."
    ), "256 columns are small, whatever they reach"


def launched(row: Measurement, *strategies: str, cluster: int = 1, stages: int = 0) -> Measurement:
    """A row that says what it launched."""
    launches = [
        Launch(function="rows", strategy=one, grid=(64,), block=(128, 2), cluster=(cluster,), stages=stages)
        for one in strategies
    ]
    return row.model_copy(update={"outcome": row.outcome.model_copy(update={"launch": tuple(launches)})})


def test_plans_have_the_fastest_launch_and_the_best_of_each_other_strategy(tmp_path: Path) -> None:
    def row(us: float, size: int = 256, **named: Any) -> Measurement:
        return factory.measurement("softmax", "cuda", size, median_us=us, **named)

    rows = [
        launched(row(10.0), "register_resident"),
        launched(row(12.0, num_warps=2), "copy", "shared_memory_resident"),
        launched(row(8.0, strategy="persistent"), "persistent", cluster=4, stages=3),
        launched(row(1.0, strategy="persistent", num_warps=2, valid=False), "persistent"),
        launched(row(20.0, 1024), "register_resident"),
        row(19.0, 1024, num_warps=2),
        factory.measurement("softmax", "torch", 256, median_us=1.0),
    ]
    figures = Figures(factory.write_results(tmp_path, rows), tmp_path)
    table = figures.table("plans kernel=softmax workload=columns")
    header, _, line = [cells(line) for line in table.splitlines() if line.startswith("|")]
    assert line[2].startswith("`cuda ") and "strategy=persistent" in line[2]
    assert line[3:8] == ["`persistent`", "4", "256", "3", "8.00"]
    assert dict(zip(header[8:], line[8:], strict=True)) == {
        "`auto`": "1.25",
        "`register_resident`": "1.25",
        "`shared_memory_resident`": "1.50",
        "`persistent`": "1.00",
    }
    assert "3 launches by sweeps" in table, "1024 has a row that does not say what was launched"
    assert table.endswith(
        "Of 1 problems the fastest launch is `persistent` at 1. At 1 a strategy was asked for by name, too: "
        "at the most it is 25.0 % faster than the best of `auto`, at 256 float32."
    )


def test_the_others_stand_against_our_fastest_over_all_problems(tmp_path: Path) -> None:
    times = {
        "cuda": (10.0, 20.0, 40.0),
        "triton_online": (8.0, 30.0, 50.0),
        "torch": (16.0, 20.0, 80.0),
        "quack": (7.6, 19.9, 40.0),
    }
    rows = [
        factory.measurement("softmax", name, size, median_us=us)
        for name, some in times.items()
        for size, us in zip((256, 1024, 4096), some, strict=True)
    ]
    table = Figures(factory.write_results(tmp_path, rows), tmp_path).table(
        "against kernel=softmax workload=[columns,wide_rows]"
    )
    lines = {cells(line)[0]: cells(line)[1:] for line in table.splitlines() if line.startswith("| `")}
    assert lines["`torch`"] == ["3", "1.59", "1.00", "none"]
    assert lines["`quack`"] == ["3", "0.98", "0.95", "256 float32 (0.95)"], "0.995 is not 1 % faster"
    assert lines.keys() == {"`torch`", "`quack`"}


def test_steps_have_each_providers_rate_over_that_of_the_one_before(tmp_path: Path) -> None:
    times = {"manual": 40.0, "torch": 10.0, "cuda": 8.0}
    rows = [factory.measurement("softmax", name, 1024, median_us=us) for name, us in times.items()]
    table = Figures(factory.write_results(tmp_path, rows), tmp_path).table(
        "steps kernel=softmax workload=columns columns=[1024] provider=[manual,triton_row,torch,cuda]"
    )
    assert table.startswith("*NVIDIA H200, 1024 float32, by sweeps, not side by side, of `0123456`.*")
    lines = [cells(line) for line in table.splitlines() if line.startswith("| `")]
    megabytes = 2 * 4096 * 1024 * 4 / 1e3
    assert lines == [
        ["`manual`", f"{megabytes / 40:.0f}", ""],
        ["`torch`", f"{megabytes / 10:.0f}", "4.00"],
        ["`cuda`", f"{megabytes / 8:.0f}", "1.25"],
    ]


def finals_of(size: int, ours: float, others: dict[str, tuple[float, str]]) -> list[Final]:
    row = factory.measurement("softmax", "cuda", size)
    beside = [
        factory.final(factory.measurement("softmax", name, size), us, against=(row, ours, verdict))
        for name, (us, verdict) in others.items()
    ]
    return [factory.final(row, ours), *beside]


def test_ratios_are_of_finals_with_verdicts_means_and_what_was_asked(figures: Figures) -> None:
    finals = [
        *finals_of(256, 4.0, {"torch": (8.0, "slower"), "triton_online": (5.0, "slower")}),
        *finals_of(1024, 10.0, {"torch": (9.0, "undecided"), "quack": (10.0, "same")}),
    ]
    factory.write_finals(figures.input, finals)
    words = "kernel=softmax workload=columns columns=[256,1024,4096] dtype=float32"
    table = figures.table(f"ratios {words} each=torch:0.95 mean=torch:1.3 each=ceiling:0.5")
    assert "There are none at 1 of the 3 problems." in table and table.count("*NVIDIA") == 1
    header, _, *lines = [cells(line) for line in table.splitlines() if line.startswith("|")]
    assert header[6:] == ["rounds", "`torch`", "`quack`"], "triton_online is ours"
    assert [line[0] for line in lines] == ["256", "1024", "geometric mean"]
    assert [line[7:] for line in lines] == [
        ["2.00", ""],
        ["0.90 (undecided)", "1.00 (same)"],
        ["1.34 of 2", "1.00 of 1"],
    ]
    shares = [Decimal(line[5].split()[0]) / 100 for line in lines[:2]]
    assert shares[0] < 0.5 < shares[1]
    assert table.split("\n\n")[-3:] == [
        "Asked was 95 % of the speed of `torch` at each problem: met at 1 of 2 problems. Missed at 1024 "
        "float32 (90.0 %).",
        "Asked was 130 % of the speed of `torch` in geometric mean: met, 134.2 % over 2 problems.",
        "Asked was 50 % of the ceiling at each problem: met at 1 of 2 problems. Missed at 256 float32 "
        f"({100 * shares[0]:.1f} %).",
    ]
    alone = f"ratios {words.replace('256,1024,4096', '1024')}"
    assert figures.table(f"{alone} each=torch:1").endswith(
        "Asked was the speed of `torch`: missed at 1024 float32 (90.0 %)."
    )
    assert figures.table(f"{alone} each=torch:0.9 mean=torch:1").endswith(
        "Asked was 90 % of the speed of `torch`: met at 1024 float32."
    ), "one problem has no mean"
    assert "| `triton_online` |" in figures.table(f"ratios {words} provider=[triton_online]")
    assert figures.table(f"sustained {words}") == NOTHING


def test_what_a_caller_gets_is_over_the_fastest_of_ours(figures: Figures) -> None:
    def got(size: int, name: str, how: str) -> list[Final]:
        return [
            row.model_copy(update={"dispatched": how}) if row.point.provider == name else row
            for row in finals_of(size, 4.0, {"torch": (8.0, "slower"), "triton_online": (6.0, "slower")})
        ]

    words = "dispatched kernel=softmax workload=columns dtype=float32"
    assert figures.table(words) == NOTHING
    finals = [
        *got(256, "cuda", "guessed"),
        *got(1024, "triton_online", "guessed"),
        *got(4096, "torch", "torch"),
    ]
    factory.write_finals(figures.input, finals)
    figures = Figures(figures.input, figures.reports)
    lines = [cells(line) for line in figures.table(words).splitlines() if line.startswith("|")]
    assert lines[2:] == [["guessed", "2", "1.22", "1.50"], ["torch", "1", "2.00", "2.00"]]


def test_what_was_measured_after_two_seconds_is_apart(figures: Figures) -> None:
    both = finals_of(256, 4.0, {"torch": (8.0, "slower")})
    slower = [
        row.model_copy(update={"power": "sustained"})
        for row in finals_of(256, 4.0, {"torch": (6.0, "slower")})
    ]
    factory.write_finals(figures.input, [*both, *slower])
    words = "kernel=softmax workload=columns columns=[256] dtype=float32"
    for kind, ratio in (("ratios", "2.00"), ("sustained", "1.50")):
        (line,) = [cells(line) for line in figures.table(f"{kind} {words}").splitlines() if "| `cuda" in line]
        assert line[-1] == ratio


@pytest.fixture(scope="module")
def few_results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of the committed results those of softmax at two widths."""
    folder = tmp_path_factory.mktemp("few") / "results"
    for part in ("ceilings", "environment", "provenance"):
        shutil.copytree(ROOT / "results" / part, folder / part)
    for part in ("timings", "finals"):
        for ledger in (ROOT / "results" / part / "softmax").glob("*.jsonl"):
            lines = ledger.read_text().splitlines(keepends=True)
            kept = [line for line in lines if re.search(r'"columns":(1024|16384),', line)]
            copy = folder / part / "softmax" / ledger.name
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_text("".join(kept))
    return folder


@pytest.mark.parametrize("kind", ["grid", "plans", "against", "ratios"])
def test_a_number_that_was_typed_into_a_block_is_found(few_results: Path, tmp_path: Path, kind: str) -> None:
    words = f"{kind} kernel=softmax workload=columns columns=[1024,16384]"
    page = tmp_path / "page.md"
    page.write_text(BLOCK.format(words))
    fill, check = (
        DocsConfig(input=few_results, reports=ROOT / "reports", docs=(page,), check=one)
        for one in (False, True)
    )
    docs.run(fill)
    right = page.read_text()
    docs.run(check)
    number = re.findall(r"\d+\.\d+", right)[-1]
    head, _, tail = right.rpartition(number)
    page.write_text(f"{head}{Decimal(number) + Decimal('0.01')}{tail}")
    with pytest.raises(UserError, match="is stale: the figures are not those of"):
        docs.run(check)
    docs.run(fill)
    assert page.read_text() == right


def test_the_table_of_finals_has_the_fastest_of_ours_and_the_others_times_over_it(figures: Figures) -> None:
    ours, torch = (factory.measurement("softmax", name, 1024) for name in ("cuda", "torch"))
    slower = factory.final(torch, 3.0, against=(ours, 2.0, "slower"))
    factory.write_finals(figures.input, [factory.final(ours, 2.0), slower])
    (line,) = [line for line in figures.table("finals").splitlines() if line.startswith("| softmax ")]
    cells = [cell.strip() for cell in line.strip("|").split("|")]
    assert cells[:3] == ["softmax", "1024", "float32"]
    assert cells[3].startswith("`cuda ") and cells[4] == "2.00" and cells[6].startswith("1.50")
    assert cells[7:] == ["", "`torch` 1.50"], "torch.compile had none, and torch is the best of the others"


def test_a_table_of_finals_can_show_the_largest_problem_alone(figures: Figures) -> None:
    finals = [factory.final(factory.measurement("softmax", "cuda", size), 2.0) for size in (1024, 4096, 256)]
    factory.write_finals(figures.input, finals)
    shown = {words: figures.table(words) for words in ("finals", "finals problems=largest")}
    extents = {
        words: re.findall(r"^\| softmax \| (\d+) \|", some, re.MULTILINE) for words, some in shown.items()
    }
    assert sorted(extents["finals"], key=int) == ["256", "1024", "4096"]
    assert extents["finals problems=largest"] == ["4096"]


def test_each_pair_of_gpus_has_a_table_and_one_gpu_a_sentence(figures: Figures, tmp_path: Path) -> None:
    table = figures.table("gpus")
    assert table.startswith("*a is NVIDIA H100 80GB HBM3, b is NVIDIA H200.*\n")
    (line,) = [line for line in table.splitlines() if line.startswith("| memory |")]
    ratio, by_ceilings = (float(cell) for cell in line.split("|")[4:6])
    assert ratio < 1 and by_ceilings < 1, "an H200 is the faster"
    with pytest.raises(UserError, match="gpus takes no options"):
        figures.table("gpus kernel=softmax")
    alone = factory.write_results(tmp_path / "alone", [factory.measurement("softmax", "cuda", 1024)])
    assert Figures(alone, tmp_path / "reports").table("gpus") == (
        "*Only NVIDIA H200 has results: there is no other GPU to set beside it.*"
    )


def test_a_table_of_configurations_has_each_in_the_order_of_its_providers(tmp_path: Path) -> None:
    rows = factory.grid(
        gpus=(H200, CPU), sizes=(256, 1024), block_sizes=(2048, 512), providers=("torch", "cuda")
    )
    figures = Figures(factory.write_results(tmp_path, rows), tmp_path)
    table = figures.table(f"{PROVIDERS.replace('providers', 'configurations')} provider=[torch,cuda]")
    assert table.count("*NVIDIA H200, us, by sweeps, not side by side, commit `") == 1 and "cpu-" not in table
    header, _, *lines = [line.strip("|").split("|") for line in table.splitlines() if line.startswith("|")]
    assert [cell.strip() for cell in header] == ["us at columns =", "float32 256", "float32 1024"]
    names = [line[0].strip().strip("`") for line in lines]
    assert names[0] == "torch" and len(names) > 2
    assert [int(name.split()[1].partition("x")[0]) for name in names[1:]] == sorted(
        int(name.split()[1].partition("x")[0]) for name in names[1:]
    )


def test_what_was_launched_and_counted_is_that_of_the_committed_rows() -> None:
    figures = Figures(ROOT / "results", ROOT / "reports")
    words = "kernel=gelu workload=squares columns=[8192] provider=[manual,torch]"

    def lines_of(kind: str) -> list[str]:
        """An H200's, whatever other GPUs have."""
        _, _, table = figures.table(f"{kind} {words}").partition("*NVIDIA H200, ")
        return [line for line in table.splitlines() if line.startswith("| `")]

    manual, torch = lines_of("launches")
    assert manual.startswith("| `manual` | float32 8192 | 8 | ") and "| 1 |" in torch
    (counted,) = lines_of("counters")
    cells = [cell.strip() for cell in counted.strip("|").split("|")]
    rows = (ROOT / "results" / "counters" / "gelu" / "nvidia-h200.jsonl").read_text().splitlines()
    (row,) = [
        row
        for row in map(json.loads, rows)
        if (row["point"]["provider"], row["point"]["problem"]["columns"]) == ("torch", 8192)
    ]
    assert cells[:3] == [
        "`torch`",
        "float32 8192",
        max(row["stalls"], key=row["stalls"].get).replace("_", " "),
    ]
    assert cells[4] == f"{row['grid_size']:.0f}" and float(cells[5]) == pytest.approx(
        row["waves_per_sm"], rel=0.01
    )
    (moved,) = lines_of("traffic")
    assert [cell.strip() for cell in moved.strip("|").split("|")][2:] == [
        "1",
        f"{row['dram_read_bytes'] / 1e6:,.0f}",
        f"{row['dram_write_bytes'] / 1e6:,.0f}",
    ]
    assert figures.table("launches kernel=gelu workload=squares columns=[256]") == NOTHING


def test_the_bytes_of_a_call_are_those_of_all_that_it_launches() -> None:
    figures = Figures(ROOT / "results", ROOT / "reports")
    table = figures.table("traffic kernel=attention workload=shapes provider=[manual,cuda_flash]")
    lines = {line.split("`")[1].split()[0]: line for line in table.splitlines() if line.startswith("| `")}
    launches, read, written = (
        float(cell.replace(",", "")) for cell in lines["manual"].strip("|").split("|")[2:5]
    )
    # Four operators: the matrix of scores, 2147 MB, is written twice and read twice.
    assert launches == 4 and read > 2 * 2147 and written > 1.9 * 2147
    assert "| 1 |" in lines["cuda_flash"]


def test_what_is_not_measured_is_said(figures: Figures) -> None:
    assert figures.table("providers kernel=gelu workload=squares") == NOTHING


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            "",
            "unknown figures ''. Known: floor, best, providers, grid, plans, against, steps, "
            "dispatched, map, configurations, launches, counters, traffic, ratios, sustained, finals, gpus.",
        ),
        ("bst kernel=softmax workload=columns", "unknown figures 'bst'. Did you mean 'best'?"),
        ("best workload=columns", "write NAME kernel=KERNEL workload=WORKLOAD"),
        ("best kernel=softmax columns", "write NAME kernel=KERNEL workload=WORKLOAD"),
        ("best kernel=sofmax workload=columns", "unknown kernel 'sofmax'. Did you mean 'softmax'?"),
        (
            "best kernel=softmax workload=colums",
            "unknown workload of softmax 'colums'. Did you mean 'columns'?",
        ),
        ("best kernel=softmax workload=columns dtpe=x", "unknown dimension of softmax 'dtpe'. Did you mean"),
        ("best kernel=softmax workload=columns provider=tri", "unknown provider of softmax 'tri'."),
        (
            "ratios kernel=softmax workload=columns each=torch",
            "write each=PROVIDER:SHARE or each=ceiling:SHARE",
        ),
        ("steps kernel=softmax workload=columns", "figures steps needs provider=[NAME,NAME]"),
        ("finals problems=smallest", "figures finals takes no option but problems=largest."),
    ],
)
def test_a_mistake_in_a_block_is_said_with_its_line(figures: Figures, words: str, said: str) -> None:
    with pytest.raises(UserError, match=re.escape(f"docs/page.md, line 3: {said}")):
        filled(f"# Page\n\n{BLOCK.format(words)}", Path("docs/page.md"), figures)


def test_a_block_without_an_end_is_said(figures: Figures) -> None:
    for rest in ("", BLOCK.format(PROVIDERS)):
        with pytest.raises(UserError, match="line 1: the block has no <!-- end --> behind it"):
            filled(f"<!-- figures: {PROVIDERS} -->\n{rest}", Path("page.md"), figures)
