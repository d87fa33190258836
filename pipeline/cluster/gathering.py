"""Which devices of a cluster measure: a station on each is started and looked at, and those that agree in
what decides a number make a team for each model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from time import monotonic
from typing import Any

from pipeline import UserError
from pipeline.cluster.engine import Cluster, LostError, Node, Remote
from pipeline.cluster.messages import Assignment, ClusterDevice, Described, Digests
from pipeline.cluster.station import digests
from pipeline.cluster.tree import installed
from pipeline.execution.identity import Identity
from pipeline.points.catalog import Entry
from pipeline.points.frozen import Values
from pipeline.store.environment import UNKEYED, Environment

GRACE_S = 60.0
"""How long a device may take to join those that have, from when the first has."""

SPEAK_S = 10.0
"""After so long a sweep says what it waits for."""

Say = Callable[[str], None]


@dataclass
class Member:
    """A device of the cluster, and the station that measures on it. ``relevant_environment`` are, for each
    kernel, what its providers' numbers depend on there of the environment, as digests."""

    node: Node
    remote: Remote
    described: Described
    device: ClusterDevice
    again: Callable[[], Remote]
    relevant_environment: tuple[Values, ...] = ()
    is_lost: bool = False
    changes: dict[str, str] = field(default_factory=dict)


def kind_of(wanted: Sequence[str]) -> str:
    """The kind of device that ``device=`` means on a cluster. Raises UserError for a GPU by its number."""
    if list(wanted) == ["cpu"]:
        return "cpu"
    if len(wanted) == 1 and wanted[0] in ("auto", "cuda", "all"):
        return "cuda"
    raise UserError(
        f"device={','.join(wanted)} is of one host, and cluster= takes every GPU of each: leave "
        "device= out, or write device=cpu."
    )


def members(cluster: Cluster, assignment: Assignment, wait_s: float | None, say: Say) -> list[Member]:
    """A station on every device of the kind that is free, with what each found where it is.

    Those that can't be used are said. Raises UserError where none can be, and where none is free within
    ``wait_s`` seconds (None: as long as it takes).
    """
    nodes = cluster.nodes()
    places = list(_places(nodes, assignment.kind))
    if not places:
        if assignment.kind == "cuda":
            raise UserError(
                f"{cluster.where} has no GPU (hosts: {len(nodes)}); write device=cpu to measure on CPUs."
            )
        raise UserError(f"every host of {cluster.where} has GPUs, and device=cpu takes those that have none.")
    told = assignment.model_dump_json()

    def start(node: Node) -> Remote:
        return cluster.station(node, assignment.kind, told)

    waiting: dict[Any, tuple[Node, Remote]] = {}
    for node in places:
        remote = start(node)
        waiting[remote.asked("describe")] = (node, remote)
    found: list[Member] = []
    refused = 0
    begin, has_spoken = monotonic(), False
    while waiting:
        for asked in cluster.ready(list(waiting), 1.0):
            node, remote = waiting.pop(asked)
            try:
                described = Described.model_validate_json(remote.answer(asked))
            except (LostError, UserError) as error:
                say(f"{node} is not used: {error}")
                refused += 1
                continue
            if described.missing:
                say(f"{node} is not used: it does not see {described.missing[0]}.")
                refused += 1
                remote.end()
                continue
            device = ClusterDevice(**described.device.model_dump(), node=node.number)
            found.append(Member(node, remote, described, device, partial(start, node)))
        waited = monotonic() - begin
        if waiting and not has_spoken and waited > SPEAK_S:
            say(f"Waiting for {len(waiting)} of {len(places)} devices of {cluster.where}.")
            has_spoken = True
        if waiting and (found or refused) and waited > GRACE_S:
            break
        if waiting and wait_s is not None and waited > max(wait_s, SPEAK_S) and not found:
            raise UserError(f"no device of {cluster.where} was free within {wait_s:g} s (wait_s=null waits).")
    for node, remote in waiting.values():
        say(f"{node} is not used: a device of its was not free within {GRACE_S:g} s.")
        remote.end()
    _missing_everywhere(found, assignment, cluster)
    return sorted(found, key=lambda one: (one.node.number, one.device.index or 0))


