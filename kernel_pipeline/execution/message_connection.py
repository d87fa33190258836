"""Send and receive the messages of ``protocol`` as JSON of a limited size.

A message is an object with one member, named after its kind. A reply proves nothing by itself: the provider
runs in the process that sends it.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import TypeVar

from ..records.base import Record
from .protocol import Failed, Ready

MOST_BYTES = 16 << 20
"""The maximum number of bytes of a message: many times the samples of the longest measurement."""


class OutOfTurnError(Exception):
    """A message is malformed, or of an unexpected kind."""


R = TypeVar("R", bound=Record)


def send(connection: Connection, message: Record) -> None:
    """Send a message. Raises OSError when the other end is gone."""
    connection.send_bytes(f'{{"{type(message).__name__}":{message.to_json().decode()}}}'.encode())


def serve(connection: Connection, answer: Callable[[Record], Record], *kinds: type[Record]) -> None:
    """Send Ready, then answer requests of these kinds.

    Returns when the other end closes, or after an answer that says that this process is not healthy.
    """
    send(connection, Ready())
    while True:
        try:
            request = receive(connection, *kinds)
        except EOFError:
            return
        reply = answer(request)
        send(connection, reply)
        if isinstance(reply, Failed) and not reply.healthy:
            return


def receive(connection: Connection, *kinds: type[R]) -> R:
    """Wait for a message of one of these kinds.

    Raises EOFError when the other end is gone, OutOfTurnError for anything else.
    """
    try:
        text = connection.recv_bytes(MOST_BYTES)
    except ConnectionError as error:
        raise EOFError from error
    except OSError as error:
        raise OutOfTurnError(f"its message is incomplete or longer than {MOST_BYTES >> 20} MiB") from error
    try:
        ((name, body),) = json.loads(text).items()
        kind = {kind.__name__: kind for kind in kinds}[name]
        return kind.from_dict(body)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise OutOfTurnError(f"{text[:60]!r} is not the expected reply") from error
