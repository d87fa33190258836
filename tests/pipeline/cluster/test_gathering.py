"""Which devices of a cluster measure, and what is said of the others: with a planted cluster, without Ray."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from threading import Event
from time import sleep
from typing import Any, cast

import pytest

from pipeline import UserError
from pipeline.cluster import gathering, team
from pipeline.cluster.engine import Cluster, LostError, Node, Remote
from pipeline.cluster.messages import Assignment, Described
from pipeline.cluster.station import digests
from pipeline.cluster.team import ClusterTeam
from pipeline.cluster.tree import installed
from pipeline.execution.identity import Identity
from pipeline.points import catalog
from pipeline.store.environment import Environment
from pipeline.timing.settings import TimingSettings
from tests import factory
from tests.pipeline.cluster.planted import Planted, described, member

SOFTMAX = catalog.find("softmax")
NUMPY = metadata.version("numpy")
H100 = factory.environment(factory.H100)


def assignment(kind: str = "cuda") -> Assignment:
    return Assignment(
        kind=kind,
        measures=True,
        flags={},
        drawn="",
        settings=TimingSettings(),
        seed=0,
        timeout_s=1.0,
        kernels=("softmax",),
        packages=("numpy",),
    )


class OnHost(Planted):
    """A station that finds its host's environment, and sources that are these or others."""

    def __init__(self, found: Described, is_edited: bool = False) -> None:
        identity = Identity(SOFTMAX.loaded, found.environment, TimingSettings(), 0)
        told = digests(identity)
        sources = dict.fromkeys(told.source, "edited") if is_edited else told.source
        super().__init__(found, digests=told.model_copy(update={"source": sources}))

    def ask(self, method: str, *words: Any) -> Any:
        if method == "digests":
            assert self.digests is not None
            return self.digests.model_dump_json()
        return super().ask(method, *words)


class PlantedCluster:
    """Hosts with a GPU each, or none, and what a station on each is; None for one whose GPU is taken."""

    where = "the planted cluster"

    def __init__(self, *stations: Planted | None, gpus: int = 1) -> None:
        self.stations = list(stations)
        self._waiting = list(stations)
        self._gpus = gpus

    def nodes(self) -> list[Node]:
        return [Node(str(n), f"host{n}", n, self._gpus) for n in range(1, len(self.stations) + 1)]

    def station(self, node: Node, kind: str, told: str) -> Remote:
        return cast(Remote, self._waiting.pop(0) or Taken())

    def ready(self, waiting: Sequence[Any], seconds: float) -> list[Any]:
        return [one for one in waiting if one is not TAKEN][:1]


TAKEN = object()


class Taken(Planted):
    """A station that has no GPU yet."""

    def __init__(self) -> None:
        super().__init__(described())

    def asked(self, method: str, *words: Any) -> Any:
        return TAKEN


def gathered(cluster: PlantedCluster, wait_s: float | None = None) -> tuple[dict[str, list[str]], list[str]]:
    """The devices of each model's team, and what was said."""
    said: list[str] = []
    found = gathering.members(cast(Cluster, cluster), assignment(), wait_s, said.append)
    teams = gathering.agreeing(found, [SOFTMAX], assignment(), said.append)
    return {model: [str(one.device) for one in team] for model, team in teams.items()}, said


def on(environment: Environment, **packages: str) -> Described:
    return described(environment, **packages)


def test_every_model_of_a_cluster_has_a_team() -> None:
    h200 = factory.environment()
    cluster = PlantedCluster(*(OnHost(on(one, numpy=NUMPY)) for one in (h200, H100, h200)))
    teams, said = gathered(cluster)
    assert teams == {factory.H200: ["node1/cuda:0", "node3/cuda:0"], factory.H100: ["node2/cuda:0"]}
    assert said == []


def test_one_with_another_driver_than_most_says_so_and_is_not_used() -> None:
    usual, other = factory.environment(), factory.environment().model_copy(update={"driver": "570.1"})
    cluster = PlantedCluster(OnHost(on(other)), OnHost(on(usual)), OnHost(on(usual)))
    teams, said = gathered(cluster)
    assert teams == {factory.H200: ["node2/cuda:0", "node3/cuda:0"]}
    assert said == [
        "node1/cuda:0 on host1 is not used: its environment differs: driver 570.1 and not 580.82.07."
    ]
    assert cluster.stations[0] is not None and cluster.stations[0].is_ended


def test_a_gpus_host_may_have_another_processor() -> None:
    usual, other = factory.environment(), factory.environment().model_copy(update={"cpu": "Intel"})
    teams, said = gathered(PlantedCluster(OnHost(on(usual)), OnHost(on(other))))
    assert (teams, said) == ({factory.H200: ["node1/cuda:0", "node2/cuda:0"]}, [])


def test_packages_that_only_the_hosts_have_count_and_are_in_the_keys() -> None:
    """The command may run where no GPU is: without what comes with torch's build for CUDA."""
    stations = [OnHost(on(factory.environment())) for _ in range(2)]
    for one in stations:
        assert one.digests is not None
        relevant_environment = one.digests.environment | {"numba": "0" * 16}
        one.digests = one.digests.model_copy(update={"environment": relevant_environment})
    cluster = cast(Cluster, PlantedCluster(*stations))
    found = gathering.members(cluster, assignment(), None, print)
    (members,) = gathering.agreeing(found, [SOFTMAX], assignment(), print).values()
    made = ClusterTeam(members, None, print, ["softmax"])
    keys = made.identity(SOFTMAX.loaded, TimingSettings(), 0)
    own = Identity(SOFTMAX.loaded, factory.environment(), TimingSettings(), 0)
    at = {name: factory.made_point("softmax", name) for name in ("numba", "torch")}
    assert (len(members), keys.parts(at["numba"]).environment) == (2, "0" * 16)
    assert keys.key(at["torch"]) == own.key(at["torch"])
    assert keys.key(at["numba"]) != own.key(at["numba"])