def _missing_everywhere(found: Sequence[Member], assignment: Assignment, cluster: Cluster) -> None:
    if found:
        return
    folders = [where for where in assignment.kernels if "/" in where]
    shared = (
        f" A kernel's folder ({folders[0]}) has to be on every host under the same path." if folders else ""
    )
    raise UserError(f"no device of {cluster.where} can be used, as was said above.{shared}")


def _places(nodes: Sequence[Node], kind: str) -> Iterator[Node]:
    for node in nodes:
        if kind == "cpu":
            yield from [node] if node.gpus == 0 else []
        else:
            yield from [node] * node.gpus


def agreeing(
    found: Sequence[Member],
    entries: Sequence[Entry],
    assignment: Assignment,
    say: Say,
) -> dict[str, list[Member]]:
    """The members that agree, by the model of their device.

    The sources and the packages have to be this process's own. Of what a model's numbers depend on in their
    environment, that of most of its members counts; of as many, the first's. Those that differ are said, and
    ended. Raises UserError where none is left.
    """
    own = installed(assignment.packages)
    models: dict[str, list[Member]] = {}
    # All are asked before the first answers: each reads the sources of every provider.
    asked = [[one.remote.asked("digests", entry.loaded.where) for entry in entries] for one in found]
    for one, theirs in zip(found, asked, strict=True):
        why = _different(own, one.described.packages) or _stranger(one, theirs, entries, assignment)
        if why:
            _leave_out(one, why, say)
        else:
            models.setdefault(one.described.environment.gpu, []).append(one)
    teams = {}
    for model, several in models.items():
        counted = Counter(one.relevant_environment for one in several)
        usual = next(one for one in several if counted[one.relevant_environment] == max(counted.values()))
        for one in several:
            if one.relevant_environment != usual.relevant_environment:
                _leave_out(one, _apart(one.described.environment, usual.described.environment), say)
        teams[model] = [one for one in several if one.relevant_environment == usual.relevant_environment]
    if not teams:
        raise UserError("no device of the cluster measures as this working tree would, as was said above.")
    return teams


def _stranger(
    one: Member, asked: Sequence[Any], entries: Sequence[Entry], assignment: Assignment
) -> str | None:
    """Why a member's sources are not this working tree's, by what it was ``asked`` of each entry; None where
    they are, and then it is known what it feels of its environment."""
    relevant_environment = []
    for theirs, entry in zip(asked, entries, strict=True):
        environment = one.described.environment
        expected = digests(Identity(entry.loaded, environment, assignment.settings, assignment.seed))
        try:
            there = Digests.model_validate_json(one.remote.answer(theirs))
        except (LostError, UserError) as error:
            return str(error).rstrip(".")
        if (there.measurement, there.source) != (expected.measurement, expected.source):
            return f"its sources of {entry.name} are not those of this working tree"
        relevant_environment.append(Values(there.environment))
    one.relevant_environment = tuple(relevant_environment)
    return None


def _apart(mine: Environment, usual: Environment) -> str:
    """What an environment has otherwise than that of most."""
    one, others = mine.model_dump(exclude=UNKEYED), usual.model_dump(exclude=UNKEYED)
    told = [f"{name} {one[name]} and not {others[name]}" for name in one if one[name] != others[name]]
    return f"its environment differs: {', '.join(told) or 'packages that providers need'}"


def _leave_out(one: Member, why: str, say: Say) -> None:
    say(f"{one.device} on {one.node.name} is not used: {why}.")
    one.remote.end()


def _different(own: dict[str, str], there: dict[str, str]) -> str | None:
    for name in own.keys() & there.keys():
        if own[name] != there[name]:
            return f"it has {name} {there[name]}, and this environment {own[name]}: install the same lock"
    return None
