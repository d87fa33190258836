"""The figures in docs/ agree with results/ and reports/. A page with an outdated figure is named."""

import re
import shutil
from datetime import timedelta
from decimal import Decimal
from pathlib import Path

import pytest

from kernel_pipeline.errors import UserError
from pipeline import ROOT, docs
from pipeline.command.options import DocsConfig
from pipeline.docs import NOTHING, Figures, filled
from pipeline.store.finals import Final
from tests import factory
from tests.factory import CPU, H100, H200
from tests.pages import cells

BLOCK = "<!-- figures: {} -->\n<!-- end -->\n"
PROVIDERS = "providers kernel=softmax workload=columns columns=[256,1024] dtype=float32"


def test_no_committed_page_is_stale() -> None:
    docs.run(DocsConfig(input=ROOT / "results", docs=(ROOT / "README.md", ROOT / "docs"), check=True))


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with results of three machines."""
    folder = tmp_path_factory.mktemp("measured")
    rows = factory.grid(
        gpus=(H200, H100, CPU), sizes=(256, 1024), block_sizes=(1024,), providers=("torch", "cuda")
    )
    factory.write_results(folder / "results", rows)
    return folder


@pytest.fixture
def figures(measured: Path, tmp_path: Path) -> Figures:
    """Return the figures of a copy of these results, which a test may change."""
    shutil.copytree(measured, tmp_path, dirs_exist_ok=True)
    return Figures(tmp_path / "results")


def test_each_machines_figures_are_there_and_no_cpus(figures: Figures) -> None:
    table = figures.text(PROVIDERS)
    assert re.findall(r"^\*(.*?)[,.]", table, re.MULTILINE) == ["NVIDIA H100 80GB HBM3", "NVIDIA H200"]
    assert all(f"\n| {size} |" in table for size in (256, 1024))
    assert "bfloat16" not in table


def test_the_floor_is_what_a_copy_of_the_bytes_takes(figures: Figures) -> None:
    (line,) = [cells(one) for one in figures.text(PROVIDERS).splitlines() if one.startswith("| 1024 |")][1:]
    assert float(line[2]) == pytest.approx(2 * 4096 * 1024 * 4 / factory.COPY_GBPS[H200] / 1e3, rel=0.01)


def test_a_table_has_the_providers_that_were_asked_for(figures: Figures) -> None:
    table = figures.text(f"{PROVIDERS} provider=[cuda,torch]")
    assert "| columns | dtype | floor | `torch` | `cuda` |" in table
    for torch, cuda in re.findall(r"^\| \d+ \| float32 \| \S+ \| (\S+) \| (\S+) \|$", table, re.MULTILINE):
        assert cuda == f"**{cuda.strip('*')}**" and float(torch) > float(cuda.strip("*"))


def test_finals_come_before_the_sweeps_best(figures: Figures) -> None:
    row = factory.measurement("softmax", "cuda", 1024)
    factory.write_finals(figures.folder, [factory.final(row, 1.5)])
    table = figures.text(PROVIDERS)
    assert table.count("Finals measured the problems with § side by side, sweeps measured the others.") == 1
    assert "| 1024 § | float32 |" in table and "**1.50**" in table
    assert table.count("The times come from sweeps, which do not measure side by side.") == 1, (
        "the other machine had none"
    )


def test_finals_without_the_provider_that_is_the_fastest_now_do_not_hide_it(figures: Figures) -> None:
    row = factory.measurement("softmax", "torch", 1024)
    factory.write_finals(figures.folder, [factory.final(row, 1.5)])
    table = figures.text(PROVIDERS)
    assert "§" not in table and "1.50" not in table, "cuda is faster in the sweep"


def test_shares_are_of_the_baselines_time_on_gpus_that_have_every_provider(
    figures: Figures, tmp_path: Path
) -> None:
    words = PROVIDERS.replace("providers", "shares")
    table = figures.text(f"{words} provider=[cuda,torch]")
    assert table.count("| provider | 256 float32, us | `torch` / provider | 1024 float32, us |") == 2
    found = re.findall(r"^\| `(\w+)` \| (\S+) \| (\S+) % \|", table, re.MULTILINE)
    assert [name for name, _, _ in found] == ["cuda", "torch"] * 2
    (_, cuda, share), (_, torch, whole) = found[:2]
    assert whole == "100.0"
    assert float(share) == pytest.approx(100 * float(torch) / float(cuda), rel=0.01)
    # No GPU has a time of this provider.
    assert figures.text(f"{words} provider=[cuda,triton_online]") == NOTHING


def finals_of(size: int, ours: float, others: dict[str, tuple[float, str]]) -> list[Final]:
    row = factory.measurement("softmax", "cuda", size)
    beside = [
        factory.final(factory.measurement("softmax", name, size), us, against=(row, ours, verdict))
        for name, (us, verdict) in others.items()
    ]
    return [factory.final(row, ours), *beside]


@pytest.fixture(scope="module")
def few_results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the committed results of softmax at two widths."""
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


