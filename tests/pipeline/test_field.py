"""The section "Against the field" of the report, from a results folder to Markdown and HTML."""

import json
import math
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from statistics import geometric_mean

import pytest

from pipeline import report
from pipeline.command.options import ReportConfig
from pipeline.docs import Figures
from tests.factory import H100, H200, final, grid, measurement, moved, write_finals, write_results
from tests.mlflow_store import log, shown
from tests.pages import cells, part, section
from tests.pages import tables as tables_of
from tests.pipeline.test_report import rows_of

OTHERS = ["torch", "torch_compile", "triton_row", "quack", "liger"]
OURS = ["triton_online", "cuda"]
Write = Callable[[list], tuple[str, str]]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Return a function that writes measurements, makes the report, and returns it as Markdown and HTML."""

    def call(measurements: list) -> tuple[str, str]:
        folder = write_results(tmp_path / "results", measurements)
        output = tmp_path / "reports"
        report.run(ReportConfig(input=folder, output=output, device="cpu"))
        return (output / "report.md").read_text(), (output / "report.html").read_text()

    return call


def tables(markdown: str) -> dict[str, list[list[list[str]]]]:
    """Return the section's tables by their heading of kernel and machine."""
    field = section(markdown, "Against the field")
    headings = re.findall(r"^### (.*)$", field, re.MULTILINE)
    return {heading: tables_of(section(field, heading)) for heading in headings}


def parts(html: str) -> list[list[list[str]]]:
    """Return the section's tables in HTML."""
    return part(html, "against-the-field").tables


def test_every_problem_and_ratio_and_the_means(write: Write, tmp_path: Path) -> None:
    markdown, html = write(
        grid(
            gpus=(H200, H100),
            providers=(*OTHERS, *OURS),
            dtypes=("float32", "bfloat16"),
            sizes=(256, 1024, 65536),
        )
    )
    rows = rows_of(tmp_path / "results")
    found = tables(markdown)
    assert list(found) == ["softmax on NVIDIA H100 80GB HBM3", "softmax on NVIDIA H200"]
    for gpu, (score, lines) in zip((H100, H200), found.values(), strict=True):
        assert lines[0] == ["dtype", "problem", "ours", "us", "GB/s", "of ceiling", *OTHERS]
        expected, ratios = [], {other: [] for other in OTHERS}
        for dtype in ("bfloat16", "float32"):
            for size in (256, 1024, 65536):
                here = [r for r in rows if (r["gpu"], r["dtype"], r["columns"]) == (gpu, dtype, size)]
                fastest = {
                    p: min(r["median_us"] for r in here if r["provider"] == p) for p in (*OTHERS, *OURS)
                }
                for other in OTHERS:
                    ratios[other].append(fastest[other] / min(fastest[p] for p in OURS))
                best = min((r for r in here if r["provider"] in OURS), key=lambda r: r["median_us"])
                label = f"{best['provider']} {best['block_size']}x{best['num_warps']}w"
                expected.append([dtype, str(size), label, *(ratios[r][-1] for r in OTHERS)])
        assert [line[:3] for line in lines[1:]] == [line[:3] for line in expected]
        for line, want in zip(lines[1:], expected, strict=True):
            assert [float(cell) for cell in line[6:]] == pytest.approx(want[3:], abs=0.005)
        means = [math.exp(sum(map(math.log, ratios[r])) / 6) for r in OTHERS]
        assert [float(cell) for cell in score[1][1:]] == pytest.approx(means, abs=0.005)
        worst = [min(ratios[r]) for r in OTHERS]
        assert [float(cell) for cell in score[2][1:]] == pytest.approx(worst, abs=0.005)
        assert score[3][1:] == [f"{sum(x >= 0.99 for x in ratios[r])} of 6" for r in OTHERS]
    shown = parts(html)
    assert [table[1:] for table in shown] == [table[1:] for section in found.values() for table in section], (
        "the HTML page says the same"
    )


