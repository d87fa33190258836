"""Where an MLflow store is: a server's address, or an SQLite file."""

from __future__ import annotations

import os
import re
from pathlib import Path

from pipeline import ROOT, UserError
from pipeline.store.credentials import public, taken_apart

DEFAULT_STORE = f"sqlite:///{ROOT / 'mlflow.db'}"
"""One SQLite file at the repository's root."""

LOCAL_SERVER = "http://127.0.0.1:5000"
"""The server that ``tracking=server`` means where MLFLOW_TRACKING_URI names none."""


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


def checked(uri: str) -> tuple[str, dict[str, str]]:
    """What MLflow is told of a store: its address, and environment variables.

    MLflow gets a server's user and password by its own environment variables, so that no address that it
    keeps, logs or complains of holds them. Raises UserError for a URI that no store can have.
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
    if not is_server(uri):
        return address.whole, {}
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
    if not (address.user and address.password):
        return address.uri, {}
    return address.uri, {
        "MLFLOW_TRACKING_USERNAME": address.user,
        "MLFLOW_TRACKING_PASSWORD": address.password,
    }
