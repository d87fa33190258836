"""The report stage, from a folder of results to the files that people and dvc read."""

import csv
import json
import math
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import pytest

from kernel_pipeline.errors import UserError
from kernel_pipeline.machine.device import Device
from kernel_pipeline.records.base import Values
from pipeline import ROOT, report
from pipeline.command.options import ReportConfig
from pipeline.keys import identity, versions
from pipeline.reporting.content import describe
from pipeline.reporting.data_files import COLUMNS, PLOT_COLUMNS, file_columns
from pipeline.reporting.field import head_to_heads
from pipeline.reporting.frames import best_configurations, frame
from pipeline.reporting.headlines import entry_of
from pipeline.reporting.loading import Staleness
from pipeline.reporting.numbers import number, percent
from pipeline.reporting.others import Environments, OtherTimes
from pipeline.reporting.overview import summaries
from pipeline.reporting.plots import workload_plots, workload_ranks
from pipeline.store import results
from pipeline.store.ledger import read_rows
from tests import factory, pages
from tests.factory import COMMIT, CPU, H100, H200, environment, flat, grid, measurement, moved, write_results
from tests.pages import Page
from tests.processes import completed

# Drawing a report takes long, and most tests read the same one.
pytestmark = pytest.mark.xdist_group("report")

OTHER_COMMIT = "fedcba98" * 5
SVG = "{http://www.w3.org/2000/svg}"
DRAWN = ("torch", "torch_compile", "triton_row", "triton_online", "cuda")
TIMED = ("gelu", "matmul", "of_old", "softmax", "square")
GAPS = ("not measured", "no time")
PLOTS = ("matmul", "matmul-decode", "matmul-square_tf32", "of_old", "softmax", "softmax-few_rows", "square")


def synthetic() -> list:
    """Return rows of three machines as sweeps leave them. They include all of softmax on GPUs, the points
    that a CPU can run, a dirty commit, a distrusted timing, and a point that ran out of memory. matmul has
    three dimensions and is compared by TFLOP/s. Two kernels no longer exist; one of them was timed."""
    rows = grid(
        gpus=(H100, H200), providers=DRAWN, dtypes=("float32", "bfloat16"), sizes=(256, 1024, 4096, 16384)
    )
    rows += grid(gpus=(CPU,), providers=("torch", "torch_compile", "cpp"))
    rows += grid(gpus=(CPU,), providers=("triton_row", "triton_online"), status="verified")
    rows += [
        measurement("softmax", provider, columns, rows=n, workload="few_rows", **launch)
        for provider, launch in (("torch", {}), ("cuda", {"block_size": 1024, "num_warps": 8}))
        for n in (1, 37, 1823)
        for columns in (781, 12671)
    ]
    tiles = ("torch", "triton_tiled", "cuda_tiled")
    rows += grid(
        kernels=("matmul",), providers=tiles, sizes=(512, 1024, 4096), dtypes=("bfloat16", "float32")
    )
    rows += [
        measurement("matmul", provider, size, arithmetic="tf32", workload="square_tf32")
        for provider in tiles[:2]
        for size in (512, 1024)
    ]
    rows += [
        measurement("matmul", provider, 8192, "bfloat16", m=m, workload="decode")
        for provider in tiles[:2]
        for m in (1, 16, 64)
    ]
    rows += [measurement("matmul", "torch", 1, "bfloat16", m=2049, n=4095, k=1023, workload="odd")]
    rows += grid(kernels=("of_old",), providers=("torch", "cuda"))
    rows += grid(kernels=("square",), gpus=(H200,), providers=("torch_square", "cuda"), commit=OTHER_COMMIT)
    rows += [
        measurement("softmax", "triton_row", 65536, num_warps=w, gpu=H200, status="out_of_memory")
        for w in (4, 8)
    ]
    rows += [
        measurement("gelu", p, 1024, gpu=H200, dirty=True, valid=p == "torch") for p in ("torch", "cuda")
    ]
    rows += [measurement("tanh", "torch", gpu=H200, status="timeout", error="took <over> 120 s | given up")]
    return rows


def rows_of(folder: Path) -> list[dict]:
    """Return every ledger row as a flat dict."""
    paths = folder.glob("timings/*/*.jsonl")
    return [flat(row) for path in paths for row in read_rows(path, lambda sentence: None)]


def problem_of(row: dict) -> tuple[str, str]:
    """Return a row's problem in two texts: its numbers and its words."""
    if row["kernel"] == "matmul":
        m, n, k = (row[name] for name in "mnk")
        numbers = str(m) if m == n == k else f"m={m} n={n} k={k}"
        return numbers, row["dtype"] + " tf32" * (row["arithmetic"] == "tf32")
    if row["kernel"] == "softmax":
        columns = row["columns"]
        return str(columns) if row["rows"] == 4096 else f"rows={row['rows']} columns={columns}", row["dtype"]
    return f"n={row['n']}" if "n" in row else str(row["columns"]), row["dtype"]


def rate_of(row: dict) -> str:
    """Return the rate by which a row is compared."""
    return "tflops" if row["kernel"] == "matmul" and row["workload"] != "decode" else "gbps"


