"""A process that answers requests: started, asked, given up when it hangs, its end noticed and said."""

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

from kernel_pipeline.machine.load import Threads, threads_of
from kernel_pipeline.machine.reaper import children
from kernel_pipeline.records.base import Record
from kernel_pipeline.records.measurement import Status
from pipeline.execution.fork_server import Process, Start
from pipeline.execution.protocol import (
    Echo,
    Echoed,
    Failed,
    ModeSet,
    ModeWanted,
    OutOfTurnError,
    R,
    Ready,
    Setup,
    receive,
    send,
)

START_TIMEOUT_S = 600.0
"""Far more than a process takes to import torch, from a slow disk on a busy machine too."""

LOOK_S = 0.25
"""Between two looks at what a process prints."""

MOST_PRINTED = 1 << 20
"""Bytes kept of what a process prints: a provider may print without end."""

TORN_S = 30
"""The rest of a message that has begun comes within this time."""


MOST_MODES = 100
"""How often a process may want the mode of the launch gap set during one answer."""


class GoneError(Exception):
    """The process ended, hung or said what it was not asked."""

    def __init__(self, status: Status, text: str) -> None:
        super().__init__(text)
        self.status = status


class FailedError(Exception):
    """The process is there, but the request could not be done."""

    def __init__(self, failed: Failed) -> None:
        super().__init__(failed.error)
        self.failed = failed


class ChildProcess:
    """A process that is called ``name``, which ``start`` starts with the descriptors of its end of a socket
    pair and of the memory that it shares."""

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
        """Start its process, which imports what it needs and waits for ``begin``; nothing is waited for."""
        ours, theirs = socket.socketpair()
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", TORN_S, 0))
        # Appended to, so that what is cut off here is not written behind.
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
        """Send it its setup, once: it makes the device ready, and nothing is waited for."""
        assert self._connection is not None, "it is launched before it begins"
        if self._has_begun:
            return
        self._has_begun = True
        with suppress(ConnectionError):  # it is dead already; who waits for its first message is told
            send(self._connection, self._setup)

    def ask(
        self, request: Record, kind: type[R], timeout_s: float, set_mode: Callable[[], None] | None = None
    ) -> R:
        """Its answer of that kind. With ``set_mode`` it may want the mode of the launch gap set meanwhile.
        Raises FailedError when it says that it could not, and GoneError when it does not answer: then it was
        closed."""
        assert self._connection is not None and self._printed is not None, "it is launched before it is asked"
        try:
            self._await_ready()
            if self._connection.poll() and _has_spoken(self._connection):
                raise OutOfTurnError("it spoke before it was asked")
            self._said = os.fstat(self._printed.fileno()).st_size
            send(self._connection, request)
            answer = self._receive(timeout_s, kind, Failed, *([] if set_mode is None else [ModeWanted]))
            modes = 0
            while set_mode is not None and isinstance(answer, ModeWanted):
                modes += 1
                if modes > MOST_MODES:
                    raise OutOfTurnError(f"it wanted the mode set {modes} times")
                set_mode()
                send(self._connection, ModeSet())
                answer = self._receive(timeout_s, kind, Failed, ModeWanted)
        except (EOFError, ConnectionError) as gone:
            raise GoneError("runtime_error", self._epitaph()) from gone
        except OutOfTurnError as error:
            self.close()
            raise GoneError("runtime_error", f"the {self.name} answered out of turn: {error}") from error
        if isinstance(answer, Failed):
            raise FailedError(answer)
        assert isinstance(answer, kind), "no other kind is received"
        return answer

    @property
    def is_alive(self) -> bool:
        """Whether its process runs, as far as that was waited for once."""
        if self._process is None or self._process.poll() is not None:
            return False
        return not (self._ended >= 0 and wait([self._ended], 0.0))

    def settle(self) -> None:
        """Wait until it is ready: its start disturbs nothing from here on. One that has died is closed."""
        try:
            self._await_ready()
        except (EOFError, ConnectionError, OutOfTurnError, GoneError):
            self.close()

    def trouble(self, timeout_s: float) -> str | None:
        """Why it can't be asked again; None if it can. An echo is waited for, behind which nothing can come
        that was said before: a reply too many is seen now, however late it is. One in trouble was closed."""
        if self._process is None:
            return None
        token = secrets.token_hex(8)
        try:
            echoed = self.ask(Echo(token=token), Echoed, timeout_s)
        except GoneError as error:
            return str(error)
        return None if echoed.token == token else f"the {self.name} answered out of turn"

    def left_behind(self) -> int:
        """Processes that it has started and that belong to its reaper now, for who started them is gone."""
        return max(0, len(children(self._process.pid)) - 1) if self._process is not None else 0

    def threads(self) -> Threads:
        """How its threads, and those of all that it has started, were scheduled so far."""
        return threads_of(self._process.pid) if self._process is not None else {}

    def end(self) -> None:
        """Ask it to end, with all that it has started; ``close`` waits for that."""
        if self._process is not None:
            self._process.terminate()

    def abandon(self) -> None:
        """End it from another thread, and any that is started later; the thread that waits for an answer
        learns that it is gone."""
        self._abandoned = True
        process = self._process
        if process is not None:
            process.terminate()

    def close(self) -> None:
        """End it, with all that it has started."""
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
            # What a process takes to start is no part of the time that its first request may take.
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
            # The process itself is watched, too: a child of its may hold its end of the socket.
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
        """How it ended, in one line, with what it said last of this request."""
        assert self._process is not None and self._printed is not None
        code = self._process.wait()
        self._printed.seek(self._said)
        text = self._printed.read(MOST_PRINTED).decode(errors="replace")
        words = [line for line in text.splitlines() if line.strip()]
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"exited with {code}"
        self.close()
        # A C++ exception that nobody caught says what it is above its stack.
        reason = next((line.strip() for line in words if "what():" in line), words[-1] if words else "")
        return f"the {self.name} {how}" + (f": {reason[:400]}" if reason else "")


def _has_spoken(connection: Connection) -> bool:
    """Whether there is something to read, which stays there. Raises EOFError where the other end is gone."""
    with socket.socket(fileno=os.dup(connection.fileno())) as peeked:
        if not peeked.recv(1, socket.MSG_PEEK):
            raise EOFError
    return True
