"""An MLflow store that is made to show what it should, whatever it held before. Nothing else imports MLflow.

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

import fcntl
import gc
import hashlib
import logging
import os
import random
import re
import sqlite3
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

from pipeline import ROOT, UserError
from pipeline.points.frozen import digest
from pipeline.store.credentials import hidden, public, taken_apart

if TYPE_CHECKING:
    from mlflow.exceptions import MlflowException

DEFAULT_STORE = f"sqlite:///{ROOT / 'mlflow.db'}"
"""One SQLite file at the repository's root."""

LOCAL_SERVER = "http://127.0.0.1:5000"
"""The server that ``tracking=server`` means where MLFLOW_TRACKING_URI names none."""

OFFLINE = {"MLFLOW_DISABLE_TELEMETRY": "true", "DO_NOT_TRACK": "true"}
"""Environment variables under which MLflow talks to nobody but its store."""

IDENTITY, DIGEST, FILES = "identity", "digest", "files"
"""Tags: whose run it is, what it shows, and which files its artifacts are."""

COMPLETE, SUPERSEDED = "complete", "superseded"
"""Tags of what stays: on a parent, that all of its runs are there; on a run that was made twice, that a
publisher, and no person, deleted it."""

NOTE, SIGNATURE = "mlflow.note.content", "mlflow.note.published"
"""Tags: a description, and the digest of the one that was published. A person may have written another."""

EMPTY = "0"
"""The id of the experiment that MLflow makes in a new store."""

PARENT = "mlflow.parentRunId"
RUNS_A_PAGE = 5000
POLL_SHARE = 0.1
"""The share of a publish's time that may go into asking the store what other publishers wrote meanwhile."""

LOOKS = 8
"""Times to look again for what other publishers did at the same moment."""

Change = Literal["new", "updated", "unchanged", "removed"]
CHANGES: tuple[Change, ...] = get_args(Change)


class Value(NamedTuple):
    """One metric at one step."""

    key: str
    value: float
    step: int
    at_ms: int


@dataclass(frozen=True)
class Run:
    """All that one MLflow run shows."""

    identity: str
    name: str
    failed: bool
    started_ms: int
    ended_ms: int
    tags: Mapping[str, str]
    params: Mapping[str, str]
    values: tuple[Value, ...]

    @cached_property
    def digest(self) -> str:
        """Sixteen hex digits that change with anything the run shows."""
        return digest({one.name: getattr(self, one.name) for one in fields(self)})

    def with_tags(self, tags: Mapping[str, str]) -> Run:
        """The same run with more tags."""
        return replace(self, tags={**self.tags, **tags})


@dataclass(frozen=True)
class LedgerRuns:
    """One ledger, or what one ad-hoc sweep measured, as MLflow shows it.

    ``which`` is the filter by which MLflow finds the runs, and perhaps others. ``files`` are the parent's
    artifacts, by their path there. ``stays`` tells a sweep's runs, which nothing replaces, from a ledger's.
    """

    points: int
    parent: Run
    children: tuple[Run, ...]
    which: str
    files: Mapping[str, Path] = field(default_factory=dict)
    stays: bool = False


class TrackerError(Exception):
    """The store can't be used; the text is a clause that says why."""


def store_of(name: str, uri: str | None) -> str:
    """The store that ``tracking=NAME`` with ``tracking.uri=URI`` means: the URI, else what
    MLFLOW_TRACKING_URI names, else this machine's server or our own file. It may hold a password."""
    chosen = uri or os.environ.get("MLFLOW_TRACKING_URI") or (LOCAL_SERVER if name == "server" else "")
    path = sqlite_path(chosen or DEFAULT_STORE)
    return f"sqlite:///{path}" if path else chosen


def sqlite_path(uri: str) -> Path | None:
    """The absolute path of an SQLite store's file, or None for any other store."""
    return (
        Path(uri.removeprefix("sqlite:///").partition("?")[0]).absolute()
        if uri.startswith("sqlite:///")
        else None
    )


def is_server(uri: str) -> bool:
    """Whether the store is reached over HTTP."""
    return uri.startswith(("http://", "https://"))