def test_a_loss_is_named_with_whom_it_was_lost_to(write: Write) -> None:
    markdown, _ = write(
        [
            measurement("softmax", "torch", 1024, median_us=30.0),
            measurement("softmax", "cuda", 1024, block_size=512, num_warps=4, median_us=20.0),
            measurement("softmax", "quack", 1024, median_us=16.0),
            measurement("softmax", "torch", 4096, median_us=60.0),
            measurement("softmax", "cuda", 4096, block_size=512, num_warps=4, median_us=50.0),
        ]
    )
    assert "Slower than another by more than 1 % at 1 of 2 problems: float32 1024 (quack).\n" in markdown
    score, lines = tables(markdown)["softmax on NVIDIA H200"]
    assert lines[1][6:] == ["1.50", "0.80"]
    assert lines[2][6:] == ["1.20", ""], "quack was not timed there"
    assert [line[1:] for line in score[1:]] == [["1.34", "0.80"], ["1.20", "0.80"], ["2 of 2", "0 of 1"]]


def test_the_columns_are_the_others_of_a_kernel_its_baseline_first(write: Write) -> None:
    """The rate of the workload is also shown. For a kernel without a folder, the providers named after
    torch count as others."""
    times = [
        *(("softmax", "triton_row", 10.0), ("softmax", "cuda", 20.0)),
        *(("square", "torch_square", 30.0), ("square", "torch_mul", 90.0), ("square", "cuda", 20.0)),
        *(("of_old", "torch", 30.0), ("of_old", "torch_compile", 10.0), ("of_old", "cuda", 20.0)),
    ]
    rows = [measurement(kernel, provider, 1024, median_us=us) for kernel, provider, us in times]
    decode = {"m": 16, "workload": "decode"}
    rows += [
        measurement("matmul", "torch", 4096, "bfloat16", median_us=300.0),
        measurement("matmul", "triton_tiled", 4096, "bfloat16", median_us=200.0),
        measurement("matmul", "torch", 8192, "bfloat16", median_us=50.0, **decode),
        measurement("matmul", "triton_tiled", 8192, "bfloat16", median_us=100.0, **decode),
    ]
    found = tables(write(rows)[0])
    (header, few, square) = found.pop("matmul on NVIDIA H200")[1]
    assert header == ["dtype", "problem", "ours", "us", "GB/s", "TFLOP/s", "of ceiling", "torch"]
    assert few[:2] == ["bfloat16", "m=16 n=8192 k=8192"] and square[:2] == ["bfloat16", "4096"]
    assert (few[4:6], square[4:6]) == (["1347", ""], ["", "687"])
    assert (few[7], square[7]) == ("0.50", "1.50")
    shown = {
        name.split()[0]: (header[6:], line[2].split()[0], line[6:])
        for name, (_, (header, line)) in found.items()
    }
    assert shown == {
        "softmax": (["triton_row"], "cuda", ["0.50"]),
        "square": (["torch_square", "torch_mul"], "cuda", ["1.50", "4.50"]),
        "of_old": (["torch", "torch_compile"], "cuda", ["1.50", "0.50"]),
    }


def test_finals_and_their_baseline_stay_when_the_kernels_folder_is_gone(tmp_path: Path) -> None:
    """Two kernels have no folder any more. The second has only finals, so the report leaves it out."""
    results, names = tmp_path / "results", ("of_old", "of_old_too")
    torch, cuda = measurement("softmax", "torch", 1024), measurement("softmax", "cuda", 1024)
    held = [final(cuda, 10.0), final(torch, 15.0, (cuda, 10.0, "slower"))]
    for kernel in names:
        gone = [moved(row, row.point.replace(kernel=kernel)) for row in (cuda, torch)]
        write_finals(
            results,
            [
                one.replace(point=row.point, parts=row.parts, key=row.key)
                for one, row in zip(held, gone, strict=True)
            ],
        )
        write_results(results, gone)
    shutil.rmtree(results / "timings" / "of_old_too")
    report.run(ReportConfig(input=results, output=tmp_path / "reports", device="cpu"))
    found = tables((tmp_path / "reports" / "report.md").read_text())
    assert list(found) == ["of_old on NVIDIA H200"]
    header, line = found["of_old on NVIDIA H200"][1]
    assert (header[7], line[3].split()[0], line[7]) == ("torch", "cuda", "1.50 ± 1.0 %")
    log(results, f"sqlite:///{tmp_path / 'mlflow.db'}")
    runs = shown(tmp_path / "mlflow.db", "of_old")
    finals = {
        run["params"]["provider"]: value
        for run in runs.values()
        for name, _, value, *_ in run["metrics"]
        if name == "final_us"
    }
    assert finals == {"cuda": 10.0, "torch": 15.0}


