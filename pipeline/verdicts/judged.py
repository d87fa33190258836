"""Verdicts on submissions, and the reasons for them, as records and as sentences."""

from __future__ import annotations

from collections.abc import Sequence
from math import exp, log, sqrt
from pathlib import Path
from statistics import fmean
from typing import Literal

from kernel_pipeline.judging.folder import GIVEN
from kernel_pipeline.machine.confinement import Confinement
from kernel_pipeline.records.base import Record, Values
from kernel_pipeline.records.fields import Microseconds, Name, NotNegative, Text, When
from kernel_pipeline.records.measurement import Outcome, Status

from ..store.retry import TOO_SHORT

Verdict = Literal["correct", "incorrect", "cheats", "can't be judged"]

Decided = Literal["same", "faster", "slower", "undecided"]

OwnCheck = Literal["passes", "fails"]

EXIT_CODES: dict[Verdict, int] = {"correct": 0, "can't be judged": 3, "incorrect": 1, "cheats": 1}
"""The exit code for each verdict."""

ISOLATED = "isolated"
"""Submissions have no network, can write no file of the user, and have limits of memory and processes."""

ON_GPU = "isolated, except from the user's other processes, whose namespaces CUDA IPC needs"
"""As ``ISOLATED``, but submissions can send signals and connect to Unix sockets."""

AS_ROOT = "; as root, they could read all files"
"""Follows ``ISOLATED`` or ``ON_GPU`` where another user than root could not read what submissions need."""

NOT_ISOLATED = "not isolated"
"""Submissions run as the user of the command, with access to the network and to all of the user's files."""

NOT_RUN = "not run"
"""A file that is not in the format is not run."""

FIRST = "first call: "
"""The beginning of the error for a wrong answer to the first inputs. A submission could have known only these
in advance."""

TAMPERED = "it changed the files of the problem, by which it is judged"

READS = "it reads files that the verdict does not record: {}"

BUSY = "it is right, but {} rounds have trusted times: judge it again on a quiet machine"
"""The reason for the lack of a time where other programs disturb the rounds."""

MOST_REWARD = 10.0
"""The largest reward."""

FAILS: dict[Status, str] = {
    **dict.fromkeys(("runtime_error", "compile_error"), "it fails"),
    "out_of_memory": "it runs out of memory, and the problem's own code does not",
}
"""What a submission with an outcome of this status does wrong."""

OTHER = "on other inputs: "
"""The beginning of the error for a wrong answer to inputs after the first, before any call is timed."""

LATER = (OTHER, "after timing: ", "on new inputs: ")
"""The beginnings of the errors for wrong answers to later inputs."""


class Speed(Record):
    """A submission's speed-up with its 90 % interval, and the rounds' verdict on it."""

    times: NotNegative
    low: NotNegative
    high: NotNegative
    decided: Decided

    def __str__(self) -> str:
        said = f" ({self.decided})" if self.decided in ("same", "undecided") else ""
        return f"{self.times:.2f} times as fast [{self.low:.2f}, {self.high:.2f}]{said}"


class WorkloadTimes(Record):
    """The times of a submission at a workload: its speed-ups over the problem's own code, eager and compiled
    by ``torch.compile``, and over the best known submission, and the medians of these times in the rounds.
    ``host_us`` is the time until an eager call returns to the host. ``own_us`` is the mean time by events, as
    the format's own judge takes it, from the submission's own process; None if this way is not known.
    ``reference_host_us`` and ``reference_own_us`` are those of the problem's own code. On a CPU all are None.
    """

    workload: Values
    speed: Speed
    over_compiled: Speed | None = None
    over_best: Speed | None = None
    us: Microseconds
    reference_us: Microseconds
    compiled_us: Microseconds | None = None
    best_us: Microseconds | None = None
    host_us: Microseconds | None = None
    reference_host_us: Microseconds | None = None
    own_us: Microseconds | None = None
    reference_own_us: Microseconds | None = None
    rounds: int


