"""What processes that measure say to each other: JSON of a limited size, a message each.

A message is an object with one member, named after its kind. A reply proves nothing by itself: the provider
runs in the process that sends it.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Literal, TypeVar

from kernel_pipeline.records.base import Record, Values
from kernel_pipeline.records.ceilings import Canary
from kernel_pipeline.records.fields import Microseconds, NotNegative
from kernel_pipeline.records.measurement import Launch, State, Status, Timing
from kernel_pipeline.records.point import Point
from kernel_pipeline.records.settings import TimingSettings

MOST_BYTES = 16 << 20
"""Of a message: many times what the samples of the longest measurement take."""

EDITIONS = 2
"""Inputs of a problem that differ in all values and that the verifier keeps: the first call gets one, a timed
call is verified by the other. Those after them are made for one call each."""

TimerName = Literal["auto", "graph", "event", "do_bench", "wall", "wall_no_sync"]
"""A timer; the last shows what goes wrong where nobody waits for the GPU, and no sweep takes it."""


InputValues = Literal["normal", "integers", "zeros"]
"""What floating-point inputs hold: what the kernel makes, small integers, or zeros."""


class Layout(Record):
    """Where a tensor lies in memory that two processes share, ``offset`` bytes from its start. Of several
    such tensors one behind the other, each lies ``apart`` bytes after the last."""

    dtype: str
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    apart: int = 0

    def at(self, index: int) -> Layout:
        """The layout of one of several."""
        return self.replace(offset=self.offset + index * self.apart, apart=0)


class Region(Record):
    """Shared memory, and what another process maps it by: on a GPU the words of torch's CUDA IPC."""

    bytes: int
    handle: str | None = None


class Shared(Record):
    """Sets of inputs and outputs of one kernel at one problem in shared memory; the layouts are those of the
    first set. There are inputs of ``sets`` and outputs of ``shown`` of them."""

    region: Region
    inputs: tuple[Layout, ...]
    outputs: tuple[Layout, ...]
    sets: int = 1
    shown: int = 1

    def place_of(self, number: int, index: int) -> int:
        """Where the outputs of a set lie that is the ``number``-th that was asked for."""
        return index if self.shown == self.sets else number


class Setup(Record):
    """The first message to either process."""

    device: str
    settings: TimingSettings
    seed: int
    values: InputValues = "normal"


class Ready(Record):
    """The first message of either process: it has started and answers requests from now on."""


class Failed(Record):
    """The answer in place of any other: the request could not be done. A process that is not ``healthy`` (a
    GPU fault spoils it) ends itself after this."""

    status: Status
    error: str
    healthy: bool = True


class Done(Record):
    """The answer to a request that has no other."""


class Release(Record):
    """Asks either process to give back all memory that it can do without, answered with Done."""


class Prepare(Record):
    """Asks the verifier for the inputs of a point, answered with Prepared."""

    where: str
    point: Point


class Prepared(Record):
    """A problem's inputs are in shared memory. ``problem`` is the one that is run: smaller than the point's
    under an interpreter. ``bytes`` are those of all inputs and outputs, ``any_answer`` is what would be found
    right though it takes no work, None if nothing would, and ``edition_s`` the seconds that making an edition
    takes. ``read`` are the files outside of the kernel's folder that inputs and reference have read."""

    shared: Shared
    problem: Values
    interpreted: bool
    bytes: int
    any_answer: str | None = None
    edition_s: NotNegative = 0.0
    read: tuple[str, ...] = ()


class Offer(Record):
    """Asks the verifier to write an edition of the inputs into shared memory and to spoil the outputs there,
    answered with Done."""

    edition: int


class Check(Record):
    """Asks the verifier whether the outputs in shared memory are right for an edition of the inputs, and
    whether these are as they were; answered with Checked."""

    edition: int


class Checked(Record):
    """What the verifier found; ``error`` is None if all is right, ``used`` the share of the tolerance that
    was taken."""

    error: str | None
    max_abs_err: float
    max_rel_err: float
    used: float = 0.0


class Spread(Record):
    """Asks the verifier for room for so many sets of inputs, or as many as may be, and for outputs of all or
    some of them; answered with Shared."""

    sets: int


class Draw(Record):
    """Asks the verifier to make other inputs for all sets, out of the worker's sight; answered with Done."""


class Fill(Record):
    """Asks the verifier to write the inputs that were drawn into all sets, answered with Done."""


class Empty(Record):
    """Asks either process for all that goes round the calls on the sets, without the calls: an empty graph's
    replay, or a copy into the place of each output. The verifier's spoils what is there. Answered with
    Done."""


class Inspect(Record):
    """Asks the verifier whether these sets have right outputs, in the places that Show names, and their
    inputs as they were; answered with Checked, the first that is wrong."""

    sets: tuple[int, ...]


