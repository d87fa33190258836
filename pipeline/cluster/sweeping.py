"""The devices of a cluster for a command, by model, and what is done with all models at the same time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol, TypeVar

from pipeline.cluster import engine, gathering, tree
from pipeline.cluster.engine import Engine
from pipeline.cluster.gathering import Member, Say
from pipeline.cluster.messages import Assignment
from pipeline.cluster.team import ClusterTeam
from pipeline.machine import environment
from pipeline.points.catalog import Entry
from pipeline.timing.settings import TimingSettings

T = TypeVar("T")


class Stoppable(Protocol):
    """What can be ended from another thread."""

    def stop(self) -> None:
        """End it, and all that it has started."""


E = TypeVar("E", bound=Stoppable)


@dataclass(frozen=True)
class ClusterRequest:
    """What a command wants of a cluster: the kernels, and the options that decide how their points are
    measured."""

    entries: Sequence[Entry]
    device: Sequence[str]
    timing: TimingSettings
    seed: int
    timeout_s: float
    wait_s: float | None

    @property
    def kind(self) -> str:
        """The kind of device. Raises UserError for a GPU by its number."""
        return gathering.kind_of(self.device)


@contextmanager
def teams_of(name: Engine, wanted: ClusterRequest, say: Say) -> Iterator[list[ClusterTeam]]:
    """A team for each model that the cluster has, in the order of their names. Their stations end with the
    context. Raises UserError as ``models_of`` does."""
    with models_of(name, wanted, say) as models:
        where = [entry.loaded.where for entry in wanted.entries]
        yield [ClusterTeam(models[model], wanted.wait_s, say, where) for model in sorted(models)]


@contextmanager
def models_of(
    name: Engine, wanted: ClusterRequest, say: Say, commits: Sequence[str] | None = None
) -> Iterator[dict[str, list[Member]]]:
    """The devices of the cluster by their model, a station on each. Their stations end with the context.
    With ``commits``, which go along as ``tree.packed`` says, they run errands; without, they measure.

    Raises UserError where there is no Ray, no cluster, no device on it, or none that measures as this working
    tree would.
    """
    kind = wanted.kind
    with tree.packed(commits) as packed, engine.joined(name, kind, packed) as cluster:
        assignment = Assignment(
            kind=kind,
            measures=commits is None,
            flags=environment.flags(kind),
            drawn=environment.drawn(),
            settings=wanted.timing,
            seed=wanted.seed,
            timeout_s=wanted.timeout_s,
            kernels=tuple(entry.loaded.where for entry in wanted.entries),
            packages=tree.locked(),
        )
        found = gathering.members(cluster, assignment, wanted.wait_s, say)
        yield gathering.agreeing(found, wanted.entries, assignment, say)


def at_once(teams: Sequence[E], do: Callable[[E], T]) -> list[T]:
    """Do it with every team, each in a thread. One that fails leaves the others at it, and its error is
    raised when they are done. Ctrl-C ends all of them, and says what each says of how far it came."""
    with ThreadPoolExecutor(len(teams)) as threads:
        futures = [threads.submit(do, team) for team in teams]
        try:
            wait(futures)
        except KeyboardInterrupt as stop:
            for team in teams:
                team.stop()
            wait(futures)
            for note in _notes(futures):
                stop.add_note(note)
            raise
        return [future.result() for future in futures]


def _notes(futures: Sequence[Future[T]]) -> Iterator[str]:
    for future in futures:
        yield from getattr(future.exception(), "__notes__", ())