def test_one_with_another_lock_or_edited_sources_says_so_and_is_not_used() -> None:
    usual = factory.environment()
    cluster = PlantedCluster(
        OnHost(on(usual, numpy="1.0")), OnHost(on(usual), is_edited=True), OnHost(on(usual, numpy=NUMPY))
    )
    teams, said = gathered(cluster)
    assert teams == {factory.H200: ["node3/cuda:0"]}
    assert said == [
        f"node1/cuda:0 on host1 is not used: it has numpy 1.0, and this environment {NUMPY}: "
        "install the same lock.",
        "node2/cuda:0 on host2 is not used: its sources of softmax are not those of this working tree.",
    ]


def test_all_stations_read_their_sources_at_the_same_time() -> None:
    events: list[str] = []

    class Told(OnHost):
        def asked(self, method: str, *words: Any) -> Any:
            events.append(f"{method} asked")
            return super().asked(method, *words)

        def ask(self, method: str, *words: Any) -> Any:
            events.append(f"{method} answered")
            return super().ask(method, *words)

    gathered(PlantedCluster(*(Told(on(factory.environment())) for _ in range(3))))
    of_digests = [event for event in events if event.startswith("digests")]
    assert of_digests == [*["digests asked"] * 3, *["digests answered"] * 3]


def test_where_none_can_be_used_that_is_an_error() -> None:
    with pytest.raises(UserError, match="no device of the cluster measures as this working tree would"):
        gathered(PlantedCluster(OnHost(on(factory.environment()), is_edited=True)))


class Unusable(Planted):
    def ask(self, method: str, *words: Any) -> Any:
        raise LostError("ModuleNotFoundError: No module named 'torch'")


def test_a_station_that_does_not_start_says_why() -> None:
    cluster = PlantedCluster(Unusable(described()), OnHost(on(factory.environment())))
    teams, said = gathered(cluster)
    assert teams == {factory.H200: ["node2/cuda:0"]}
    assert said == ["node1 (host1) is not used: ModuleNotFoundError: No module named 'torch'"]


def test_a_kernels_folder_that_a_host_does_not_see() -> None:
    blind = described().model_copy(update={"missing": ("/shared/mine",)})
    with pytest.raises(UserError, match=r"no device of the planted cluster can be used"):
        gathered(PlantedCluster(Planted(blind)))


def test_a_gpu_that_is_taken_is_waited_for_and_then_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gathering, "GRACE_S", 0.01)
    monkeypatch.setattr(gathering, "SPEAK_S", 0.01)
    teams, said = gathered(PlantedCluster(OnHost(on(factory.environment())), None))
    assert teams == {factory.H200: ["node1/cuda:0"]}
    assert said == [
        "Waiting for 1 of 2 devices of the planted cluster.",
        "node2 (host2) is not used: a device of its was not free within 0.01 s.",
    ]
    with pytest.raises(UserError, match=r"no device of the planted cluster was free within 0.02 s"):
        gathered(PlantedCluster(None), wait_s=0.02)


class Busy(Planted):
    """A station whose GPU another command measures on, until the station is ended."""

    def __init__(self) -> None:
        super().__init__(described())
        self._ended = Event()

    def begin(self, wait_s: float | None) -> None:
        if self._ended.wait(20):
            raise LostError("it was ended")

    def end(self) -> None:
        super().end()
        self._ended.set()


def test_a_gpu_that_another_command_measures_on_does_not_hold_up_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(team, "GRACE_S", 0.01)
    said: list[str] = []
    members = [member(1, Busy()), member(2, Planted(described()))]
    found = ClusterTeam(members, None, said.append)
    assert [str(one) for one in found.devices] == ["node2/cuda:0"]
    assert said == ["node1/cuda:0 on host1 is not used: another command measured on it for 0.01 s."]


def test_where_every_gpu_is_measured_on_the_first_that_is_free_is_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Later(Planted):
        def begin(self, wait_s: float | None) -> None:
            sleep(0.1)

    monkeypatch.setattr(team, "GRACE_S", 0.0)
    said: list[str] = []
    found = ClusterTeam([member(1, Later(described()))], None, said.append)
    assert ([str(one) for one in found.devices], said) == (["node1/cuda:0"], [])


@pytest.mark.parametrize(
    ("kind", "gpus", "sentence"),
    [
        ("cuda", 0, r"has no GPU \(hosts: 1\); write device=cpu to measure on CPUs"),
        ("cpu", 1, "every host of the planted cluster has GPUs"),
    ],
)
def test_a_cluster_without_such_devices(kind: str, gpus: int, sentence: str) -> None:
    cluster = cast(Cluster, PlantedCluster(Planted(described()), gpus=gpus))
    with pytest.raises(UserError, match=sentence):
        gathering.members(cluster, assignment(kind), None, print)


def test_a_single_gpu_is_no_cluster() -> None:
    assert [gathering.kind_of([word]) for word in ("auto", "all", "cuda", "cpu")] == [*["cuda"] * 3, "cpu"]
    with pytest.raises(UserError, match="device=cuda:1 is of one host"):
        gathering.kind_of(["cuda:1"])


def test_of_a_package_that_is_on_the_path_twice_the_first_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for version in ("2.0", "1.0"):
        folder = tmp_path / version / f"twice-{version}.dist-info"
        folder.mkdir(parents=True)
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: twice\nVersion: {version}\n")
        monkeypatch.syspath_prepend(tmp_path / version)
    assert installed(("twice", "absent")) == {"twice": "1.0"}
