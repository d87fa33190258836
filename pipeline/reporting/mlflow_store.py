"""An MLflow store that is made to show what it should, whatever it held before.

The store shows each ledger once: a parent run for it, a child run for each configuration. A run carries its
``identity`` (whose it is) and a ``digest`` of all it shows. Publishing looks for the identities of a ledger
and leaves a run with the right digest alone. MLflow can't take a metric back, so a run with another digest is
replaced and then deleted as MLflow deletes: it can be restored until ``mlflow gc``. Runs without an identity,
and those of other ledgers, are somebody else's and are never touched.

What an ad-hoc sweep measured is shown once, too, and stays: its runs are completed where a publisher was
killed, and neither replaced nor, where a person deleted them, made again.

A run is complete once it has ended, which is written last: what a killed publish left is completed by the
next. On SQLite a lock lets one publish in at a time. A server has none: publishers take a ledger's runs
in any order and look now and then what the others have done, so that they share the work, and look again at
the end until they find nothing to do; of equal runs that two made, both keep the one with the smallest id.
"""

from __future__ import annotations

import hashlib
import random
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from pipeline.points.frozen import digest
from pipeline.reporting.mlflow_address import sqlite_path
from pipeline.reporting.mlflow_connection import connected
from pipeline.reporting.mlflow_content import LedgerRuns, Run
from pipeline.reporting.mlflow_tags import (
    COMPLETE,
    DIGEST,
    FILES,
    IDENTITY,
    NOTE,
    PARENT,
    SIGNATURE,
    SUPERSEDED,
    added_by_hand,
    is_by_hand,
    signed,
)

if TYPE_CHECKING:
    from mlflow.exceptions import MlflowException

RUNS_A_PAGE = 5000
POLL_SHARE = 0.1
"""The share of a publish's time that may go into asking the store what other publishers wrote meanwhile."""

LOOKS = 8
"""Times to look again for what other publishers did at the same moment."""

Change = Literal["new", "updated", "unchanged", "removed"]
CHANGES: tuple[Change, ...] = get_args(Change)


@contextmanager
def opened(uri: str) -> Iterator[Store]:
    """The store at the URI. Raises as ``connected`` does."""
    with connected(uri) as client:
        yield Store(client, uri)