@pytest.mark.parametrize("kind", ["providers", "finals"])
def test_a_number_that_was_typed_into_a_block_is_found(
    few_results: Path, tmp_path: Path, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = f"{kind} kernel=softmax workload=columns columns=[1024,16384]"
    page = tmp_path / "page.md"
    page.write_text(BLOCK.format(words))
    fill, check = (DocsConfig(input=few_results, docs=(page,), check=one) for one in (False, True))
    docs.run(fill)
    right = page.read_text()
    docs.run(check)
    number = re.findall(r"\d+\.\d+", right)[-1]
    head, _, tail = right.rpartition(number)
    page.write_text(stale := f"{head}{Decimal(number) + Decimal('0.01')}{tail}")
    with pytest.raises(UserError, match=f"^{page} is stale: the figures differ from"):
        docs.run(check)
    assert page.read_text() == stale, "a check writes nothing"
    docs.run(fill)
    assert page.read_text() == right
    assert capsys.readouterr().out.endswith(f"{page}: figures updated.\n")


def test_the_table_of_finals_has_the_fastest_of_ours_and_the_others_times_over_it(figures: Figures) -> None:
    ours, torch = (factory.measurement("softmax", name, 1024) for name in ("cuda", "torch"))
    slower = factory.final(torch, 3.0, against=(ours, 2.0, "slower"))
    factory.write_finals(figures.folder, [factory.final(ours, 2.0), slower])
    (line,) = [line for line in figures.text("finals").splitlines() if line.startswith("| softmax ")]
    found = cells(line)
    assert found[:3] == ["softmax", "1024", "float32"]
    assert found[3].startswith("`cuda ") and found[4] == "2.00" and found[6].startswith("1.50")
    assert found[7:] == ["", "`torch` 1.50"], "torch.compile had none, and torch is the best of the others"


def test_finals_that_lack_our_fastest_provider_since_are_left_out(figures: Figures) -> None:
    ours, torch = (factory.measurement("softmax", name, 1024) for name in ("cuda", "torch"))
    slower = factory.final(torch, 3.0, against=(ours, 2.0, "slower"))
    factory.write_finals(figures.folder, [factory.final(ours, 2.0), slower])
    assert "| softmax | 1024 |" in figures.text("finals")
    later = factory.MEASURED_AT + timedelta(days=1)
    for us, is_there in ((1.99, True), (1.5, False)):
        faster = factory.measurement(
            "softmax", "triton_online", 1024, median_us=us, measured_at=later, block_size=1024, num_warps=4
        )
        factory.write_results(figures.folder, [ours, torch, faster])
        assert ("| softmax | 1024 |" in Figures(figures.folder).text("finals")) is is_there


def test_finals_of_an_earlier_source_than_our_fastest_are_left_out(figures: Figures) -> None:
    ours, torch = (factory.measurement("softmax", name, 1024) for name in ("cuda", "torch"))
    factory.write_finals(figures.folder, [factory.final(ours, 2.0)])
    later = factory.MEASURED_AT + timedelta(days=1)
    again = factory.measurement("softmax", "cuda", 1024, median_us=1.5, measured_at=later)
    edited = again.parts.replace(source="0" * 16)
    for one, is_there in ((again, True), (again.replace(parts=edited, key=edited.key), False)):
        factory.write_results(figures.folder, [one, torch])
        assert ("| softmax | 1024 |" in Figures(figures.folder).text("finals")) is is_there


def test_a_table_of_finals_can_show_the_largest_problem_alone(figures: Figures) -> None:
    finals = [factory.final(factory.measurement("softmax", "cuda", size), 2.0) for size in (1024, 4096, 256)]
    factory.write_finals(figures.folder, finals)
    shown = {words: figures.text(words) for words in ("finals", "finals problems=largest")}
    extents = {
        words: re.findall(r"^\| softmax \| (\d+) \|", some, re.MULTILINE) for words, some in shown.items()
    }
    assert sorted(extents["finals"], key=int) == ["256", "1024", "4096"]
    assert extents["finals problems=largest"] == ["4096"]


def test_where_kernels_are_more_than_lines_those_that_are_level_with_others_are_left_out(
    figures: Figures, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [factory.measurement("gelu", name, 256) for name in ("cuda", "torch")]
    factory.write_finals(figures.folder, finals_of(256, 4.0, {"torch": (3.0, "faster")}))
    level = [factory.final(rows[0], 2.0), factory.final(rows[1], 2.0, against=(rows[0], 2.0, "same"))]
    factory.write_finals(figures.folder, level)
    for lines, shown, caption in (
        (2, ["gelu", "softmax"], ""),
        (1, ["softmax"], " Level with all others, not shown: gelu."),
    ):
        monkeypatch.setattr(docs, "MOST_LINES", lines)
        table = figures.text("finals problems=largest")
        assert re.findall(r"^\| (\w+) \| 256 ", table, re.MULTILINE) == shown
        assert re.search(r"finals of commit `\w+`\.(.*)\*$", table, re.MULTILINE)[1] == caption
    later = "20260902T120000Z-abcdef"
    slower = factory.final(rows[1], 4.0, against=(rows[0], 2.0, "slower"), run=later)
    faster = [factory.final(rows[0], 2.0, run=later), slower]
    factory.write_finals(figures.folder, faster)
    table = Figures(figures.folder).text("finals problems=largest")
    assert "| gelu | 256 |" in table and "| softmax | 256 |" in table, "neither is level with the others"


def test_finals_of_a_kernel_are_of_the_problems_that_are_asked_for(figures: Figures) -> None:
    finals = [
        *finals_of(256, 4.0, {"torch": (8.0, "slower")}),
        *finals_of(1024, 10.0, {"torch": (9.0, "undecided"), "quack": (10.0, "same")}),
    ]
    factory.write_finals(figures.folder, finals)
    table = figures.text("finals kernel=softmax workload=columns columns=[1024,4096] dtype=float32")
    (line,) = [cells(one) for one in table.splitlines() if one.startswith("| softmax ")]
    assert line[1] == "1024" and line[6] == "0.90 (undecided)" and line[8] == "`torch` 0.90 (undecided)"
    assert figures.text("finals kernel=gelu workload=squares") == NOTHING


def test_each_pair_of_gpus_has_a_table_and_one_gpu_a_sentence(figures: Figures, tmp_path: Path) -> None:
    (line,) = [cells(one) for one in figures.text("gpus").splitlines() if "| memory |" in one]
    assert line[:2] == ["NVIDIA H100 80GB HBM3", "NVIDIA H200"]
    assert float(line[4]) < 1 and float(line[5]) < 1, "an H200 is the faster"
    with pytest.raises(UserError, match="gpus takes no options"):
        figures.text("gpus kernel=softmax")
    alone = factory.write_results(tmp_path / "alone", [factory.measurement("softmax", "cuda", 1024)])
    assert Figures(alone).text("gpus") == (
        "*Only NVIDIA H200 has results, so there is no other GPU to compare it with.*"
    )


def test_what_is_not_measured_is_said(figures: Figures) -> None:
    assert figures.text("providers kernel=gelu workload=squares") == NOTHING


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("", "unknown figures ''. Known: providers, shares, finals, gpus."),
        ("finls kernel=softmax workload=columns", "unknown figures 'finls'. Did you mean 'finals'?"),
        ("providers workload=columns", "write NAME kernel=KERNEL workload=WORKLOAD"),
        ("providers kernel=softmax columns", "write NAME kernel=KERNEL workload=WORKLOAD"),
        ("providers kernel=sofmax workload=columns", "unknown kernel 'sofmax'. Did you mean 'softmax'?"),
        (
            "providers kernel=softmax workload=colums",
            "unknown workload of softmax 'colums'. Did you mean 'columns'?",
        ),
        (
            "providers kernel=softmax workload=columns dtpe=x",
            "unknown dimension of softmax 'dtpe'. Did you mean",
        ),
        ("providers kernel=softmax workload=columns provider=tri", "unknown provider of softmax 'tri'."),
        ("finals problems=smallest", "write NAME kernel=KERNEL workload=WORKLOAD"),
    ],
)
def test_a_mistake_in_a_block_is_said_with_its_line(figures: Figures, words: str, said: str) -> None:
    with pytest.raises(UserError, match=re.escape(f"docs/page.md, line 3: {said}")):
        filled(f"# Page\n\n{BLOCK.format(words)}", Path("docs/page.md"), figures)


def test_a_block_without_an_end_is_said(figures: Figures) -> None:
    for rest in ("", BLOCK.format(PROVIDERS)):
        with pytest.raises(UserError, match="line 1: the block has no <!-- end --> after it"):
            filled(f"<!-- figures: {PROVIDERS} -->\n{rest}", Path("page.md"), figures)