def test_finals_say_it_where_there_are_any_and_the_sweeps_best_stands_beside(
    write: Write, tmp_path: Path
) -> None:
    launch = {"block_size": 512, "num_warps": 4}
    torch, lucky = measurement("softmax", "torch", 1024, median_us=30.0), {"block_size": 1024, "num_warps": 4}
    swept = measurement("softmax", "cuda", 1024, median_us=14.0, **lucky)
    cuda = measurement("softmax", "cuda", 1024, median_us=15.0, **launch)
    quack = measurement("softmax", "quack", 1024, median_us=15.0)
    other = measurement("softmax", "torch", 4096, median_us=60.0)
    gelu = [
        measurement("gelu", "torch", 1024, median_us=9.0),
        measurement("gelu", "cuda", 1024, median_us=6.0),
    ]
    before = "20260801T120000Z-aaaaaa"
    write_finals(
        tmp_path / "results",
        [final(cuda, 20.0, run=before), final(torch, 80.0, (cuda, 20.0, "slower"), run=before)],
    )
    write_finals(
        tmp_path / "results",
        [
            final(cuda, 16.0),
            final(torch, 32.0, (cuda, 16.0, "slower")),
            final(quack, 15.9, (cuda, 16.0, "same")),
        ],
    )
    markdown, html = write([torch, swept, cuda, quack, other, *gelu])
    found = tables(markdown)
    score, lines = found["softmax on NVIDIA H200"]
    assert lines[0][2:4] == ["oracle, us", "ours"] and lines[0][7:] == ["torch", "quack"]
    assert len(lines) == 2, "a problem without finals is none of theirs"
    assert lines[1][2:5] == ["cuda 1024x4w, 14.0", "cuda 512x4w", "16.0"]
    assert lines[1][7:] == ["2.00 ± 1.0 %", "0.99 ± 1.0 % ="]
    assert [line[1:] for line in score[1:]] == [["2.00", "0.99"], ["2.00", "0.99"], ["1 of 1", "1 of 1"]]
    assert "Slower than another by more than 1 % at none of 1 problems." in markdown
    assert "Finals of commit 0123456789." in markdown and "By the sweep, without finals: " in markdown
    assert found["gelu on NVIDIA H200"][1][1][6:] == ["1.50"]
    shown = parts(html)
    assert [table[1:] for table in shown] == [table[1:] for section in found.values() for table in section]
    history = section(markdown, "Finals over commits")
    assert "| 1024 float32 | 20.0, cuda 512x4w | 16.0, x 1.25 |" in history, "both runs, the older first"
    assert ["1024 float32", "20.0, cuda 512x4w", "16.0, x 1.25"] in part(html, "finals-over-commits").tables[
        0
    ]
    metrics = json.loads((tmp_path / "reports/metrics.json").read_text())
    assert metrics["softmax"]["nvidia-h200"]["float32"]["own_speedup"] == 2.0
    assert metrics["gelu"]["nvidia-h200"]["float32"]["own_speedup"] == 1.5


def test_what_a_caller_gets_comes_first_and_the_oracle_beside_it(write: Write, tmp_path: Path) -> None:
    """At one problem, the dispatched configuration differs from the provider's best."""
    rows, held = [], []
    for size, us, how in ((1024, 16.0, "exact"), (4096, 42.0, "generalised")):
        torch = measurement("softmax", "torch", size, median_us=80.0)
        cuda = measurement("softmax", "cuda", size, block_size=512, num_warps=4, median_us=40.0)
        other = measurement("softmax", "cuda", size, block_size=1024, num_warps=4, median_us=41.0)
        best = us if how == "exact" else 40.0
        got = final(cuda, us) if how == "exact" else final(other, us, (cuda, best, "slower"))
        held += [] if how == "exact" else [final(cuda, best)]
        held += [got.replace(dispatched=how), final(torch, 80.0, (cuda, best, "slower"))]
        rows += [torch, cuda, other]
    write_finals(tmp_path / "results", held)
    markdown, html = write(rows)
    part_ = section(markdown, "softmax on NVIDIA H200")
    assert part_.index("The configuration that a caller gets") < part_.index("geometric mean |")
    assert "| exact | 1 | 1.00 | 1.00 | float32 1024 |" in part_
    assert "| generalised | 1 | 1.05 | 1.05 | float32 4096 |" in part_
    (header,) = [line for line in part_.splitlines() if line.startswith("| dtype | problem |")]
    assert header.startswith("| dtype | problem | dispatched, us | oracle, us | ours | us |")
    assert header.count("oracle") == 1
    lines = [line for line in part_.splitlines() if line.startswith("| float32 | ")]
    assert "| 4096 | cuda 1024x4w, 42.0 (generalised) | cuda 512x4w, 40.0 | cuda 512x4w | 40.0 |" in lines[1]
    assert len({line.count("|") for line in (header, *lines[:2])}) == 1
    assert "cuda 1024x4w, 42.0 (generalised)" in html


