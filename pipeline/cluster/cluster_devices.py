"""The devices of one GPU model on a cluster: an actor on each, which gets chunks of the points."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import groupby
from operator import attrgetter
from typing import Any, cast

from kernel_pipeline.errors import UserError
from kernel_pipeline.execution.compile_pool import Ahead, Compilers
from kernel_pipeline.execution.supervisor import Supervisor
from kernel_pipeline.loading import Loaded
from kernel_pipeline.machine.device import Device
from kernel_pipeline.records.ceilings import Canary, Rates
from kernel_pipeline.records.point import Point
from kernel_pipeline.records.settings import TimingSettings

from ..execution.controls import Control, Controls, Steadiness
from ..execution.device_group import DeviceGroup
from ..execution.schedule import Schedule
from ..execution.worker_pool import Report, WorkerPool
from ..keys.identity import Identity
from ..points.plan import Target
from . import engine
from .actor import ActorHost, Answer, Assignment, ChunkEnd, DeviceActor
from .engine import LostError, Node

CHUNK = 32
"""The maximum number of points in a chunk."""

GRACE_S = 60.0
"""The seconds that the other devices may take after the first is ready to measure."""


class ClusterDevice(Device):
    """A device of a cluster. ``node`` is the number of its host; results contain no host names."""

    node: int

    def __str__(self) -> str:
        return f"node{self.node}/{super().__str__()}"


@dataclass
class Member:
    """A device of the cluster and its actor, with the methods of a supervisor that a group calls."""

    node: Node
    actor: Any
    host: ActorHost
    is_lost: bool = False
    canary: Canary | None = None
    changes: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.device = ClusterDevice(**self.host.device.to_dict(), node=self.node.number)

    def start(self) -> None:
        """Nothing to start: the actor runs."""

    def rates(self) -> tuple[Rates, bool]:
        """Measure the device's ceilings, as ``Supervisor.rates``. Raises LostError."""
        return cast(tuple[Rates, bool], engine.answer(self.actor.rates.remote()))

    def measure(self, *chunk: Any) -> Iterator[Answer]:
        """Yield the answers of ``DeviceActor.measure`` as they come. Raises LostError."""
        yield from map(engine.answer, self.actor.measure.options(num_returns="streaming").remote(*chunk))

    def abandon(self) -> None:
        """End the actor, from any thread."""
        self.is_lost = True
        engine.end(self.actor)


class Elsewhere(Ahead):
    """Compiles nothing here: actors compile their own points."""

    def submit(self, points: Iterable[Point]) -> None:
        """Compile nothing."""

    begin = submit


class ClusterDevices(DeviceGroup):
    """Members on which a point has the same key."""

    def __init__(self, members: Sequence[Member], say: Callable[[str], None]) -> None:
        first = members[0].host
        workers = cast(Sequence[Supervisor], members)
        super().__init__([one.device for one in members], workers, first.environment)
        self.members = members
        self.say = say
        self.target = Target(first.environment.kind, first.gpu)
        self.is_stopped = False

    def identity(self, loaded: Loaded, settings: TimingSettings, seed: int) -> Identity:
        """Return the identity of a kernel's points on the actors' hosts."""
        return Identity(loaded, self.environment, settings, seed, self.members[0].host.relevant[loaded.where])

    def ahead(self, loaded: Loaded) -> Ahead:
        """Return an object that compiles nothing here."""
        return Elsewhere(loaded, Compilers(self.environment.compute_capability))

    def pool(
        self, loaded: Loaded, control: Point, report: Report, audited: Container[Point] = ()
    ) -> WorkerPool:
        """Return a pool of the actors, with a thread for each."""
        return ClusterPool(self, loaded, control, report, audited)

    def stop(self) -> None:
        """End all actors, from any thread."""
        self.is_stopped = True
        for one in self.members:
            one.abandon()