def configuration_of(row: dict) -> str:
    """Return a row's parameters in the form that reports show."""
    units = {"tile": "", "block_size": "", "block_m": "", "block_n": "", "block_k": "", "group_m": "g"}
    units |= {"num_warps": "w", "num_stages": "s"}
    return "x".join(f"{row[name]}{unit}" for name, unit in units.items() if name in row)


def winners(rows: list[dict]) -> dict[tuple, dict]:
    """Return the fastest row of each kernel, problem and GPU. A trusted row precedes a distrusted one."""
    found: dict[tuple, dict] = {}
    for row in rows:
        if row["status"] != "ok":
            continue
        group = (row["kernel"], *problem_of(row), row["gpu"])
        rank = (not row["valid"], row["median_us"])
        if group not in found or rank < (not found[group]["valid"], found[group]["median_us"]):
            found[group] = row
    return found


def baseline_us(rows: list[dict], row: dict) -> float | None:
    name = {"square": "torch_square"}.get(row["kernel"], "torch")
    place = (row["kernel"], *problem_of(row), row["gpu"])
    times = [
        r["median_us"]
        for r in rows
        if r["provider"] == name and (r["kernel"], *problem_of(r), r["gpu"]) == place
    ]
    return times[0] if times else None


def run(*arguments: str, seed: str = "0") -> subprocess.CompletedProcess[str]:
    return completed(
        [sys.executable, "-m", "pipeline.report", "device=cpu", *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONHASHSEED": seed},
    )


def files(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return write_results(tmp_path_factory.mktemp("in") / "results", synthetic())


@pytest.fixture(scope="module")
def written(folder, tmp_path_factory) -> tuple[Path, str]:
    """Run the command. Return the output folder and the printed text."""
    output = tmp_path_factory.mktemp("out") / "reports"
    done = run(f"input={folder}", f"output={output}")
    assert (done.returncode, done.stderr) == (0, "")
    return output, done.stdout


@pytest.fixture(scope="module")
def page(written) -> Page:
    return Page((written[0] / "report.html").read_text())


@pytest.fixture
def report_on(tmp_path) -> Callable[[Path], Path]:
    """Run the stage in this process and return its output folder."""

    def call(folder: Path) -> Path:
        report.run(ReportConfig(input=folder, output=tmp_path / "reports", device="cpu"))
        return tmp_path / "reports"

    return call


def test_all_files_are_there_and_no_other(written):
    of_plots = [end.format(name) for name in PLOTS for end in ("plots/{}.svg", "data/{}.csv")]
    metrics = ["metrics.json", *(f"metrics/{gpu}.json" for gpu in (H100, H200, CPU))]
    expected = ["best.csv", "overview.svg", "report.html", "report.md", *of_plots, *metrics]
    assert sorted(files(written[0])) == sorted(expected)


@pytest.mark.slow
def test_the_same_results_give_the_same_bytes(written, folder, tmp_path):
    moved = tmp_path / "elsewhere"
    moved.symlink_to(folder)
    assert run(f"input={moved}", f"output={tmp_path / 'again'}", seed="7").returncode == 0
    assert files(tmp_path / "again") == files(written[0])


def test_no_file_names_this_host_or_a_path(written, folder):
    for name, content in files(written[0]).items():
        for word in (str(folder), str(written[0]), str(ROOT), os.uname().nodename):
            assert word.encode() not in content, f"{name} has {word}"


def test_best_csv_has_the_fastest_configuration(written, folder):
    rows = rows_of(folder)
    expected = winners(rows)
    found = list(csv.DictReader((written[0] / "best.csv").open()))
    assert list(found[0]) == file_columns(COLUMNS)
    places = [(r["kernel"], r["problem"], r["words"], r["gpu"]) for r in found]
    assert sorted(places) == sorted(expected)
    assert [place[0] for place in places] == sorted(place[0] for place in places)
    of_softmax = [int(r["problem"]) for r in found if r["kernel"] == "softmax" and r["gpu"] == H100]
    assert of_softmax == [256, 1024, 4096, 16384] * 2, "in the order of the problems"
    for line in found:
        row = expected[line["kernel"], line["problem"], line["words"], line["gpu"]]
        for name in ("workload", "provider", "bound", "commit", "valid", "dirty"):
            assert line[name] == ("" if row[name] is None else str(row[name])), name
        assert line["configuration"] == configuration_of(row)
        numbers = {
            **{name: name for name in ("median_us", "p20_us", "p80_us", "ceiling_fraction")},
            **{"rel_ci_fraction": "rel_ci", "gb_per_s": "gbps", "tflop_per_s": "tflops"},
        }
        for column, name in numbers.items():
            assert float(line[column]) == pytest.approx(row[name], rel=1e-5), name
        assert line["headline"] == {"gbps": "gb_per_s", "tflops": "tflop_per_s"}[rate_of(row)]
        assert float(line["speedup_ratio"]) == pytest.approx(
            baseline_us(rows, row) / row["median_us"], rel=1e-5
        )


def test_the_pages_show_the_same_best_configurations(written):
    names = {H100: "NVIDIA H100 80GB HBM3", H200: "NVIDIA H200", CPU: "AMD EPYC"}
    expected = {
        (
            *(line["problem"], line["words"], names[line["gpu"]]),
            f"{line['provider']} {line['configuration']}".strip(),
            # No synthetic row has the source digest of an existing kernel, so all are old.
            number(float(line["median_us"])) + "†" + "!" * (line["valid"] == "False"),
            number(float(line[line["headline"]])),
            percent(float(line["ceiling_fraction"])),
            f"{float(line['speedup_ratio']):.2f}",
        )
        for line in csv.DictReader((written[0] / "best.csv").open())
    }

    def as_shown(cells):
        (rate,) = filter(None, cells[5:-2])
        return (*cells[:5], rate, cells[-2].removesuffix(" (compute)"), cells[-1].rstrip("~!"))

    html, markdown = ((written[0] / f"report.{kind}").read_text() for kind in ("html", "md"))
    for of_kernel in (
        lambda kernel: pages.part(html, kernel).tables,
        lambda kernel: pages.tables(pages.section(markdown, kernel)),
    ):
        shown = [
            table for kernel in TIMED for table in of_kernel(kernel) if table[0][3] == "best configuration"
        ]
        assert {as_shown(row) for table in shown for row in table[1:] if row[3] not in GAPS} == expected


def test_the_page_refers_to_itself_alone(page):
    assert {reference.removeprefix("#") for reference in set(page.references)} <= set(page.ids)
    assert len(page.ids) == len(set(page.ids)), "an id is there twice"


def test_the_page_carries_the_plots_in_its_own_colours(written):
    text = (written[0] / "report.html").read_text()
    plots = re.findall(r"<svg .*?</svg>", text, re.DOTALL)
    drawn = text.count("<figure") + 1  # the overview
    assert sum('role="img"' in svg for svg in plots) == drawn
    for svg in plots:
        ElementTree.fromstring(svg)
        assert not re.search(r"(fill|stroke): #", svg), "a colour that a dark page can't change"
    used = set(re.findall(r"var\(--([\w-]+)\)", text))
    defined = set(re.findall(r"--([\w-]+):", text))
    assert used <= defined


def test_the_page_tells_what_could_not_be_measured(page, written):
    plain = (
        (written[0] / "report.md")
        .read_text()
        .replace("took &lt;over> 120 s \\| given", "took <over> 120 s | given")
    )
    for text in (page.text, plain):
        assert "AMD EPYC: triton_row: 6 points verified under the interpreter, not timed" in text
        assert "NVIDIA H200: triton_row: 2 points ran out of memory" in text
        assert "NVIDIA H200: torch: 1 point took too long: took <over> 120 s | given up" in text
        assert "Not to be trusted on NVIDIA H200: the clock moved by 8 %" in text
        assert "Its folder is not in this commit." in text


def test_the_page_tells_commits_and_machines(page):
    fresh = next(table for table in page.tables if "commit" in table[0])
    found = {tuple(line[:6]) for line in fresh[1:]}
    # No synthetic row has the digests of today's source and measuring code.
    assert ("NVIDIA H200", OTHER_COMMIT[:10], "15", "15", "source 15, measurement 15", "square") in found
    dirty = f"{COMMIT[:10]} with uncommitted changes"
    assert ("NVIDIA H200", dirty, "2", "2", "source 2, measurement 2", "gelu") in found
    assert sum(int(line[2]) for line in fresh[1:]) == len(synthetic())
    machines = next(table for table in page.tables if table[-1][0] == "platform")
    assert machines[0] == ["", "NVIDIA H100 80GB HBM3", "NVIDIA H200", "AMD EPYC"]
    assert ["copy ceiling", "3000 GB/s", "4270 GB/s", "40.0 GB/s"] in machines
    assert ["driver", "580.82.07", "580.82.07", ""] in machines


def test_what_is_stale_about_a_row_is_told():
    softmax = entry_of("softmax").loaded
    triton = identity.source(softmax, softmax.kernel.provider("triton_row")).digest
    quack = identity.source(softmax, softmax.kernel.provider("quack")).digest
    on_gpu, on_cpu = (versions.measurement(kind, "auto") for kind in ("cuda", "cpu"))
    of = {
        (): measurement("softmax", "triton_row", 256, source=triton, measurement=on_gpu),
        ("source",): measurement("softmax", "triton_row", 1024, source=triton[::-1], measurement=on_gpu),
        ("measurement",): measurement("softmax", "triton_row", 1024, source=triton, measurement="0"),
    }
    known = {gpu: environment(gpu) for gpu in (H200, CPU)}

    def changed(rows, environments):
        staleness = Staleness(environments)
        return [staleness.parts(row) for row in rows]

    assert changed(of.values(), known) == list(of)
    later = {H200: environment(H200).replace(driver="590.1")}
    rows = [of[()], measurement("softmax", "quack", source=quack, measurement=on_gpu)]
    assert changed(rows, later) == [("environment",), ()], "a peer's can't be told"
    assert changed(rows, {}) == [(), ()]
    others = [
        measurement("softmax", "triton_row", gpu=CPU, status="verified", source=triton, measurement=on_cpu),
        measurement("softmax", "quack", source=quack, measurement=on_gpu),
        measurement("softmax", "triton_row", source="", measurement=""),
        measurement("softmax", "gone", source=triton, measurement=on_gpu),
        measurement("of_old", "torch", source="", measurement=on_gpu),
    ]
    assert changed(others, known) == [(), (), ("source", "measurement"), ("source",), ("source",)]


def test_times_that_are_old_are_marked(report_on, tmp_path):
    softmax = entry_of("softmax").loaded
    source = identity.source(softmax, softmax.kernel.provider("triton_row")).digest
    measured = versions.measurement("cuda", "auto")
    rows = [
        measurement("softmax", "triton_row", 256, median_us=7.0, source=source, measurement=measured),
        measurement("softmax", "triton_row", 512, median_us=8.0, source="0" * 16, measurement=measured),
    ]
    note = "† old: measured by another source or version of the measuring code than those"
    output = report_on(write_results(tmp_path / "results", rows))
    for name in ("report.html", "report.md"):
        text = (output / name).read_text()
        assert "8.00†" in text and "7.00†" not in text and "7.00" in text
        assert note in text
    output = report_on(write_results(tmp_path / "current", rows[:1]))
    assert "†" not in (output / "report.html").read_text()


def test_rows_that_were_left_out_are_told(report_on, tmp_path):
    rows = [
        measurement("softmax", "torch", 4096),
        measurement("softmax", "torch", 4096, settings="9" * 16, cache="hot", median_us=0.1),
    ]
    output = report_on(write_results(tmp_path / "results", rows))
    for name in ("report.html", "report.md"):
        assert "1 more row was left out: timed in other ways, or again since." in (output / name).read_text()
    assert "0.1" not in [line["median_us"] for line in csv.DictReader((output / "best.csv").open())]


def texts(written, name: str) -> list[str]:
    root = ElementTree.fromstring((written[0] / f"plots/{name}.svg").read_text())
    return ["".join(text.itertext()) for text in root.iter(f"{SVG}text")]


def test_a_plot_has_a_chart_a_machine_and_words_and_a_legend(written):
    shown = texts(written, "softmax")
    machines = ("NVIDIA H100 80GB HBM3", "NVIDIA H200", "AMD EPYC")
    titles = {f"{name} · {dtype}" for name in machines for dtype in ("float32", "bfloat16")}
    assert titles - set(shown) == {"AMD EPYC · bfloat16"}, "which was not measured"
    assert {"copy ceiling 4270 GB/s", "1024", "16384", "columns", "GB/s"} <= set(shown)
    assert sorted(text for text in shown if text in (*DRAWN, "cpp")) == sorted([*DRAWN, "cpp"])


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("softmax-few_rows", {"NVIDIA H200 · float32 columns=781", "1", "37", "1823", "rows", "GB/s"}),
        ("matmul", {"matmul ceiling 712 TFLOP/s", "matmul ceiling 53.4 TFLOP/s", "m = n = k", "TFLOP/s"}),
        ("matmul-square_tf32", {"NVIDIA H200 · float32 tf32", "matmul ceiling 356 TFLOP/s"}),
        ("matmul-decode", {"copy ceiling 4270 GB/s", "1", "16", "64", "m"}),
        ("of_old", {"256", "4096"}),
    ],
)
def test_a_workload_of_its_own_has_a_plot_of_its_own(written, name, expected):
    assert expected <= set(texts(written, name))


