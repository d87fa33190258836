"""Passwords and tokens: addresses that hold one are taken apart for use, and all that is shown or written is
without them.

The last ``@`` before a query ends the credentials, so that a password may hold ``/`` and ``@`` as it is; an
``@`` in a path is written ``%40``.
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
"""Environment variables whose values are never shown; MLFLOW_TRACKING_URI may hold one."""


TRACKER = (*SECRETS, "MLFLOW_TRACKING_URI", "MLFLOW_TRACKING_USERNAME")
"""Environment variables that only a process which talks to MLflow needs."""

_withdrawn: dict[str, str] = {}


@dataclass(frozen=True)
class Address:
    """A URI in two parts: where, and who asks. ``user`` and ``password`` are decoded, and None where the URI
    has none. A query in ``uri`` may still hold a token: ``public`` is what to show."""

    uri: str = field(repr=False)
    user: str | None = field(default=None, repr=False)
    password: str | None = field(default=None, repr=False)

    @property
    def whole(self) -> str:
        """The URI with its credentials, encoded so that every parser finds the host behind them."""
        if self.user is None:
            return self.uri
        who = quote(self.user, safe="") + (
            "" if self.password is None else f":{quote(self.password, safe='')}"
        )
        scheme, _, rest = self.uri.partition("://")
        return f"{scheme}://{who}@{rest}"


def taken_apart(uri: str) -> Address:
    """A URI split into its address and its credentials. A path, such as SQLite's, has no credentials."""
    scheme, mark, rest = uri.partition("://")
    if not mark or rest.startswith("/"):
        return Address(uri)
    before_query = re.split(r"[?#]", rest, maxsplit=1)[0]
    # A port is a number: what stands for one and is none begins a password that holds a ? or a #.
    port = before_query.partition(":")[2].partition("/")[0]
    searched = rest if "@" not in before_query and port and not port.isdigit() else before_query
    who, at, _ = searched.rpartition("@")
    if not at:
        return Address(uri)
    user, colon, password = who.partition(":")
    return Address(f"{scheme}://{rest[len(who) + 1 :]}", unquote(user), unquote(password) if colon else None)


def public(uri: str) -> str:
    """A URI as it may be shown: without a user, a password, and a query, which may hold a token."""
    scheme, mark, rest = uri.partition("://")
    if mark and rest.startswith("/"):
        return uri
    host = re.split(r"[?#]", (rest if mark else uri).rpartition("@")[2], maxsplit=1)[0]
    return f"{scheme}{mark}{host}" if mark else host


def withdraw() -> None:
    """Take what only MLflow's clients need out of this process's environment: kernels' code runs here or in
    processes that inherit it. It is masked as before."""
    for name in TRACKER:
        if name in os.environ:
            _withdrawn[name] = os.environ.pop(name)


def without_tracker(environment: Mapping[str, str]) -> dict[str, str]:
    """An environment for processes that run kernels' code."""
    return {name: value for name, value in environment.items() if name not in TRACKER}


def masked(text: str) -> str:
    """A text that is kept, as what a provider or a compiler says is: without the secrets of the environment
    and the command line."""
    return _without(text, [*_secrets(), *(taken_apart(uri).password or "" for uri in _addresses())])


MaskedText = Annotated[str, Changed(lambda text: short(masked(text)))]
"""A ``Text`` of a record that repeats what kernels' code, compilers or tools have said."""


def hidden(text: str, uris: Sequence[str] = ()) -> str:
    """A sentence as it may be shown: without the credentials of the given URIs, of those in the environment
    and on the command line, and of any other that stands in it."""
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
    """The URIs that may hold a password: the environment's, and those on the command line."""
    given = [word for word in (*sys.orig_argv, *sys.argv) if "://" in word]
    uris = [word.partition("=")[2] if re.match(r"[\w.+~]*=", word) else word for word in given]
    name = "MLFLOW_TRACKING_URI"
    return [uri for uri in (os.environ.get(name) or _withdrawn.get(name, ""), *uris) if uri]


def _without(text: str, secrets: Sequence[str]) -> str:
    """A text without these words, as they are, in an address, or in quotes of Python or JSON; one of fewer
    letters than four stands in other words, too."""
    for secret in secrets:
        if len(secret) > 3:
            for spelled in {secret, quote(secret, safe=""), repr(secret)[1:-1], json.dumps(secret)[1:-1]}:
                text = text.replace(spelled, "...")
    return text
