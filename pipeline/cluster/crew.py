"""Stations that share the points of a sweep: each point once, whatever becomes of those that measure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass, field
from math import ceil
from threading import Condition

from pipeline import UserError
from pipeline.cluster.engine import LostError
from pipeline.cluster.gathering import Member
from pipeline.cluster.messages import AddedPoints, StationOutcomes, Steady
from pipeline.execution.controls import Control, Controls, Steadiness
from pipeline.execution.crew import Crew, Report
from pipeline.execution.schedule import Schedule
from pipeline.machine.load import Stolen
from pipeline.points.point import Point
from pipeline.store.ceilings import Canary
from pipeline.store.record import Outcome

HELD = 64
"""Points that a station has at once. So many that it has some to measure while it compiles others, and few of
those of a whole sweep."""

SHARE = 2
"""Of the points that nobody has, a station takes no more than its share of one part in so many: others that
are faster take what is left."""

MOST_LOST = 2
"""So many stations may be lost at a point; then it is taken for the reason."""

GIVEN_UP = f"the worker was lost {MOST_LOST} times at this point, with all that measured beside it"

MOST_REVIVED = 3
"""How often a device's station is started again in one sweep of a kernel."""


@dataclass(frozen=True)
class CrewTask:
    """What a crew measures: a kernel, its control point, which points the worker itself compiles, for seconds
    each, what the timer takes off, which times are audited in any case, and how a member that was lost is
    brought back."""

    where: str
    control: Point
    compiles_itself: Callable[[Point], bool]
    canary: Canary | None
    audited: Container[Point]
    revive: Callable[[Member], bool]
    is_stopped: Callable[[], bool]


@dataclass
class Hand:
    """The points that a member has, by number. ``told`` are those that its station knows of; ``alone`` is the
    last of them where it has to be measured with no other there."""

    points: dict[int, Point] = field(default_factory=dict)
    told: set[int] = field(default_factory=set)
    alone: int | None = None
    dealt: int = 0

    def take(self, point: Point, alone: bool) -> None:
        """One more."""
        self.dealt += 1
        self.points[self.dealt] = point
        self.alone = self.dealt if alone else None

    def tell(self) -> dict[int, Point]:
        """Those that the station is to be told of now."""
        untold = {number: point for number, point in self.points.items() if number not in self.told}
        if self.alone in untold and len(self.points) > 1:
            del untold[self.alone]
        self.told |= untold.keys()
        return untold

    def put(self, number: int) -> Point:
        """The point is measured."""
        self.told.discard(number)
        return self.points.pop(number)


class StationCrew(Crew):
    """A crew whose workers are stations. What a lost one had, others measure."""

    def __init__(self, members: Sequence[Member], work: CrewTask, report: Report) -> None:
        super().__init__(work.where, (), work.control, report)
        self._members = members
        self._work_of = work
        self._held = 0
        self._lost: Counter[Point] = Counter()
        self._changed = Condition()

    @property
    def size(self) -> int:
        """How many measure."""
        return len(self._members)

    def measure(self, schedule: Schedule, total: int) -> Steadiness:
        """As a crew does. Raises UserError when no station is left, and KeyboardInterrupt when the command
        has been stopped."""
        found = super().measure(schedule, total)
        if self._work_of.is_stopped():
            raise KeyboardInterrupt
        if schedule.waiting:
            raise UserError(
                f"every device of the cluster was lost, and {schedule.waiting} points are left; "
                "the same command goes on from here."
            )
        return found

    def abandon(self) -> None:
        """End what the members do, as another thread."""
        for member in self._members:
            member.is_lost = True
            member.remote.end()
        with self._changed:
            self._changed.notify_all()

    def _work(self, index: int, schedule: Schedule, total: int) -> Controls:
        member = self._members[index]
        controls = Controls(lambda: self._control(member), total // len(self._members))
        done = revived = 0
        hand = Hand()
        while not member.is_lost and self._take(index, schedule, hand):
            try:
                controls.before(done)
                answer = self._measured(member, hand)
            except LostError:
                if self._stop.is_set() or self._work_of.is_stopped():
                    break
                self._give_back(index, schedule, hand, member)
                hand = Hand()
                revived += 1
                member.is_lost = revived > MOST_REVIVED or not self._work_of.revive(member)
                continue
            member.changes.update(answer.changes)
            for found in answer.found:
                point = hand.put(found.number)
                with self._reporting:
                    if self._stop.is_set():
                        return controls
                    self._report(point, found.outcome, member.device)
                controls.add(point)
                done += 1
            with self._changed:
                self._held -= len(answer.found)
                self._changed.notify_all()
        if done and not member.is_lost and not self._stop.is_set():
            try:
                controls.take()
            except LostError:
                member.is_lost = True
        return controls

    def _take(self, index: int, schedule: Schedule, hand: Hand) -> bool:
        """Fill a member's hand; False when nothing is left to measure. While others have points, these may
        come back."""
        with self._changed:
            while True:
                most = min(HELD, ceil(schedule.waiting / (SHARE * len(self._members))))
                while not hand.points or (len(hand.points) < most and hand.alone not in hand.points):
                    point = None if self._stop.is_set() else schedule.next(index)
                    if point is None:
                        break
                    hand.take(point, self._is_alone(point))
                    self._held += 1
                if hand.points or self._held == 0 or self._stop.is_set() or self._members[index].is_lost:
                    return bool(hand.points) and not self._stop.is_set()
                self._changed.wait()

    def _is_alone(self, point: Point) -> bool:
        """Whether a point is measured with no other there. The others would wait for one that the worker
        compiles. And of one at which a station was lost it is then known that it was this one, if that
        happens again."""
        return self._work_of.compiles_itself(point) or self._lost[point] > 0

    def _give_back(self, index: int, schedule: Schedule, hand: Hand, member: Member) -> None:
        """Let others measure what a lost member had, but for a point at which too many were lost."""
        held = list(hand.points.values())
        self._lost.update(hand.points[number] for number in hand.told)
        given_up = [point for point in held if self._lost[point] >= MOST_LOST]
        for point in given_up:
            with self._reporting:
                if not self._stop.is_set():
                    self._report(point, Outcome(status="runtime_error", error=GIVEN_UP), member.device)
        with self._changed:
            schedule.give_back(index, [point for point in held if point not in given_up])
            self._held -= len(held)
            self._changed.notify_all()

    def _measured(self, member: Member, hand: Hand) -> StationOutcomes:
        points, work = hand.tell(), self._work_of
        audited = tuple(number for number, point in points.items() if point in work.audited)
        wanted = AddedPoints(where=self.where, points=points, audited=audited, canary=work.canary)
        return StationOutcomes.model_validate_json(member.remote.ask("measure", wanted.model_dump_json()))

    def _control(self, member: Member) -> Control:
        told = member.remote.ask("control", self.where, self.control.model_dump_json())
        found = Steady.model_validate_json(told)
        return Control(found.us, Stolen(found.ticks, found.of_ticks), found.neighbours)
