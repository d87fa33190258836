"""Chunks that actors share, and which actors make a group: with planted actors in place of Ray's."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from time import sleep
from typing import Any, NamedTuple

import pytest

from kernel_pipeline import loading
from kernel_pipeline.errors import UserError
from kernel_pipeline.machine import device
from kernel_pipeline.machine.device import Device
from kernel_pipeline.machine.load import Stolen
from kernel_pipeline.records.ceilings import Canary
from kernel_pipeline.records.environment import Environment
from kernel_pipeline.records.measurement import Outcome, State
from kernel_pipeline.records.point import Point
from kernel_pipeline.records.settings import TimingSettings
from pipeline.cluster import cluster_devices, engine
from pipeline.cluster.actor import ActorHost, Answer, Assignment, ChunkEnd
from pipeline.cluster.cluster_devices import CHUNK, ClusterDevices, Member
from pipeline.cluster.engine import LostError, Node
from pipeline.execution.controls import Control
from pipeline.execution.schedule import Schedule
from pipeline.execution.worker_pool import DeviceTime
from pipeline.keys.identity import Identity
from pipeline.points import catalog
from pipeline.sweeping import cluster_sweep
from tests import factory

SOFTMAX = catalog.find("softmax")
POINTS = [factory.made_point("softmax", "torch", 64 * size) for size in range(1, 81)]
CONTROL = factory.made_point("softmax", "torch", 99)
ASSIGNMENT = Assignment("cuda", TimingSettings(), 0, 1.0, None, ("softmax",), {}, "")


class Chunk(NamedTuple):
    """The request that an actor gets."""

    where: str
    points: Sequence[Point]
    next: Sequence[Point]
    audited: frozenset[Point]
    control: Point | None
    canary: Canary | None


class Planted:
    """An actor in this process. ``survives`` says at which points it is not lost."""

    def __init__(self, survives: Callable[[Point], bool] = lambda point: True) -> None:
        self.survives = survives
        self.chunks: list[Chunk] = []
        self.measured: list[Point] = []
        self.controls = 0
        self.is_ended = False

    @property
    def measure(self) -> Planted:
        return self

    @property
    def begin(self) -> Any:
        return self

    def options(self, **options: Any) -> Planted:
        return self

    def remote(self, *request: Any) -> Iterator[Callable[[], Answer]]:
        chunk = Chunk(*request)
        self.chunks.append(chunk)
        return self._answers(chunk)

    def _answers(self, chunk: Chunk) -> Iterator[Callable[[], Answer]]:
        def lost() -> Answer:
            raise LostError("its host is gone")

        if self.is_ended:
            yield lost
            return
        if chunk.control is None:
            yield lambda: None
        else:
            self.controls += 1
            yield lambda: Control(10.0, Stolen(), 0)
        outcome = Outcome(status="ok", max_abs_err=0.0, timing=factory.timing(7.0), state=State())
        for point in chunk.points:
            if not self.survives(point):
                self.is_ended = True
                yield lost
                return
            self.measured.append(point)
            sleep(0.001)  # so that each actor gets some
            yield lambda point=point: (point, outcome)  # type: ignore[misc]
        yield lambda: ChunkEnd({}, DeviceTime(len(chunk.points), 2.0, 1.0))


def host(environment: Environment | None = None) -> ActorHost:
    """The host as an actor of a GPU finds it."""
    here = environment or factory.environment()
    identity = Identity(SOFTMAX.loaded, here, ASSIGNMENT.settings, ASSIGNMENT.seed)
    where = device.Device(kind="cuda", name=here.name, index=0, uuid="GPU-planted")
    relevant = {one.name: identity.relevant_environment(one.name) for one in SOFTMAX.loaded.kernel.providers}
    return ActorHost(where, None, here, {"softmax": relevant})


def member(number: int, actor: Planted, found: ActorHost | None = None) -> Member:
    return Member(Node(str(number), f"host{number}", number), actor, found or host())


def compiles_itself(point: Point) -> bool:
    return SOFTMAX.loaded.kernel.provider(point.provider).compiled


class Sweep:
    """The outcomes of points that actors share."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *actors: Planted) -> None:
        self.said: list[str] = []
        self.spent: list[DeviceTime] = []
        self.found: list[tuple[Point, Outcome]] = []
        members = [member(number, one) for number, one in enumerate(actors, start=1)]
        self.group = ClusterDevices(members, self.said.append)

        def ended(actor: Planted) -> None:
            actor.is_ended = True

        monkeypatch.setattr(engine, "answer", lambda asked: asked())
        monkeypatch.setattr(engine, "end", ended)

    def report(self, point: Point, outcome: Outcome, where: Device) -> None:
        self.found.append((point, outcome))

    def measured(self, points: Sequence[Point] = POINTS) -> Sweep:
        pool = self.group.pool(loading.load("softmax"), CONTROL, self.report)
        self.spent = pool.spent
        pool.measure(Schedule(points, {}, compiles_itself, workers=pool.size), len(points))
        return self

    def has_each_once(self, points: Sequence[Point] = POINTS) -> bool:
        return Counter(point for point, _ in self.found) == Counter(points)