class Verified(Record):
    """The verification of a submission at a problem: the outcome's status, and the largest errors."""

    problem: Values
    status: Status
    max_abs_err: float | None = None
    max_rel_err: float | None = None


class Judged(Record):
    """The verdict on one submission.

    reason:
        Why the submission is not correct, or why a correct submission has no time.
    speed, over_compiled, over_best:
        The geometric means of the speed-ups of ``timed``.
    timed:
        The times, by workload.
    timed_at:
        The distribution of the inputs in the rounds.
    verified:
        The verifications, of which the last failed if the submission was found wrong by it, or ``wrong_at``.
    right:
        The distributions of inputs, the workloads and the other sizes for which the submission was right.
    wrong_at:
        Other sizes than the given ones at which a correct submission is wrong, and how.
    failing:
        A file for ``torch.load`` with the smallest inputs for which the submission is wrong.
    memcheck:
        The findings of compute-sanitizer's memcheck at the smallest sizes, or why it did not run.
    is_repeatable:
        Whether two calls on the same inputs gave the same bits; None if these calls failed or were not made.
    own_check:
        Whether the check of the format's own judge accepts the answers to the given inputs; None if the check
        is not known or did not run.
    """

    submission: Text
    verdict: Verdict
    reason: str | None = None
    speed: Speed | None = None
    over_compiled: Speed | None = None
    over_best: Speed | None = None
    timed: tuple[WorkloadTimes, ...] = ()
    timed_at: Text | None = None
    verified: tuple[Verified, ...] = ()
    right: tuple[Text, ...] = ()
    wrong_at: Text | None = None
    failing: Path | None = None
    memcheck: Text | None = None
    is_repeatable: bool | None = None
    own_check: OwnCheck | None = None

    @property
    def reward(self) -> float:
        """The lower bound of a correct submission's speed-up, at most ``MOST_REWARD``; otherwise 0."""
        is_timed = self.verdict == "correct" and self.speed is not None
        return min(self.speed.low, MOST_REWARD) if is_timed and self.speed is not None else 0.0

    @property
    def given_only(self) -> str | None:
        """A clause on a submission that is right at the given sizes only; None for others."""
        return None if self.wrong_at is None else f"right at the given sizes only: wrong at {self.wrong_at}"

    def sentence(self) -> str:
        """Return the verdict as a line."""
        said = f"{self.submission}: {self.verdict}"
        if self.speed is not None:
            said += f" and {self.speed}"
            if self.over_compiled is not None:
                said += f", {self.over_compiled} as torch.compile"
            if self.over_best is not None:
                said += f", {self.over_best} as the best known"
        if self.reason is not None:
            said += f": {self.reason}"
        if self.given_only is not None:
            said += f". It is {self.given_only}"
        if self.failing is not None:
            said += f". The inputs are in {self.failing}"
        if self.is_repeatable is False:
            said += ". Its outputs differ from call to call"
        if self.verdict in ("incorrect", "cheats") and self.own_check == "passes":
            said += ". The problem's own check passes"
        if self.verdict == "correct" and self.own_check == "fails":
            said += ". The problem's own check fails"
        return f"{said}."


class Judgement(Record):
    """The verdicts on submissions to one problem, on one device. ``workloads`` are those at which submissions
    were verified. ``skipped`` has, by distribution, workload or other sizes, the reason why they were not
    tried. ``mode`` is the mode of the problem's module, as its file leaves it."""

    problem: Text
    workloads: tuple[Values, ...]
    scale: NotNegative
    gpu: Name
    command: Text
    at: When
    isolation: Text
    mode: Text | None = None
    skipped: dict[Text, str]
    results: tuple[Judged, ...]

    @property
    def left_out(self) -> list[str]:
        """Sentences on what was not tried, beside what the verdicts say."""
        skipped = {} if GIVEN in self.skipped else self.skipped
        return [f"Not tried: {words(name)}: {why}." for name, why in skipped.items()]

    @property
    def exit_code(self) -> int:
        """0 if all submissions are correct, 1 if any is incorrect or cheats, otherwise 3."""
        codes = {EXIT_CODES[one.verdict] for one in self.results}
        return 1 if 1 in codes else max(codes)