@contextmanager
def opened(uri: str, say: Callable[[str], None]) -> Iterator[Store]:
    """The store at the URI, held alone if it is SQLite; ``say`` gets a sentence if that means to wait.

    MLflow gets a server's user and password by its own environment variables, so that no address that it
    keeps, logs or complains of holds them. Raises UserError for a URI that no store can have, and
    TrackerError when the store can't be used, then or at any time later.
    """
    path = sqlite_path(uri)
    address = taken_apart(uri)
    shown = public(uri)
    if uri.startswith("file:") or not ("://" in uri or uri.startswith("databricks")):
        raise UserError(
            f"tracking.uri={shown} names a folder, and MLflow no longer keeps runs in folders; write "
            "tracking.uri=sqlite:////absolute/path/mlflow.db or the http:// address of an MLflow server."
        )
    if path and path.name in ("", "sqlite:", ":memory:"):
        raise UserError(
            f"tracking.uri={shown} names no file; write tracking.uri=sqlite:////absolute/path/mlflow.db."
        )
    credentials: dict[str, str] = {}
    if is_server(uri):
        if re.search(r"[?#]", address.uri):
            raise UserError(
                f"the address of the MLflow server {shown} goes on with a query, which MLflow can't send; "
                "leave it out, and set MLFLOW_TRACKING_TOKEN to a token."
            )
        if address.user is not None and not (address.user and address.password):
            raise UserError(
                f"the address of the MLflow server {shown} needs a user and a password before the @; "
                "leave both out, and set MLFLOW_TRACKING_TOKEN to a token."
            )
        if address.user and address.password:
            credentials = {
                "MLFLOW_TRACKING_USERNAME": address.user,
                "MLFLOW_TRACKING_PASSWORD": address.password,
            }
    _keep_quiet()
    with ExitStack() as stack:
        stack.enter_context(_environment(credentials))
        stack.enter_context(_alone(path, say))
        stack.enter_context(_as_tracker_error(uri))
        stack.enter_context(_without_gc())
        stack.enter_context(_made_quickly(path))
        yield Store(address.uri if is_server(uri) else address.whole)


class Store:
    """An MLflow store that is there and can be written."""

    def __init__(self, uri: str) -> None:
        self.uri = uri
        self._client = _client(uri)

    def experiment(self, name: str, tags: Mapping[str, str]) -> str:
        """The id of the experiment, which has the tags; it is made, or restored if it was deleted, when it is
        not there. A description that a person wrote stays."""
        from mlflow.exceptions import MlflowException

        path = sqlite_path(self.uri)
        artifacts = str(path.parent / "mlartifacts" / name) if path else None
        wanted = _signed(tags)
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
        kept = {NOTE, SIGNATURE} if _is_by_hand(there) else set()
        for name, value in wanted.items():
            if name in kept or there.get(name) == value:
                continue
            try:
                self._client.set_experiment_tag(experiment.experiment_id, name, value)
            except MlflowException as error:
                if not _met_another(error):
                    raise

    def publish(
        self, experiment: str, sweep: LedgerRuns, tick: Callable[[], None]
    ) -> tuple[str, Counter[Change]]:
        """Make the experiment show the sweep. ``tick`` is called once for each of its runs.

        Returns the parent's id, and how many runs are new, updated, unchanged or removed, it included.
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
            if changes["unchanged"] == changes.total():
                break
        if sweep.stays:
            try:
                self._client.set_tag(parent, COMPLETE, "true")
            except MlflowException as error:
                if not _met_another(error):
                    raise
        return parent, total

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
        alone = sqlite_path(self.uri) is not None
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
                    **_signed(run.tags),
                    **_added_by_hand(existing, run.tags),
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


def _added_by_hand(existing: list[Any], ours: Mapping[str, str]) -> dict[str, str]:
    """Notes and tags that people gave to runs which are about to be replaced by one with our tags."""
    mine = {*ours, IDENTITY, DIGEST, FILES, SUPERSEDED, SIGNATURE, NOTE}
    tags = [run.data.tags for run in existing]
    notes = [there[NOTE] for there in tags if _is_by_hand(there)]
    return ({NOTE: notes[-1]} if notes else {}) | {
        key: value
        for there in tags
        for key, value in there.items()
        if key not in mine and not key.startswith("mlflow.")
    }


def _signed(tags: Mapping[str, str]) -> dict[str, str]:
    """The tags, with the digest of the description among them."""
    return {**tags, **({SIGNATURE: digest(tags[NOTE])} if NOTE in tags else {})}


def _is_by_hand(tags: Mapping[str, str]) -> bool:
    """Whether a person wrote the description."""
    return NOTE in tags and digest(tags[NOTE]) != tags.get(SIGNATURE)


def _keep_quiet() -> None:
    """No telemetry, no log lines, no links between ours; to be called before MLflow is imported."""
    os.environ.update(OFFLINE)
    os.environ["MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT"] = "true"
    os.environ["MLFLOW_CONFIGURE_LOGGING"] = "false"
    for name in ("mlflow", "alembic", "urllib3", "sqlalchemy"):
        logging.getLogger(name).setLevel(logging.CRITICAL + 1)
    # Half a minute for a server that is started again; MLflow would wait for minutes.
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "5")
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR", "1")
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "30")


def _client(uri: str) -> Any:
    """A client of a store that has answered; an SQLite store is made when there is none."""
    path = sqlite_path(uri)
    if path and not (path.exists() and path.stat().st_size):
        _make(path)
    return _answering(uri)


def _make(path: Path) -> None:
    """Make an SQLite store whole or not at all: MLflow can't go on with one whose making was broken off, by a
    full disk or a kill. Whoever calls it holds the store's lock."""
    aside = path.with_name(f".{path.name}.new")
    leftovers = (aside, aside.with_name(f"{aside.name}-journal"))
    for file in leftovers:
        file.unlink(missing_ok=True)
    try:
        # The experiment that MLflow makes by itself would stay empty among ours.
        _answering(f"sqlite:///{aside}").delete_experiment(EMPTY)
        aside.replace(path)
    finally:
        for file in leftovers:
            file.unlink(missing_ok=True)


