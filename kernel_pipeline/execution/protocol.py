"""The messages between the processes that measure; ``message_connection`` sends them."""

from __future__ import annotations

from typing import Literal

from ..records.base import Record, Values
from ..records.ceilings import Canary
from ..records.fields import Microseconds, NotNegative
from ..records.measurement import Launch, State, Status, Timing
from ..records.point import Point
from ..records.settings import TimingSettings

EDITIONS = 2
"""The number of editions that the verifier keeps. An edition is inputs of a problem; two editions differ in
all values. The first call gets one, and the call after timing is verified by the other. Each further edition
is made for one call."""

TimerName = Literal["auto", "graph", "event", "do_bench", "wall", "wall_no_sync"]
"""The timers. ``wall_no_sync`` shows the error of not waiting for the GPU; no sweep uses it."""

InputValues = Literal["normal", "integers", "zeros"]
"""The values of floating-point inputs: the kernel's own values, small integers, or zeros."""


class Layout(Record):
    """The place of a tensor in shared memory: ``offset`` bytes from its start. Several such tensors may
    follow each other, with ``apart`` bytes from one start to the next."""

    dtype: str
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    apart: int = 0

    def at(self, index: int) -> Layout:
        """Return the layout of one of several tensors."""
        return self.replace(offset=self.offset + index * self.apart, apart=0)


class Region(Record):
    """Shared memory of ``bytes``. On a GPU ``handle`` is torch's CUDA IPC handle, by which other processes
    map it."""

    bytes: int
    handle: str | None = None


class Shared(Record):
    """Sets of inputs and outputs of one kernel at one problem in shared memory.

    The layouts describe the first set. There is room for the inputs of ``sets`` sets and for the outputs of
    ``shown`` of them.
    """

    region: Region
    inputs: tuple[Layout, ...]
    outputs: tuple[Layout, ...]
    sets: int = 1
    shown: int = 1

    def place_of(self, number: int, index: int) -> int:
        """Return where the outputs of set ``index`` are: at ``index`` if every set is shown, else at
        ``number``, the position in the request."""
        return index if self.shown == self.sets else number


class Setup(Record):
    """The first message to the worker or the verifier."""

    device: str
    settings: TimingSettings
    seed: int
    values: InputValues = "normal"


class Ready(Record):
    """The first message of the worker or the verifier: it has started and answers requests from now on."""


class Failed(Record):
    """The answer to a request that failed. A process that is not ``healthy``, as after a GPU fault, ends."""

    status: Status
    error: str
    healthy: bool = True


class Done(Record):
    """The answer to a request that has no result."""


class Release(Record):
    """Asks the worker or the verifier to free all memory that it can do without; answered with Done. A worker
    that holds at most ``most_bytes`` of its GPU's memory only unmaps the verifier's."""

    most_bytes: int = 0


class ReadCalls(Record):
    """Asks the worker for readings of a few more calls: a call's ``memory``, and its time on the ``host``."""

    memory: bool = False
    host: bool = False


class CallsRead(Record):
    """The most MiB that a call held at a time, beyond its inputs and outputs, and the microseconds until a
    call returns to the host. ``host_us`` is None on a CPU, where it is the call's time."""

    peak_mib: NotNegative | None = None
    host_us: Microseconds | None = None


class Prepare(Record):
    """Asks the verifier for the inputs of a point, answered with Prepared."""

    where: str
    point: Point


class Prepared(Record):
    """There is room in shared memory for a problem's inputs and outputs.

    ``problem`` is the problem that is run, which is smaller than the point's under an interpreter. ``bytes``
    is the size of all inputs and outputs. ``any_answer`` names an answer without work, such as zeros, that
    the verification would accept; None if there is none. ``edition_s`` is the time in seconds to make an
    edition. ``read`` are the files outside of the kernel's folder that the inputs and the reference have
    read. ``weights`` are the places of the inputs that the provider prepares. ``draws`` is the number of
    calls on the same inputs that are verified together; 0 unless outputs are random. ``more`` asks for
    further readings of a call that is timed; None for a kernel that declares none.
    """

    shared: Shared
    problem: Values
    interpreted: bool
    bytes: int
    any_answer: str | None = None
    edition_s: NotNegative = 0.0
    read: tuple[str, ...] = ()
    weights: tuple[int, ...] = ()
    draws: int = 0
    more: ReadCalls | None = None

    def begin(self, where: str, point: Point, canary: Canary | None) -> Begin:
        """Return the request for a provider's first call."""
        return Begin(
            where=where,
            point=point,
            shared=self.shared,
            bytes=self.bytes,
            interpreted=self.interpreted,
            canary=canary,
        )


class Offer(Record):
    """Asks the verifier to write an edition of the inputs into shared memory and to spoil the outputs there,
    answered with Done."""

    edition: int


class Check(Record):
    """Asks the verifier whether the outputs in shared memory are right for an edition of the inputs, and
    whether the inputs are unchanged; answered with Checked.

    ``calls`` counts the calls on this edition, for random outputs: the outputs have to differ from those of
    the call before, and after ``Prepared.draws`` calls those of all are verified together.
    """

    edition: int
    calls: int = 1


class Checked(Record):
    """The verifier's findings. ``error`` is None if all is right; ``used`` is the share of the tolerance that
    the errors took."""

    error: str | None
    max_abs_err: float
    max_rel_err: float
    used: float = 0.0


class Spread(Record):
    """Asks the verifier for room for the inputs of this many sets, or as many as fit, and for the outputs of
    all or some of them; answered with Shared."""

    sets: int