def isolation(confined: Confinement) -> str:
    """Return how submissions are isolated within limits."""
    return (ON_GPU if confined.shares_gpu else ISOLATED) + (AS_ROOT if confined.is_root else "")


def words(name: str) -> str:
    """Return the name of a distribution in plain words, or the sizes of a problem as they are."""
    return name if "=" in name else name.replace("_", " ")


def with_times(one: Judged, timed: Sequence[WorkloadTimes], timed_at: str, margin: float) -> Judged:
    """Return a verdict with these times. Differences of less than ``margin`` are the same."""
    return one.replace(
        speed=_mean([each.speed for each in timed], margin),
        over_compiled=_mean([each.over_compiled for each in timed], margin),
        over_best=_mean([each.over_best for each in timed], margin),
        timed=tuple(timed),
        timed_at=timed_at,
    )


def _mean(each: Sequence[Speed | None], margin: float) -> Speed | None:
    """Return the geometric mean of speed-ups, whose errors are independent; None without speed-ups."""
    speeds = [one for one in each if one is not None]
    if len(speeds) < 2:
        return next(iter(speeds), None)
    middle = fmean(log(one.times) for one in speeds)
    half = sqrt(sum((log(one.high / one.low) / 2) ** 2 for one in speeds)) / len(speeds)
    low, high, same = middle - half, middle + half, log(1 + margin)
    decided: Decided = "undecided"
    if low > same:
        decided = "faster"
    elif high < -same:
        decided = "slower"
    elif -same < low and high < same:
        decided = "same"
    return Speed(times=exp(middle), low=exp(low), high=exp(high), decided=decided)


def of_failure(outcome: Outcome, needs_gpu: bool) -> tuple[Verdict, str]:
    """Return the verdict on a submission with this outcome, and the reason.

    A wrong answer to later inputs counts as a cheat, so the caller has to check that the submission is right
    for other first inputs. Where memory ran out, the caller has to check that the problem's own code finds
    enough. ``needs_gpu`` says that a submission for GPUs ran without a GPU.
    """
    error = (outcome.error or outcome.status).rstrip(".")
    if outcome.status == "incorrect":
        return of_wrong(error)
    if "UnfitError: " in error:
        return "can't be judged", error.partition("UnfitError: ")[2]
    if needs_gpu:
        return "can't be judged", f"it is written for a GPU, and this machine has none: {error}"
    if outcome.status in FAILS:
        return "incorrect", f"{FAILS[outcome.status]}: {error}"
    if outcome.status == "timeout" and "its worker" in error:
        return "incorrect", f"it is over the limit point_timeout_s: {error}"
    return "can't be judged", error


def of_wrong(error: str) -> tuple[Verdict, str]:
    """Return the verdict for the error of an incorrect outcome, and the reason."""
    if error.startswith(FIRST):
        return "incorrect", error.removeprefix(FIRST)
    if is_later(error):
        return "cheats", f"right for the first inputs and wrong for inputs that it can't know: {error}"
    return "cheats", error


def own_check(outcome: Outcome) -> OwnCheck | None:
    """Return what the check of the format's own judge says, from the outcome under this check alone. Wrong
    answers of timed calls pass, since that judge does not see them."""
    error = outcome.error or ""
    if outcome.status in ("ok", "verified") or error.startswith((*LATER[1:], TOO_SHORT)):
        return "passes"
    is_wrong = outcome.status == "incorrect" and error.startswith((FIRST, OTHER))
    return "fails" if is_wrong or outcome.status in ("runtime_error", "compile_error") else None


def is_later(error: str) -> bool:
    """Whether an error is a wrong answer to inputs after the first."""
    return error.startswith(LATER)