def test_finals_without_measurements_are_in_no_overview(write: Write, tmp_path: Path) -> None:
    for kernel, gpu in (("gelu", H200), ("softmax", H100)):
        torch, cuda = (
            measurement(kernel, name, 1024, median_us=us, gpu=gpu)
            for name, us in (("torch", 9.0), ("cuda", 6.0))
        )
        write_finals(tmp_path / "results", [final(cuda, 6.0), final(torch, 9.0, (cuda, 6.0, "slower"))])
    write([measurement("softmax", name, 1024) for name in ("torch", "cuda")])
    metrics = json.loads((tmp_path / "reports/metrics.json").read_text())
    assert {kernel: list(machines) for kernel, machines in metrics.items()} == {"softmax": [H200]}


def test_what_is_not_to_be_trusted_or_was_not_met_is_left_out(write: Write) -> None:
    fast = {"block_size": 512, "num_warps": 4, "median_us": 1.0}
    markdown, _ = write(
        [
            measurement("softmax", "torch", 1024, median_us=30.0),
            measurement("softmax", "cuda", 1024, valid=False, **fast),
            measurement("softmax", "cuda", 1024, block_size=1024, num_warps=4, median_us=15.0),
            measurement("softmax", "cuda", 2048, **fast),
            measurement("softmax", "torch", 8192, median_us=30.0),
            measurement("softmax", "cuda", 8192, valid=False, **fast),
            measurement("softmax", "torch", 4096, median_us=30.0),
            measurement("softmax", "cuda", 4096, status="incorrect", block_size=512, num_warps=4),
        ]
    )
    _, lines = tables(markdown)["softmax on NVIDIA H200"]
    assert [line[1] for line in lines[1:]] == ["1024"]
    assert lines[1][2] == "cuda 1024x4w" and lines[1][6:] == ["2.00"]


def test_what_one_of_ours_cant_do_is_not_unfinished(write: Write) -> None:
    """A configuration that does not fit a problem leaves no row, so the problem is not unfinished."""
    markdown, _ = write(
        [
            measurement("softmax", "torch", 1024, median_us=30.0),
            measurement("softmax", "triton_tile", 1024, median_us=20.0, block_size=1024, num_warps=4),
            measurement("softmax", "cuda", 1024, median_us=15.0),
            measurement("softmax", "torch", 4096, median_us=30.0),
            measurement("softmax", "cuda", 4096, median_us=15.0),
        ]
    )
    assert "Left out" not in markdown, "a block of 1024 elements holds no row of 4096"
    _, lines = tables(markdown)["softmax on NVIDIA H200"]
    assert [line[1] for line in lines[1:]] == ["1024", "4096"]