def test_a_line_lies_where_its_numbers_are(written, folder):
    """Two marks fix the scale. The other marks and the ceiling must then agree with the ledger."""
    html = (written[0] / "report.html").read_text()
    titled = "<figcaption>NVIDIA H200 · float32</figcaption>"
    kernel = html[html.index('<section id="softmax"') :]
    chart = kernel[kernel.index(titled) :].partition("</figure>")[0]
    marks = re.findall(r'<use[^>]* y="([\d.]+)"><title>(\w+).*?, (\d+(?:\.\d+)?) GB/s', chart)
    assert len(marks) == 4 * len(DRAWN)
    heights = {(name, float(rate)): float(y) for y, name, rate in marks}
    (low, low_y), *_, (high, high_y) = sorted((rate, y) for (_, rate), y in heights.items())
    scale = (high - low) / (high_y - low_y)
    for (_, rate), y in heights.items():
        assert low + (y - low_y) * scale == pytest.approx(rate, rel=0.01, abs=10)
    ceiling = re.search(r'class="limit"><path d="M[\d.]+ ([\d.]+)L', chart)
    assert ceiling is not None
    assert low + (float(ceiling[1]) - low_y) * scale == pytest.approx(4270, rel=0.01)


def test_the_data_of_a_plot_is_a_file(written):
    for name in PLOTS:
        kernel, _, workload = name.partition("-")
        lines = list(csv.DictReader((written[0] / f"data/{name}.csv").open()))
        assert list(lines[0]) == file_columns(PLOT_COLUMNS)
        assert {line["workload"] for line in lines} == {
            workload
            or {"softmax": "columns", "square": "squares", "matmul": "square", "of_old": "sizes"}[kernel]
        }
    few = list(csv.DictReader((written[0] / "data/softmax-few_rows.csv").open()))
    assert {(line["words"], line["x"]) for line in few} == {
        (f"float32 columns={columns}", str(rows)) for columns in (781, 12671) for rows in (1, 37, 1823)
    }


