"""The devices of one GPU model on a cluster: an actor on each, which gets chunks of the points."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import ceil
from typing import Any, cast

from kernel_pipeline.errors import UserError
from kernel_pipeline.loading import Loaded
from kernel_pipeline.machine.device import Device
from kernel_pipeline.records.ceilings import Canary, Rates
from kernel_pipeline.records.point import Point
from kernel_pipeline.records.settings import TimingSettings
from pipeline.cluster import engine
from pipeline.cluster.actor import ActorHost, Answer, Assignment, Chunk, DeviceActor, code_of
from pipeline.cluster.engine import LostError, Node
from pipeline.execution.compile_pool import Ahead, Compilers
from pipeline.execution.controls import Control, Controls, Steadiness, steadiness
from pipeline.execution.device_group import LocalDevices
from pipeline.execution.identity import Identity
from pipeline.execution.schedule import Schedule
from pipeline.execution.supervisor import Supervisor
from pipeline.execution.worker_pool import Report, WorkerPool
from pipeline.points.catalog import Entry
from pipeline.points.plan import Target

CHUNK = 32
"""Most points of a chunk."""

SHARE = 2
"""A chunk is at most this part of an actor's share of the points left, so that all end at the same time."""

GRACE_S = 60.0
"""How long the other devices may take once the first can measure."""

Say = Callable[[str], None]


class ClusterDevice(Device):
    """A device of a cluster. ``node`` is the number of its host; hosts' names are in no result."""

    node: int

    def __str__(self) -> str:
        return f"node{self.node}/{super().__str__()}"


@dataclass
class Member:
    """A device of the cluster and its actor. ``chunk`` are the points that it has to measure, ``next``
    those that it only compiles."""

    node: Node
    actor: Any
    host: ActorHost
    is_lost: bool = False
    chunk: list[Point] = field(default_factory=list)
    next: list[Point] = field(default_factory=list)
    canary: Canary | None = None
    changes: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.device = ClusterDevice(**self.host.device.to_dict(), node=self.node.number)

    def start(self) -> None:
        """Nothing to start: the actor runs."""

    def rates(self) -> tuple[Rates, bool]:
        """The device's own limits, as ``Supervisor.rates`` gives them. Raises LostError."""
        limits: tuple[Rates, bool] = engine.answer(self.actor.rates.remote())
        return limits

    def abandon(self) -> None:
        """End the actor, from any thread."""
        self.is_lost = True
        engine.end(self.actor)


class Elsewhere(Ahead):
    """Compiles nothing here: actors compile their own points."""

    def submit(self, points: Iterable[Point]) -> None:
        """Compile nothing."""

    def begin(self, points: Iterable[Point]) -> None:
        """Build nothing."""


class ClusterDevices(LocalDevices):
    """Members on which a point has the same key."""

    def __init__(self, members: Sequence[Member], say: Say) -> None:
        first = members[0].host
        workers = cast(Sequence[Supervisor], members)  # a member has the methods that a group calls
        super().__init__([one.device for one in members], workers, first.environment)
        self.members = members
        self.say = say
        self.target = Target(first.environment.kind, first.gpu)
        self.is_stopped = False

    def identity(self, loaded: Loaded, settings: TimingSettings, seed: int) -> Identity:
        """The identity of a kernel's points on the actors' hosts."""
        return Identity(loaded, self.environment, settings, seed, self.members[0].host.relevant[loaded.where])

    def ahead(self, loaded: Loaded) -> Ahead:
        """Compiles nothing here."""
        return Elsewhere(loaded, Compilers(self.environment.compute_capability))

    def pool(
        self, loaded: Loaded, control: Point, report: Report, audited: Container[Point] = ()
    ) -> WorkerPool:
        """The actors, ready to measure a kernel's points."""
        return ClusterPool(self, loaded, control, report, audited)

    def stop(self) -> None:
        """End all actors, from any thread."""
        self.is_stopped = True
        for one in self.members:
            one.abandon()