class Store:
    """An MLflow store that is there and can be written. Its ``uri`` may hold a password."""

    def __init__(self, client: Any, uri: str) -> None:
        self.uri = uri
        self._client = client
        self._path = sqlite_path(uri)

    def experiment(self, name: str, tags: Mapping[str, str]) -> str:
        """The id of the experiment, which has the tags; it is made, or restored if it was deleted, when it is
        not there. A description that a person wrote stays."""
        from mlflow.exceptions import MlflowException

        artifacts = str(self._path.parent / "mlartifacts" / name) if self._path else None
        wanted = signed(tags)
        found = self._client.get_experiment_by_name(name)
        if found is None:
            try:
                return str(self._client.create_experiment(name, artifacts, wanted))
            except MlflowException:
                # Another publisher was quicker, or this is an error that the next line meets as well.
                found = self._client.get_experiment_by_name(name)
                if found is None:
                    raise
        if found.lifecycle_stage == "deleted":
            self._client.restore_experiment(found.experiment_id)
        self._tag(found, wanted)
        return str(found.experiment_id)

    def add_tag(self, experiment: str, name: str, value: str) -> None:
        """Give an experiment one more tag."""
        self._tag(self._client.get_experiment(experiment), {name: value})

    def _tag(self, experiment: Any, wanted: Mapping[str, str]) -> None:
        """Write the tags that the experiment does not have so yet, unless another publisher just does."""
        from mlflow.exceptions import MlflowException

        there = experiment.tags
        kept = {NOTE, SIGNATURE} if is_by_hand(there) else set()
        for name, value in wanted.items():
            if name in kept or there.get(name) == value:
                continue
            try:
                self._client.set_experiment_tag(experiment.experiment_id, name, value)
            except MlflowException as error:
                if not _met_another(error):
                    raise

    def publish(self, experiment: str, sweep: LedgerRuns, tick: Callable[[], None]) -> Counter[Change]:
        """Make the experiment show the sweep. ``tick`` is called once for each of its runs.

        Returns how many runs are new, updated, unchanged or removed.
        """
        from mlflow.exceptions import MlflowException

        parent, total = "", Counter[Change]()
        for look in range(LOOKS):
            try:
                parent, changes = self._look(experiment, sweep, tick if look == 0 else lambda: None)
            except MlflowException as error:
                if not _met_another(error) or look == LOOKS - 1:
                    raise
                continue
            total = total or changes
            if self._path is not None or changes["unchanged"] == changes.total():
                break  # who holds the store alone has nobody's work to look for
        if sweep.stays:
            try:
                self._client.set_tag(parent, COMPLETE, "true")
            except MlflowException as error:
                if not _met_another(error):
                    raise
        return total

    def parent_of(self, kernel: str, gpu: str, commit: str) -> str | None:
        """The run of a kernel's measurements on a GPU at a commit; None where there is none."""
        found = self._client.get_experiment_by_name(kernel)
        if found is None or found.lifecycle_stage == "deleted":
            return None
        for run in self._search(found.experiment_id, f"tags.gpu = '{gpu}' and tags.commit = '{commit}'"):
            if run.data.tags.get("kind") in ("sweep", "ad_hoc"):
                return str(run.info.run_id)
        return None

    def configurations(
        self, experiment: str, which: str
    ) -> list[tuple[str, Mapping[str, str], Mapping[str, str]]]:
        """The configurations' runs that MLflow finds by the filter, the newest first: ids, tags, params."""
        found = list(self._search(experiment, f"tags.kind = 'config' and {which}"))
        found.sort(key=lambda run: (-(run.info.end_time or 0), str(run.info.run_id)))
        return [(str(run.info.run_id), run.data.tags, run.data.params) for run in found]

    def settled(self, experiment: str, kind: str) -> dict[str, str]:
        """The runs of that kind which stay and need nothing more, by identity: those that are complete, and
        those that a person deleted."""
        found: dict[str, str] = {}
        for run in self._search(experiment, f"tags.kind = '{kind}'", deleted=True):
            tags = run.data.tags
            if SUPERSEDED not in tags and (_is_deleted(run) or COMPLETE in tags):
                found[tags.get(IDENTITY, "")] = str(run.info.run_id)
        return found

    def _look(
        self, experiment: str, sweep: LedgerRuns, tick: Callable[[], None]
    ) -> tuple[str, Counter[Change]]:
        """Compare all runs of the sweep with what they should be, and put right what differs."""
        alone = self._path is not None
        polled = PollCache(lambda: self._find(experiment, sweep), at_most=0 if alone else POLL_SHARE)
        changes: Counter[Change] = Counter()
        doomed: set[str] = set()
        of_parent: dict[str, str] = {}
        for run in (sweep.parent, *(sweep.children if alone else _shuffled(sweep.children))):
            existing = polled.runs(run.identity)
            run_id, change = self._show(experiment, run, existing, of_parent, sweep.stays)
            if run is sweep.parent and change != "unchanged" and not alone:
                # Whoever began at the same moment takes the same one.
                polled.poll()
                existing = polled.runs(run.identity)
                run_id, _ = self._show(experiment, run, existing, of_parent, sweep.stays)
            doomed |= {other.info.run_id for other in existing if other.info.run_id != run_id}
            if run is sweep.parent:
                of_parent = {PARENT: run_id}
                if self._upload(run_id, existing, sweep.files) and change == "unchanged":
                    change = "updated"
            changes[change] += 1
            tick()
        shown = {run.identity for run in (sweep.parent, *sweep.children)}
        superseded = {
            run.info.run_id for name, runs in polled.found.items() if name not in shown for run in runs
        }
        for run_id in sorted(doomed if sweep.stays else doomed | superseded):
            if sweep.stays:
                self._client.set_tag(run_id, SUPERSEDED, "true")
            self._client.delete_run(run_id)
        changes["removed"] += 0 if sweep.stays else len(superseded)
        return of_parent[PARENT], changes

    def _find(self, experiment: str, sweep: LedgerRuns) -> dict[str, list[Any]]:
        """The runs that show the sweep's ledger now, by identity, those with the smallest id first."""
        found: dict[str, list[Any]] = defaultdict(list)
        runs = self._search(experiment, sweep.which)
        for run in sorted(runs, key=lambda run: str(run.info.run_id)):
            identity = run.data.tags.get(IDENTITY, "")
            if identity == sweep.parent.identity or identity.startswith(f"{sweep.parent.identity}/"):
                found[identity].append(run)
        return found

    def _search(self, experiment: str, which: str, deleted: bool = False) -> Iterator[Any]:
        """The experiment's runs that MLflow finds by the filter, with ``deleted`` those, too."""
        from mlflow.entities import ViewType

        kind = ViewType.ALL if deleted else ViewType.ACTIVE_ONLY
        token: str | None = None
        while True:
            page = self._client.search_runs(
                [experiment], which, kind, max_results=RUNS_A_PAGE, page_token=token
            )
            yield from page
            token = page.token
            if not token:
                return

    def _show(
        self, experiment: str, run: Run, existing: list[Any], of_parent: dict[str, str], stays: bool
    ) -> tuple[str, Change]:
        """Have one run show what it should; which one that is, and what had to be done for it."""
        right = next(
            (other for other in existing if stays or other.data.tags.get(DIGEST) == run.digest), None
        )
        if right is None:
            made = self._client.create_run(
                experiment,
                start_time=run.started_ms,
                run_name=run.name,
                tags={
                    **signed(run.tags),
                    **added_by_hand((other.data.tags for other in existing), run.tags),
                    **of_parent,
                    IDENTITY: run.identity,
                    DIGEST: run.digest,
                },
            )
            self._complete(made.info.run_id, run)
            return str(made.info.run_id), "updated" if existing else "new"
        change: Change = "unchanged"
        if right.info.status not in ("FINISHED", "FAILED"):
            self._complete(right.info.run_id, run)
            change = "updated"
        for key, value in of_parent.items():
            if right.data.tags.get(key) != value:
                self._client.set_tag(right.info.run_id, key, value)
        return str(right.info.run_id), change

    def _complete(self, run_id: str, run: Run) -> None:
        """Write what a run shows and then end it; writing it a second time changes nothing."""
        from mlflow.entities import Metric, Param

        metrics = [Metric(value.key, value.value, value.at_ms, value.step) for value in run.values]
        params = [Param(key, value) for key, value in run.params.items()]
        self._client.log_batch(run_id, metrics, params)
        self._client.set_terminated(run_id, "FAILED" if run.failed else "FINISHED", run.ended_ms)

    def _upload(self, run_id: str, existing: list[Any], files: Mapping[str, Path]) -> bool:
        """Upload the artifacts unless the run has them already; whether there was anything to do."""
        wanted = digest({name: hashlib.sha256(path.read_bytes()).hexdigest() for name, path in files.items()})
        if any(run.info.run_id == run_id and run.data.tags.get(FILES) == wanted for run in existing):
            return False
        for name, path in files.items():
            self._client.log_artifact(run_id, str(path), str(Path(name).parent))
        self._client.set_tag(run_id, FILES, wanted)
        return True