def lost_after(count: int) -> Callable[[Point], bool]:
    """Lost at the next point after so many."""
    left = iter([True] * count)
    return lambda point: next(left, False)


def test_each_point_is_measured_once_and_the_last_chunks_are_small(monkeypatch: pytest.MonkeyPatch) -> None:
    actors = [Planted() for _ in range(2)]
    sweep = Sweep(monkeypatch, *actors).measured()
    assert sweep.has_each_once() and sweep.said == []
    sizes = [[len(chunk.points) for chunk in one.chunks if chunk.points] for one in actors]
    # On busy cores one actor may finish its large chunk last.
    assert max(map(max, sizes)) <= CHUNK and min(some[-1] for some in sizes) <= 2
    for one in actors:
        assert one.controls >= 2 and one.chunks[-1].control == CONTROL
        assert one.chunks[0].next == one.chunks[1].points, "it compiles them meanwhile"
    for one, spent in zip(actors, sweep.spent, strict=True):
        chunks = len(one.chunks)
        assert spent == DeviceTime(len(one.measured), 2.0 * chunks, 1.0 * chunks)


def test_what_a_lost_actor_had_is_measured_once_by_others(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = Planted(lost_after(3)), Planted()
    sweep = Sweep(monkeypatch, first, second).measured()
    assert sweep.has_each_once() and len(first.measured) == 3
    assert sweep.said == ["node1/cuda:0 on host1 was lost; the others measure its points."]


def test_when_all_are_lost_the_command_says_how_many_points_are_left(monkeypatch: pytest.MonkeyPatch) -> None:
    sweep = Sweep(monkeypatch, Planted(lost_after(3)))
    with pytest.raises(UserError, match="every device of the cluster was lost, and 77 points are left"):
        sweep.measured()
    assert len(sweep.found) == 3


def test_a_chunk_ends_with_a_point_that_the_worker_compiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes as long as many others, while other actors have nothing to do."""
    compiled = [factory.made_point("softmax", "torch_compile", 64 * size) for size in range(1, 9)]
    actors = [Planted(), Planted()]
    points = [*POINTS[:8], *compiled]
    assert Sweep(monkeypatch, *actors).measured(points).has_each_once(points)
    for chunk in [*actors[0].chunks, *actors[1].chunks]:
        assert [point.provider for point in chunk.points[:-1]].count("torch_compile") == 0


def test_a_stopped_team_raises_what_ctrl_c_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    actor = Planted()
    sweep = Sweep(monkeypatch, actor)

    def stop(point: Point) -> bool:
        sweep.group.stop()
        return False

    actor.survives = stop
    with pytest.raises(KeyboardInterrupt):
        sweep.measured()
    assert (sweep.found, sweep.said) == ([], []), "it is not taken for lost"


def test_an_error_of_what_keeps_the_rows_ends_all(monkeypatch: pytest.MonkeyPatch) -> None:
    actors = [Planted() for _ in range(3)]
    sweep = Sweep(monkeypatch, *actors)

    def full(point: Point, outcome: Outcome, where: Device) -> None:
        raise UserError("the disk is full")

    monkeypatch.setattr(sweep, "report", full)
    with pytest.raises(UserError, match="the disk is full"):
        sweep.measured()
    assert all(one.is_ended for one in actors)


class Cluster:
    """Hosts with a GPU each, and what the actor on each finds, or its error; None is late."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *hosts: ActorHost | Exception | None) -> None:
        self.said: list[str] = []
        ray = pytest.importorskip("ray")
        nodes = [Node(str(number), f"host{number}", number) for number in range(1, len(hosts) + 1)]
        late = [one for one in hosts if one is None]
        waiting = iter(hosts)

        class Actor(Planted):
            def remote(self) -> Any:  # type: ignore[override]
                return next(waiting)

        def answer(asked: Any) -> Any:
            if isinstance(asked, Exception):
                raise asked
            return asked

        class Joined:
            def __init__(self, name: str, kind: str) -> None: ...
            def __enter__(self) -> str:
                return "the planted cluster"

            def __exit__(self, *error: object) -> None: ...

        monkeypatch.setattr(ray, "wait", lambda asked, num_returns, timeout: ([], late))
        monkeypatch.setattr(engine, "joined", Joined)
        monkeypatch.setattr(engine, "answer", answer)
        monkeypatch.setattr(engine, "end", lambda actor: None)
        monkeypatch.setattr(engine, "places", lambda kind: nodes)
        monkeypatch.setattr(engine, "start", lambda *arguments: Actor())

    def groups(self, assignment: Assignment = ASSIGNMENT) -> dict[str, list[str]]:
        with cluster_devices.groups_of("ray", assignment, self.said.append) as groups:
            return {one.environment.gpu: list(map(str, one.devices)) for one in groups}


USUAL = factory.environment()
OTHER = USUAL.replace(driver="570.1")


def test_every_model_of_a_cluster_has_a_team(monkeypatch: pytest.MonkeyPatch) -> None:
    processor = USUAL.replace(cpu="Intel")
    hosts = (host(USUAL), host(factory.environment(factory.H100)), host(processor))
    cluster = Cluster(monkeypatch, *hosts)
    assert cluster.groups() == {
        factory.H200: ["node1/cuda:0", "node3/cuda:0"],
        factory.H100: ["node2/cuda:0"],
    }
    assert cluster.said == []


@pytest.mark.parametrize(
    ("found", "why"),
    [
        (
            host(OTHER),
            "node1/cuda:0 on host1 is not used: its driver, packages or flags differ from those of most",
        ),
        (UserError("it has no NVIDIA driver"), "node1 (host1) is not used: it has no NVIDIA driver"),
        (LostError("its host is gone"), "node1 (host1) is not used: its host is gone"),
        (None, "node1 (host1) is not used: its device was still busy 60 s after the first"),
    ],
)
def test_one_that_would_give_other_numbers_or_none_is_left_out(
    found: Any, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = Cluster(monkeypatch, found, host(), host())
    assert cluster.groups() == {factory.H200: ["node2/cuda:0", "node3/cuda:0"]}
    assert cluster.said[-1].startswith(why)


def test_a_cluster_of_which_nothing_can_be_used(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(
        UserError, match="no device of the planted cluster can be used; the reasons are above"
    ):
        Cluster(monkeypatch, None).groups()
    with pytest.raises(UserError, match="has no host with a GPU; write device=cpu"):
        Cluster(monkeypatch).groups()


def test_keys_are_those_of_the_hosts_environment() -> None:
    """The command may run where no GPU is: without what comes with torch's build for CUDA."""
    here = host()
    relevant = {"softmax": here.relevant["softmax"] | {"numba": "0" * 16}}
    found = ActorHost(here.device, None, here.environment, relevant)
    keys = ClusterDevices([member(1, Planted(), found)], print).identity(SOFTMAX.loaded, TimingSettings(), 0)
    own = Identity(SOFTMAX.loaded, factory.environment(), TimingSettings(), 0)
    at = {name: factory.made_point("softmax", name) for name in ("numba", "torch")}
    assert keys.parts(at["numba"]).environment == "0" * 16
    assert keys.key(at["torch"]) == own.key(at["torch"])


@pytest.mark.parametrize(("words", "kind"), [(["cpu"], "cpu"), (["auto"], "cuda"), (["all"], "cuda")])
def test_a_kind_of_device_is_taken_on_every_host(words: list[str], kind: str) -> None:
    assert cluster_sweep.kind_of(words) == kind
    with pytest.raises(UserError, match="device=cuda:1 names a device of one host"):
        cluster_sweep.kind_of(["cuda:1"])
