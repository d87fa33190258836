"""Write runs to an MLflow store and bring the runs that it already holds up to date.

A run has tags for its ``identity`` and a ``digest`` of its content. Publishing looks up the identities of a
ledger and keeps each run whose digest is equal. MLflow can't remove a metric, so a run with another digest is
replaced and then deleted: MLflow can restore it until ``mlflow gc``. Runs without an identity and runs of
other ledgers are never touched.

A parent run ends after its children and artifacts are written, so the next publish completes a parent that
was interrupted. The runs of an ad-hoc sweep stay as they are once their parent has ended, and are not written
again if a person deleted the parent.

An SQLite store has one publisher at a time, which a lock ensures. Several publishers may write the same
ledger to a server. Each may then create the same run; the last of them to finish keeps the run with the
smallest id. Only a publish that starts while another publish runs, or after a publish was killed, deletes
runs that have not ended. A publisher whose run is deleted starts again, with the runs that the store then
has.
"""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, get_args

from kernel_pipeline.records.base import digest

from .connection import connected, sqlite_path
from .run_families import NOTE, Run, RunFamily

IDENTITY, DIGEST, FILES = "identity", "digest", "files"
"""Names of tags: a run's identity, the digest of its content, and the digest of its artifacts."""

SIGNATURE = "mlflow.note.published"
"""Name of the tag with the digest of the published description. A difference shows that a person has edited
the description."""

PARENT = "mlflow.parentRunId"
"""Name of the tag that holds a child run's parent id."""

ENDED = ("FINISHED", "FAILED")

RUNS_A_PAGE = 5000

DELETED = "must be in the 'active' state. Current state is deleted"
"""A part of MLflow's message about a write to a deleted run."""

RESTARTS = 10
"""How often a publisher starts again, at most, because others delete the runs that it is writing."""

Change = Literal["new", "updated", "unchanged", "removed"]
CHANGES: tuple[Change, ...] = get_args(Change)

Find = Callable[[str, RunFamily], dict[str, list[Any]]]


@contextmanager
def opened(uri: str) -> Iterator[Store]:
    """Yield the store at the URI. Raises the errors of ``connected``."""
    with connected(uri) as client:
        yield Store(client, uri)


