"""The report stage, from a folder of results to the files that people and dvc read."""

import csv
import itertools
import json
import math
import os
import re
import subprocess
import sys
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import pytest

import kernels
from pipeline import report
from pipeline.config import ROOT, ReportConfig
from pipeline.errors import UserError
from pipeline.measure import ledger, results
from pipeline.measure.grid import peer_digest, source_digest
from tests.factory import COMMIT, CPU, H100, H200, grid, measurement, write_results

# The command draws for long, and most of the tests look at what it drew once.
pytestmark = pytest.mark.xdist_group("report")

OTHER_COMMIT = "fedcba98" * 5
SVG = "{http://www.w3.org/2000/svg}"
DRAWN = ("torch", "torch_compile", "triton_row", "triton_online", "cuda")


def synthetic() -> list:
    """Three machines as a sweep leaves them: all of softmax on GPUs, what a CPU can do, a dirty commit, a
    distrusted timing, a point that did not fit, and a kernel that nothing was timed of."""
    rows = grid(
        gpus=(H100, H200), providers=DRAWN, dtypes=("float32", "bfloat16"), sizes=(256, 1024, 4096, 16384)
    )
    rows += grid(gpus=(CPU,), providers=("torch", "torch_compile", "cpp"))
    rows += grid(gpus=(CPU,), providers=("triton_row", "triton_online"), status="verified")
    rows += grid(gpus=(CPU,), providers=("cuda",), status="unsupported")
    rows += grid(kernels=("square",), gpus=(H200,), providers=("torch_square", "cuda"), commit=OTHER_COMMIT)
    rows += [
        measurement("softmax", "triton_row", 65536, num_warps=w, gpu=H200, status="out_of_memory")
        for w in (4, 8)
    ]
    rows += [
        measurement("gelu", p, 1024, gpu=H200, dirty=True, valid=p == "torch") for p in ("torch", "cuda")
    ]
    rows += [measurement("relu", "torch", gpu=H200, status="timeout", error="took <over> 120 s | given up")]
    return rows


def rows_of(folder: Path) -> list[dict]:
    """Every ledger row, read without the code under test."""
    return [json.loads(line) for path in folder.rglob("*.jsonl") for line in path.read_text().splitlines()]


def winners(rows: list[dict]) -> dict[tuple, dict]:
    """The fastest row at each kernel, dtype, size and GPU, trusted ones first."""
    found: dict[tuple, dict] = {}
    for row in rows:
        if row["status"] != "ok":
            continue
        group = (row["kernel"], row["dtype"], row["size"], row["gpu"])
        rank = (not row["valid"], row["median_us"])
        if group not in found or rank < (not found[group]["valid"], found[group]["median_us"]):
            found[group] = row
    return found


def baseline_us(rows: list[dict], row: dict) -> float | None:
    name = {"square": "torch_square"}.get(row["kernel"], "torch")
    same = ("kernel", "dtype", "size", "gpu")
    times = [r["median_us"] for r in rows if r["provider"] == name and all(r[k] == row[k] for k in same)]
    return times[0] if times else None


def run(*arguments: str, seed: str = "0") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "pipeline.report", "device=cpu", *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONHASHSEED": seed},
        capture_output=True,
        text=True,
        check=False,
    )


