"""Planted ledgers of softmax on an H200, and the choices by the tables that are made of them."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from kernel_pipeline import loading
from kernel_pipeline.contract import Gpu
from kernel_pipeline.ops import table_files, tuned
from kernel_pipeline.ops.choice import Choice
from kernel_pipeline.records.measurement import Measurement
from kernel_pipeline.records.settings import TimingSettings
from pipeline.keys.identity import Identity
from tests import factory
from tests.factory import H200

GPU = Gpu((9, 0), 132, 227 << 10, 50 << 20)
ENVIRONMENT = factory.environment(H200).replace(
    l2_bytes=GPU.l2_cache, multiprocessors=GPU.multiprocessors, shared_memory=GPU.shared_memory
)
KERNEL = "softmax"
LOADED = loading.load(KERNEL)
IDENTITY = Identity(LOADED, factory.environment(H200), TimingSettings(), 0)


def row(provider: str, columns: int, us: float = 1.0, dtype: str = "float32", **more: Any) -> Measurement:
    """Return a fresh row."""
    return factory.fresh(
        factory.measurement(KERNEL, provider, columns, dtype, median_us=us, **more), IDENTITY
    )


def some(
    us: Mapping[str, Sequence[float]], columns: Sequence[int], dtype: str = "float32"
) -> list[Measurement]:
    """Return rows of the named configurations, with one time for each number of columns."""
    parameters: dict[str, dict[str, int]] = {
        "torch": {},
        "triton_online 1024x4w": {"block_size": 1024, "num_warps": 4},
        "triton_online 1024x8w": {"block_size": 1024, "num_warps": 8},
        "cuda 1024x4w": {"block_size": 1024, "num_warps": 4},
        "cuda 2048x8w": {"block_size": 2048, "num_warps": 8},
    }
    return [
        row(name.partition(" ")[0], size, time, dtype, **parameters[name])
        for name, times in us.items()
        for size, time in zip(columns, times, strict=True)
    ]


def of_workload(name: str, rows: Sequence[Measurement]) -> list[Measurement]:
    """Return the rows as those of another workload, which may measure other providers."""
    return [one.replace(workload=name) for one in rows]


COLUMNS = (256, 512, 1024, 2048, 8192, 16384)
PLANTED = {
    "torch": (20.0, 20.0, 20.0, 20.0, 20.0, 20.0),
    "triton_online 1024x4w": (12.0, 12.0, 12.0, 12.0, 12.0, 12.0),
    "cuda 1024x4w": (11.0, 11.0, 11.0, 11.0, 10.0, 10.0),
    "cuda 2048x8w": (10.0, 10.0, 10.0, 10.0, 10.1, 10.2),
}


Written = Callable[..., Path]
Beside = Callable[[Path, str], None]


def forget_tables() -> None:
    table_files.read.cache_clear()
    table_files.sibling.cache_clear()


def chosen(columns: int, dtype: str = "float32", rows: int = 4096) -> Choice:
    problem = LOADED.kernel.problem(rows=rows, columns=columns, dtype=dtype)
    return tuned.choose(LOADED, problem, GPU, H200)
