"""Charts, rooflines and the overview's plot: axes that can be read, and legends that are whole."""

from xml.etree import ElementTree

import pytest

from kernel_pipeline.records.measurement import Measurement
from kernel_pipeline.statistics.verdicts import Estimate
from pipeline.reporting.charts import Chart, Mark, Series, styles
from pipeline.reporting.comparison import Compared
from pipeline.reporting.comparison import plot as comparison_plot
from pipeline.reporting.document import overview_svg, plot
from pipeline.reporting.frames import against_baseline, best_configurations, frame
from pipeline.reporting.overview import STYLES, Summary, overview_plot
from pipeline.reporting.plots import Machine, WorkloadPlot, rooflines, workload_plots
from tests.factory import H100, H200, ceilings, grid, measurement

SVG = "{http://www.w3.org/2000/svg}"
NAMES = {H100: "NVIDIA H100", H200: "NVIDIA H200"}


def texts(svg: str) -> list[str]:
    return ["".join(one.itertext()).strip() for one in ElementTree.fromstring(svg).iter(f"{SVG}text")]


def drawn(some: list[Summary], names: dict[str, str]) -> list[str]:
    """The texts of the overview's plot."""
    looks = {one.name: (one.light, one.dark) for one in STYLES}
    return texts(overview_svg(overview_plot(some, names), looks))


def summary(kernel: str, gpu: str, speedup: float, share: float | None) -> Summary:
    return Summary(kernel, gpu, "bfloat16", ("4096",), True, speedup, "gbps", 1000.0, share)


def test_a_kernel_has_a_line_and_a_machine_a_mark() -> None:
    some = [
        summary("softmax", H100, 1.5, 0.95),
        summary("softmax", H200, 1.88, 0.94),
        summary("gelu", H200, 0.5, None),
    ]
    shown = drawn(some, NAMES)
    assert [text for text in shown if text in ("gelu bfloat16", "softmax bfloat16")] == [
        "gelu bfloat16",
        "softmax bfloat16",
    ]
    assert {"1.50", "1.88", "0.50", "95.0 %", "94.0 %", "NVIDIA H100", "NVIDIA H200"} <= set(shown)
    assert "NVIDIA H100" not in drawn(some[1:], NAMES), "it measured nothing"
    assert overview_plot([], NAMES) == {}
    priced = drawn([summary("a<b", H200, 1.0, 1.0)], {H200: "GPU & x"})
    assert {"a<b bfloat16", "GPU & x"} <= set(priced)


def workload_plot(rows: list[Measurement]) -> WorkloadPlot:
    table = frame(rows)
    best = against_baseline(best_configurations(table), {"softmax": "torch"})
    (found,) = workload_plots("softmax", table, best)
    return found


def chart(gbps: dict[int, float]) -> Chart:
    """The chart of a provider that has a rate at each number of columns."""
    moved = {columns: 2 * 4096 * columns * 4 for columns in gbps}
    rows = [
        measurement("softmax", "torch", columns, median_us=moved[columns] / 1e3 / rate)
        for columns, rate in gbps.items()
    ]
    found = workload_plot(rows)
    (only,) = found.charts([Machine(H200, "NVIDIA H200", None)], styles(["torch"]), "torch")
    return only


@pytest.mark.parametrize(("least", "is_log"), [(1000.0, False), (2.0, True)])
def test_rates_far_apart_have_a_logarithmic_axis(least: float, is_log: bool) -> None:
    found = chart({256: least, 1024: least * 20, 4096: 4000.0})
    assert found.is_log == is_log
    heights = [mark["y"] for mark in found.view["lines"][0]["marks"]]
    by_first, by_second = heights[0] - heights[1], heights[1] - heights[2]
    if is_log:  # a factor of 20, and one of 100
        assert by_second / by_first == pytest.approx(2 / 1.301, rel=0.02)
        assert [text for _, text in found.view["y_ticks"]] == ["10", "100", "1000"]


@pytest.mark.parametrize(
    ("gbps", "expected"),
    [
        ({256: 0.4, 1024: 0.9}, ["0.00", "0.25", "0.50", "0.75", "1.00"]),
        ({256: 400.0, 1024: 900.0}, ["0", "250", "500", "750", "1000"]),
    ],
)
def test_figures_of_an_axis_have_equal_digits(gbps: dict[int, float], expected: list[str]) -> None:
    assert [text for _, text in chart(gbps).view["y_ticks"]] == expected


def test_the_legend_of_a_file_names_every_provider_once() -> None:
    names = [f"provider_{i}" for i in range(13)]
    looks = styles(names)
    series = [Series(name, looks[name], [Mark(1, 1, ""), Mark(2, 2, "")]) for name in names]
    charts = [Chart(f"{gpu} · float32", "n", "GB/s", series, gpu, "float32") for gpu in NAMES]
    shown = plot("softmax", charts, {one.name: (one.light, one.dark) for one in looks.values()})
    assert sorted(text for text in texts(shown) if text in names) == sorted(names)


def test_a_ratio_far_from_the_others_flattens_no_axis() -> None:
    some = [summary("sparsify", H200, 69.3, None), summary("softmax", H200, 0.21, None)]
    assert {"0.25", "0.5", "1", "2", "16", "64"} <= set(drawn(some, NAMES))
    rows = [
        Compared("4096", "torch", "torch", 9.0, 9.0 * ratio, Estimate(5, ratio, ratio, ratio, 0.5), "slower")
        for ratio in (1.5, 69.0)
    ]
    shown = comparison_plot(rows, "title", 0.01).decode()
    assert all(f"<!-- {tick} -->" in shown for tick in (1, 2, 64))


def roofs(rows: list[Measurement]) -> list[Chart]:
    best = best_configurations(frame(rows))
    machines = [Machine(gpu, gpu, ceilings(gpu)) for gpu in (H100, H200)]
    return rooflines(rows[0].point.kernel, best, machines, {}, styles(best["provider"]))


def test_a_mark_stands_for_each_problem_below_the_roof() -> None:
    rows = grid(kernels=("matmul",), providers=("torch", "triton_tiled"), sizes=(512, 1024, 4096))
    rows += [measurement("matmul", "torch", 1024, "bfloat16", gpu=gpu) for gpu in (H100, H200)]
    (found,) = roofs(rows)
    assert found.title == f"{H200} · float32", "bfloat16 has one place alone"
    assert sum(len(one.marks) for one in found.series) == 3
    (roof,) = found.limits
    assert roof.text == "copy 4270 GB/s, matmul 53.4 TFLOP/s"
    assert roof.points[-1][1] == ceilings(H200).matmul_tflops["float32"] > roof.points[0][1]
    assert all(0 < mark["y"] < 290 for one in found.view["lines"] for mark in one["marks"])
    assert roofs(grid(sizes=(256, 1024, 4096), gpus=(H100, H200))) == [], "of equal flops a byte"
