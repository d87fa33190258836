"""A replay calls what callers get by the table of a ledger without the problem's shape."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from kernel_pipeline.records.measurement import Measurement
from pipeline import tune
from pipeline.command.options import TuneConfig
from pipeline.command.run import run_stage
from pipeline.reporting import rule_replays
from pipeline.reporting.rule_replays import LedgerTimes
from pipeline.reporting.tables import TextTable
from pipeline.store import results
from tests import factory
from tests.commands import exit_code
from tests.factory import H200

from .tables import ENVIRONMENT, Written, chosen, forget_tables, of_workload, row, some


def wrong_baseline() -> list[Measurement]:
    """Torch is wrong at every problem in bfloat16, and hardly slower in float32."""
    columns = (256, 300, 512, 600, 1024, 1400)
    times = {"cuda 2048x8w": (10.0,) * 6, "torch": (10.4,) * 6}
    wrong = factory.measurement(status="incorrect").outcome
    return some(times, columns) + [
        one.replace(outcome=wrong, rate=None) if one.point.provider == "torch" else one
        for one in some(times, columns, "bfloat16")
    ]


def safer_default() -> list[Measurement]:
    """At few columns the rule's choice is clearly faster than the default, which is safer over all."""
    columns = (100, 200, 300, 400, 500, 600, 700, 800)
    times = {
        "cuda 2048x8w": (10.0, 10.0, 10.0, 10.0, 30.0, 10.0, 30.0, 30.0),
        "cuda 1024x4w": (13.0,) * 8,
        "torch": (20.0,) * 8,
    }
    return some(times, columns)


def wider_rows() -> list[Measurement]:
    """The configurations that are fast at the six problems next to 1500 columns don't fit there."""
    columns = (256, 300, 400, 512, 600, 700)
    narrow = [row("triton_tile", size, 5.0, block_size=1024, num_warps=4) for size in columns]
    wide = some({"torch": (200.0,) * 2, "cuda 2048x8w": (100.0,) * 2}, (1500, 16384))
    return [*narrow, *some({"torch": (20.0,) * 6}, columns), *of_workload("wide", wide)]


@pytest.mark.parametrize(
    ("ledger", "called"),
    [
        (wrong_baseline, {"torch": 6, "cuda 2048x8w": 6}),
        (safer_default, {"cuda 2048x8w": 4, "cuda 1024x4w": 4}),
        (wider_rows, {"triton_tile 1024x4w": 6, "cuda 2048x8w": 2}),
    ],
)
def test_a_replay_calls_what_callers_get_without_the_shape(
    ledger: Callable[[], list[Measurement]],
    called: dict[str, int],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    written: Written,
) -> None:
    rows = ledger()
    factory.write_results(tmp_path, rows)
    results.environment_path(tmp_path, H200).write_text(ENVIRONMENT.to_json().decode())
    seen: list[LedgerTimes] = []
    regretted = rule_replays.regretted

    def kept(ledger: LedgerTimes) -> TextTable:
        seen.append(ledger)
        return regretted(ledger)

    monkeypatch.setattr(rule_replays, "regretted", kept)
    assert exit_code(run_stage, "tune", TuneConfig, tune.run, f"output={tmp_path}", "replay=true") == 0
    counts: Counter[str | None] = Counter()
    for one in seen[0].choosers:
        columns, dtype = one.values["columns"], one.values["dtype"]
        written([each for each in rows if each.point.problem["columns"] != columns], f"{columns}")
        forget_tables()
        assert one.called == one.timed(chosen(columns, dtype))
        counts[one.called] += 1
    assert counts == called