class PollCache:
    """The runs that a store holds, by identity. It is asked again while others write: never for more than the
    share ``at_most`` of the time since it was last asked."""

    def __init__(self, find: Callable[[], dict[str, list[Any]]], at_most: float) -> None:
        self._find = find
        self._at_most = at_most
        self.poll()

    def poll(self) -> None:
        """Ask the store now."""
        began = time.monotonic()
        self.found = self._find()
        self._at = time.monotonic()
        self._cost = self._at - began

    def runs(self, identity: str) -> list[Any]:
        """The runs with the identity, as of a moment ago."""
        if self._at_most * (time.monotonic() - self._at) > self._cost:
            self.poll()
        return self.found.get(identity, [])


def _is_deleted(run: Any) -> bool:
    return bool(run.info.lifecycle_stage == "deleted")


def _met_another(error: MlflowException) -> bool:
    """Whether another publisher deleted a run while it was being written, or wrote the same just then."""
    if error.error_code == "BAD_REQUEST":  # as MLflow names whatever the database refused
        return "IntegrityError" in str(error) or "UniqueViolation" in str(error)
    return error.error_code in ("INVALID_PARAMETER_VALUE", "INVALID_STATE", "RESOURCE_DOES_NOT_EXIST")


def _shuffled(children: Sequence[Run]) -> list[Run]:
    """The same runs in an order that no other publisher takes."""
    return random.sample(children, len(children))
