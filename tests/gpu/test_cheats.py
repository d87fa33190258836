"""A sweep on a GPU finds providers that cheat, those of a CPU and those of a GPU alone."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress

import pytest
import torch

from kernel_pipeline.files import write_atomically
from kernel_pipeline.machine import device
from pipeline import ROOT
from pipeline.store import results
from tests.pipeline.test_cheats import EITHER, FATES, OK, TOO_FAST, WRONG, Fate, left_over, wrong_fates
from tests.planted.cheats import FORGERS, PROCESSES
from tests.planted.tree import Tree

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU"),
]

OF_PROCESSES = {*FORGERS, *PROCESSES, "after_forgers", "after_processes"}
"""Cheats with processes and with the worker's answers, which a CPU's worker meets in the same way."""

ON_A_GPU = {
    **{name: fate for name, fate in FATES.items() if name not in {"honest_at_the_end", *OF_PROCESSES}},
    # Replays call nothing, and the device's clock is its own: who changes the host's changes nothing.
    "sparse": Fate(("incorrect", "runtime_error"), "plain|sparse|strided"),
    # The process may wait for its own clock, which then takes a thousand times as long.
    "stops_the_clocks": Fate((*EITHER.statuses, "timeout")),
    "slows_the_clocks": EITHER,
    # It breaks what it runs in before it gains anything.
    "patches_empty": Fate(("incorrect", "runtime_error")),
    "wrong_device": Fate(("incorrect",), "is on meta, not on cuda"),
    "computes_in_a_graph": OK,
    "fingerprint_in_a_graph": TOO_FAST,
    "third_in_a_graph": TOO_FAST,
    "on_a_side_stream": Fate(("ok", "incorrect", "runtime_error")),
    "leaves_a_stream": EITHER,
    "nothing_in_a_graph": WRONG,
    "patches_elapsed_time": TOO_FAST,
    "patches_replay": Fate(("incorrect",)),
    "patches_synchronize": Fate(("ok", "incorrect", "runtime_error")),
    "keeps_the_cache": EITHER,
    "limits_the_allocator": EITHER,
    "after_gpu": OK,
    "honest_at_the_end": OK,
}
"""A stream that a provider uses beside the timed one may be joined, which makes its time honest, or be found
out; a graph can't be captured over a stream that does not join."""


BY_TIME = {
    *("honest", "by_contents", "by_pointer", "first_call_only", "one_call_in_eight", "idle_when_hurried"),
    *("by_fingerprint", "one_call_in_three", "a_third_of_the_work", "keeps_the_cores_busy", "works_ahead"),
    *("finishes_later", "queues_its_work", "on_a_side_stream", "leaves_a_stream"),
    *("computes_in_a_graph", "fingerprint_in_a_graph", "third_in_a_graph", "nothing_in_a_graph"),
    *("stops_the_clocks", "slows_the_clocks", "divides_the_samples"),
    *("patches_elapsed_time", "patches_replay", "patches_synchronize"),
    *("keeps_the_cache", "honest_at_the_end"),
}
"""Cheats with calls, streams and clocks: these have the GPU to themselves. The verdict on all others rests on
their outputs."""

BY_EVENT = {"honest", "one_call_in_eight", "queues_its_work", "patches_elapsed_time"}
"""Cheats with a timer that calls the provider while it is timed, which the replay of a graph does not."""

BY_WALL = {"honest", "queues_its_work", "on_a_side_stream"}
"""Those of them that have work left when they return. Cheats with the host's clock and with samples are timed
by it on a CPU, too."""

BY_TIMER = {"auto": BY_TIME, "event": BY_EVENT, "wall": BY_WALL}


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tree]:
    """A tree of which no cheat's process outlives the tests."""
    made = Tree(tmp_path_factory.mktemp("cheats"), "cheats")
    yield made
    for pid in left_over(made):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


@pytest.fixture(scope="module")
def measured_ceilings(tree: Tree) -> None:
    """This GPU's own ceilings: those that are committed, or measured while no other test uses the GPU."""
    slug = device.resolve("cuda").slug
    known = results.ceilings_path(ROOT / "results", slug)
    if known.is_file():
        write_atomically(results.ceilings_path(tree.root / "results", slug), known.read_bytes())
        return
    command = [sys.executable, "-m", "pipeline.benchmarks", "ceilings", "device=cuda", "output=results"]
    variables = os.environ | {"TMPDIR": str(tree.temporary)}
    subprocess.run(command, cwd=tree.root, env=variables, check=True, text=True)


def check(tree: Tree, names: set[str], timer: str, output: str, timeout_s: int = 30) -> None:
    """Sweep cheats by a timer: none gets a time, and none leaves anything behind."""
    fates = {name: fate for name, fate in ON_A_GPU.items() if name in names}
    options = ("size=16777216", f"provider=[{','.join(fates)}]", f"point_timeout_s={timeout_s}")
    done = tree.sweep("kernel=cheats", "device=cuda", *options, f"timing.timer={timer}", f"output={output}")
    assert (done.returncode, done.stderr) == (0, "")
    rows = {row.point.provider: row for row in tree.rows("cheats", output)}
    found = wrong_fates(rows, fates)
    assert tree.workers() == []
    assert left_over(tree) == [], "the sweep ends every process that a provider started"
    assert not found, "\n".join(found)


@pytest.mark.long
@pytest.mark.parametrize("half", [0, 1])
def test_no_wrong_output_passes_and_later_providers_are_unharmed(tree: Tree, half: int) -> None:
    """Halves, side by side, in the order of the sweep: who looks for what was left follows who leaves it."""
    tree.know_ceilings(device.resolve("cuda"))
    names = [name for name in ON_A_GPU if name not in BY_TIME]
    middle = names.index("after_outputs") + 1
    check(tree, set(names[middle:] if half else names[:middle]), "auto", f"outputs/half-{half}")


@pytest.mark.alone
@pytest.mark.usefixtures("measured_ceilings")
@pytest.mark.parametrize("timer", BY_TIMER)
def test_no_cheat_with_calls_streams_or_clocks_gets_a_time(tree: Tree, timer: str) -> None:
    check(tree, BY_TIMER[timer], timer, f"outputs/{timer}", timeout_s=15)
