"""Roofline plots: marks of problems that differ in flops a byte, and no plot where they don't."""

import re
from xml.etree import ElementTree

from pipeline.reporting.frames import best_configurations, frame
from pipeline.reporting.plots import Panel, styles
from pipeline.reporting.roofline import roofline
from tests.factory import H100, H200, ceilings, grid, measurement

SVG = "{http://www.w3.org/2000/svg}"


def drawn(rows: list) -> str:
    best = best_configurations(frame(rows))
    panels = [Panel(gpu, gpu, ceilings(gpu)) for gpu in (H100, H200)]
    return roofline(rows[0].point.kernel, best, panels, {}, styles(best["provider"]))


def places(svg: str, gpu: str, words: str) -> list[float]:
    """Where on the x axis of a panel marks stand: those behind the axes' own ticks."""
    root = ElementTree.fromstring(svg)
    (panel,) = [g for g in root.iter(f"{SVG}g") if g.get("id") == f"roofline-matmul-{gpu}-{words}"]
    groups = [
        g
        for g in panel
        if re.match("line2d", g.get("id", "")) and not any(path.get("d", "").count("L") for path in g)
    ]
    return sorted({float(use.get("x")) for g in groups for use in g.iter(f"{SVG}use")})


def test_a_mark_stands_for_each_problem() -> None:
    rows = grid(kernels=("matmul",), providers=("torch", "triton_tiled"), sizes=(512, 1024, 4096))
    rows += [measurement("matmul", "torch", 1024, "bfloat16", gpu=gpu) for gpu in (H100, H200)]
    svg = drawn(rows)
    assert len(places(svg, H200, "float32")) == 3
    assert "not measured" in svg, "on the other GPU"
    assert "bfloat16" not in svg, "one place alone"


def test_problems_of_equal_flops_a_byte_have_no_plot() -> None:
    assert drawn(grid(sizes=(256, 1024, 4096), gpus=(H100, H200))) == ""
