"""The facts of a problem that only a run of its module shows, and the process that finds them.

The process runs ``probe``. Like the verifier, it runs the code of the problem's file and of no submission.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from .. import loading
from ..errors import UserError
from ..execution.child_process import ChildProcess, FailedError, GoneError
from ..execution.fork_server import by_command
from ..execution.protocol import Done, Setup
from ..machine.device import Device
from ..records.base import Record, Values
from ..records.credentials import TRACKER
from ..records.fields import NotNegative, Text
from ..records.settings import TimingSettings

FILE = "facts.json"

Layout = tuple[tuple[int, ...], tuple[int, ...], str]
"""Shape, strides and dtype of a tensor."""


class ProblemFacts(Record):
    """The facts of one problem.

    ``inputs`` are the layouts of the inputs. ``structure`` is the nesting of the outputs. ``mode`` is the
    mode of the problem's module, ``train`` or ``eval``. ``learned`` is what the format's code found out
    about the workload. ``tolerances`` has a relative and an absolute tolerance for each output, or nothing
    if only the problem's checker decides. ``inexact`` is the reason why the answer is not computed in
    float64. ``skipped`` is the reason, as a clause, why no submission can be compared.
    """

    inputs: tuple[Layout, ...] = ()
    outputs: tuple[Layout, ...] = ()
    structure: str = ""
    mode: Text | None = None
    learned: tuple[str, ...] = ()
    tolerances: tuple[tuple[NotNegative, NotNegative], ...] = ()
    inexact: str | None = None
    skipped: str | None = None


class AllFacts(Record):
    """The facts of problems, by ``key``."""

    of: dict[str, ProblemFacts]


class Probe(Record):
    """A request for the facts of problems. With ``save`` it asks instead for a file with the inputs and the
    right answer of its only problem."""

    folder: Path
    device: Text
    seed: int
    problems: tuple[Values, ...]
    save: Path | None = None


def key(problem: Mapping[str, Any]) -> str:
    """Return the key of a problem in ``AllFacts``."""
    return " ".join(f"{name}={value}" for name, value in problem.items())


@cache
def all_facts(folder: Path) -> AllFacts:
    """Return the facts in a kernel's folder. The file is read again only after ``found`` has changed it."""
    return AllFacts.from_json((folder / FILE).read_bytes())


def facts_of(folder: Path, problem: Mapping[str, Any]) -> ProblemFacts:
    """Return the facts of a problem from the kernel's folder. Raises KeyError if the folder has none."""
    return all_facts(folder).of[key(problem)]


class Prober:
    """The process that runs a problem's own module, started with the first request and kept for the next. On
    a GPU it ends after each request, because other processes need the memory."""

    def __init__(self, device: Device) -> None:
        self._keeps = device.kind == "cpu"

        def environment() -> dict[str, str]:
            known = {name: value for name, value in os.environ.items() if name not in TRACKER}
            return known | {"CUDA_VISIBLE_DEVICES": device.uuid or ""}

        command = [sys.executable, "-m", f"{__package__}.probe", str(os.getpid())]
        start = by_command(command, loading.LIBRARY.parent, environment)
        setup = Setup(device=device.kind, settings=TimingSettings(), seed=0)
        self._process = ChildProcess("probe", setup, lambda given, printed: start(given[:1], printed))

    def found(self, probe: Probe, timeout_s: float) -> dict[Values, ProblemFacts]:
        """Let the process write the facts to the folder, and return the facts of the probe's problems.

        Raises UserError if the process fails, can't write, or takes longer than ``timeout_s`` seconds.
        """
        if not self._process.is_running:
            self._process.launch(-1)
            self._process.begin()
        try:
            self._process.ask(probe, Done, timeout_s)
        except GoneError as error:
            if error.status == "timeout":
                raise UserError(
                    f"the problem's own module took longer than {timeout_s:g} s: write a smaller scale=, or "
                    "a larger point_timeout_s=."
                ) from error
            raise UserError(f"the problem's own module fails: {error}.") from error
        except FailedError as error:
            _, _, unwritable = str(error).partition("UserError: ")
            raise UserError(unwritable or f"the problem's own module fails: {error}.") from error
        if not self._keeps:
            self.close()
        all_facts.cache_clear()
        return {problem: facts_of(probe.folder, problem) for problem in probe.problems}

    def close(self) -> None:
        """End the process."""
        self._process.close()
