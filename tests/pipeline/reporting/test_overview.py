"""The overview's figure, and what all plots share: axes that can be read, and legends that are whole."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

from pipeline.reporting.charts import of_drawing
from pipeline.reporting.drawings import Drawing, drawings
from pipeline.reporting.frames import against_baseline, best_configurations, frame
from pipeline.reporting.overview import overview
from pipeline.reporting.plots import Panel, rate_against_x, styles
from pipeline.reporting.ratio_plot import plot
from pipeline.reporting.ratios import Compared
from pipeline.reporting.summary import Summary
from pipeline.store.record import Measurement
from pipeline.verdicts.intervals import Estimate
from tests.factory import H100, H200, measurement

SVG = "{http://www.w3.org/2000/svg}"
NAMES = {H100: "NVIDIA H100", H200: "NVIDIA H200"}


def texts(svg: str) -> list[str]:
    return ["".join(one.itertext()).strip() for one in ElementTree.fromstring(svg).iter(f"{SVG}text")]


def told(kernel: str, gpu: str, speedup: float, share: float | None) -> Summary:
    return Summary(kernel, gpu, "bfloat16", ("4096",), True, speedup, "gbps", 1000.0, share)


def test_a_kernel_has_a_line_and_a_machine_a_mark() -> None:
    some = [
        told("softmax", H100, 1.5, 0.95),
        told("softmax", H200, 1.88, 0.94),
        told("gelu", H200, 0.5, None),
    ]
    shown = texts(overview(some, NAMES))
    assert [text for text in shown if text in ("gelu bfloat16", "softmax bfloat16")] == [
        "gelu bfloat16",
        "softmax bfloat16",
    ]
    assert {"1.50", "1.88", "0.50", "95.0 %", "94.0 %", "NVIDIA H100", "NVIDIA H200"} <= set(shown)
    assert "NVIDIA H100" not in texts(overview(some[1:], NAMES)), "who measured nothing is not in the legend"
    assert overview([], NAMES) == ""
    priced = texts(overview([told("a$\\frac{$", H200, 1.0, 1.0)], {H200: "GPU $x$"}))
    assert {"a$\\frac{$ bfloat16", "GPU $x$"} <= set(priced), "a dollar begins no formula"


def drawing(rows: list[Measurement]) -> Drawing:
    table = frame(rows)
    best = against_baseline(best_configurations(table), {"softmax": "torch"})
    (found,) = drawings("softmax", table, best)
    return found


def rates(gbps: dict[int, float]) -> list[Measurement]:
    """A provider's rows, of each number of columns one at a rate."""
    moved = {columns: 2 * 4096 * columns * 4 for columns in gbps}
    return [
        measurement("softmax", "torch", columns, median_us=moved[columns] / 1e3 / rate)
        for columns, rate in gbps.items()
    ]


@pytest.mark.parametrize(("least", "is_log"), [(1000.0, False), (2.0, True)])
def test_rates_far_apart_have_a_logarithmic_axis(least: float, is_log: bool) -> None:
    found = drawing(rates({256: least, 1024: least * 20, 4096: 4000.0}))
    assert found.is_log == is_log
    panels = [Panel(H200, "NVIDIA H200", None)]
    (chart,) = of_drawing(found, panels, styles(["torch"]), "torch")
    view = chart.view
    heights = [mark["y"] for mark in view["lines"][0]["marks"]]
    by_first, by_second = heights[0] - heights[1], heights[1] - heights[2]
    if is_log:  # a factor of 20, and one of 100
        assert by_second / by_first == pytest.approx(2 / 1.301, rel=0.02)
        assert [text for _, text in view["y_ticks"]] == ["10", "100", "1000"]
    assert ("100" in texts(rate_against_x(found, panels, styles(["torch"])))) == is_log


def test_a_legend_has_room_for_every_name() -> None:
    names = [f"{'a_provider_with_a_long_name'[: 5 + 2 * i]}_{i}" for i in range(13)]
    rows = [measurement("softmax", "torch", columns) for columns in (256, 1024)]
    table = frame(rows)
    every = [table.assign(provider=name, label=name) for name in names]
    best = best_configurations(type(table)([row for one in every for row in one.to_dict("records")]))
    (found,) = drawings("softmax", table, best.assign(speedup=1.0, tied=False))
    root = ElementTree.fromstring(rate_against_x(found, [Panel(H200, "NVIDIA H200", None)], styles(names)))
    width = float(root.get("viewBox", "").split()[2])
    ends = {
        text.text: float(text.get("x", "")) + 5.0 * len(text.text)
        for text in root.iter(f"{SVG}text")
        if text.text in names
    }
    assert set(ends) == set(names) and max(ends.values()) < width


def test_figures_of_an_axis_have_equal_digits() -> None:
    panels = [Panel(H200, "NVIDIA H200", None)]
    for gbps, expected in (
        ({256: 0.4, 1024: 0.9}, ["0.00", "0.25", "0.50", "0.75", "1.00"]),
        ({256: 400.0, 1024: 900.0}, ["0", "250", "500", "750", "1000"]),
    ):
        (chart,) = of_drawing(drawing(rates(gbps)), panels, styles(["torch"]), "torch")
        assert [text for _, text in chart.view["y_ticks"]] == expected


def test_a_ratio_far_from_the_others_flattens_no_axis() -> None:
    some = [told("sparsify", H200, 69.3, None), told("softmax", H200, 0.21, None)]
    shown = texts(overview(some, NAMES))
    assert {"0.25", "0.5", "1", "2", "16", "64"} <= set(shown)
    rows = [
        Compared("4096", "torch", "torch", 9.0, 9.0 * ratio, Estimate(5, ratio, ratio, ratio, 0.5), "slower")
        for ratio in (1.5, 69.0)
    ]
    drawn = plot(rows, "title", 0.01).decode()
    assert all(f"<!-- {tick} -->" in drawn for tick in (1, 2, 64))
