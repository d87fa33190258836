"""Passwords and tokens: separate them from URIs, and remove them from everything that is shown or written.

The last ``@`` before a query ends the credentials, so that a password may contain ``/`` and ``@``. An ``@``
in a path must be written ``%40``.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated
from urllib.parse import quote, unquote

from .fields import Changed, short

SECRETS = ("MLFLOW_TRACKING_PASSWORD", "MLFLOW_TRACKING_TOKEN")
"""Environment variables whose values are never shown; MLFLOW_TRACKING_URI may contain a password, too."""


TRACKER = (*SECRETS, "MLFLOW_TRACKING_URI", "MLFLOW_TRACKING_USERNAME")
"""Environment variables that only processes that connect to MLflow need."""

_withdrawn: dict[str, str] = {}


@dataclass(frozen=True)
class Address:
    """A URI split into the address and the credentials. ``user`` and ``password`` are decoded; None if the
    URI has none. A query in ``uri`` may still contain a token, so show ``public(uri)`` instead."""

    uri: str = field(repr=False)
    user: str | None = field(default=None, repr=False)
    password: str | None = field(default=None, repr=False)

    @property
    def whole(self) -> str:
        """The URI with its credentials, encoded so that every parser finds the host."""
        if self.user is None:
            return self.uri
        who = quote(self.user, safe="") + (
            "" if self.password is None else f":{quote(self.password, safe='')}"
        )
        scheme, _, rest = self.uri.partition("://")
        return f"{scheme}://{who}@{rest}"


def taken_apart(uri: str) -> Address:
    """Split a URI into its address and its credentials. A path, such as SQLite's, has no credentials."""
    scheme, mark, rest = uri.partition("://")
    if not mark or rest.startswith("/"):
        return Address(uri)
    before_query = re.split(r"[?#]", rest, maxsplit=1)[0]
    # A port is a number. Other text in its place is the start of a password that contains ? or #.
    port = before_query.partition(":")[2].partition("/")[0]
    searched = rest if "@" not in before_query and port and not port.isdigit() else before_query
    who, at, _ = searched.rpartition("@")
    if not at:
        return Address(uri)
    user, colon, password = who.partition(":")
    return Address(f"{scheme}://{rest[len(who) + 1 :]}", unquote(user), unquote(password) if colon else None)


def public(uri: str) -> str:
    """Return a URI without user, password and query, which may contain a token."""
    scheme, mark, rest = uri.partition("://")
    if mark and rest.startswith("/"):
        return uri
    host = re.split(r"[?#]", (rest if mark else uri).rpartition("@")[2], maxsplit=1)[0]
    return f"{scheme}{mark}{host}" if mark else host


def withdraw() -> None:
    """Remove the variables that only MLflow's clients need from this process's environment, because kernels'
    code runs here or in processes that inherit it. Their values are still masked."""
    for name in TRACKER:
        if name in os.environ:
            _withdrawn[name] = os.environ.pop(name)


def without_tracker(environment: Mapping[str, str]) -> dict[str, str]:
    """Return an environment without MLflow's variables, for processes that run kernels' code."""
    return {name: value for name, value in environment.items() if name not in TRACKER}


def masked(text: str) -> str:
    """Return a text, such as a provider's or a compiler's message, without the secrets of the environment and
    the command line."""
    return _without(text, [*_secrets(), *(taken_apart(uri).password or "" for uri in _addresses())])


MaskedText = Annotated[str, Changed(lambda text: short(masked(text)))]
"""A ``Text`` of a record that holds messages of kernels' code, compilers or tools."""


def hidden(text: str, uris: Sequence[str] = ()) -> str:
    """Return a text without the credentials of the given URIs, of URIs in the environment and on the command
    line, and of any URI in the text."""
    secrets = _secrets()
    for uri in (*uris, *_addresses()):
        address = taken_apart(uri)
        for whole in {uri, address.whole}:
            text = text.replace(whole, public(whole))
        secrets.append(address.password or "")
    text = _without(text, secrets)
    text = re.sub(r"(\w://)(?!/)\S*@", r"\1", text)
    return re.sub(r"([?&][\w.-]+=)[^&\s'\"]+", r"\1...", text)


def _secrets() -> list[str]:
    return [os.environ.get(name) or _withdrawn.get(name, "") for name in SECRETS]


def _addresses() -> list[str]:
    """Return the URIs of the environment and the command line, which may contain a password."""
    given = [word for word in (*sys.orig_argv, *sys.argv) if "://" in word]
    uris = [word.partition("=")[2] if re.match(r"[\w.+~]*=", word) else word for word in given]
    name = "MLFLOW_TRACKING_URI"
    return [uri for uri in (os.environ.get(name) or _withdrawn.get(name, ""), *uris) if uri]


def _without(text: str, secrets: Sequence[str]) -> str:
    """Return a text without the secrets, whether plain or as quoted in a URI, in Python or in JSON. Secrets
    of fewer than four characters are not removed, because they also occur in other words."""
    for secret in secrets:
        if len(secret) > 3:
            for spelled in {secret, quote(secret, safe=""), repr(secret)[1:-1], json.dumps(secret)[1:-1]}:
                text = text.replace(spelled, "...")
    return text
