"""The interface of a format: a ``Problem``, which is read as data, and its ``ProblemCode``, which runs.

A format is two modules: one with its ``Problem``, and one with a ``ProblemCode``; ``Problem.code`` names it.
The process that decides on verdicts uses only ``Problem``. Workers, verifiers and probes use only
``ProblemCode``.
"""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import isqrt
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from ..declared import Value
from ..records.base import Values
from .imported import ModuleFile, read

if TYPE_CHECKING:
    import torch

    from ..loading import Tensors

SMALL = 16
"""Sizes below this number are not scaled, and no size is scaled below it. A small size may be a window's
width, a stride, or a number of heads or groups that must divide the other sizes."""

SCALES = (1 / 64, 1 / 16, 1 / 4)
"""The scales of the smaller problems in which a failure is searched for."""

TINY = 7
"""The size in place of all others, in the smallest workload with sizes that a problem does not give."""

Sizes = Mapping[str, Any]
"""The values of a workload's dimensions, by name."""


class UnfitError(Exception):
    """A problem or a submission can't be judged; the text is the reason, as a clause."""


@dataclass(frozen=True)
class SubmissionFile:
    """A submission's file, the name of the function or module that it defines, and whether its code uses
    Triton or needs a GPU.

    ``texts`` are the sources that the file holds, by their paths in a folder of the provider's name.
    ``lacks`` is the reason why this machine can't run the submission, as a clause.
    """

    path: Path
    name: str
    is_triton: bool = False
    needs_gpu: bool = False
    texts: Mapping[str, str] = field(default_factory=dict)
    lacks: str | None = None


@dataclass(frozen=True)
class Workloads:
    """The workloads of a problem, each as the values of its dimensions.

    Submissions are verified at all ``tests`` and ``timed``, and timed at ``timed``. The last test that the
    machine has room for is the one that is verified for every distribution of inputs. ``literals`` are the
    dimensions whose words are values in JSON.

    ``resized`` are the dimensions that take other sizes than those given, and ``fixed`` says by dimension
    why others don't. A submission has to be right at other sizes if ``any_sizes``.
    """

    tests: tuple[Values, ...]
    timed: tuple[Values, ...]
    literals: tuple[str, ...] = ()
    resized: tuple[str, ...] = ()
    fixed: Mapping[str, str] = field(default_factory=dict)
    any_sizes: bool = False

    @property
    def all(self) -> tuple[Values, ...]:
        """All workloads, each once."""
        return tuple(dict.fromkeys((*self.tests, *self.timed)))


@dataclass(frozen=True, kw_only=True)
class Problem(ABC):
    """A problem's files, read as data.

    name, path:
        The problem's name in messages, and the path that the user named.
    code:
        The format's ``ProblemCode``, as ``module.Class`` in this package.
    own:
        The problem's own function or module, as a submission. Its path is among the keys of ``files``.
    has_checker, has_answer:
        Whether the problem has a checker of its own, and whether outputs are compared with its answer.
    has_own_check:
        Whether the check of the format's own judge is known: the problem's checker, or tolerances.
    """

    name: str
    path: Path
    code: str
    own: SubmissionFile
    has_checker: bool = False
    has_answer: bool = True
    has_own_check: bool = False

    @abstractmethod
    def plan(self, pins: Mapping[str, int], scale: float) -> Workloads:
        """Return the workloads, scaled. ``pins`` replace values without scaling. Raises UserError for a pin
        of a name that is not a dimension."""

    @abstractmethod
    def files(self) -> Mapping[Path, str]:
        """Return the files that the problem's code needs, with their paths in the kernel's folder."""

    def texts(self) -> Mapping[str, str]:
        """Return the texts of further files that the problem's code needs, by their paths in the folder."""
        return {}

    @abstractmethod
    def submission(self, path: Path) -> SubmissionFile:
        """Read a submission's file. Raises UserError, with file and line, if it is not in the format."""


class ProblemCode(Protocol):
    """The code of a problem and its submissions, in a kernel's folder.

    ``learned`` is what the probe found out about a workload by running the problem's own code: for
    KernelBench the names of the weights. All other calls for this workload get it.
    """

    def __init__(self, folder: Path) -> None: ...

    def learn(self, sizes: Sizes, device: torch.device) -> tuple[str, ...]:
        """Return ``learned`` for a workload. Raises UnfitError if the problem can't be judged."""

    def inputs(
        self, sizes: Sizes, device: torch.device, seed: int, learned: Sequence[str]
    ) -> tuple[Tensors, Tensors]:
        """Return the inputs for a seed: first those that take the values of each distribution, and then those
        that don't. All calls get both, in this order."""

    def call(
        self, provider: ModuleFile, sizes: Sizes, device: torch.device, learned: Sequence[str]
    ) -> Callable[..., Any]:
        """Return a provider's function of the inputs. Raises UnfitError if it can't be judged."""

    def answer(self, sizes: Sizes, device: torch.device, learned: Sequence[str]) -> Callable[..., Tensors]:
        """Return the function of the inputs that gives the right outputs in float64, or raises an error where
        the problem's code does not run in float64."""

    def mode(self, sizes: Sizes, device: torch.device) -> str | None:
        """Return the mode in which the problem's module runs, ``train`` or ``eval``; None if it has none."""

    def own_tolerance(self, dtype: torch.dtype) -> float:
        """Return the relative and absolute tolerance of the format's own judge. Called only if
        ``Problem.has_own_check``, and of no effect for a problem with a checker."""

    def error(self, sizes: Sizes, inputs: Tensors, outputs: Tensors, learned: Sequence[str]) -> str | None:
        """Return a sentence on outputs that the problem's own checker refuses. Called only if
        ``Problem.has_checker``."""


def code_of(folder: Path) -> ProblemCode:
    """Return the code in a kernel's folder."""
    module, _, name = read(folder).code.rpartition(".")
    made: ProblemCode = getattr(importlib.import_module(f".{module}", __package__), name)(folder)
    return made


def scaled(size: int, scale: float, least: int = SMALL) -> int:
    """Return a size times a scale, at least ``least``. A size below it stays the same."""
    return size if size < least else max(least, int(size * scale))


def smaller(workload: Mapping[str, Value]) -> tuple[Values, ...]:
    """Return workloads like this one with smaller sizes, from the smallest on."""
    steps = [
        Values({name: scaled(x, scale) if type(x) is int else x for name, x in workload.items()})
        for scale in SCALES
    ]
    return tuple(one for one in dict.fromkeys(steps) if one != Values(workload))


def tiny(size: int) -> int:
    """Return ``TINY`` in place of any size."""
    return TINY


def prime_below(size: int) -> int:
    """Return the largest prime below a size, which few tiles divide; below 3 the size itself."""
    smaller = range(size - 1, 1, -1)
    return next((one for one in smaller if all(one % each for each in range(2, isqrt(one) + 1))), size)


def resized(workload: Values, names: Iterable[str], size: Callable[[int], int]) -> Values:
    """Return a workload with other sizes of some dimensions."""
    made = {name: size(x) for name, x in workload.items() if name in names and type(x) is int}
    return Values({**workload, **made})