class ClusterPool(WorkerPool):
    """Hands out chunks of points to actors. If an actor is lost, the other actors measure its points."""

    def __init__(
        self, group: ClusterDevices, loaded: Loaded, control: Point, report: Report, audited: Container[Point]
    ) -> None:
        super().__init__(loaded.where, cast(Sequence[Supervisor], group.members), control, report, audited)
        self._group = group
        self._controls: dict[int, Controls] = {}

    def measure(self, schedule: Schedule, total: int) -> Steadiness:
        """Measure as ``WorkerPool.measure`` does. Raises UserError when no actor is left, and
        KeyboardInterrupt when the group is stopped."""
        found = super().measure(schedule, total)
        while schedule.waiting and not all(one.is_lost for one in self._group.members):
            found = super().measure(schedule, total)  # an actor was lost after the others had ended
        if schedule.waiting:
            raise UserError(
                f"every device of the cluster was lost, and {schedule.waiting} points are left; "
                "run the same command again to measure them."
            )
        return found

    def _work(self, index: int, schedule: Schedule, total: int) -> Controls:
        """Let one actor measure chunks until no point is left. The control point comes at the end, too."""
        member = self._group.members[index]
        controls = self._controls.setdefault(index, Controls(total // self.size))
        points: list[Point] = []
        following: list[Point] = []
        try:
            while not member.is_lost:
                points = following or schedule.take(index, CHUNK)
                following = schedule.take(index, CHUNK)
                is_due = controls.is_due() if points else controls.is_open
                if not (points or is_due):
                    break
                audited = frozenset(point for point in points if point in self.audited)
                chunk = (tuple(points), tuple(following), audited, self.control if is_due else None)
                for answer in member.measure(self.where, *chunk, member.canary):
                    match answer:
                        case Control():
                            controls.add_control(answer)
                        case (point, outcome):
                            points.remove(point)
                            with self._reporting:
                                self._report(point, outcome, member.device)
                            controls.add(point)
                        case ChunkEnd():
                            member.changes |= answer.changes
                            self.spent[index].add(answer.spent)
                if points:
                    raise LostError("it did not answer for all points")
        except LostError:
            if self._group.is_stopped:
                raise KeyboardInterrupt from None
            if not self._stop.is_set():
                where = f"{member.device} on {member.node.name}"
                self._group.say(f"{where} was lost; the others measure its points.")
                schedule.give_back(index, points + following)
                member.abandon()
        return controls


@contextmanager
def groups_of(
    name: str, assignment: Assignment, say: Callable[[str], None]
) -> Iterator[list[ClusterDevices]]:
    """Yield a group for each device model of the cluster, sorted by name. Actors end with the context.

    A group has the devices with the most common relevant environment. Raises UserError without Ray, a
    cluster, or a device that can be used.
    """
    model_of = attrgetter("host.environment.gpu")
    with engine.joined(name, assignment.kind) as where:
        groups = []
        for _, several in groupby(sorted(_members(where, assignment, say), key=model_of), model_of):
            members = list(several)
            usual = Counter(repr(one.host.relevant) for one in members).most_common(1)[0][0]
            for one in members:
                if repr(one.host.relevant) != usual:
                    why = "its driver, packages or flags differ from those of most devices of its model"
                    say(f"{one.device} on {one.node.name} is not used: {why}.")
                    one.abandon()
            groups.append(ClusterDevices([one for one in members if not one.is_lost], say))
        yield groups


def _members(where: str, assignment: Assignment, say: Callable[[str], None]) -> list[Member]:
    """Return the devices of the kind that can measure, in their order, and print why other devices can't.
    Wait for the first device as long as the assignment allows."""
    import ray

    kind = assignment.kind
    places = engine.places(kind)
    if not places:
        which = "with a GPU; write device=cpu to measure on CPUs" if kind == "cuda" else "without a GPU"
        raise UserError(f"{where} has no host {which}.")
    actors = [engine.start(DeviceActor, node, kind, assignment) for node in places]
    asked = [actor.begin.remote() for actor in actors]
    ray.wait(asked, num_returns=1, timeout=assignment.wait_s)
    _, late = ray.wait(asked, num_returns=len(asked), timeout=GRACE_S)
    members = []
    for node, actor, answer in zip(places, actors, asked, strict=True):
        try:
            if answer in late:
                raise UserError(f"its device was still busy {GRACE_S:.0f} s after the first device was free.")
            members.append(Member(node, actor, engine.answer(answer)))
        except UserError as error:
            say(f"node{node.number} ({node.name}) is not used: {error}")
            engine.end(actor)
    if not members:
        raise UserError(f"no device of {where} can be used; the reasons are above.")
    return sorted(members, key=lambda one: (one.node.number, one.device.index or 0))
