"""Rooflines: marks of problems that differ in flops a byte, and no chart where they don't."""

from pipeline.reporting.charts import Chart, styles
from pipeline.reporting.frames import best_configurations, frame
from pipeline.reporting.plots import Machine, rooflines
from tests.factory import H100, H200, ceilings, grid, measurement


def drawn(rows: list) -> list[Chart]:
    best = best_configurations(frame(rows))
    machines = [Machine(gpu, gpu, ceilings(gpu)) for gpu in (H100, H200)]
    return rooflines(rows[0].point.kernel, best, machines, {}, styles(best["provider"]))


def test_a_mark_stands_for_each_problem_below_the_roof() -> None:
    rows = grid(kernels=("matmul",), providers=("torch", "triton_tiled"), sizes=(512, 1024, 4096))
    rows += [measurement("matmul", "torch", 1024, "bfloat16", gpu=gpu) for gpu in (H100, H200)]
    (chart,) = drawn(rows)
    assert chart.title == f"{H200} · float32", "of bfloat16 there is one place alone"
    assert sum(len(one.marks) for one in chart.series) == 3
    (roof,) = chart.limits
    assert roof.text == "copy 4270 GB/s, matmul 53.4 TFLOP/s"
    peak = ceilings(H200).matmul_tflops["float32"]
    assert roof.points[-1][1] == peak > roof.points[0][1]
    heights = [y for one in chart.view["lines"] for mark in one["marks"] for y in [mark["y"]]]
    assert all(0 < height < 290 for height in heights)


def test_problems_of_equal_flops_a_byte_have_no_chart() -> None:
    assert drawn(grid(sizes=(256, 1024, 4096), gpus=(H100, H200))) == []
