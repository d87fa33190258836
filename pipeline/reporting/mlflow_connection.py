"""A connection to an MLflow store: made where there is none, held alone if it is SQLite, quiet, and with one
clause for all that can go wrong."""

from __future__ import annotations

import fcntl
import gc
import logging
import os
import re
import shlex
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from pipeline.reporting.mlflow_address import checked, sqlite_path
from pipeline.store.credentials import hidden

OFFLINE = {"MLFLOW_DISABLE_TELEMETRY": "true", "DO_NOT_TRACK": "true"}
"""Environment variables under which MLflow talks to nobody but its store."""

EMPTY = "0"
"""The id of the experiment that MLflow makes in a new store."""


class TrackerError(Exception):
    """The store can't be used; the text is a clause that says why."""


class HeldError(Exception):
    """Another process publishes to the SQLite store."""


@contextmanager
def connected(uri: str) -> Iterator[Any]:
    """A client of the store at the URI, which is held alone if it is SQLite.

    Raises HeldError where another process holds it, UserError for a URI that no store can have, and
    TrackerError when the store can't be used, then or at any time later.
    """
    path = sqlite_path(uri)
    address, variables = checked(uri)
    _keep_quiet()
    with ExitStack() as stack:
        stack.enter_context(_environment(variables))
        stack.enter_context(_alone(path))
        stack.enter_context(_as_tracker_error(uri))
        stack.enter_context(_without_gc())
        stack.enter_context(_made_quickly(path))
        yield _client(address)


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
def _alone(path: Path | None) -> Iterator[None]:
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
        except BlockingIOError as error:
            raise HeldError from error
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
    if found := re.search(r"out-of-date database schema \(found version (\w+)", text):
        return f"its tables are of another MLflow version: {_mended(found[1], uri)}"
    known = {
        "Connection refused": "connection refused",
        "timed out": "it does not answer",
        "Name or service not known": "there is no such host",
        "Failed to resolve": "there is no such host",
    }
    return next((words for sign, words in known.items() if sign in text), " ".join(text.split())[:300])


def _mended(revision: str, uri: str) -> str:
    """The command that brings a store of another MLflow up to date."""
    import mlflow

    migrations = Path(mlflow.__file__).parent / "store" / "db_migrations" / "versions"
    if not any(migrations.glob(f"{revision}_*.py")):
        return (
            f"a newer one than {mlflow.__version__} wrote it, which python -m pip install --upgrade mlflow "
            "brings"
        )
    shown = hidden(uri, [uri])
    named = shlex.quote(uri) if shown == uri else '"$MLFLOW_TRACKING_URI"'
    return f"python -m mlflow db upgrade {named} brings them up to date"


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