class ClusterPool(WorkerPool):
    """Hands out chunks of points to actors. The points of a lost actor go to the others."""

    def __init__(
        self, group: ClusterDevices, loaded: Loaded, control: Point, report: Report, audited: Container[Point]
    ) -> None:
        super().__init__(loaded.where, cast(Sequence[Supervisor], group.members), control, report, audited)
        self._group = group
        self._kernel = loaded.kernel

    def measure(self, schedule: Schedule, total: int) -> Steadiness:
        """Measure as ``WorkerPool.measure`` does. Raises UserError when no actor is left, and
        KeyboardInterrupt when the group is stopped."""
        import ray

        every = [Controls(total // self.size) for _ in self.workers]
        running: dict[Any, int] = {}
        try:
            while True:
                for index in set(range(self.size)) - set(running.values()):
                    if (chunk := self._chunk(index, schedule, every[index])) is not None:
                        actor = self._group.members[index].actor
                        running[actor.measure.options(num_returns="streaming").remote(chunk)] = index
                if not running:
                    break
                stream = ray.wait(list(running), num_returns=1)[0][0]
                index = running[stream]
                try:
                    self._keep(index, every[index], engine.answer(next(stream)))
                except (StopIteration, LostError) as end:
                    del running[stream]
                    if self._group.is_stopped:
                        raise KeyboardInterrupt from None
                    if isinstance(end, LostError) or self._group.members[index].chunk:
                        self._lose(index, schedule)
        except BaseException:
            self.abandon()
            raise
        if schedule.waiting:
            raise UserError(
                f"every device of the cluster was lost, and {schedule.waiting} points are left; "
                "run the same command again to measure them."
            )
        return steadiness(every)

    def _chunk(self, index: int, schedule: Schedule, controls: Controls) -> Chunk | None:
        """The next chunk of an actor; None for nothing. The control point comes at the end, too."""
        member = self._group.members[index]
        if member.is_lost:
            return None
        member.chunk = member.next or self._take(index, schedule)
        member.next = self._take(index, schedule)
        is_due = controls.is_due() if member.chunk else controls.is_open
        if not (member.chunk or is_due):
            return None
        audited = frozenset(point for point in member.chunk if point in self.audited)
        control = self.control if is_due else None
        return Chunk(self.where, tuple(member.chunk), tuple(member.next), audited, control, member.canary)

    def _take(self, index: int, schedule: Schedule) -> list[Point]:
        """Points that no actor has. A point that its worker compiles takes long, and ends a chunk."""
        points: list[Point] = []
        most = min(CHUNK, ceil(schedule.waiting / (SHARE * self.size)))
        while len(points) < most and (point := schedule.next(index)) is not None:
            points.append(point)
            if self._kernel.provider(point.provider).compiled:
                break
        return points

    def _keep(self, index: int, controls: Controls, answer: Answer) -> None:
        member = self._group.members[index]
        match answer:
            case Control():
                controls.add_control(answer)
            case (point, outcome):
                member.chunk.remove(point)
                self._report(point, outcome, member.device)
                controls.add(point)
            case dict():
                member.changes |= answer

    def _lose(self, index: int, schedule: Schedule) -> None:
        """Give the points of a lost actor to the others."""
        member = self._group.members[index]
        self._group.say(f"{member.device} on {member.node.name} was lost; the others measure its points.")
        schedule.give_back(index, member.chunk + member.next)
        member.chunk, member.next = [], []
        member.abandon()


def kind_of(wanted: Sequence[str]) -> str:
    """Return the kind of device that ``device=`` asks of a cluster. Raises UserError for one host's."""
    if list(wanted) == ["cpu"]:
        return "cpu"
    if len(wanted) == 1 and wanted[0] in ("auto", "cuda", "all"):
        return "cuda"
    raise UserError(
        f"device={','.join(wanted)} names a device of one host, and cluster= takes every GPU of every host: "
        "leave device= out, or write device=cpu."
    )


@contextmanager
def groups_of(
    name: str, entries: Sequence[Entry], assignment: Assignment, say: Say
) -> Iterator[list[ClusterDevices]]:
    """A group for each device model of the cluster, sorted by name. Actors end with the context.

    Raises UserError without Ray, a cluster, or a device whose sources are those of this working tree.
    """
    with engine.joined(name, assignment.kind) as where:
        members = _members(where, assignment, say)
        models: dict[str, list[Member]] = {}
        for one in members:
            here, settings, seed = one.host.environment, assignment.settings, assignment.seed
            own = [Identity(entry.loaded, here, settings, seed) for entry in entries]
            if one.host.code == code_of(own):
                models.setdefault(one.host.environment.gpu, []).append(one)
            else:
                _leave_out(one, "its sources are not those of this working tree", say)
        if not models:
            raise UserError(
                f"no device of {where} runs the sources of this working tree; the reasons are above."
            )
        yield [ClusterDevices(_alike(models[model], say), say) for model in sorted(models)]


def _members(where: str, assignment: Assignment, say: Say) -> list[Member]:
    """The devices of the kind that can measure, in their order; says why others can't. Waits for the first as
    long as the assignment allows."""
    import ray

    places = []
    for node in engine.nodes():
        places += [node] * (node.gpus if assignment.kind == "cuda" else int(node.gpus == 0))
    if not places:
        kind = (
            "with a GPU; write device=cpu to measure on CPUs"
            if assignment.kind == "cuda"
            else "without a GPU"
        )
        raise UserError(f"{where} has no host {kind}.")
    actors = [engine.start(DeviceActor, node, assignment.kind, assignment) for node in places]
    asked = [actor.begin.remote() for actor in actors]
    ray.wait(asked, num_returns=1, timeout=assignment.wait_s)
    _, late = ray.wait(asked, num_returns=len(asked), timeout=GRACE_S)
    members = []
    for node, actor, answer in zip(places, actors, asked, strict=True):
        try:
            if answer in late:
                raise UserError(f"its device was not free within {GRACE_S:.0f} s after the first device was.")
            members.append(Member(node, actor, engine.answer(answer)))
        except UserError as error:
            say(f"node{node.number} ({node.name}) is not used: {error}")
            engine.end(actor)
    if not members:
        raise UserError(f"no device of {where} can be used; the reasons are above.")
    return sorted(members, key=lambda one: (one.node.number, one.device.index or 0))


def _alike(several: Sequence[Member], say: Say) -> list[Member]:
    """The devices of a model with the most common relevant environment; between equals the first's."""
    relevant = [repr(one.host.relevant) for one in several]
    usual = Counter(relevant).most_common(1)[0][0]
    for one, here in zip(several, relevant, strict=True):
        if here != usual:
            _leave_out(
                one, "its driver, packages or flags differ from those of most devices of its model", say
            )
    return [one for one, here in zip(several, relevant, strict=True) if here == usual]


def _leave_out(one: Member, why: str, say: Say) -> None:
    say(f"{one.device} on {one.node.name} is not used: {why}.")
    one.abandon()