def files(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


class Page(HTMLParser):
    """A page's tables as lists of cell texts, its references, ids and text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tables: list[list[list[str]]] = []
        self.references: list[str] = []
        self.ids: list[str] = []
        self.open: list[str] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        values = dict(attrs)
        self.references += [values[k] for k in ("src", "href", "xlink:href", "srcset") if values.get(k)]
        self.ids += [values["id"]] if "id" in values else []
        self.open.append(tag)
        if tag == "table":
            self.tables.append([])
        elif tag == "tr":
            self.tables[-1].append([])
        elif tag in ("td", "th"):
            self.tables[-1][-1].append("")

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        self.open.pop()

    def handle_endtag(self, tag):
        while self.open and self.open.pop() != tag:
            pass

    def handle_data(self, data):
        self.text += data
        if {"td", "th"} & set(self.open):
            self.tables[-1][-1][-1] += data


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return write_results(tmp_path_factory.mktemp("in") / "results", synthetic())


@pytest.fixture(scope="module")
def written(folder, tmp_path_factory) -> tuple[Path, str]:
    """The output folder and what the command printed."""
    output = tmp_path_factory.mktemp("out") / "reports"
    done = run(f"input={folder}", f"output={output}")
    assert (done.returncode, done.stderr) == (0, "")
    return output, done.stdout


@pytest.fixture(scope="module")
def page(written) -> Page:
    return Page((written[0] / "report.html").read_text())


@pytest.fixture
def report_on(tmp_path) -> Callable[[Path], Path]:
    """Run the stage in this process and return where it wrote."""

    def call(folder: Path) -> Path:
        report.run(ReportConfig(input=folder, output=tmp_path / "reports", device="cpu"))
        return tmp_path / "reports"

    return call


def test_all_files_are_there_and_no_other(written):
    plots = [f"plots/{kernel}.{kind}" for kernel in ("gelu", "softmax", "square") for kind in ("csv", "svg")]
    roofs = [f"roofline/{kernel}.svg" for kernel in ("gelu", "softmax", "square")]
    assert sorted(files(written[0])) == sorted(
        ["best.csv", "field.html", "field.md", "metrics.json", *plots, "report.html", "report.md", *roofs]
    )


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
    assert [(r["kernel"], r["dtype"], int(r["size"]), r["gpu"]) for r in found] == sorted(expected)
    for line in found:
        row = expected[line["kernel"], line["dtype"], int(line["size"]), line["gpu"]]
        for name in (
            "provider",
            "block_size",
            "num_warps",
            "num_stages",
            "bound",
            "commit",
            "valid",
            "dirty",
        ):
            assert line[name] == ("" if row[name] is None else str(row[name])), name
        for name in ("median_us", "p20_us", "p80_us", "rel_ci", "gbps", "tflops", "ceiling_fraction"):
            assert float(line[name]) == pytest.approx(row[name], rel=1e-5), name
        assert float(line["speedup"]) == pytest.approx(baseline_us(rows, row) / row["median_us"], rel=1e-5)


def test_the_pages_show_the_same_best_configurations(written, folder, page):
    rows = rows_of(folder)
    names = {H100: "NVIDIA H100 80GB HBM3", H200: "NVIDIA H200", CPU: "AMD EPYC"}
    lines = set()
    for (kernel, _, size, gpu), row in winners(rows).items():
        axes = "x".join(str(row[a]) + u for a, u in (("block_size", ""), ("num_warps", "w")) if row[a])
        ratio = baseline_us(rows, row) / row["median_us"]
        share = f"{100 * row['ceiling_fraction']:.1f} %"
        mark = "" if row["valid"] else "!"
        label = f"{row['provider']} {axes}".strip()
        lines.add(
            (
                kernel,
                size,
                names[gpu],
                label,
                f"{row['median_us']:.2e}{mark}",
                share,
                f"{ratio:.2f}",
            )
        )

    def as_shown(kernel, size, cells):
        us = f"{float(cells[2].rstrip('!')):.2e}" + "!" * cells[2].endswith("!")
        return (kernel, size, cells[0], cells[1], us, cells[4], cells[5])

    text = (written[0] / "report.html").read_text()
    from_html = set()
    for kernel in ("gelu", "softmax", "square"):
        section = Page(re.search(rf'<section id="kernel-{kernel}">.*?</section>', text, re.DOTALL)[0])
        for table in section.tables:
            if "best configuration" not in table[0]:
                continue
            for cells in table[1:]:
                if len(cells) == 7:
                    size = int(cells[0])
                from_html.add(as_shown(kernel, size, cells[-6:]))
    assert from_html == lines

    markdown, kernel, from_markdown = (written[0] / "report.md").read_text(), "", set()
    for line in markdown.splitlines():
        kernel = line[3:] if line.startswith("## ") else kernel
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) == 7 and cells[0].isdigit():
            from_markdown.add(as_shown(kernel, int(cells[0]), cells[1:]))
    assert from_markdown == lines


def test_the_page_needs_no_network_and_refers_only_to_itself(page):
    outside = {reference for reference in page.references if not reference.startswith("#")}
    assert outside == {"field.html"}, "the page beside it"
    assert {reference[1:] for reference in set(page.references) - outside} <= set(page.ids)
    assert len(page.ids) == len(set(page.ids)), "an id is there twice"


def test_the_page_carries_the_plots_in_its_own_colours(written):
    text = (written[0] / "report.html").read_text()
    plots = re.findall(r"<svg .*?</svg>", text, re.DOTALL)
    assert len(plots) == 2 * 3, "rates and a roofline for each kernel that was timed"
    for svg in plots:
        ElementTree.fromstring(svg)
        assert not re.search(r"(fill|stroke): #", svg), "a colour that a dark page can't change"
    used = set(re.findall(r"var\(--([\w-]+)\)", text))
    defined = set(re.findall(r"--([\w-]+):", text))
    assert used <= defined


def test_the_page_tells_what_could_not_be_measured(page, written):
    for text in (page.text, (written[0] / "report.md").read_text()):
        assert "AMD EPYC: triton_row: 6 points verified under the interpreter, not timed" in text
        assert "AMD EPYC: cuda: 12 points unsupported: cuda could not do this: unsupported" in text
        assert "NVIDIA H200: triton_row: 2 points ran out of memory" in text
        assert "NVIDIA H200: torch: 1 point took too long: took <over> 120 s | given up" in text
        assert "Not to be trusted on NVIDIA H200: the clock moved by 8 %" in text
        assert "Its folder is not in this commit." in text


def test_the_page_tells_commits_and_machines(page):
    fresh = next(table for table in page.tables if "commit" in table[0])
    found = {tuple(line[:5]) for line in fresh[1:]}
    # None of the made-up rows has a source that there is.
    assert ("NVIDIA H200", OTHER_COMMIT[:10], "15", "15", "square") in found
    assert ("NVIDIA H200", f"{COMMIT[:10]} with uncommitted changes", "2", "2", "gelu") in found
    assert sum(int(line[2]) for line in fresh[1:]) == len(synthetic())
    machines = next(table for table in page.tables if table[-1][0] == "platform")
    assert machines[0] == ["", "NVIDIA H100 80GB HBM3", "NVIDIA H200", "AMD EPYC"]
    assert ["copy ceiling", "3000 GB/s", "4270 GB/s", "40.0 GB/s"] in machines
    assert ["driver", "580.82.07", "580.82.07", ""] in machines


def test_rows_of_another_source_than_todays_are_counted():
    softmax = kernels.load("softmax")
    triton = source_digest("softmax", softmax.provider("triton_row"))
    rows = [
        measurement("softmax", "triton_row", 256, source=triton),
        measurement("softmax", "triton_row", 1024, source=triton[::-1]),
        measurement("softmax", "cuda", 256, source=triton),
        measurement("softmax", "a_peer_not_here", 256, source=peer_digest("softmax")),
        measurement("softmax", "a_peer_not_here", 1024, source=triton),
        measurement("relu", "torch", 256),
    ]
    found = results.frame(rows)
    assert report.changed_since(found).tolist() == [False, True, True, False, True, True]
    assert report.changed_since(results.frame([])).empty


def test_the_plot_has_a_panel_a_machine_and_dtype(written):
    root = ElementTree.fromstring((written[0] / "plots/softmax.svg").read_text())
    panels = {g.get("id"): g for g in root.iter(f"{SVG}g") if (g.get("id") or "").startswith("panel-")}
    expected = {
        f"panel-softmax-{gpu}-{dtype}" for gpu in (H100, H200, CPU) for dtype in ("float32", "bfloat16")
    }
    assert set(panels) == expected

    def texts(element):
        return ["".join(text.itertext()) for text in element.iter(f"{SVG}text")]

    h200 = texts(panels[f"panel-softmax-{H200}-float32"])
    assert {"NVIDIA H200 · float32", "copy ceiling 4270 GB/s", "1024", "16384"} <= set(h200)
    assert "not measured" in texts(panels[f"panel-softmax-{CPU}-bfloat16"])
    assert [t for t in texts(root) if t in (*DRAWN, "cpp")] == [
        "torch",
        "torch_compile",
        "triton_online",
        "triton_row",
        "cuda",
        "cpp",
    ]
    assert texts(root).count("size: columns") == 3


def heights(written, gpu: str, dtype: str) -> list[list[tuple[float, float]]]:
    """The points of each polyline of a panel."""
    root = ElementTree.fromstring((written[0] / "plots/softmax.svg").read_text())
    panel = next(g for g in root.iter(f"{SVG}g") if g.get("id") == f"panel-softmax-{gpu}-{dtype}")
    paths = [p for p in panel.iter(f"{SVG}path") if p.get("clip-path") and p.get("d")]
    found = []
    for path in paths:
        numbers = [float(v) for v in re.findall(r"-?[\d.]+", path.get("d"))]
        found.append(list(zip(numbers[::2], numbers[1::2], strict=True)))
    return found


def test_a_line_lies_where_its_numbers_are(written, folder):
    lines = heights(written, H200, "float32")
    drawn = sorted((line for line in lines if len(line) == 4), key=lambda line: line[-1][1])
    rows = [
        r
        for r in rows_of(folder)
        if r["gpu"] == H200 and r["dtype"] == "float32" and r["kernel"] == "softmax"
    ]
    best: dict[str, dict[int, float]] = {}
    for row in rows:
        if row["status"] == "ok":
            rates = best.setdefault(row["provider"], {})
            rates[row["size"]] = max(rates.get(row["size"], 0), row["gbps"])
    expected = sorted(best.values(), key=lambda rates: -rates[16384])
    assert len(drawn) == len(expected) == len(DRAWN)
    # Two heights fix the scale; all others must then agree with the ledger.
    (low_y, low), (high_y, high) = (drawn[-1][0][1], expected[-1][256]), (drawn[0][-1][1], expected[0][16384])
    scale = (high - low) / (high_y - low_y)
    for line, rates in zip(drawn, expected, strict=True):
        assert [low + (y - low_y) * scale for _, y in line] == pytest.approx(list(rates.values()), rel=1e-3)
        steps = [b[0] - a[0] for a, b in itertools.pairwise(line)]
        assert steps == pytest.approx([steps[0]] * 3, rel=1e-3), (
            "sizes apart by a factor of 4 are evenly spaced"
        )
    level = [low + (line[0][1] - low_y) * scale for line in lines if line[0][1] == line[-1][1]]
    assert any(height == pytest.approx(4270, rel=1e-3) for height in level), "the ceiling is drawn in"


def test_metrics_are_geometric_means_of_the_best(written, folder):
    found = json.loads((written[0] / "metrics.json").read_text())
    rows = rows_of(folder)
    own = {"triton_row", "triton_online", "cuda", "cpp"}
    for gpu in (H100, H200, CPU):
        trusted = [
            r for r in rows if r["gpu"] == gpu and r["kernel"] == "softmax" and r["dtype"] == "float32"
        ]
        top = winners(trusted).values()
        top_own = winners([r for r in trusted if r["provider"] in own]).values()

        def mean(values):
            values = list(values)
            return math.prod(values) ** (1 / len(values))

        numbers = found["softmax"][gpu]["float32"]
        assert numbers["gbps"] == pytest.approx(mean(r["gbps"] for r in top), rel=1e-5)
        assert numbers["ceiling_fraction"] == pytest.approx(
            mean(r["ceiling_fraction"] for r in top), rel=1e-5
        )
        ratios = [baseline_us(rows, r) / r["median_us"] for r in top_own]
        assert numbers["own_speedup"] == pytest.approx(mean(ratios), rel=1e-5)
    points = found["softmax"][CPU]["points"]
    assert (points["ok"], points["verified"], points["unsupported"], points["timeout"]) == (9, 18, 12, 0)
    assert found["relu"] == {H200: {"points": {**dict.fromkeys(points, 0), "timeout": 1}}}
    # cuda on gelu is not to be trusted, so no speedup of an own provider is claimed.
    assert set(found["gelu"][H200]["float32"]) == {"gbps", "ceiling_fraction"}


def test_the_command_ends_with_this_machines_table_and_where_to_look(report_on, tmp_path, capsys):
    here = report.device.resolve("cpu").slug
    mine = write_results(tmp_path / "results", grid(gpus=(here, H200), providers=("torch", "cpp")))
    output = report_on(mine)
    printed = capsys.readouterr().out
    first, *_, last = printed.splitlines()
    assert first.strip() == here and H200 not in printed
    assert re.search(r"^softmax +1024 +torch \(baseline\) +float32 .* 1\.00$", printed, re.MULTILINE)
    assert last == f"All machines side by side: {output}/report.html. Every run in MLflow: make ui."


def test_a_machine_without_results_is_told_whose_there_are(report_on, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(report.device, "resolve", lambda _: report.device.Device(kind="cpu", name="Abacus"))
    rows = [measurement(gpu=gpu) for gpu in (CPU, H200, H100)]
    report_on(write_results(tmp_path / "results", rows))
    assert (
        f"Nothing was measured on cpu-abacus yet; the report shows {H100}, {H200}, {CPU}."
        in capsys.readouterr().out
    )


def test_a_kernel_that_is_gone_takes_its_plot_with_it(report_on, tmp_path):
    before = [measurement(kernel) for kernel in ("gelu", "softmax")]
    output = report_on(write_results(tmp_path / "before", before))
    assert (output / "plots/softmax.svg").exists() and (output / "roofline/softmax.svg").exists()
    for name in ("plots/notes.svg", "plots/table.csv", "plots/keep.txt", "mine.md"):
        (output / name).write_text("not from here")
    report_on(write_results(tmp_path / "results", before[:1]))
    kept = {"mine.md", "plots/keep.txt", "plots/notes.svg", "plots/table.csv"}
    pages = {f"{page}.{kind}" for page in ("field", "report") for kind in ("html", "md")}
    own = {"best.csv", "metrics.json", "plots/gelu.csv", "plots/gelu.svg", "roofline/gelu.svg"} | pages
    assert set(files(output)) == kept | own
    assert "softmax" not in (output / "report.html").read_text()


def test_no_results_make_a_page_that_says_so(report_on, tmp_path, capsys):
    (tmp_path / "results").mkdir()
    output = report_on(tmp_path / "results")
    for name in ("report.html", "report.md"):
        assert "Nothing was measured yet." in (output / name).read_text()
    assert json.loads((output / "metrics.json").read_text()) == {}
    assert (output / "best.csv").read_text() == ",".join(report.BEST_COLUMNS) + "\n"
    assert "the report shows no other machine either" in capsys.readouterr().out


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
    with pytest.raises(UserError, match="can't write"):
        report.run(ReportConfig(input=folder, output=tmp_path / "reports", device="cpu"))
    assert (tmp_path / "reports").read_text() == "mine"


def test_without_ceilings_and_environments_the_rest_is_shown(report_on, tmp_path):
    rows = [
        type(row).from_row(row.row() | {"bound": None, "ceiling_fraction": None})
        for row in grid(gpus=(H200,), sizes=(1024,))
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


def test_a_point_that_was_measured_twice_counts_once(report_on, tmp_path):
    folder = write_results(tmp_path / "results", [measurement(median_us=5.0)])
    path = results.ledger_path(folder, "softmax", H200)
    path.write_bytes(path.read_bytes() + ledger.encode(measurement(median_us=50.0)))
    assert ",50," in (report_on(folder) / "best.csv").read_text()


def dvc(folder: Path, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "dvc", *arguments], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_dvc_shows_and_compares_metrics_and_plots(report_on, tmp_path):
    rows = grid(gpus=(H100, H200), providers=("torch", "cuda"))
    folder = write_results(tmp_path / "results", rows)
    report_on(folder)
    (tmp_path / ".dvc/plots").mkdir(parents=True)
    template = ".dvc/plots/rate_against_size.json"
    (tmp_path / template).write_bytes((ROOT / template).read_bytes())
    (tmp_path / "dvc.yaml").write_text(
        """
metrics: [reports/metrics.json]
plots:
  - reports/plots: {template: rate_against_size, x: size, y: gbps, x_label: size, y_label: GB/s}
"""
    )
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b.c"]
    for command in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "before"]):
        subprocess.run([*git, *command], cwd=tmp_path, check=True)

    faster = [
        measurement("softmax", "cuda", s, block_size=512, num_warps=4, median_us=1.0)
        for s in (256, 1024, 4096)
    ]
    write_results(
        folder, [*(r for r in rows if r.origin.gpu == H200 and r.point.provider == "torch"), *faster]
    )
    report_on(folder)
    changed = json.loads(dvc(tmp_path, "metrics", "diff", "--json"))["reports/metrics.json"]
    assert changed[f"softmax.{H200}.float32.own_speedup"]["diff"] > 1
    assert not any(H100 in name for name in changed)
    shown = json.loads(dvc(tmp_path, "metrics", "show", "--json"))
    numbers = json.loads((tmp_path / "reports/metrics.json").read_text())
    assert shown[""]["data"]["reports/metrics.json"]["data"] == numbers

    dvc(tmp_path, "plots", "diff", "HEAD", "--out", "page")
    page = (tmp_path / "page/index.html").read_text()
    spec = json.loads(re.search(r"var spec = (\{.*?\});\n", page)[1])
    drawn = {(d["rev"], d["gpu"], d["provider"], int(d["size"])) for d in spec["data"]["values"]}
    expected = {(g, p, s) for g in (H100, H200) for p in ("torch", "cuda") for s in (256, 1024, 4096)}
    assert drawn == {(rev, *line) for rev in ("HEAD", "workspace") for line in expected}
    assert spec["spec"]["encoding"]["y"]["field"] == "gbps"
    assert list((tmp_path / "page/static").glob("*softmax.svg")), "the SVGs are shown too"
