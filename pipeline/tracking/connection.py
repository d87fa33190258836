"""Find an MLflow store and connect to it without MLflow's own output. Each failure becomes a short clause."""

from __future__ import annotations

import fcntl
import logging
import os
import re
import shlex
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from kernel_pipeline.errors import UserError
from kernel_pipeline.records.credentials import hidden, public, taken_apart

from .. import ROOT

DEFAULT_STORE = f"sqlite:///{ROOT / 'mlflow.db'}"
"""An SQLite file at the repository's root."""

LOCAL_SERVER = "http://127.0.0.1:5000"
"""The server for ``tracking=server`` if MLFLOW_TRACKING_URI is not set."""

OFFLINE = {"MLFLOW_DISABLE_TELEMETRY": "true", "DO_NOT_TRACK": "true"}
"""Environment variables that turn MLflow's telemetry off."""

QUIET = {**OFFLINE, "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true", "MLFLOW_CONFIGURE_LOGGING": "false"}

PATIENCE = {
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "5",
    "MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR": "1",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "30",
}
"""Retry for half a minute while a server restarts; MLflow's defaults would wait for minutes."""

EMPTY = "0"
"""The id of the experiment that MLflow makes in a new store."""


class TrackerError(Exception):
    """The store can't be used. The text is a clause that gives the reason."""


def store_uri(name: str, uri: str | None) -> str:
    """Return the URI of the store that ``tracking=NAME`` and ``tracking.uri=URI`` name.

    It is ``uri``, else MLFLOW_TRACKING_URI, else this machine's server or the repository's SQLite file. It
    may hold a password."""
    chosen = uri or os.environ.get("MLFLOW_TRACKING_URI") or (LOCAL_SERVER if name == "server" else "")
    path = sqlite_path(chosen or DEFAULT_STORE)
    return f"sqlite:///{path}" if path else chosen


def sqlite_path(uri: str) -> Path | None:
    """Return the absolute path of an SQLite store's file, or None for any other store."""
    if not uri.startswith("sqlite:///"):
        return None
    return Path(uri.removeprefix("sqlite:///").partition("?")[0]).absolute()


def is_server(uri: str) -> bool:
    """Return whether the store is reached over HTTP."""
    return uri.startswith(("http://", "https://"))


def client_settings(uri: str) -> tuple[str, dict[str, str]]:
    """Return the address for MLflow's client, and environment variables with a server's user and password.
    MLflow does not store or log credentials from its environment. Raises UserError if the URI is invalid."""
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
    if not is_server(uri):
        return address.whole, {}
    if re.search(r"[?#]", address.uri):
        raise UserError(
            f"the address of the MLflow server {shown} has a query, which MLflow can't send; "
            "leave it out, and set MLFLOW_TRACKING_TOKEN to a token."
        )
    if address.user is None:
        return address.uri, {}
    if not (address.user and address.password):
        raise UserError(
            f"the address of the MLflow server {shown} needs a user and a password before the @; "
            "leave both out, and set MLFLOW_TRACKING_TOKEN to a token."
        )
    return address.uri, {
        "MLFLOW_TRACKING_USERNAME": address.user,
        "MLFLOW_TRACKING_PASSWORD": address.password,
    }


@contextmanager
def connected(uri: str) -> Iterator[Any]:
    """Yield a client of the store at the URI. An SQLite store has one publisher at a time: others wait here.

    Raises UserError if the URI is invalid. Raises TrackerError if the store can't be used, also when it fails
    inside the context.
    """
    path = sqlite_path(uri)
    address, variables = client_settings(uri)
    os.environ.update(QUIET)
    for name in ("mlflow", "alembic", "urllib3", "sqlalchemy"):
        logging.getLogger(name).setLevel(logging.CRITICAL + 1)
    for name, value in PATIENCE.items():
        os.environ.setdefault(name, value)
    with ExitStack() as stack:
        stack.enter_context(_environment(variables))
        if path:
            stack.enter_context(_locked(path))
        stack.enter_context(_as_tracker_error(uri))
        if path and not (path.exists() and path.stat().st_size):
            _make(path)
        yield _client(address)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold the lock file beside an SQLite store, so that no table or run is made twice."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.with_name(f"{path.name}.lock").open("w")
    except OSError as error:
        raise TrackerError(f"{path} can't be written ({error.strerror})") from error
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print(f"Another command publishes to {path}: waiting until it ends.", flush=True)
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _make(path: Path) -> None:
    """Create an SQLite store atomically. A full disk or a kill could leave a half-made store, which MLflow
    can't use. The caller holds the store's lock."""
    aside = path.with_name(f".{path.name}.new")
    leftovers = (aside, aside.with_name(f"{aside.name}-journal"))
    for file in leftovers:
        file.unlink(missing_ok=True)
    try:
        # Delete MLflow's default experiment, which would stay empty.
        _client(f"sqlite:///{aside}").delete_experiment(EMPTY)
        aside.replace(path)
    finally:
        for file in leftovers:
            file.unlink(missing_ok=True)


def _client(uri: str) -> Any:
    """Return a client of a store, after checking that the store answers."""
    path = sqlite_path(uri)
    if path:
        # MLflow would retry an unusable file for two minutes.
        with sqlite3.connect(path, timeout=20) as connection:
            connection.execute("BEGIN IMMEDIATE")
        connection.close()
    from mlflow import MlflowClient

    client = MlflowClient(uri, registry_uri=uri)
    with _environment({"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0", "MLFLOW_HTTP_REQUEST_TIMEOUT": "5"}):
        client.search_experiments(max_results=1)
    return client


@contextmanager
def _as_tracker_error(uri: str) -> Iterator[None]:
    """Turn the store's errors into a TrackerError whose text has no credentials."""
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
    # Remove credentials before the text is cut: a truncated address could not be recognized.
    text = hidden(str(error), [uri])
    if found := re.search(r"out-of-date database schema \(found version (\w+)", text):
        return f"its tables belong to another MLflow version: {_schema_remedy(found[1], uri)}"
    known = {
        "Connection refused": "connection refused",
        "timed out": "it does not answer",
        "Name or service not known": "there is no such host",
        "Failed to resolve": "there is no such host",
    }
    return next((words for sign, words in known.items() if sign in text), " ".join(text.split())[:300])


def _schema_remedy(revision: str, uri: str) -> str:
    """Return the command that makes a store of another MLflow version usable."""
    import mlflow

    migrations = Path(mlflow.__file__).parent / "store" / "db_migrations" / "versions"
    if not any(migrations.glob(f"{revision}_*.py")):
        return (
            f"a newer MLflow than {mlflow.__version__} wrote them; python -m pip install --upgrade mlflow "
            "installs it"
        )
    shown = hidden(uri, [uri])
    named = shlex.quote(uri) if shown == uri else '"$MLFLOW_TRACKING_URI"'
    return f"python -m mlflow db upgrade {named} brings them up to date"


@contextmanager
def _environment(values: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables within the context."""
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
