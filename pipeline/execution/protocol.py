"""What a supervisor and its worker say to each other: JSON, a message each."""

from __future__ import annotations

from multiprocessing.connection import Connection
from typing import TypeVar

from pipeline.points.frozen import Record
from pipeline.points.point import Point
from pipeline.store.ceilings import Overhead
from pipeline.store.record import Outcome
from pipeline.timing.settings import TimingSettings


class Setup(Record):
    """The first message to a worker."""

    device: str
    settings: TimingSettings
    seed: int


class Ready(Record):
    """A worker's first message: it has started and answers requests from now on."""


class Measure(Record):
    """Asks for the outcome at a point of the kernel that ``where`` names. ``overhead`` is for the graph
    timer."""

    where: str
    point: Point
    overhead: Overhead


class Request(Record):
    """Asks for the outcome at a point, answered with a Reply; or with None for the device's own rates,
    answered with Rates."""

    measure: Measure | None = None


class Reply(Record):
    """The answer to a point. A worker that is not ``healthy`` (a GPU fault spoils its process) ends
    itself after this reply."""

    outcome: Outcome
    healthy: bool


class Wanted(Record):
    """Asks the compile server for what points of a kernel launch."""

    where: str
    points: tuple[Point, ...]


class Done(Record):
    """Tells that a launch of these points would find its kernels compiled, or would have to compile them
    itself."""

    points: tuple[Point, ...]


R = TypeVar("R", bound=Record)


def send(connection: Connection, message: Record) -> None:
    """Send a message. Raises OSError when the other end is gone."""
    connection.send_bytes(message.model_dump_json().encode())


def receive(connection: Connection, kind: type[R]) -> R:
    """Wait for a message of that kind. Raises EOFError when the other end is gone, pydantic.ValidationError
    for anything else."""
    return kind.model_validate_json(connection.recv_bytes())
