"""The figures of docs/ are those of results/ and reports/, and a page on which they are not is named."""

from __future__ import annotations

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


@pytest.fixture
def figures(tmp_path: Path) -> Figures:
    rows = factory.grid(
        gpus=(H200, H100, CPU), sizes=(256, 1024), block_sizes=(1024,), providers=("torch", "cuda")
    )
    results = factory.write_results(tmp_path / "results", rows)
    report.run(ReportConfig(input=results, output=tmp_path / "reports", device="cpu"))
    return Figures(results, tmp_path / "reports")


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
    assert "by finals at 1 of 2 problems" in table and "**1.50**" in table
    assert table.count("by sweeps, not side by side") == 1, "the other machine had none"


def test_what_is_not_measured_is_said(figures: Figures) -> None:
    assert figures.table("providers kernel=gelu workload=squares") == NOTHING


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("", "unknown figures ''. Known: floor, best, providers."),
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
    ],
)
def test_a_mistake_in_a_block_is_said_with_its_line(figures: Figures, words: str, said: str) -> None:
    with pytest.raises(UserError, match=re.escape(f"docs/page.md, line 3: {said}")):
        filled(f"# Page\n\n{BLOCK.format(words)}", Path("docs/page.md"), figures)


def test_a_block_without_an_end_is_said(figures: Figures) -> None:
    for rest in ("", BLOCK.format(PROVIDERS)):
        with pytest.raises(UserError, match="line 1: the block has no <!-- end --> behind it"):
            filled(f"<!-- figures: {PROVIDERS} -->\n{rest}", Path("page.md"), figures)
