"""The facts of a problem that only a run of its module shows, and the process that finds them.

The process runs ``probe``. Like the verifier, it runs the code of the problem's file and of no submission.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from .. import loading
from ..errors import UserError
from ..machine.device import Device
from ..records.base import Record, Values
from ..records.credentials import TRACKER
from ..records.fields import NotNegative, Text

FILE = "facts.json"

Layout = tuple[tuple[int, ...], tuple[int, ...], str]
"""Shape, strides and dtype of a tensor."""


class ProblemFacts(Record):
    """The facts of one problem.

    ``inputs`` are the layouts of the inputs. ``mode`` is the mode of the problem's module, ``train`` or
    ``eval``. ``learned`` is what the format's code found out about the workload. ``tolerances`` has a
    relative and an absolute tolerance for each output, or nothing if only the problem's checker decides.
    ``inexact`` is the reason why the answer is not computed in float64.
    ``skipped`` is the reason, as a clause, why no submission can be compared.
    """

    inputs: tuple[Layout, ...] = ()
    outputs: tuple[Layout, ...] = ()
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


def found(probe: Probe, device: Device, timeout_s: float) -> dict[Values, ProblemFacts]:
    """Run a probe's process, which writes the facts to the folder, and return the facts of its problems.
    Raises UserError if the process fails or takes longer than ``timeout_s`` seconds."""
    environment = {name: value for name, value in os.environ.items() if name not in TRACKER}
    try:
        done = subprocess.run(
            [sys.executable, "-m", f"{__package__}.probe"],
            cwd=loading.LIBRARY.parent,
            input=probe.to_json().decode(),
            env=environment | {"CUDA_VISIBLE_DEVICES": device.uuid or ""},
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise UserError(
            f"the problem's own module took longer than {timeout_s:g} s: write a smaller scale=, or a "
            "larger point_timeout_s=."
        ) from error
    if done.returncode:
        ended = f"the process of the problem's own module ended with exit code {done.returncode}."
        raise UserError((done.stderr.strip().splitlines() or [ended])[-1])
    all_facts.cache_clear()
    return {problem: facts_of(probe.folder, problem) for problem in probe.problems}
