"""Addresses that may hold a password or a token: taken apart for use, and hidden where they are shown.

The last ``@`` before a query ends the credentials, so that a password may hold ``/`` and ``@`` as it is; an
``@`` in a path is written ``%40``.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from urllib.parse import quote, unquote

SECRETS = ("MLFLOW_TRACKING_PASSWORD", "MLFLOW_TRACKING_TOKEN")
"""Environment variables whose values are never shown; MLFLOW_TRACKING_URI may hold one."""


TRACKER = (*SECRETS, "MLFLOW_TRACKING_URI", "MLFLOW_TRACKING_USERNAME")
"""Environment variables that only a process which talks to MLflow needs."""


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
    """The URI without its credentials, and these. A path, which SQLite's are, has none."""
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


def masked(text: str) -> str:
    """A text that is kept, as an error of a provider's is: without the secrets of the environment."""
    found = [os.environ.get(name) or "" for name in SECRETS]
    found.append(taken_apart(os.environ.get("MLFLOW_TRACKING_URI") or "").password or "")
    return _without(text, found)


def hidden(text: str, uris: Sequence[str] = ()) -> str:
    """A sentence as it may be shown: without the credentials of the given URIs, of those in the environment,
    and of any other that stands in it."""
    secrets = [os.environ.get(name) or "" for name in SECRETS]
    for uri in (*uris, os.environ.get("MLFLOW_TRACKING_URI") or ""):
        address = taken_apart(uri)
        for whole in {uri, address.whole} - {""}:
            text = text.replace(whole, public(whole))
        secrets.append(address.password or "")
    text = _without(text, secrets)
    text = re.sub(r"(\w://)(?!/)\S*@", r"\1", text)
    return re.sub(r"([?&][\w.-]+=)[^&\s'\"]+", r"\1...", text)


def _without(text: str, secrets: Sequence[str]) -> str:
    """A text without these words; one of fewer letters than four stands in other words, too."""
    for secret in secrets:
        for spelled in {secret, quote(secret, safe="")} if len(secret) > 3 else ():
            text = text.replace(spelled, "...")
    return text