class Draw(Record):
    """Asks the verifier to make new inputs for all sets where the worker can't see them; answered with
    Done."""


class Fill(Record):
    """Asks the verifier to write the drawn inputs into all sets, answered with Done. With ``places`` it
    writes only the inputs at these places."""

    places: tuple[int, ...] | None = None


class PrepareWeights(Record):
    """Asks the worker to prepare the weights of all sets in shared memory, answered with Done."""


class Empty(Record):
    """Asks the worker or the verifier to do all of a try except the calls; answered with Done.

    On a GPU the worker replays a graph of one tiny kernel; otherwise outputs are copied to their places. The
    verifier spoils the places.
    """


class Inspect(Record):
    """Asks the verifier whether the outputs that Show wrote for these sets are right, and their inputs
    unchanged. Answered with Checked, which describes the first wrong set if there is one."""

    sets: tuple[int, ...]


class MeasureAccuracy(Record):
    """Asks the verifier to compare the outputs in shared memory with the answer to an edition of the inputs,
    and to keep them; answered with AccuracyMeasured."""

    edition: int


class AccuracyMeasured(Record):
    """The distance of an output's elements from the float64 reference in units in the last place of the
    output's dtype: the median and the largest."""

    ulp_median: NotNegative
    ulp_worst: NotNegative


class Repeat(Record):
    """Asks the verifier whether the outputs in shared memory equal the kept outputs; answered with
    Repeated."""


class Repeated(Record):
    """Whether the outputs are the same bit by bit."""

    same: bool


class Sustain(Record):
    """Asks the worker to call the provider for this many seconds and then to time it without a rest; answered
    with Sustained."""

    seconds: float


class Rate(Record):
    """Asks the worker to measure the device's ceilings, answered with Rates."""


class Begin(Record):
    """Asks the worker to call a provider once and to copy its outputs, and its inputs as they are after the
    call, into shared memory; answered with Ran.

    ``canary`` is the GPU's canary, None if it is not known. ``again`` says that the provider was called at
    this point before.
    """

    where: str
    point: Point
    shared: Shared
    bytes: int
    interpreted: bool
    canary: Canary | None
    again: bool = False


class Ran(Record):
    """The provider was called. ``launch`` are the kernels that it launched, None if it does not report
    them."""

    launch: tuple[Launch, ...] | None = None


class Time(Record):
    """Asks the worker to time the provider, answered with Timed. A ``timer`` or ``cache`` given here replaces
    that of the settings. ``large_ring`` asks for a ring that is several times as large as usual."""

    timer: TimerName | None = None
    cache: Literal["cold"] | None = None
    large_ring: bool = False


class ModeWanted(Record):
    """The worker's request that another process works on its GPU, which sets the launch gap's mode."""


class ModeSet(Record):
    """The reply to ModeWanted: that work is done."""


class SetMode(Record):
    """Asks the verifier for a little work on the GPU, answered with Done when it is done."""


class Stamp(Record):
    """Asks the worker for CUPTI's times of the calls that it timed last, answered with Stamped."""


class Stamped(Record):
    """Microseconds of a call.

    ``gross_us`` is its share of a replay by events without CUPTI, ``recorded_us`` the same while CUPTI
    records, and ``duration_us`` its duration by CUPTI. The last two are None if CUPTI can't be read.
    """

    gross_us: Microseconds
    recorded_us: Microseconds | None = None
    duration_us: Microseconds | None = None


class Timed(Record):
    """A timing, the device's state, the number of sets in the ring, and the duration of the timing in
    milliseconds. ``prepare_ms`` is the shortest time in milliseconds to prepare a set's weights, None for a
    provider that prepares none."""

    took_ms: NotNegative = 0.0
    prepare_ms: NotNegative | None = None
    timing: Timing
    state: State
    sets: int


class Again(Record):
    """Asks the worker to copy the inputs in shared memory into one of the timed sets, in place, to make the
    timed call on it once more, and to share the outputs; answered with Ran."""

    set: int


class Arm(Record):
    """Asks the worker to prepare a call on each set in shared memory, in the way it prepares timed calls;
    answered with Done."""

    shared: Shared


class Go(Record):
    """Asks the worker to call the provider on each set. The worker answers with Done after it wrote the last
    output."""


class Show(Record):
    """Asks the worker to write the outputs of these sets one after another into shared memory; answered with
    Done. If there is room for the outputs of all sets, they are there already."""

    sets: tuple[int, ...]


class End(Record):
    """Asks the worker to drop the provider, answered with Ended."""


class Ended(Record):
    """The changes that the provider left in the worker's process, in words.

    ``replaced`` are functions that time or that timing calls, ``changed`` all other changes. A worker that
    was changed is replaced. ``read`` are the files outside of the kernel's folder that the provider has read;
    ``compiles`` says whether it has imported torch.compile's front end.
    """

    replaced: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    read: tuple[str, ...] = ()
    compiles: bool = False


class Echo(Record):
    """Asks the worker to return the same token in Echoed. When it arrives, all earlier replies were read."""

    token: str


class Echoed(Record):
    """The token of an Echo."""

    token: str


class Wanted(Record):
    """Asks the compile server to compile the kernels that these points launch; answered with Compiled."""

    where: str
    points: tuple[Point, ...]


class Compiled(Record):
    """Says that these points' kernels are compiled, or that a launch has to compile them itself."""

    points: tuple[Point, ...]
