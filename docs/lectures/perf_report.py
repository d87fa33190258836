"""triton.testing.perf_report: two timers of one function over sizes, as a table, a CSV file and a plot."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
import triton.testing
from torch.utils.benchmark import Timer

from kernel_pipeline import bench

has_gpu = torch.cuda.is_available()
torch.set_num_threads(1)  # several threads would wait for each other on a busy machine
ROWS = 1024


def usual(x: torch.Tensor) -> float:
    """Microseconds by do_bench, which needs a GPU, or by torch's Timer, over the same input in each call."""
    if has_gpu:
        return float(triton.testing.do_bench(lambda: torch.square(x), return_mode="median")) * 1e3
    timer = Timer("torch.square(x)", globals={"torch": torch, "x": x})
    return timer.blocked_autorange(min_run_time=0.1).median * 1e6


def here(x: torch.Tensor) -> float:
    """Microseconds by this project's library, over inputs that are not in the cache."""
    return bench(torch.square, x).median_us


timers: dict[str, Callable[[torch.Tensor], float]] = {
    "do_bench" if has_gpu else "torch's Timer": usual,
    "kernel_pipeline": here,
}


@triton.testing.perf_report(
    triton.testing.Benchmark(
        x_names=["columns"],
        x_vals=[64, 256, 1024, 4096],
        x_log=True,
        line_arg="timer",
        line_vals=list(timers),
        line_names=list(timers),
        ylabel="GB/s",
        plot_name="square",
        args={},
    )
)
def rate(columns: int, timer: str) -> float:
    """GB/s: the bytes that are read and written, over the time."""
    x = torch.randn(ROWS, columns, device="cuda" if has_gpu else "cpu")
    return 2 * x.numel() * x.element_size() / timers[timer](x) / 1e3


folder = Path("outputs/lectures/perf_report")
folder.mkdir(parents=True, exist_ok=True)
rate.run(print_data=True, save_path=str(folder))
print(", ".join(sorted(path.name for path in folder.iterdir())), "in", folder)
