"""Verify submissions to a problem for every distribution of inputs, and time the correct submissions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

from kernel_pipeline.execution.answers import AnswerSupervisor
from kernel_pipeline.judging.facts import Probe, Prober, ProblemFacts
from kernel_pipeline.judging.folder import DISTRIBUTIONS, GIVEN, OWN_CHECK, SIGNED, Kept, at, originally
from kernel_pipeline.judging.formats import SubmissionFile, Workloads, smaller
from kernel_pipeline.judging.imported import COMPILED, DISTRIBUTION, REFERENCE, read
from kernel_pipeline.machine import confinement
from kernel_pipeline.machine.confinement import Confinement
from kernel_pipeline.records.base import Values
from kernel_pipeline.records.measurement import Outcome
from kernel_pipeline.records.point import Point
from kernel_pipeline.statistics.verdicts import Rule

from .. import ROOT
from ..execution.session import Session
from ..keys import identity
from ..store.retry import is_too_short
from ..store.turns import Turn
from . import judged, other_sizes
from .judged import Judged, Verified
from .other_sizes import OtherSizes, changed, is_within
from .rounds import RoundLimits
from .trial_times import TrialTimes, by_own_judge

BRIEF = {"stopping": "budget", "min_samples": 3, "max_seconds": 0.005}
"""The timing settings for verification. Short timing is part of it, because the outputs of timed calls are
verified, too."""

MORE_SEEDS = 3
"""The number of further first inputs that are tried for a submission that was wrong only for later inputs."""

RIGHT = ("ok", "verified")

BATCH = 10
"""The number of submissions that are verified and then timed together. An interrupted trial has the verdicts
of earlier batches."""


@dataclass
class Trial:
    """The trial of one problem's submissions, whose keys are the names of their providers.

    ``tell`` gets a line about each step, and ``settle`` each verdict and the isolation when it is certain.
    ``skipped`` has, by distribution or workload, the reason why the problem's own code gives no answer to
    compare with. ``isolation`` says whether the submissions ran within the limits ``confined``. ``memcheck``
    returns the findings at a point, and whether there is an error. ``best`` is the submission that is timed
    beside each other one, if it is correct.
    """

    folder: Path
    session: Session
    plan: Workloads
    submissions: Mapping[str, SubmissionFile]
    limits: RoundLimits
    rule: Rule
    tell: Callable[[str], None]
    confined: Confinement
    memcheck: Callable[[str, Point, Confinement | None], tuple[str, bool]]
    settle: Callable[[Judged, str], None] = lambda one, isolation: None
    beside_compiled: bool = True
    best: str | None = None
    isolation: str = judged.NOT_RUN
    skipped: dict[str, str] = field(default_factory=dict)
    results: dict[str, Judged] = field(default_factory=dict)
    _prober: Prober = field(init=False)
    _main: Values = field(init=False)
    _tried: list[Values] = field(default_factory=list)
    _resized: list[Values] = field(default_factory=list)
    _facts: dict[Values, ProblemFacts] = field(default_factory=dict)
    _own: dict[Values, Outcome] = field(default_factory=dict)
    _own_us: dict[Point, float | None] = field(default_factory=dict)
    _kept: Kept = field(init=False)
    _timed_at: str = GIVEN
    _timed: list[Values] = field(default_factory=list)
    _tampered: set[str] = field(default_factory=set)
    _correct: list[str] = field(default_factory=list)
    _is_compiled: bool = False

    def run(self) -> tuple[Judged, ...]:
        """Return the verdict on each submission. Raises UserError if the problem's process fails."""
        with closing(Prober(self.session.device)) as self._prober:
            return self._run()

    def _run(self) -> tuple[Judged, ...]:
        self.tell("Running the problem's own code …")
        self._main = self.plan.tests[-1]
        given = [at(GIVEN, one) for one in self.plan.all]
        if len(given) > 1:
            self._facts = self._probed(given)
            fitting = [one for one in self.plan.tests if self._facts[at(GIVEN, one)].skipped is None]
            self._main = (fitting or self.plan.tests)[-1]
        self._tried = list(dict.fromkeys((*(at(name, self._main) for name in DISTRIBUTIONS), *given)))
        others = [at(OWN_CHECK, self._main), *(at(SIGNED, one) for one in self.plan.timed)]
        small = [at(name, one) for one in smaller(self._main) for name in DISTRIBUTIONS]
        is_judged = not all(map(self._is_own, self.submissions))
        sizes = OtherSizes(self._main, self.plan.resized if is_judged else (), self._known)
        self._known([*small, *self._tried, *others, *sizes.first])
        own = {self._said(one): self._facts[one].skipped for one in self._tried}
        self.skipped = self._original(own)
        if GIVEN in self.skipped:
            return self._none_is_judged(self.skipped[GIVEN])
        if is_judged:
            self._resize(sizes)
        self._kept = Kept.now(self.folder)
        if self.beside_compiled:
            # Not confined: the compiler's cache has to keep the code.
            with self._supervisor() as worker:
                compiled = self._outcome(worker, COMPILED, at(GIVEN, self._main))
                self._is_compiled = compiled.status == "ok"
        before, why = self.skipped, ""
        # Another user than root may lack the rights that the problem's code needs.
        for confined in dict.fromkeys((self.confined, self.confined.replace(user=None))):
            if (refused := confinement.why_not(confined)) is not None:
                why = refused
                continue
            self.skipped = dict(before)
            with confinement.workers(confined):
                self.isolation = judged.isolation(confined)
                found = self._judged()
            if GIVEN not in self.skipped:
                return found
            why = f"the problem's own code fails there: {self.skipped[GIVEN]}"
        self.skipped = before
        self.isolation = f"{judged.NOT_ISOLATED}: {why}"
        return self._judged()

    def _known(self, problems: Sequence[Values]) -> dict[Values, ProblemFacts]:
        """Return the facts of problems, and probe those that were not probed before."""
        if lacking := [one for one in dict.fromkeys(problems) if one not in self._facts]:
            self._facts |= self._probed(lacking)
        return {one: self._facts[one] for one in problems}

    def _resize(self, sizes: OtherSizes) -> None:
        """Find the problems of other sizes. A format may require right answers there."""
        names = [name for name in other_sizes.DISTRIBUTIONS if name not in self.skipped]
        found = self._known([at(name, one) for one in sizes.workloads() for name in names])
        whys = sizes.skipped | {self._said(one): facts.skipped for one, facts in found.items()}
        whys |= {f"other sizes of {name}": why for name, why in self.plan.fixed.items()}
        self.skipped |= self._original(whys)
        (self._tried if self.plan.any_sizes else self._resized).extend(found)

    def _original(self, reasons: Mapping[str, str | None]) -> dict[str, str]:
        """Return the reasons that there are, with the paths of the original files."""
        return {name: originally(self.folder, why) for name, why in reasons.items() if why is not None}

    @property
    def mode(self) -> str | None:
        """The mode in which the problem's module runs, ``train`` or ``eval``; None if it has none."""
        return self._facts[at(GIVEN, self._main)].mode

    def _judged(self) -> tuple[Judged, ...]:
        """Return the verdict on each submission to a problem whose own code has an answer."""
        with self._supervisor() as worker:
            if (why := self._against_the_problem(worker)) is not None:
                return self._none_is_judged(why)
            first = [name for name in self.submissions if name == self.best]
            names = [name for name in self.submissions if name not in first]
            batches = [names[begin : begin + BATCH] for begin in range(0, len(names), BATCH)]
            for batch in [first, *batches]:
                right = []
                for name in batch:
                    self.tell(f"Verifying {name} …")
                    self.results[name] = self._own_checked(self._verified(worker, name), worker, name)
                    if self.results[name].verdict == "correct" and name in self._correct:
                        right.append(name)
                    else:
                        self.settle(self.results[name], self.isolation)
                if right and self._timed:
                    self._time_as_own_judge(worker, right)
                    worker.close()  # no process waits while others are timed
                    self._prober.close()
                    self._time(right)
                for name in right:
                    self.settle(self.results[name], self.isolation)
        return tuple(self.results[name] for name in self.submissions)

    def _against_the_problem(self, worker: AnswerSupervisor) -> str | None:
        """Verify the problem's own code. Returns the reason why no submission can be judged, or None."""
        any_answer: dict[Values, str | None] = {}

        def verify(problem: Values) -> None:
            outcome = self._own[problem] = self._outcome(worker, REFERENCE, problem)
            if outcome.status in RIGHT or is_too_short(outcome):
                any_answer[problem] = outcome.any_answer
            else:
                why = f"its own code is not right by the answer in float64: {outcome.error}"
                self.skipped[self._said(problem)] = why

        for problem in self._open():
            verify(problem)
        if GIVEN in self.skipped:
            return self.skipped[GIVEN]
        told_apart = [
            name for name in (GIVEN, SIGNED) if any_answer.get(at(name, self._main), "skipped") is None
        ]
        if not told_apart:
            passing = any_answer[at(GIVEN, self._main)]
            return f"any answer passes this problem: {passing} would be found right, too"
        self._timed_at = told_apart[0]  # a time counts only for inputs that show a wrong answer
        for workload in self.plan.timed:
            problem = at(self._timed_at, workload)
            if problem not in any_answer and self._facts[problem].skipped is None:
                verify(problem)
            if any_answer.get(problem, "skipped") is None:
                self._timed.append(workload)
        return None

    def _open(self) -> list[Values]:
        """Return the problems at which submissions are verified."""
        return [one for one in (*self._tried, *self._resized) if self._said(one) not in self.skipped]

    def _said(self, problem: Values) -> str:
        """Return the name of a problem in verdicts: its distribution, its workload, or its other sizes."""
        workload = Values({name: value for name, value in problem.items() if name != DISTRIBUTION})
        distribution = str(problem[DISTRIBUTION])
        if workload == self._main:
            return distribution
        said = changed(workload, Values() if workload in self.plan.all else self._main)
        return said if distribution == GIVEN else f"{said}, {judged.words(distribution)}"

    def _verified(self, worker: AnswerSupervisor, name: str) -> Judged:
        """Return the verdict on a submission's answers, without a time."""
        file = self.submissions[name]
        one = Judged(submission=str(file.path), verdict="correct")
        if file.lacks is not None:
            return one.replace(verdict="can't be judged", reason=file.lacks)
        needs_gpu = self.session.device.kind == "cpu" and file.needs_gpu
        right: list[str] = []
        for problem in self._open():
            place = self._said(problem)
            outcome = self._own[problem] if self._is_own(name) else self._outcome(worker, name, problem)
            errors = {"max_abs_err": outcome.max_abs_err, "max_rel_err": outcome.max_rel_err}
            seen = Verified(problem=problem, status=outcome.status, **errors)
            one = one.replace(verified=(*one.verified, seen))
            if outcome.status not in RIGHT and not is_too_short(outcome):
                said, reason = judged.of_failure(outcome, needs_gpu)
                # Other programs may have taken the memory.
                is_full = outcome.status == "out_of_memory"
                if is_full and self._outcome(worker, REFERENCE, problem).status == outcome.status:
                    said, reason = "can't be judged", outcome.error or outcome.status
                if problem in self._resized:
                    one = one.replace(wrong_at=f"{place}: {reason}")
                    if self.session.device.kind == "cuda":
                        worker.close()  # it may have written to other memory that the verifier shares
                    break
                if outcome.status == "incorrect" and judged.is_later(outcome.error or ""):
                    said, reason = self._by_other_seeds(worker, name, problem, said, reason)
                reason = reason if place == GIVEN else f"{judged.words(place)}: {reason}"
                # Each call that hangs takes the whole limit, and shows no wrong answer.
                is_sought = said == "incorrect" and outcome.status != "timeout"
                failing = self._smallest(worker, name, problem) if is_sought else None
                return one.replace(verdict=said, reason=reason, right=tuple(right), failing=failing)
            if outcome.unkeyed is not None and not self._is_own(name):
                return one.replace(verdict="can't be judged", reason=judged.READS.format(outcome.unkeyed))
            right.append(place)
            if place == GIVEN:
                one = one.replace(is_repeatable=self._is_repeatable(worker, name, problem))
                if outcome.status == "verified":
                    one = one.replace(reason="it is not timed, as Triton runs under its interpreter here")
                elif not self.limits.rounds:
                    one = one.replace(reason="it is not timed, because rounds=0")
                else:
                    self._correct.append(name)
        return self._memory_checked(one.replace(right=tuple(right)), name)

    def _is_own(self, name: str) -> bool:
        """Whether a submission is the problem's own code."""
        modules = read(self.folder).modules
        return modules[name] == modules[REFERENCE]

    def _is_repeatable(self, worker: AnswerSupervisor, name: str, problem: Values) -> bool | None:
        """Whether two calls on the same inputs give the same bits; None if a call fails."""
        accuracy = worker.extra(str(self.folder), self._point(name, problem), None).accuracy
        self._kept.put_back()
        return None if accuracy is None else accuracy.repeats

    def _own_checked(self, one: Judged, worker: AnswerSupervisor, name: str) -> Judged:
        """Return a verdict with what the check of the format's own judge says, if it is known."""
        problem = at(OWN_CHECK, self._main)
        is_known = read(self.folder).has_own_check and self._facts[problem].skipped is None
        if one.verdict == "can't be judged" or self._is_own(name) or not is_known:
            return one
        return one.replace(own_check=judged.own_check(self._outcome(worker, name, problem)))

    def _memory_checked(self, one: Judged, name: str) -> Judged:
        """Return the verdict on a submission with right answers after memcheck at the smallest sizes."""
        self.tell(f"Checking the memory accesses of {name} …")
        sizes = (*(smaller(self._main) if one.wrong_at is None else ()), self._main)
        problems = (at(GIVEN, each) for each in sizes)
        least = next(each for each in problems if self._facts[each].skipped is None)
        said, is_wrong = self.memcheck(str(self.folder), self._point(name, least), confinement.CHOSEN.get())
        one = one.replace(memcheck=said)
        return one.replace(verdict="incorrect", reason=f"memcheck: {said}") if is_wrong else one

    def _by_other_seeds(
        self, worker: AnswerSupervisor, name: str, problem: Values, said: judged.Verdict, reason: str
    ) -> tuple[judged.Verdict, str]:
        """Return the verdict on a submission that was wrong for later inputs. A submission that is wrong for
        other first inputs, too, is incorrect and not a cheat."""
        for _ in range(MORE_SEEDS):
            outcome = self._seen(name, worker.first_answer(str(self.folder), self._point(name, problem)))
            if outcome.status == "incorrect" and (outcome.error or "").startswith(judged.FIRST):
                return judged.of_failure(outcome, needs_gpu=False)
        return said, reason

    def _smallest(self, worker: AnswerSupervisor, name: str, problem: Values) -> Path | None:
        """Write the smallest inputs for which a submission is wrong as it is at a problem, and return the
        file. Returns None if the first inputs of no size show the fault."""
        self.tell(f"Searching for the smallest inputs for which {name} is wrong …")
        less = (at(str(problem[DISTRIBUTION]), one) for one in smaller(self._main))
        for one in (*less, problem):
            if self._facts[one].skipped is not None or not is_within(one, problem):
                continue
            outcome = self._outcome(worker, name, one)
            is_wrong = outcome.status == "incorrect" and (outcome.error or "").startswith(judged.FIRST)
            if is_wrong or outcome.status in ("runtime_error", "out_of_memory"):
                path = self.folder.parent / f"{name}-failing.pt"
                self._probed([one], path)
                return path
        return None

    def _time_as_own_judge(self, worker: AnswerSupervisor, names: Sequence[str]) -> None:
        if read(self.folder).has_own_check:
            problems = [at(self._timed_at, workload) for workload in self._timed]
            points = [self._point(name, one) for name in (REFERENCE, *names) for one in problems]
            lacking = [one for one in points if one not in self._own_us]
            self._own_us |= {one: by_own_judge(worker, str(self.folder), one) for one in lacking}

    def _time(self, names: Sequence[str]) -> None:
        """Time correct submissions, and store their verdicts with the times."""
        problems = {workload: at(self._timed_at, workload) for workload in self._timed}
        done = self.results.get(self.best or "")
        best = self.best if done is not None and done.speed is not None else None
        beside = (self._is_compiled, best, self._own_us)
        times = TrialTimes(self.folder, self.session, self.limits, self.rule, problems, *beside)

        def report(turn: Turn) -> None:
            if self._kept.put_back() and turn.point.provider in self.submissions:
                self._tampered.add(turn.point.provider)
            self.tell(f"Round {turn.round + 1}: {turn.point.provider} …")

        rounds = times.rounds(names, report)
        for name in names:
            one = self.results[name]
            if name in self._tampered:
                self.results[name] = one.replace(verdict="cheats", reason=judged.TAMPERED)
            else:
                self.results[name] = times.verdict(one, name, rounds)

    def _none_is_judged(self, why: str) -> tuple[Judged, ...]:
        return tuple(
            Judged(submission=str(one.path), verdict="can't be judged", reason=why)
            for one in self.submissions.values()
        )

    def _point(self, provider: str, problem: Values) -> Point:
        return Point(kernel=self.folder.name, provider=provider, problem=problem)

    def _probed(self, problems: Sequence[Values], save: Path | None = None) -> dict[Values, ProblemFacts]:
        session = self.session
        probe = Probe(
            folder=self.folder,
            device=session.device.kind,
            seed=session.seed,
            problems=tuple(problems),
            save=save,
        )
        return self._prober.found(probe, session.timeout_s * len(problems))

    def _supervisor(self) -> AnswerSupervisor:
        session, timing = self.session, self.session.timing.replace(**BRIEF)
        made = AnswerSupervisor(session.device, timing, session.seed, session.timeout_s, ROOT)
        made.canary = session.canary
        made.unkeyed = identity.unkeyed
        return made

    def _outcome(self, worker: AnswerSupervisor, provider: str, problem: Values) -> Outcome:
        """Verify a provider's answers. The calls are also timed for the given inputs of the main workload,
        because a cheat may compute only what is not timed."""
        is_timed = problem == at(GIVEN, self._main)
        verify = worker.measure if is_timed else worker.answers
        return self._seen(provider, verify(str(self.folder), self._point(provider, problem)))

    def _seen(self, provider: str, outcome: Outcome) -> Outcome:
        """Return an outcome that names the original files, or the fault that a provider changed files. A
        confined provider can't."""
        is_free = provider in self.submissions and confinement.CHOSEN.get() is None
        if is_free and self._kept.put_back():
            return Outcome(status="incorrect", error=judged.TAMPERED)
        return outcome.replace(error=outcome.error and originally(self.folder, outcome.error))