class MeasureAccuracy(Record):
    """Asks the verifier how far the outputs in shared memory are from the answer to an edition of the inputs,
    and to keep them; answered with AccuracyMeasured."""

    edition: int


class AccuracyMeasured(Record):
    """The distance of an output's elements from the float64 reference in units in the last place of the
    output's dtype: the median and the largest."""

    ulp_median: NotNegative
    ulp_worst: NotNegative


class Repeat(Record):
    """Asks the verifier whether the outputs in shared memory are those that it has kept, answered with
    Repeated."""


class Repeated(Record):
    """Whether they are, bit by bit."""

    same: bool


class Sustain(Record):
    """Asks the worker to call the provider for so many seconds and then to time it, without a rest between;
    answered with Sustained."""

    seconds: float


class Rate(Record):
    """Asks the worker for the device's own rates, answered with Rates."""


class Begin(Record):
    """Asks the worker to call a provider for the first time and to copy its outputs, and its inputs as they
    are then, into shared memory; answered with Ran. ``canary`` is what is known of the GPU's, ``again`` says
    that it was called at this point before."""

    where: str
    point: Point
    shared: Shared
    bytes: int
    interpreted: bool
    canary: Canary | None
    again: bool = False


class Ran(Record):
    """The provider was called; ``launch`` is what it launched, None where it does not tell."""

    launch: tuple[Launch, ...] | None = None


class Time(Record):
    """Asks the worker to time the provider, answered with Timed; by another timer than that of its settings,
    or with another cache, where one is named."""

    timer: TimerName | None = None
    cache: Literal["cold"] | None = None


class ModeWanted(Record):
    """The worker's question amid an answer: work of another process on its GPU, which sets the mode of the
    launch gap."""


class ModeSet(Record):
    """The reply to it: that work is done."""


class SetMode(Record):
    """Asks the verifier for a little work on the GPU, answered with Done when it is done."""


class Stamp(Record):
    """Asks the worker what CUPTI stamps of the calls that it timed last, answered with Stamped."""


class Stamped(Record):
    """Microseconds of a call: its share of replays by events without CUPTI and with its records on, and its
    duration by CUPTI. None where CUPTI can't be read."""

    gross_us: Microseconds
    recorded_us: Microseconds | None = None
    duration_us: Microseconds | None = None


class Timed(Record):
    """A timing, the device's state, how many sets of inputs the timed calls went round, and how many
    milliseconds the timing took."""

    took_ms: NotNegative = 0.0

    timing: Timing
    state: State
    sets: int


class Again(Record):
    """Asks the worker to take the inputs in shared memory for one of the timed sets, in place, and for the
    outputs of one more call on it by what was timed; answered with Ran."""

    set: int


class Arm(Record):
    """Asks the worker to get ready for a call on each set in shared memory, by the steps by which it gets
    ready to time; answered with Done."""

    shared: Shared


class Go(Record):
    """Asks the worker for the calls, answered with Done when the last output is written."""


class Show(Record):
    """Asks the worker for the outputs of these sets, one behind the other in shared memory; answered with
    Done. Where there is room for the outputs of all sets they are there already."""

    sets: tuple[int, ...]


class End(Record):
    """Asks the worker to let go of the point, answered with Ended."""


class Ended(Record):
    """What the provider left changed in the worker's process, in words: functions that time or that timing
    calls, and anything else. A worker that was changed is replaced. ``read`` are the files outside of the
    kernel's folder that it has read."""

    replaced: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    read: tuple[str, ...] = ()


class Echo(Record):
    """Asks the worker for the same token back, in Echoed: replies sent before it are all read by then."""

    token: str


class Echoed(Record):
    """The token of an Echo."""

    token: str


class Wanted(Record):
    """Asks the compile server for what points of a kernel launch."""

    where: str
    points: tuple[Point, ...]


class Compiled(Record):
    """Tells that a launch of these points would find its kernels compiled, or would have to compile them
    itself."""

    points: tuple[Point, ...]


class OutOfTurnError(Exception):
    """A message that is none, or none that was asked for."""


R = TypeVar("R", bound=Record)


def send(connection: Connection, message: Record) -> None:
    """Send a message. Raises OSError when the other end is gone."""
    connection.send_bytes(f'{{"{type(message).__name__}":{message.to_json().decode()}}}'.encode())


def serve(
    connection: Connection,
    answer: Callable[[Record], Record],
    *kinds: type[Record],
) -> None:
    """Say that this process is ready, and answer requests of these kinds until the other end closes, or until
    an answer says that this process is not healthy any more."""
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
        raise OutOfTurnError(f"its message is torn or longer than {MOST_BYTES >> 20} MiB") from error
    try:
        ((name, body),) = json.loads(text).items()
        kind = {kind.__name__: kind for kind in kinds}[name]
        return kind.from_dict(body)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise OutOfTurnError(f"{text[:60]!r} is not what was asked for") from error