def test_a_problem_that_a_sweep_has_not_finished_is_left_out_of_its_tables(write: Write) -> None:
    launch = {"block_size": 512, "num_warps": 4}
    markdown, html = write(
        [
            measurement("softmax", "torch", 1024, median_us=30.0),
            measurement("softmax", "triton_online", 1024, median_us=20.0, **launch),
            measurement("softmax", "cuda", 1024, median_us=15.0, **launch),
            measurement("softmax", "torch", 4096, median_us=30.0),
            measurement("softmax", "triton_online", 4096, median_us=60.0, **launch),
            measurement("softmax", "torch", 8192, median_us=30.0),
            measurement("softmax", "triton_online", 8192, status="out_of_memory", **launch),
            measurement("softmax", "cuda", 8192, median_us=15.0, **launch),
        ]
    )
    sentence = "Left out, as not all of ours have been measured there: float32 4096 (cuda)."
    assert f"\n{sentence}\n" in markdown and f"<p>{sentence}</p>" in html
    score, lines = tables(markdown)["softmax on NVIDIA H200"]
    assert [line[1] for line in lines[1:]] == ["1024", "8192"]
    assert [line[1:] for line in score[1:]] == [["2.00"], ["2.00"], ["2 of 2"]]
    assert "Slower than another by more than 1 % at none of 2 problems." in markdown


def test_where_nothing_is_finished_or_met_there_is_no_table(write: Write) -> None:
    launch = {"block_size": 512, "num_warps": 4, "median_us": 15.0}
    rows = [
        measurement("softmax", "torch", 1024, median_us=30.0),
        measurement("softmax", "triton_online", 1024, **launch),
        measurement("softmax", "torch", 4096, median_us=30.0),
        measurement("softmax", "cuda", 4096, **launch),
    ]
    markdown, html = write(rows)
    sentence = "measured there: float32 1024 (cuda); float32 4096 (triton_online)."
    assert sentence in markdown and sentence in html
    assert tables(markdown) == {"softmax on NVIDIA H200": []} and parts(html) == []
    markdown, html = write(rows[::2])
    assert tables(markdown) == {} and parts(html) == []


def test_the_overview_and_the_readme_say_the_same_figures_of_the_same_problems(
    write: Write, tmp_path: Path
) -> None:
    """The README has one line per problem of finals. The overview has their geometric mean and lists the
    problems."""
    cuda, torch, ours = {}, {}, {1024: (15.0, 40.0), 16384: (60.0, 90.0)}
    for size in ours:
        cuda[size] = measurement("softmax", "cuda", size, block_size=512, num_warps=4, median_us=11.0)
        torch[size] = measurement("softmax", "torch", size, median_us=99.0)
    for size, (us, base) in ours.items():
        both = [final(cuda[size], us), final(torch[size], base, (cuda[size], us, "slower"))]
        write_finals(tmp_path / "results", both)
    swept_only = [measurement("softmax", name, 4096) for name in ("torch", "cuda")]
    write([*cuda.values(), *torch.values(), *swept_only])

    block = Figures(tmp_path / "results").text("finals")
    ours_of = [line for line in map(cells, block.splitlines()) if line[0] == "softmax"]
    readme = {line[1]: (float(line[6]), float(line[5].removesuffix(" %"))) for line in ours_of}
    assert list(readme) == ["1024", "16384"]
    speedup, share = (geometric_mean(values) for values in zip(*readme.values(), strict=True))

    ((_, line),) = tables_of(section((tmp_path / "reports/report.md").read_text(), "Overview"))
    assert line[:3] == ["softmax", "float32", "NVIDIA H200"] and line[6] == "1024, 16384 §"
    assert float(line[3].removesuffix(" x torch")) == pytest.approx(speedup, abs=0.01)
    assert float(line[4].removesuffix(" %")) == pytest.approx(share, abs=0.1)
    numbers = json.loads((tmp_path / "reports/metrics.json").read_text())["softmax"]["nvidia-h200"]["float32"]
    assert numbers["own_speedup"] == pytest.approx(speedup, abs=0.01)
    assert numbers["problems"] == ["1024", "16384"]


def test_a_comparison_of_finals_with_one_round_is_marked(write: Write, tmp_path: Path) -> None:
    row = measurement("softmax", "cuda", 1024, block_size=512, num_warps=4)
    for day, (us, rounds) in enumerate([(20.0, 1), (16.0, 2), (8.0, 3)], start=1):
        held = final(row, us, run=f"2026110{day}T120000Z-abcdef")
        write_finals(tmp_path / "results", [held.replace(rounds_us=(us,) * rounds)])
    markdown, _ = write([row])
    (history,) = tables_of(section(markdown, "Finals over commits"))
    assert history[1] == [
        *("1024 float32", "20.0, cuda 512x4w", "16.0, x 1.25 (one round)", "8.00, x 2.00"),
    ]
