"""How a sweep treats providers that cheat, tested with the real command in a copy of the tree.

``docs/trust.md`` lists the attacks, the defences, and the attacks without a defence.
"""

import os
import re
import signal
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from math import ceil
from pathlib import Path

import pytest
import torch

from kernel_pipeline.execution import audit
from kernel_pipeline.execution.supervisor import Supervisor
from kernel_pipeline.machine import device
from kernel_pipeline.records.base import Values
from kernel_pipeline.records.measurement import Measurement
from kernel_pipeline.records.point import Point
from kernel_pipeline.records.settings import TimingSettings
from kernel_pipeline.timing.stopwatch import COLD_FACTOR, last_level_cache
from tests.planted.tree import PLANTED, Tree, cpu_tree


@dataclass(frozen=True)
class Fate:
    """The required result of a provider: one of these statuses, and an error that matches the regular
    expression ``says``. A provider with status ``ok`` must not be far faster than the honest one, unless
    it ``saves`` work."""

    statuses: tuple[str, ...]
    says: str = "."
    saves: bool = False


OK = Fate(("ok",))
WRONG = Fate(("incorrect",), "elements are wrong")
TOO_FAST = Fate(("incorrect",), "faster than|takes|ceiling|outside|the timing rests on")
"""The output is right but the time is forged. The error compares the time with an observation from outside
or with the ceiling, or names the function that was replaced."""

EITHER = Fate(("ok", "incorrect", "runtime_error"))
"""This attack harms other providers, if anyone. Any status is allowed, but a time must be the provider's
own."""

FATES = {
    "honest": OK,
    # These return old outputs for new inputs.
    "by_pointer": WRONG,
    "by_shape": WRONG,
    "by_identity": WRONG,
    # These notice every change of an input. Where the check saves no time they are honest.
    "by_version": Fate(("ok", "incorrect")),
    "by_few_elements": Fate(("ok", "incorrect")),
    # This one reads its whole input each time, and the reading is part of its time.
    "by_contents": Fate(("ok", "incorrect"), saves=True),
    "first_call_only": WRONG,
    "first_four_calls": WRONG,
    "one_call_in_eight": WRONG,
    "idle_when_hurried": WRONG,
    "looks_ahead": Fate(("ok", "incorrect")),
    "after_caches": OK,
    # These skip work on a set that comes again. In one pass over the ring they save nothing.
    "by_fingerprint": Fate(("ok", "incorrect")),
    "one_call_in_three": Fate(("ok", "incorrect")),
    "a_third_of_the_work": Fate(("ok", "incorrect")),
    "keeps_the_cores_busy": Fate(("ok", "incorrect")),
    "works_ahead": Fate(("ok", "incorrect")),
    "after_skips": OK,
    # These return invalid outputs.
    "lazy_subclass": Fate(("incorrect",), "plain"),
    "lazy_methods": WRONG,
    "sparse": Fate(("incorrect",), "plain|sparse|strided"),
    "wrong_dtype": Fate(("incorrect",), "dtype is torch.float64"),
    "wrong_shape": Fate(("incorrect",), r"shape is \(1,\)"),
    "wrong_device": Fate(("incorrect",), "is on meta"),
    "half_precision": WRONG,
    "over_its_input": Fate(("incorrect",), "input"),
    "changes_its_input": Fate(("incorrect",), "changed its input"),
    "freed_answer": WRONG,
    "after_outputs": OK,
    # These look for the verifier's answer.
    "reads_the_frames": WRONG,
    "reads_the_heap": WRONG,
    "overwrites_the_reference": WRONG,
    "imports_the_reference": WRONG,
    "after_peeks": OK,
    # These return before the output is computed.
    "finishes_later": Fate(("incorrect",)),
    "queues_its_work": Fate(("incorrect",)),
    "after_threads": OK,
    # These change the clock or the samples.
    "stops_the_clocks": TOO_FAST,
    "slows_the_clocks": TOO_FAST,
    "divides_the_samples": TOO_FAST,
    "divides_the_summary": Fate(("incorrect", "runtime_error")),
    "after_clocks": OK,
    # These change the verification.
    "patches_compare": WRONG,
    "patches_equal": WRONG,
    "patches_copy": WRONG,
    "patches_empty": WRONG,
    "unpoisons_memory": WRONG,
    "patches_the_reference": WRONG,
    "after_verifiers": OK,
    # These forge the reply to the sweep.
    "edits_the_reply": TOO_FAST,
    "forges_a_reply": Fate(("runtime_error", "incorrect")),
    "forges_and_exits": Fate(("runtime_error", "incorrect")),
    "forges_later": EITHER,
    "child_forges": EITHER,
    "after_forgers": OK,
    # These end the process, leave others behind, or print a lot.
    "exits_at_once": Fate(("runtime_error",), "exited with 0"),
    "child_holds_the_socket": Fate(("runtime_error",), "exited with 3"),
    "child_survives": EITHER,
    "daemon_survives": EITHER,
    "prints": Fate(("ok", "runtime_error"), "printed more|output"),
    "after_processes": OK,
    # This one changes the process's settings.
    "leaves_settings": EITHER,
    "after_settings": OK,
    "honest_at_the_end": OK,
}

