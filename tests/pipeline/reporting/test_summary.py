"""What `make repro` ends with."""

from datetime import timedelta
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from pipeline import ROOT, report
from pipeline.command.options import ReportConfig
from pipeline.reporting import summary
from pipeline.reporting.cells import Row
from pipeline.reporting.data_files import read_best
from pipeline.reporting.numbers import RATES
from pipeline.reporting.tables import TextTable
from pipeline.store import results, runs
from tests import factory


def shown(reports: Path, gpu: str = factory.H200) -> list[str]:
    console = Console(file=StringIO(), width=80)
    assert summary.show(console, reports, gpu)
    return console.file.getvalue().splitlines()  # type: ignore[attr-defined]  # it is a StringIO


def in_file(reports: Path, gpu: str) -> list[Row]:
    return read_best(reports / "best.csv", gpu)


def test_the_table_of_the_committed_report_fits_a_screen_and_says_how_much_more_there_is() -> None:
    reports = ROOT / "reports"
    lines = shown(reports)
    assert len(lines) <= 32 and all(len(line) <= 110 for line in lines[:-1])
    of_gpu = in_file(reports, factory.H200)
    headlines: dict[str, set[str]] = {}
    for row in of_gpu:
        headlines.setdefault(row["kernel"], set()).add(row["headline"])
    rows = [line for line in lines if line.startswith(tuple(headlines))]
    assert {line.split()[0] for line in rows} == set(headlines)
    assert all(any(f" {RATES[one]} " in line for one in headlines[line.split()[0]]) for line in rows)
    assert lines[-1] == (
        f"… and {len(of_gpu) - len(rows)} more in the report. "
        f"All machines side by side: {reports}/report.html. Every run in MLflow: make ui."
    )


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of two GPUs."""
    folder = tmp_path_factory.mktemp("summary")
    rows = factory.grid(gpus=[factory.H200, factory.H100], dtypes=["float32", "bfloat16"])
    factory.write_results(folder / "results", rows)
    report.run(ReportConfig(input=folder / "results", output=folder / "reports", device="cpu"))
    return folder / "reports"


def test_a_row_is_the_best_of_its_machine_at_the_largest_problem(reports: Path) -> None:
    for gpu in (factory.H200, factory.H100):
        rows = [line for line in shown(reports, gpu) if line.startswith("softmax")]
        of_gpu = in_file(reports, gpu)
        for dtype in ("float32", "bfloat16"):
            largest = [row for row in of_gpu if row["words"] == dtype][-1]
            (line,) = [line for line in rows if f" {dtype} " in line]
            assert largest["problem"] == "4096" and " 4096 " in line
            assert f"{largest['gbps']:.0f} GB/s" in line
            assert f" {largest['provider']} {largest['configuration']} " in line
            assert line.endswith(f"x {largest['baseline']}")


def test_a_kernel_is_shown_by_its_quick_workload_wherever_this_stands_in_the_file() -> None:
    rows = [
        {"kernel": kernel, "workload": workload, "words": "bfloat16", "extent": extent}
        for kernel, workload, extent in (
            ("attention", "few", "200"),
            ("attention", "quick", "4096"),
            ("attention", "shapes", "16384"),
            ("attention_backward", "few_queries", "96"),
            ("attention_backward", "few_queries", "192"),
            ("attention_backward", "shapes", "4096"),
        )
    ]
    assert [(row["kernel"], row["extent"]) for row in summary.choose(rows)] == [
        ("attention", "4096"),
        ("attention_backward", "192"),
    ]


def test_a_machine_that_measured_nothing_has_no_table(reports: Path, tmp_path: Path) -> None:
    console = Console(file=StringIO())
    assert not summary.show(console, reports, "nvidia-b200")
    assert not summary.show(console, tmp_path, factory.H200)
    assert console.file.getvalue() == ""  # type: ignore[attr-defined]  # it is a StringIO


def test_it_is_said_how_many_rows_were_measured_here_and_how_many_came_with_the_clone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A GPU's rows by the runs that were noted when they measured; a CPU's are all of this host."""
    monkeypatch.setattr(runs, "MEASURED_HERE", tmp_path / "local/runs")
    monkeypatch.setattr(results, "folders_of", lambda folder: [folder, tmp_path / "local/results"])
    folder, cpu = tmp_path / "results", "cpu-amd-epyc"
    began = factory.MEASURED_AT + timedelta(days=1)
    came = factory.grid(gpus=[factory.H200, factory.H100])
    factory.write_results(folder, came)

    def said() -> str:
        return summary.provenance(folder, began)

    clone = f"{len(came)} came with the clone (nvidia-h100-80gb-hbm3, nvidia-h200)."
    assert said() == f"No rows were measured in this checkout; {clone}"

    later = began + timedelta(hours=1)
    mine = [
        factory.measurement(size=size, run="20261201T120000Z-abcdef", measured_at=later) for size in (7, 8)
    ]
    factory.write_results(folder, [*came, *mine])
    runs.note("20261201T120000Z-abcdef")
    factory.write_results(tmp_path / "local/results", [factory.measurement(gpu=cpu)])
    assert said() == f"3 rows were measured in this checkout, 2 of them now; {clone}"
    with results.ledger_path(folder, "softmax", factory.H200).open("a") as ledger:
        ledger.write('{"torn')
    assert said() == f"3 rows were measured in this checkout, 2 of them now; {clone}"


def test_a_table_in_a_pipe_breaks_no_word_and_has_no_empty_column() -> None:
    printed = StringIO()
    columns = [f"column_{number}" for number in range(12)]
    rows = [["9" * 12] * 5 + [""] + ["9" * 12] * 5 + ["incorrect"], [""] * 11 + ["correct"]]
    TextTable("", columns, rows, columns[:11]).print(Console(file=printed, width=80))
    text = printed.getvalue()
    assert "incorrect" in text and text.count("9" * 12) == 10 and "column_5" not in text
