"""The figures of docs/ are those of results/ and reports/, and a page on which they are not is named."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline import ROOT, UserError, docs, report
from pipeline.command.options import DocsConfig, ReportConfig
from pipeline.docs import NOTHING, Figures, filled
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


def test_the_table_of_finals_has_the_fastest_of_ours_and_the_others_times_over_it(figures: Figures) -> None:
    ours, torch = (factory.measurement("softmax", name, 1024) for name in ("cuda", "torch"))
    slower = factory.final(torch, 3.0, against=(ours, 2.0, "slower"))
    factory.write_finals(figures.input, [factory.final(ours, 2.0), slower])
    (line,) = [line for line in figures.table("finals").splitlines() if line.startswith("| softmax ")]
    cells = [cell.strip() for cell in line.strip("|").split("|")]
    assert cells[:3] == ["softmax", "1024", "float32"]
    assert cells[3].startswith("`cuda ") and cells[4] == "2.00" and cells[6].startswith("1.50")
    assert cells[7:] == [""], "torch.compile had none, and without any peer there is no column for them"


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
    (line,) = [line for line in table.splitlines() if line.startswith("| softmax | float32 | 2 |")]
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
            "unknown figures ''. Known: floor, best, providers, map, configurations, launches, counters, "
            "traffic, finals, gpus.",
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
