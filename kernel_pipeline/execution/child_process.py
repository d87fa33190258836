"""Start a process that answers requests, ask it, and notice when it hangs or ends."""

from __future__ import annotations

import os
import secrets
import signal
import socket
import struct
import tempfile
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from time import monotonic
from typing import IO

from ..machine.load import Threads, threads_of
from ..machine.reaper import children
from ..records.base import Record
from ..records.measurement import Status
from .fork_server import Process, Start
from .message_connection import OutOfTurnError, R, receive, send
from .protocol import Echo, Echoed, Failed, ModeSet, ModeWanted, Ready, Setup

START_TIMEOUT_S = 600.0
"""The time limit for a start: far more than an import of torch takes, even from a slow disk on a busy
machine."""

LOOK_S = 0.25
"""The interval at which the size of a process's output is checked."""

MOST_PRINTED = 1 << 20
"""The maximum number of bytes kept of a process's output: a provider may print without end."""

TORN_S = 30
"""The time limit for the rest of a message that has begun to arrive."""


MOST_MODES = 100
"""The maximum number of requests for the mode of the launch gap before one answer."""

CUDA_ERROR = "CUDA error: "
"""How torch begins the text of an error of CUDA, in whose further lines it gives advice."""

OUT_OF_MEMORY = f"{CUDA_ERROR}out of memory"


class GoneError(Exception):
    """The process ended, hung, or sent an unexpected message."""

    def __init__(self, status: Status, text: str) -> None:
        super().__init__(text)
        self.status = status


class FailedError(Exception):
    """A request failed, and the process reported the failure."""

    def __init__(self, failed: Failed) -> None:
        super().__init__(failed.error)
        self.failed = failed