class Store:
    """An MLflow store with an open client."""

    def __init__(self, client: Any, uri: str) -> None:
        self._client = client
        self._path = sqlite_path(uri)

    def experiment(self, name: str, tags: Mapping[str, str]) -> str:
        """Return the id of the experiment ``name``, after giving it these tags. A missing experiment is
        created, a deleted one restored. A description that a person wrote stays."""
        wanted = _signed(tags)
        found = self._client.get_experiment_by_name(name)
        if found is None:
            artifacts = str(self._path.parent / "mlartifacts" / name) if self._path else None
            if (made := self._create(name, artifacts, wanted)) is not None:
                return made
            found = self._client.get_experiment_by_name(name)
        if found.lifecycle_stage == "deleted":
            self._client.restore_experiment(found.experiment_id)
        kept = {NOTE, SIGNATURE} if _is_by_hand(found.tags) else set()
        for key, value in wanted.items():
            if key not in kept and found.tags.get(key) != value:
                self._client.set_experiment_tag(found.experiment_id, key, value)
        return str(found.experiment_id)

    def _create(self, name: str, artifacts: str | None, tags: Mapping[str, str]) -> str | None:
        """Create an experiment. Returns its id, or None if another publisher has created it meanwhile."""
        from mlflow.exceptions import MlflowException
        from mlflow.protos.databricks_pb2 import RESOURCE_ALREADY_EXISTS, ErrorCode

        try:
            return str(self._client.create_experiment(name, artifacts, tags))
        except MlflowException as error:
            if error.error_code != ErrorCode.Name(RESOURCE_ALREADY_EXISTS):
                raise
            return None

    def parent_of(self, kernel: str, gpu: str, commit: str) -> str | None:
        """Return the id of a parent run with a kernel's measurements on a GPU at a commit, or None."""
        found = self._client.get_experiment_by_name(kernel)
        if found is None or found.lifecycle_stage == "deleted":
            return None
        for run in self._search(found.experiment_id, f"tags.gpu = '{gpu}' and tags.commit = '{commit}'"):
            if run.data.tags.get("kind") in ("sweep", "ad_hoc"):
                return str(run.info.run_id)
        return None

    def settled(self, experiment: str, kind: str) -> set[str]:
        """Return the identities of runs of a kind that have ended or that a person deleted."""
        states: dict[str, set[str]] = defaultdict(set)
        for run in self._search(experiment, f"tags.kind = '{kind}'", deleted=True):
            state = "deleted" if run.info.lifecycle_stage == "deleted" else run.info.status
            states[run.data.tags.get(IDENTITY, "")].add(state)
        return {name for name, found in states.items() if found <= {"deleted", *ENDED}}

    def publish(self, experiment: str, family: RunFamily, tick: Callable[[], None]) -> Counter[Change]:
        """Write the runs of a family that differ from the store's, and delete stored runs that the family no
        longer has. ``tick`` is called once for each run. Returns the number of runs by change."""
        changes = self._attempt(experiment, family, self._find, tick)
        while self._path is None and changes.total() > changes["unchanged"]:
            if _is_consistent(family, self._find_ended(experiment, family)):
                break
            self._attempt(experiment, family, self._find_ended, lambda: None)
        return changes

    def _attempt(
        self, experiment: str, family: RunFamily, find: Find, tick: Callable[[], None]
    ) -> Counter[Change]:
        """Publish a family, of which ``find`` returns the store's runs. Starts again if another publisher
        deletes a run that this one is writing."""
        from mlflow.exceptions import MlflowException

        for _ in range(RESTARTS):
            try:
                return self._publish(experiment, family, find(experiment, family), tick)
            except MlflowException as error:
                if DELETED not in str(error):
                    raise
                tick = lambda: None  # noqa: E731
        return self._publish(experiment, family, find(experiment, family), tick)

    def _publish(
        self, experiment: str, family: RunFamily, there: dict[str, list[Any]], tick: Callable[[], None]
    ) -> Counter[Change]:
        """Publish a family, of which the store has the runs ``there``."""
        existing = there.pop(family.parent.identity, [])
        parent, change = self._show(experiment, family.parent, existing, {}, family.stays)
        superseded = [run.info.run_id for run in existing if run.info.run_id != parent]
        children: Counter[Change] = Counter()
        for run in family.children:
            tick()
            existing = there.pop(run.identity, [])
            run_id, done = self._show(experiment, run, existing, {PARENT: parent}, family.stays)
            superseded += [other.info.run_id for other in existing if other.info.run_id != run_id]
            if done != "unchanged":
                self._end(run_id, run)
            children[done] += 1
        if self._upload(parent, family.files) and change == "unchanged":
            change = "updated"
        if change != "unchanged":
            self._end(parent, family.parent)
        changes = Counter({change: 1}) + children
        if not family.stays:
            gone = [run.info.run_id for runs in there.values() for run in runs]
            superseded += gone
            changes["removed"] += len(gone)
        for run_id in sorted(superseded):
            self._client.delete_run(run_id)
        tick()
        return changes

    def _find(self, experiment: str, family: RunFamily) -> dict[str, list[Any]]:
        """Return the family's runs in the store by identity, smallest id first."""
        found: dict[str, list[Any]] = defaultdict(list)
        whole = family.parent.identity
        runs = self._search(experiment, family.search)
        for run in sorted(runs, key=lambda run: str(run.info.run_id)):
            identity = run.data.tags.get(IDENTITY, "")
            if identity == whole or identity.startswith(f"{whole}/"):
                found[identity].append(run)
        return found

    def _find_ended(self, experiment: str, family: RunFamily) -> dict[str, list[Any]]:
        """Return those of the family's runs that have ended, by identity, smallest id first."""
        return {
            identity: [run for run in runs if run.info.status in ENDED]
            for identity, runs in self._find(experiment, family).items()
        }

    def _search(self, experiment: str, search: str, deleted: bool = False) -> Iterator[Any]:
        """Yield the experiment's runs that match the filter ``search``, with deleted runs if ``deleted``."""
        from mlflow.entities import ViewType

        kind = ViewType.ALL if deleted else ViewType.ACTIVE_ONLY
        token: str | None = None
        while True:
            page = self._client.search_runs(
                [experiment], search, kind, max_results=RUNS_A_PAGE, page_token=token
            )
            yield from page
            token = page.token
            if not token:
                return

    def _show(
        self, experiment: str, run: Run, existing: list[Any], parent: Mapping[str, str], stays: bool
    ) -> tuple[str, Change]:
        """Write a run unless the store has it. The caller has to end a written run. Returns its id and the
        change."""
        for other in existing:
            tags = other.data.tags
            if stays or tags.get(DIGEST) == run.digest:
                for key, value in parent.items():
                    if tags.get(key) != value:
                        self._client.set_tag(other.info.run_id, key, value)
                if other.info.status in ENDED:
                    return str(other.info.run_id), "unchanged"
                self._write(other.info.run_id, run)
                return str(other.info.run_id), "updated"
        tags = _signed(run.tags) | _added_by_hand((other.data.tags for other in existing), run.tags)
        made = self._client.create_run(
            experiment,
            start_time=run.started_ms,
            run_name=run.name,
            tags={**tags, **parent, IDENTITY: run.identity, DIGEST: run.digest},
        )
        self._write(made.info.run_id, run)
        return str(made.info.run_id), "updated" if existing else "new"

    def _write(self, run_id: str, run: Run) -> None:
        """Write a run's metrics and params. Writing them again changes nothing."""
        from mlflow.entities import Metric, Param

        metrics = [Metric(value.key, value.value, value.at_ms, value.step) for value in run.values]
        params = [Param(key, value) for key, value in run.params.items()]
        self._client.log_batch(run_id, metrics, params)

    def _end(self, run_id: str, run: Run) -> None:
        self._client.set_terminated(run_id, "FAILED" if run.failed else "FINISHED", run.ended_ms)

    def _upload(self, run_id: str, files: Mapping[str, Path]) -> bool:
        """Upload the artifacts unless the run has them already. Returns whether it uploaded them."""
        wanted = digest({name: hashlib.sha256(path.read_bytes()).hexdigest() for name, path in files.items()})
        if self._client.get_run(run_id).data.tags.get(FILES) == wanted:
            return False
        for name, path in files.items():
            self._client.log_artifact(run_id, str(path), str(Path(name).parent))
        self._client.set_tag(run_id, FILES, wanted)
        return True