def drawn(rows: list) -> list[tuple[str, str, tuple[str, ...], list[int]]]:
    table = frame(rows)
    return [
        (one.workload, one.x_label, tuple(one.panels), sorted(set(one.rows["x"])))
        for one in workload_plots(rows[0].point.kernel, table, best_configurations(table))
    ]


def test_a_problem_belongs_to_every_workload_that_has_it():
    rows = [measurement("softmax", "torch", size, workload="quick") for size in (1024, 4096)]
    assert drawn(rows) == [("quick", "columns (rows=4096)", ("float32",), [1024, 4096])]
    rows += [measurement("softmax", "cuda", size, workload="columns") for size in (256, 1024, 4096)]
    assert list(workload_ranks(frame(rows))) == ["columns"], "which has all of quick's problems"
    assert drawn(rows) == [("columns", "columns (rows=4096)", ("float32",), [256, 1024, 4096])]
    table = frame(rows)
    (one,) = workload_plots("softmax", table, best_configurations(table))
    assert len(one.rows) == 5, "torch's rows of quick, too"


def summary_of(rows: list) -> list[tuple]:
    """Return the speedups and problems in the overview of rows without finals."""
    table = frame(rows)
    about = describe("softmax", set(table["provider"]))
    times = OtherTimes(table, (), {"softmax": about.others}, Environments({}, {}))
    field = head_to_heads(table, {"softmax": about.own}, times)
    found = summaries(field, table, frame([]), {"softmax": about.baseline}, in_common=False)
    return [(one.speedup, one.where) for one in found]