class ChildProcess:
    """A process that answers requests over a socket pair; messages call it ``name``.

    ``start`` gets the descriptors of the process's end of the socket pair and of the memory that it shares.
    """

    def __init__(self, name: str, setup: Setup, start: Start) -> None:
        self.name = name
        self._setup = setup
        self._start = start
        self._abandoned = False
        self._has_begun = self._ready = False
        self._process: Process | None = None
        self._ended = -1
        self._connection: Connection | None = None
        self._printed: IO[bytes] | None = None
        self._said = 0

    @property
    def is_running(self) -> bool:
        """Whether it was launched and has not been closed."""
        return self._process is not None

    def launch(self, memory: int) -> None:
        """Start the process without waiting for it. It imports its modules and waits for ``begin``."""
        ours, theirs = socket.socketpair()
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", TORN_S, 0))
        # In append mode: after a truncation the process writes at the new end, not behind a hole.
        self._printed = tempfile.TemporaryFile(mode="a+b")  # noqa: SIM115 - closed with the process
        with theirs:
            self._process = self._start((theirs.fileno(), memory), self._printed.fileno())
        if self._abandoned:
            self._process.terminate()
        self._ended = -1
        self._has_begun = self._ready = False
        self._said = 0
        self._connection = Connection(ours.detach())

    def begin(self) -> None:
        """Send the process its setup, once. The process then prepares the device. Does not wait."""
        assert self._connection is not None, "it is launched before it begins"
        if self._has_begun:
            return
        self._has_begun = True
        with suppress(ConnectionError):  # it is dead; the wait for its first message reports that
            send(self._connection, self._setup)

    def ask(
        self, request: Record, kind: type[R], timeout_s: float, set_mode: Callable[[], None] | None = None
    ) -> R:
        """Send a request, and return the answer, which is a record of type ``kind``.

        With ``set_mode`` the process may ask to set the mode of the launch gap before it answers.
        Raises FailedError when it answers that the request failed. Raises GoneError when there is no valid
        answer; the process is then closed.
        """
        assert self._connection is not None and self._printed is not None, "it is launched before it is asked"
        try:
            self._await_ready()
            if self._connection.poll() and _has_spoken(self._connection):
                raise OutOfTurnError("it sent a message before it was asked")
            self._said = os.fstat(self._printed.fileno()).st_size
            send(self._connection, request)
            answer = self._receive(timeout_s, kind, Failed, *([] if set_mode is None else [ModeWanted]))
            modes = 0
            while set_mode is not None and isinstance(answer, ModeWanted):
                modes += 1
                if modes > MOST_MODES:
                    raise OutOfTurnError(f"it asked to set the mode {modes} times")
                set_mode()
                send(self._connection, ModeSet())
                answer = self._receive(timeout_s, kind, Failed, ModeWanted)
        except (EOFError, ConnectionError) as gone:
            text = self._epitaph()
            is_memory = OUT_OF_MEMORY in text
            raise GoneError("out_of_memory" if is_memory else "runtime_error", text) from gone
        except OutOfTurnError as error:
            self.close()
            raise GoneError("runtime_error", f"the {self.name} answered out of turn: {error}") from error
        if isinstance(answer, Failed):
            raise FailedError(answer)
        assert isinstance(answer, kind), "no other kind is received"
        return answer

    @property
    def is_alive(self) -> bool:
        """Whether the process runs, as far as is known without waiting for its start."""
        if self._process is None or self._process.poll() is not None:
            return False
        return not (self._ended >= 0 and wait([self._ended], 0.0))

    def settle(self) -> None:
        """Wait until the process is ready, so that its start disturbs no timing. Closes it if it has died."""
        try:
            self._await_ready()
        except (EOFError, ConnectionError, OutOfTurnError, GoneError):
            self.close()

    def trouble(self, timeout_s: float) -> str | None:
        """Return why the process can't be asked again; None if it can.

        Asks the process for an echo. All earlier messages arrive before the echo, so a surplus reply is
        found.
        """
        if self._process is None:
            return None
        token = secrets.token_hex(8)
        try:
            echoed = self.ask(Echo(token=token), Echoed, timeout_s)
        except GoneError as error:
            return str(error)
        return None if echoed.token == token else f"the {self.name} answered out of turn"

    def left_behind(self) -> int:
        """Count the orphaned processes that it has started; they are children of its reaper now."""
        return max(0, len(children(self._process.pid)) - 1) if self._process is not None else 0

    def threads(self) -> Threads:
        """Return how its threads, and the threads of all processes that it has started, were scheduled so
        far."""
        return threads_of(self._process.pid) if self._process is not None else {}

    def end(self) -> None:
        """Ask the process and all that it has started to end; ``close`` waits for it."""
        if self._process is not None:
            self._process.terminate()

    def abandon(self) -> None:
        """End the process, from another thread. A process that is started later ends at once, too.

        The thread that waits for an answer gets GoneError.
        """
        self._abandoned = True
        process = self._process
        if process is not None:
            process.terminate()

    def close(self) -> None:
        """End the process and all that it has started, and wait for it."""
        if self._process is not None:
            self._process.terminate()
            self._process.wait()
        if self._ended >= 0:
            os.close(self._ended)
            self._ended = -1
        if self._connection is not None:
            self._connection.close()
        if self._printed is not None:
            self._printed.close()
        self._process = self._connection = self._printed = None

    def _await_ready(self) -> None:
        if not self._ready:
            # The start has a time limit of its own, apart from that of the first request.
            self._receive(START_TIMEOUT_S, Ready)
            self._ready = True

    def _receive(self, timeout_s: float, *kinds: type[Record]) -> Record:
        assert self._connection is not None and self._process is not None
        deadline = monotonic() + timeout_s
        if self._ended < 0:
            try:
                self._ended = os.pidfd_open(self._process.pid)
            except (ChildProcessError, ProcessLookupError) as gone:
                raise EOFError from gone
        while True:
            left = deadline - monotonic()
            # The process is watched as well as the socket, whose other end a child of it may keep open.
            ready = wait([self._connection, self._ended], max(0.0, min(left, LOOK_S)))
            self._cap()
            if self._connection in ready:
                return receive(self._connection, *kinds)
            if ready:
                raise EOFError
            if left <= 0:
                self.close()
                raise GoneError("timeout", f"no answer in {timeout_s:g} s; its {self.name} was replaced")

    def _cap(self) -> None:
        assert self._printed is not None
        if os.fstat(self._printed.fileno()).st_size > MOST_PRINTED:
            os.ftruncate(self._printed.fileno(), 0)
            self._said = 0

    def _epitaph(self) -> str:
        """Return in one line how the process ended, with its last output during this request."""
        assert self._process is not None and self._printed is not None
        code = self._process.wait()
        self._printed.seek(self._said)
        text = self._printed.read(MOST_PRINTED).decode(errors="replace")
        words = [line for line in text.splitlines() if line.strip()]
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"exited with {code}"
        self.close()
        # An uncaught C++ exception prints its what() above the stack, and torch advice below a CUDA error.
        marks = [line.strip() for line in words if "what():" in line or CUDA_ERROR in line]
        reason = marks[0] if marks else words[-1] if words else ""
        return f"the {self.name} {how}" + (f": {reason[:400]}" if reason else "")


def _has_spoken(connection: Connection) -> bool:
    """Whether there is something to read, which is left unread. Raises EOFError if the other end is gone."""
    with socket.socket(fileno=os.dup(connection.fileno())) as peeked:
        if not peeked.recv(1, socket.MSG_PEEK):
            raise EOFError
    return True