SANE = 5
"""The factor by which an equal computation may be faster than the honest provider on a busy machine. A
forged time is faster by thousands."""


def wrong_fates(rows: dict[str, Measurement], fates: dict[str, Fate]) -> list[str]:
    """Return a sentence for each provider whose result differs from its fate."""
    found = [f"{name} has no row" for name in fates if name not in rows]
    honest = [
        rows[name].outcome.timing.median_us  # type: ignore[union-attr]
        for name in ("honest", "honest_at_the_end")
        if name in rows and rows[name].outcome.timing
    ]
    for name, row in rows.items():
        outcome, fate = row.outcome, fates[name]
        if outcome.state is not None and not outcome.state.valid and "incorrect" in fate.statuses:
            continue  # the machine was too busy to tell, and the row is marked as not to be trusted
        if outcome.status not in fate.statuses:
            found.append(f"{name} is {outcome.status}: {outcome.error}")
        elif outcome.error is not None and not re.search(fate.says, outcome.error):
            found.append(f"{name} says {outcome.error!r}, not {fate.says!r}")
        too_little = outcome.timing is not None and outcome.timing.median_us * SANE < min(honest, default=0)
        if too_little and not fate.saves:
            found.append(f"{name} takes {outcome.timing.median_us} us, who computes takes {min(honest)} us")
    return found


def left_over(tree: Tree) -> list[int]:
    """Return the processes that cheats started and that still run. Cheats write the ids to files."""
    found = []
    for path in tree.root.glob("*.pid"):
        process = Path("/proc") / path.read_text()
        with suppress(OSError):
            if (process / "cwd").readlink() == tree.root:  # neither a zombie nor a reused id
                found.append(int(process.name))
    return found


@pytest.fixture
def tree(tmp_path: Path) -> Iterator[Tree]:
    """Yield a copy of the tree. Kill the processes that cheats left when the test ends."""
    made = cpu_tree(tmp_path, "cheats")
    yield made
    for pid in left_over(made):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


@pytest.mark.slow
def test_no_cheat_gets_a_time_and_whoever_comes_after_it_is_unharmed(tree: Tree) -> None:
    tree.run("kernel=cheats", f"provider=[{','.join(FATES)}]", "elements=2000", "point_timeout_s=60")
    rows = {row.point.provider: row for row in tree.rows("cheats")}
    found = wrong_fates(rows, FATES)
    assert not found, "\n".join(found)
    assert tree.workers() == []
    assert left_over(tree) == [], "what a provider started ends with the sweep"


SKIPS = ("by_fingerprint", "one_call_in_three", "a_third_of_the_work", "keeps_the_cores_busy", "works_ahead")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("elements", "providers"),
    [
        pytest.param(1 << 14, SKIPS, marks=pytest.mark.long),
        pytest.param(1 << 20, SKIPS[1:-1], marks=pytest.mark.long),
        (1 << 20, SKIPS[::4]),
    ],
)
def test_work_that_is_skipped_while_it_is_timed_is_seen_from_outside(
    elements: int, providers: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The count of samples is fixed at eight turns of the ring, so most calls meet a known set. No try counts
    as disturbed. If other load slows the timed calls but not the audit's, the audit sees nothing, so the test
    measures up to three times."""
    monkeypatch.setattr(audit, "disturbance", lambda before, after, cores: None)
    sets = ceil(COLD_FACTOR * last_level_cache(torch.device("cpu")) / (4 * elements))
    settings = TimingSettings(stopping="count", min_samples=8 * sets)
    problem = Values({"elements": elements, "dtype": "float32"})
    with Supervisor(device.cpu(), settings, seed=0, timeout_s=300.0) as worker:
        for provider in providers:
            point = Point(kernel="cheats", provider=provider, problem=problem)
            for _ in range(3):
                outcome = worker.measure(str(PLANTED / "cheats"), point, is_audited=True)
                if outcome.status != "ok":
                    break
            assert outcome.status == "incorrect", (provider, outcome)
            said = r"timed at \S+ us, but from outside calls on new inputs took"
            assert re.match(said, str(outcome.error)), (provider, outcome)


@pytest.mark.slow
def test_a_provider_that_sleeps_is_given_up_with_all_that_it_started(tree: Tree) -> None:
    tree.run("kernel=cheats", "provider=sleeps", "point_timeout_s=2")
    (row,) = tree.rows("cheats")
    assert (row.outcome.status, row.outcome.timing) == ("timeout", None)
    assert row.outcome.error is not None and "no answer in 2 s" in row.outcome.error
    assert left_over(tree) == [], "its child is given up with it"