def test_what_was_pinned_aside_is_in_no_mean():
    rows = [measurement("softmax", name, size) for size in (256, 1024, 4096) for name in ("torch", "cuda")]
    ((mean, where),) = summary_of(rows)
    assert where == "256, 1024, 4096"
    aside = {"rows": 37, "workload": "columns"}
    rows += [measurement("softmax", name, 256, **aside) for name in ("torch", "cuda")]
    assert summary_of(rows) == [(mean, where)]


def test_a_problem_off_the_line_breaks_no_other():
    rows = [measurement("matmul", "torch", size) for size in (512, 1024)]
    pinned = measurement("matmul", "torch", 512, m=16, workload="square")
    assert drawn([*rows, pinned]) == [("square", "m = n = k", ("float32",), [512, 1024])]
    assert drawn([rows[0], pinned]) == [], "two places that are not on one line"


def test_metrics_are_geometric_means_of_the_best(written, folder):
    found = json.loads((written[0] / "metrics.json").read_text())
    rows = rows_of(folder)
    own = {"triton_online", "cuda", "cpp"}  # triton_row is the textbook's kernel
    for gpu in (H100, H200, CPU):
        of = (gpu, "softmax", "float32", 4096)
        trusted = [r for r in rows if tuple(r.get(k) for k in ("gpu", "kernel", "dtype", "rows")) == of]
        top_own = winners([r for r in trusted if r["provider"] in own]).values()

        def mean(values):
            values = list(values)
            return math.prod(values) ** (1 / len(values))

        numbers = found["softmax"][gpu]["float32"]
        assert numbers["gbps"] == pytest.approx(mean(r["gbps"] for r in top_own), rel=1e-5)
        assert numbers["ceiling_fraction"] == pytest.approx(
            mean(r["ceiling_fraction"] for r in top_own), rel=1e-5
        )
        ratios = [baseline_us(rows, r) / r["median_us"] for r in top_own]
        assert numbers["own_speedup"] == pytest.approx(mean(ratios), rel=1e-5)
    points = found["softmax"][CPU]["points"]
    assert (points["ok"], points["verified"], points["timeout"]) == (9, 18, 0)
    assert found["tanh"] == {H200: {"points": {**dict.fromkeys(points, 0), "timeout": 1}}}
    of_matmul = found["matmul"][H200]
    assert sorted(of_matmul) == ["bfloat16", "float32", "float32 tf32", "points"]
    square = [r for r in rows if r["kernel"] == "matmul" and r["workload"] == "square"]
    top = winners([r for r in square if r["dtype"] == "bfloat16" and r["provider"] != "torch"]).values()
    assert of_matmul["bfloat16"]["tflops"] == pytest.approx(mean(r["tflops"] for r in top), rel=1e-5)
    assert "gbps" not in of_matmul["bfloat16"], "decode is another workload"
    assert set(found["gelu"][H200]) == {"points"}, "cuda on gelu is not to be trusted: nothing is claimed"


