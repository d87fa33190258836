"""What a caller gets, as the finals measure it."""

from pathlib import Path

from kernel_pipeline import loading
from kernel_pipeline.contract import Gpu
from kernel_pipeline.records.base import Values
from kernel_pipeline.records.measurement import Measurement
from kernel_pipeline.records.settings import TimingSettings
from pipeline.keys.identity import Identity
from pipeline.points import catalog
from pipeline.points.catalog import Entry, Workload
from pipeline.verdicts.dispatch import Caller
from tests import factory
from tests.factory import H200

GPU = Gpu((9, 0), 132, 227 << 10, 50 << 20)
KERNEL = "softmax"
IDENTITY = Identity(loading.load(KERNEL), factory.environment(H200), TimingSettings(), 0)


def row(provider: str, columns: int, us: float, **parameters: int) -> Measurement:
    return factory.fresh(factory.measurement(KERNEL, provider, columns, median_us=us, **parameters), IDENTITY)


def problem(columns: int) -> Values:
    return Values({"rows": 4096, "columns": columns, "dtype": "float32"})


def caller() -> Caller:
    """At 256 to 1024 columns two configurations change places: at 600 alone the wide one is the best."""
    rows = []
    for columns in (256, 300, 512, 600, 700, 1024):
        wide, narrow = (10.0, 10.1) if columns == 600 else (10.3, 10.0)
        rows += [
            row("torch", columns, 20.0),
            row("cuda", columns, wide, block_size=4096, num_warps=8),
            row("cuda", columns, narrow, block_size=2048, num_warps=8),
        ]
    entry = catalog.find(KERNEL)
    workloads = {
        **entry.config.workloads,
        "swept": Workload(x="size", size=(256,)),
        "kept": Workload(x="size", size=(600,), held_out=True),
    }
    config = entry.config.model_copy(update={"workloads": workloads})
    return Caller(Entry(entry.loaded, config, Path("softmax.yaml")), rows, IDENTITY, GPU)


def test_at_a_swept_problem_it_is_the_best_one_there() -> None:
    found = caller().gets(problem(600), "swept")
    assert found is not None
    assert (found.how, found.row.point.parameters["block_size"]) == ("exact", 4096)


def test_at_a_held_out_problem_it_is_what_the_others_say() -> None:
    found = caller().gets(problem(600), "kept")
    assert found is not None
    assert (found.how, found.row.point.parameters["block_size"]) == ("generalised", 2048)
    assert found.row.point.problem == problem(600), "as it was measured there"


def test_what_the_sweep_has_no_time_of_is_not_dispatched() -> None:
    one = caller()
    del one.rows[
        next(
            point
            for point in one.rows
            if point.problem == problem(600) and point.parameters.get("block_size") == 2048
        )
    ]
    assert one.gets(problem(600), "kept") is None
