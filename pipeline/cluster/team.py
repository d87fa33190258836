"""The devices of one model on a cluster, as a sweep measures with them."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from threading import Timer
from time import monotonic
from typing import Any

from kernels import Loaded
from pipeline import UserError
from pipeline.cluster.crew import CrewTask, StationCrew
from pipeline.cluster.engine import LostError
from pipeline.cluster.gathering import GRACE_S, SPEAK_S, Member, Say
from pipeline.cluster.messages import Described, MeasuredRates
from pipeline.execution.compile_pool import Ahead, Compilers
from pipeline.execution.crew import Report
from pipeline.execution.identity import Identity
from pipeline.machine.device import Device
from pipeline.points.plan import Target
from pipeline.points.point import Point
from pipeline.store.ceilings import Canary, Rates
from pipeline.timing.settings import TimingSettings

LOST = "every device of {model} was lost; the same command goes on from here."


class Elsewhere(Ahead):
    """Points are compiled ahead on the host that measures them, which is told of them when it gets them."""

    def submit(self, points: Iterable[Point]) -> None:
        """Nothing is compiled here."""


class ClusterTeam:
    """Members that agree, and what each of the ``kernels`` feels of their environment. Their stations end
    with the cluster."""

    def __init__(
        self, members: Sequence[Member], wait_s: float | None, say: Say, kernels: Sequence[str] = ()
    ) -> None:
        self._members = list(members)
        self._felt = dict(zip(kernels, members[0].relevant_environment, strict=True)) if kernels else {}
        self._wait_s = wait_s
        self._say = say
        self._canary: Canary | None = None
        self._stopped = False
        self._crew: StationCrew | None = None
        self.environment = members[0].described.environment
        self.target = Target(self.environment.kind, members[0].described.gpu)
        self._hold(self._members)

    @property
    def devices(self) -> Sequence[Device]:
        """Those that are not lost; of a team that has lost all, those that it had."""
        return [one.device for one in self._alive or self._members]

    def identity(self, loaded: Loaded, settings: TimingSettings, seed: int) -> Identity:
        """The keys that a kernel's points have on the stations' hosts."""
        relevant_environment = {name: str(told) for name, told in self._felt.get(loaded.where, {}).items()}
        return Identity(loaded, self.environment, settings, seed, relevant_environment)

    def begin(self) -> None:
        """The stations run since they were gathered. Raises UserError when none is left."""
        for one in self._members:
            one.changes.clear()
        if not self._alive:
            raise UserError(LOST.format(model=self.environment.gpu))

    def rates(self) -> tuple[Rates, bool]:
        """The limits of the first device that is not lost meanwhile."""
        for one in self._alive:
            told = self._asked(one, "rates")
            if told is not None:
                limits = MeasuredRates.model_validate_json(told)
                return limits.rates, limits.is_disturbed
        raise UserError(LOST.format(model=self.environment.gpu))

    def know(self, canary: Canary | None) -> None:
        """What the graph timer takes off from now on; the stations are told with each point."""
        self._canary = canary

    def build(self, loaded: Loaded, providers: Iterable[str]) -> dict[str, str]:
        """Build on every host at once. What fails on some hosts alone is no fault of a provider's: these are
        left out."""
        names = sorted(set(providers))
        alive = self._alive
        built = self._of_each(alive, lambda one: self._asked(one, "build", loaded.where, names))
        told = [(one, broken) for one, broken in zip(alive, built, strict=True) if broken is not None]
        if not told:
            raise UserError(LOST.format(model=self.environment.gpu))
        everywhere = set.intersection(*(set(broken) for _, broken in told))
        for one, broken in told:
            for name in sorted(broken.keys() - everywhere)[:1]:
                self._say(f"{one.device} on {one.node.name} is not used: {name} is not built: {broken[name]}")
                one.is_lost = True
                one.remote.end()
        return {name: why for _, broken in told for name, why in broken.items() if name in everywhere}

    def ahead(self, loaded: Loaded) -> Ahead:
        """Nothing is compiled on this host."""
        return Elsewhere(loaded, Compilers(self.environment.compute_capability))

    def crew(
        self, loaded: Loaded, control: Point, report: Report, audited: Container[Point] = ()
    ) -> StationCrew:
        """Who measures a kernel's points."""
        work = CrewTask(
            where=loaded.where,
            control=control,
            compiles_itself=lambda point: loaded.kernel.provider(point.provider).compiled,
            canary=self._canary,
            audited=audited,
            revive=self._revived,
            is_stopped=lambda: self._stopped,
        )
        self._crew = StationCrew(self._alive or self._members, work, report)
        return self._crew

    def changes(self) -> dict[str, str]:
        """What made workers be replaced though they answered, by provider."""
        return {name: what for one in self._members for name, what in one.changes.items()}

    def stop(self) -> None:
        """End all stations, from another thread than the one that measures."""
        self._stopped = True
        if self._crew is not None:
            self._crew.abandon()
        for one in self._members:
            one.is_lost = True
            one.remote.end()

    @property
    def _alive(self) -> list[Member]:
        return [one for one in self._members if not one.is_lost]

    def _hold(self, members: Sequence[Member]) -> None:
        """Take every device, all at once. What another command measures on is not waited for longer than
        ``GRACE_S``, once one is taken. Raises UserError when none can be had."""

        def hold(one: Member) -> str | None:
            try:
                one.remote.ask("begin", self._wait_s)
            except (LostError, UserError) as error:
                return str(error)
            return None

        patience = Timer(
            SPEAK_S, self._say, [f"Waiting for {self.environment.gpu}: it is being measured on."]
        )
        patience.daemon = True
        patience.start()
        with ThreadPoolExecutor(len(members)) as threads:
            asked = {threads.submit(hold, one): one for one in members}
            late = _late(asked)
            for taking in late:
                asked[taking].remote.end()  # which ends the question, too
        patience.cancel()
        for taking, one in asked.items():
            why = f"another command measured on it for {GRACE_S:g} s." if taking in late else taking.result()
            if why is not None:
                self._say(f"{one.device} on {one.node.name} is not used: {why}")
                one.is_lost = True
                one.remote.end()
        if not self._alive:
            raise UserError(f"no device of {self.environment.gpu} can be measured on, as was said above.")

    def _revived(self, member: Member) -> bool:
        """Start a lost member's station again, if its host is there and as it was."""
        self._say(f"{member.device} on {member.node.name} was lost; its points are measured elsewhere.")
        member.remote.end()
        try:
            member.remote = member.again()
            described = Described.model_validate_json(member.remote.ask("describe"))
            if described.environment != member.described.environment or self._stopped:
                raise LostError("it is another device")
            member.remote.ask("begin", self._wait_s)
        except (LostError, UserError):
            member.remote.end()
            return False
        return True

    def _asked(self, one: Member, method: str, *words: Any) -> Any:
        """A member's answer; None from one that is lost."""
        try:
            return one.remote.ask(method, *words)
        except LostError:
            self._say(f"{one.device} on {one.node.name} was lost.")
            one.is_lost = True
            return None

    def _of_each(self, members: Sequence[Member], do: Callable[[Member], Any]) -> list[Any]:
        with ThreadPoolExecutor(max(1, len(members))) as threads:
            return list(threads.map(do, members))


def _late(asked: Iterable[Future[str | None]]) -> set[Future[str | None]]:
    """Those without an answer ``GRACE_S`` after the first device was taken, which None tells. As long as none
    is taken, all are waited for."""
    waiting = set(asked)
    until = None
    while waiting:
        done, waiting = wait(waiting, until and max(0.0, until - monotonic()), FIRST_COMPLETED)
        if not done:
            break
        if until is None and any(one.result() is None for one in done):
            until = monotonic() + GRACE_S
    return waiting