def _answering(uri: str) -> Any:
    """A client of a store that has answered."""
    path = sqlite_path(uri)
    if path:
        # MLflow would try an unusable file again for two minutes.
        with sqlite3.connect(path, timeout=20) as connection:
            connection.execute("BEGIN IMMEDIATE")
        connection.close()
    from mlflow import MlflowClient

    client = MlflowClient(uri, registry_uri=uri)
    with _environment({"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0", "MLFLOW_HTTP_REQUEST_TIMEOUT": "5"}):
        client.search_experiments(max_results=1)
    return client


@contextmanager
def _alone(path: Path | None, say: Callable[[str], None]) -> Iterator[None]:
    """Hold the lock of an SQLite store, so that runs are not made twice and the tables only once."""
    if path is None:
        yield
        return
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.with_name(f"{path.name}.lock").open("w")
    except OSError as error:
        raise TrackerError(f"{path} can't be written ({error.strerror})") from error
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"Another publish is writing to {path}; this one goes on after it.")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


@contextmanager
def _made_quickly(path: Path | None) -> Iterator[None]:
    """Let SQLite not wait for the disk after each of a thousand commits while it makes a store, which holds
    nothing yet that a power cut could take. A store that was there before is written with all care."""
    if path is None or (path.exists() and path.stat().st_size):
        yield
        return
    from sqlalchemy import event
    from sqlalchemy.engine import Engine

    def dont_wait(connection: Any, _: Any) -> None:
        connection.execute("PRAGMA synchronous=OFF")

    event.listen(Engine, "connect", dont_wait)
    try:
        yield
    finally:
        event.remove(Engine, "connect", dont_wait)
    with path.open("rb") as file:
        os.fsync(file.fileno())


@contextmanager
def _as_tracker_error(uri: str) -> Iterator[None]:
    """What can go wrong with the store, as one clause without its credentials."""
    try:
        yield
    except (sqlite3.Error, OSError) as error:
        raise TrackerError(_clause(error, uri)) from error
    except ImportError as error:
        raise TrackerError(f"the Python package {error.name} is missing") from error
    except Exception as error:
        if not type(error).__module__.startswith(("mlflow.", "sqlalchemy.", "requests.")):
            raise
        raise TrackerError(_clause(error, uri)) from error


def _clause(error: Exception, uri: str) -> str:
    # Before it is cut: half an address can't be told from a word.
    text = hidden(str(error), [uri])
    if "out-of-date database schema" in text:
        return (
            "its tables are of another MLflow version, `mlflow db upgrade` and its URI brings them up to date"
        )
    known = {
        "Connection refused": "connection refused",
        "timed out": "it does not answer",
        "Name or service not known": "there is no such host",
        "Failed to resolve": "there is no such host",
    }
    return next((words for sign, words in known.items() if sign in text), " ".join(text.split())[:300])


@contextmanager
def _environment(values: Mapping[str, str]) -> Iterator[None]:
    """Environment variables for a while."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


@contextmanager
def _without_gc() -> Iterator[None]:
    """Python's cyclic collector costs as much as MLflow's own work here, and there is little to collect."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