def test_the_command_ends_with_this_machines_table_and_where_to_look(report_on, tmp_path, capsys):
    here = report.device.resolve("cpu").slug
    mine = write_results(tmp_path / "results", grid(gpus=(here, H200), providers=("torch", "cpp")))
    output = report_on(mine)
    printed = capsys.readouterr().out
    first, *_, last = printed.splitlines()
    assert first.strip() == here and H200 not in printed
    assert re.search(r"^softmax +\d+ +float32 +\S+ .* \d+\.\d+ x torch *$", printed, re.MULTILINE), printed
    assert (
        re.sub(r"^… and \d+ more in the report\. ", "", last)
        == f"All machines side by side: {output}/report.html. Every run in MLflow: make ui."
    )


def test_a_machine_without_results_is_told_whose_there_are(report_on, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(report.device, "resolve", lambda _: Device(kind="cpu", name="Abacus"))
    rows = [measurement(gpu=gpu) for gpu in (CPU, H200, H100)]
    report_on(write_results(tmp_path / "results", rows))
    out = capsys.readouterr().out
    assert "There is no table of cpu-abacus: " in out
    assert f" The report shows {H100}, {H200}, {CPU}: " in out


def test_a_kernel_that_is_gone_takes_its_plot_with_it(report_on, tmp_path):
    before = [measurement(kernel, size=size) for size in (256, 1024) for kernel in ("gelu", "softmax")]
    output = report_on(write_results(tmp_path / "before", before))
    assert (output / "plots/softmax.svg").exists()
    kept = {"mine.md", "plots/keep.txt", "plots/notes.svg", "data/table.csv", "metrics/mine.json"}
    (output / "metrics").mkdir(exist_ok=True)
    for name in kept:
        (output / name).write_text("not from here")
    report_on(write_results(tmp_path / "results", before[::2]))
    own = {"metrics.json", "plots/gelu.svg", "report.html", "report.md", "best.csv", "data/gelu.csv"}
    assert set(files(output)) == kept | own
    assert "softmax" not in (output / "report.html").read_text()


def test_no_results_make_a_page_that_says_so(report_on, tmp_path, capsys):
    (tmp_path / "results").mkdir()
    output = report_on(tmp_path / "results")
    for name in ("report.html", "report.md"):
        assert "Nothing was measured yet." in (output / name).read_text()
    assert json.loads((output / "metrics.json").read_text()) == {}
    assert (output / "best.csv").read_text() == ",".join(file_columns(COLUMNS)) + "\n"
    assert "The report shows no other machine either" in capsys.readouterr().out


def test_a_missing_folder_is_one_sentence(tmp_path):
    done = run(f"input={tmp_path / 'nowhere'}", f"output={tmp_path / 'reports'}")
    assert done.returncode == 2
    assert (
        done.stderr
        == f"error: input={tmp_path}/nowhere is not a folder with results; run `dvc repro` to get some.\n"
    )


def test_an_output_that_is_a_file_is_one_sentence(tmp_path):
    folder = write_results(tmp_path / "results", [measurement()])
    (tmp_path / "reports").write_text("mine")
    with pytest.raises(UserError, match=r"no results can be written to .*it is a file"):
        report.run(ReportConfig(input=folder, output=tmp_path / "reports", device="cpu"))
    assert (tmp_path / "reports").read_text() == "mine"


def test_without_ceilings_and_environments_the_rest_is_shown(report_on, tmp_path):
    nothing = {"bound": None, "ceiling_fraction": None}
    rows = [
        row.replace(rate=row.rate and row.rate.replace(**nothing))
        for row in grid(gpus=(H200,), sizes=(1024, 4096))
    ]
    folder = write_results(tmp_path / "results", rows)
    results.ceilings_path(folder, H200).unlink()
    results.environment_path(folder, H200).unlink()
    output = report_on(folder)
    text = (output / "report.html").read_text()
    assert f"{H200}: its environment was not recorded." in text
    assert "nan" not in Page(text).text.lower()
    assert "ceiling" not in (output / "plots/softmax.svg").read_text()
    assert set(json.loads((output / "metrics.json").read_text())["softmax"][H200]["float32"]) == {
        "gbps",
        "own_speedup",
        "problems",
    }


def test_rows_from_an_earlier_environment_are_told(report_on, tmp_path):
    folder = write_results(tmp_path / "results", grid())
    path = results.environment_path(folder, H200)
    path.write_text(path.read_text().replace("580.82.07", "590.01"))
    text = (report_on(folder) / "report.html").read_text()
    assert "NVIDIA H200: 15 of 15 rows were measured in an earlier environment." in text
    assert "NVIDIA H200: its ceilings were measured in an earlier environment." in text


def test_lines_that_cant_be_read_are_told_and_counted(report_on, tmp_path, capsys):
    folder = write_results(tmp_path / "results", grid())
    path = results.ledger_path(folder, "softmax", H200)
    path.write_bytes(path.read_bytes() + b'{"torn":\n' * 8)
    text = (report_on(folder) / "report.md").read_text()
    assert "> timings/softmax/nvidia-h200.jsonl:16 is not a measurement" in text
    assert "> 3 more lines are not readable either." in text
    assert capsys.readouterr().err.count("warning: ") == 6
    assert "15 points of 1 kernel on 1 machine" in text


def test_what_a_cpu_gave_is_in_no_gpus_report(tmp_path, monkeypatch):
    for name, where in (("ROOT", tmp_path), ("LOCAL", tmp_path / "local")):
        monkeypatch.setattr(results, name, where)
    write_results(tmp_path / "results", grid(gpus=(H200,)))
    write_results(tmp_path / "local/results", grid(gpus=(CPU,)))
    config = ReportConfig(input=tmp_path / "results", output=tmp_path / "reports", device="auto")
    monkeypatch.setattr(report.device, "resolve", lambda _: Device(kind="cpu", name="AMD EPYC"))
    report.run(config)
    assert not files(tmp_path / "reports")
    assert set(json.loads((tmp_path / "local/reports/metrics.json").read_text())["softmax"]) == {H200, CPU}
    before = files(tmp_path / "local")
    monkeypatch.setattr(report.device, "resolve", lambda _: Device(kind="cuda", name="NVIDIA H200", index=0))
    report.run(config)
    assert set(json.loads((tmp_path / "reports/metrics.json").read_text())["softmax"]) == {H200}
    assert not any(CPU.encode() in content for content in files(tmp_path / "reports").values())
    assert files(tmp_path / "local") == before


def test_held_out_problems_and_their_losses_are_shown(report_on, tmp_path):
    rows = [measurement("softmax", name, 1024) for name in ("torch", "cuda")]
    folder = write_results(tmp_path / "results", rows)
    assert "Held-out problems" not in (report_on(folder) / "report.html").read_text()
    factory.write_held_out(folder, rows[1], 0.5)
    page = (report_on(folder) / "report.html").read_text()
    assert "Held-out problems" in page and "Where another provider is faster by most" in page


def test_a_kernel_without_words(report_on, tmp_path):
    rows = [measurement("of_old", name, size) for size in (256, 1024) for name in ("torch", "cuda")]
    bare = []
    for row in rows:
        point = row.point.replace(problem=Values({"n": row.point.problem["n"]}))
        bare.append(moved(row, point))
    output = report_on(write_results(tmp_path / "results", bare))
    assert set(json.loads((output / "metrics.json").read_text())["of_old"][H200]) == {"all", "points"}
    assert "NVIDIA H200</text>" in (output / "plots/of_old.svg").read_text()


def test_each_gpus_metrics_name_every_kernel_so_that_dvc_tells_whose_they_are(report_on, tmp_path):
    """``dvc exp show`` drops the file name from a metric that only one file has, so every file names every
    kernel."""
    rows = grid(gpus=(H100, H200), providers=("torch", "cuda"))
    square = grid(kernels=["square"], gpus=(H100,), providers=("torch_square", "cuda"))
    output = report_on(write_results(tmp_path / "results", [*rows, *square]))
    found = {gpu: json.loads((output / f"metrics/{gpu}.json").read_bytes()) for gpu in (H100, H200)}
    assert set(found[H100]) == set(found[H200]) == {"softmax", "square"}
    assert found[H200]["square"] == "-" and isinstance(found[H100]["square"], float)
    before = (output / f"metrics/{H200}.json").read_bytes()
    report_on(write_results(tmp_path / "results", [*rows, *square]))
    assert (output / f"metrics/{H200}.json").read_bytes() == before


def dvc(folder: Path, *arguments: str) -> str:
    done = completed([sys.executable, "-m", "dvc", *arguments], cwd=folder)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_dvc_shows_and_compares_metrics_and_plots(report_on, tmp_path):
    rows = grid(gpus=(H100, H200), providers=("torch", "cuda"))
    products = grid(kernels=("matmul",), providers=("torch",))
    folder = write_results(tmp_path / "results", [*rows, *products])
    report_on(folder)
    (tmp_path / ".dvc").mkdir()
    declared = (ROOT / "dvc.yaml").read_text()
    (tmp_path / "dvc.yaml").write_text(declared[declared.index("\nmetrics:") :])
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b.c"]
    for command in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "before"]):
        subprocess.run([*git, *command], cwd=tmp_path, check=True)
    heading, *lines = (line.split() for line in dvc(tmp_path, "metrics", "show").splitlines())
    assert heading == ["Path", "softmax"], "a number per kernel"
    assert sorted(path for path, _ in lines) == [f"reports/metrics/{gpu}.json" for gpu in (H200, H100)][::-1]

    faster = [
        measurement("softmax", "cuda", s, block_size=512, num_warps=4, median_us=1.0)
        for s in (256, 1024, 4096)
    ]
    write_results(
        folder, [*(r for r in rows if r.origin.gpu == H200 and r.point.provider == "torch"), *faster]
    )
    report_on(folder)
    changed = json.loads(dvc(tmp_path, "metrics", "diff", "--json"))
    assert list(changed) == [f"reports/metrics/{H200}.json"], "the other GPU's is as it was"
    assert changed[f"reports/metrics/{H200}.json"]["softmax"]["diff"] > 1

    dvc(tmp_path, "plots", "diff", "HEAD", "--out", "page")
    page = (tmp_path / "page/index.html").read_text()
    assert "http" not in page and "<script" not in page, "it needs no network"
    shown = {path.name for path in (tmp_path / "page/static").iterdir()}
    assert {name.partition("_")[0] for name in shown} == {"HEAD", "workspace"}, "both side by side"
    assert all(f"static/{name}" in page for name in shown)