def _is_consistent(family: RunFamily, there: Mapping[str, list[Any]]) -> bool:
    """Return whether the store has each run of a family once, below one parent."""
    parents = {run.info.run_id for run in there.get(family.parent.identity, ())}
    above = {
        run.data.tags.get(PARENT)
        for identity, runs in there.items()
        for run in runs
        if identity != family.parent.identity
    }
    return all(len(runs) < 2 for runs in there.values()) and (not parents or above <= parents)


def _added_by_hand(existing: Iterable[Mapping[str, str]], ours: Mapping[str, str]) -> dict[str, str]:
    """Return the tags and descriptions that people added to the ``existing`` runs, for the run that replaces
    them. ``ours`` are that run's own tags."""
    mine = {*ours, IDENTITY, DIGEST, FILES, SIGNATURE, NOTE}
    found: dict[str, str] = {}
    for tags in existing:
        found |= {
            key: value for key, value in tags.items() if key not in mine and not key.startswith("mlflow.")
        }
        if _is_by_hand(tags):
            found[NOTE] = tags[NOTE]
    return found


def _signed(tags: Mapping[str, str]) -> dict[str, str]:
    """Return the tags, with the digest of the description if there is one."""
    return {**tags, **({SIGNATURE: digest(tags[NOTE])} if NOTE in tags else {})}


def _is_by_hand(tags: Mapping[str, str]) -> bool:
    """Return whether a person wrote the description."""
    return NOTE in tags and digest(tags[NOTE]) != tags.get(SIGNATURE)