def test_failures_of_providers_that_nobody_asked_for_are_left_out(report_on, tmp_path):
    """A sweep measures another package's provider wherever the package is installed. Its failure is shown
    only if the command named the provider."""

    def named(row, command: str):
        run = row.origin.run[:-6] + "0a0a0a"
        return row.replace(origin=row.origin.replace(command=command, run=run))

    failed = {"status": "runtime_error", "error": "it has no row_stack"}
    liger = measurement("softmax", "liger", 1024, **failed)
    rows = [
        measurement("softmax", "torch", 1024),
        measurement("softmax", "numba", 1024, **failed),
        measurement("softmax", "quack", 1024, **failed),
        measurement("softmax", "cuda", 1024, status="out_of_memory"),
        named(liger, "python -m pipeline.sweep kernel=softmax 'provider=[torch, liger]' output=results"),
    ]
    output = report_on(write_results(tmp_path / "results", rows))
    for page in ("report.md", "report.html"):
        text = (output / page).read_text()
        assert "numba: 1 point" not in text and "quack: 1 point" not in text
        assert "liger: 1 point failed at run time: it has no row_stack" in text
        assert "cuda: 1 point ran out of memory" in text


def test_the_data_of_a_plot_has_the_marks_of_the_page(report_on, tmp_path):
    rows = [measurement("softmax", "torch", size) for size in (1024, 4096)]
    rows += [measurement("softmax", "cuda", size, throttle="sw_power_cap") for size in (1024, 4096)]
    rows += [measurement("softmax", "triton_row", size, valid=False) for size in (1024, 4096)]
    row = measurement("softmax", "triton_tile", 1024)
    outcome = row.outcome.replace(any_answer="zeros")
    rows += [row.replace(outcome=outcome), measurement("softmax", "triton_tile", 4096)]
    output = report_on(write_results(tmp_path / "results", rows))
    found = {
        (line["provider"], line["x"]): line for line in csv.DictReader((output / "data/softmax.csv").open())
    }
    trusted = found["torch", "1024"]
    assert (trusted["valid"], trusted["throttle"], trusted["doubt"]) == ("True", "", "")
    bound = found["cuda", "1024"]
    assert (bound["valid"], bound["throttle"]) == ("False", "sw_power_cap")
    assert "held back" in bound["doubt"]
    assert "the clock moved" in found["triton_row", "4096"]["doubt"]
    assert found["triton_tile", "1024"]["incomparable"].startswith("any answer passes: zeros")
    assert found["triton_tile", "1024"]["speedup_ratio"] == ""


def test_two_gpus_are_compared_at_the_same_problems(report_on, tmp_path):
    """The overview compares their means, and each kernel's table compares them line by line."""
    rows = [
        measurement("softmax", name, size, gpu=gpu)
        for name in ("torch", "cuda")
        for gpu, sizes in ((H100, (1024, 4096, 16384)), (H200, (256, 1024, 4096)))
        for size in sizes
    ]
    rows += [measurement("softmax", name, 1024, "bfloat16", gpu=H200) for name in ("torch", "cuda")]
    rows += [
        measurement("softmax", name, 256, gpu=H100, status="out_of_memory") for name in ("torch", "cuda")
    ]
    output = report_on(write_results(tmp_path / "results", rows))
    text = (output / "report.md").read_text()
    (overview,) = pages.tables(pages.section(text, "Overview"))
    at = {(dtype, machine): (ratio, where) for _, dtype, machine, ratio, *_, where in overview[1:]}
    assert at["float32", "NVIDIA H200"][1] == at["float32", "NVIDIA H100 80GB HBM3"][1] == "1024, 4096"
    assert at["bfloat16", "NVIDIA H100 80GB HBM3"] == ("not measured", "")
    best_of = pages.tables(pages.section(text, "softmax"))[0]
    assert ["16384", "float32", "NVIDIA H200", "not measured", "", "", "", ""] in best_of
    assert ["256", "float32", "NVIDIA H100 80GB HBM3", "no time", "", "", "", ""] in best_of
    page = Page((output / "report.html").read_text())
    cells = [row for table in page.tables for row in table if "not measured" in row]
    assert ["16384", "float32", "NVIDIA H200", "not measured", "", "", "", ""] in cells
    own = json.loads((output / "metrics.json").read_text())["softmax"]
    assert own[H100]["float32"]["problems"] == ["1024", "4096", "16384"], "a GPU's own numbers are of all"
    drawn = (output / "overview.svg").read_text()
    assert "not measured" in drawn
