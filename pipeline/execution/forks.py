"""Workers that are forked from a process which has imported what they need: each is there in milliseconds,
and no provider's code has run in it."""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from threading import Lock
from typing import Protocol


class Process(Protocol):
    """A process that was started, as far as its starter deals with it."""

    @property
    def pid(self) -> int:
        """Its id. Raises ChildProcessError for one that did not come to be."""

    def terminate(self) -> None:
        """Ask it to end, with all that it has started."""

    def poll(self) -> int | None:
        """Its exit code, negative for a signal, if it is known that it has ended."""

    def wait(self) -> int:
        """Wait for its end. Returns its exit code, negative for a signal."""


Start = Callable[[Sequence[int], int], Process]
"""Starts a process that gets descriptors, and the one of the file for what it prints."""


def by_command(command: Sequence[str], root: Path, environment: Callable[[], Mapping[str, str]]) -> Start:
    """Starts a command in a folder, with the descriptors as its last words; ``environment`` says in which
    variables, whenever it is started."""

    def start(descriptors: Sequence[int], printed: int) -> Process:
        return subprocess.Popen(
            [*command, *map(str, descriptors)],
            pass_fds=tuple(descriptors),
            cwd=root,
            env=dict(environment()),
            stdin=subprocess.DEVNULL,
            stdout=printed,
            stderr=printed,
        )

    return start


class ForkServer:
    """The process that workers on a ``device`` are forked from, started when the first is. ``root`` is the
    tree whose code it runs, ``environment`` its variables."""

    def __init__(self, device: str, root: Path, environment: Callable[[], Mapping[str, str]]) -> None:
        self._device = device
        self._root = root
        self._environment = environment
        self._server: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._asked: deque[ForkedWorker] = deque()
        self._lock = Lock()
        self._is_ready = False

    def fork(self, descriptors: Sequence[int], printed: int) -> ForkedWorker:
        """Ask for a worker; nothing is waited for. A server that has died is started again."""
        with self._lock:
            if self._server is None or self._server.poll() is not None:
                self._start(printed)
            assert self._server is not None
            made = ForkedWorker(self, self._server)
            self._asked.append(made)
            assert self._control is not None
            with suppress(ConnectionError):  # it is dead; the question for the id says so
                socket.send_fds(self._control, [b"fork"], [*descriptors, printed])
            return made

    def pid_of(self, one: ForkedWorker) -> int:
        """The id of a worker's reaper, once the server has come to it. Raises ChildProcessError where the
        server has died before."""
        with self._lock:
            while one.known_pid is None and one in self._asked:
                try:
                    assert self._control is not None
                    pid = int(self._control.recv(64))
                except (OSError, ValueError):
                    self._asked.clear()
                    break
                self._is_ready = True
                self._asked.popleft().known_pid = pid
            if one.known_pid is None:
                raise ChildProcessError("the process that workers are forked from has ended")
            return one.known_pid

    def code_of(self, one: ForkedWorker) -> int:
        """The exit code of a worker that has ended, or the server's own where it has."""
        with suppress(ChildProcessError):
            pid = self.pid_of(one)
            _wait_for(pid)
            with self._lock, suppress(OSError, ValueError):
                assert self._control is not None
                self._flush()
                self._control.send(f"status {pid}".encode())
                return int(self._control.recv(64))
        assert self._server is not None
        return self._server.wait()

    def terminate(self, one: ForkedWorker) -> None:
        """Ask a worker's reaper to end all, from any thread. A server that is not ready yet is ended instead:
        what it was asked for does not come to be."""
        if not self._is_ready:
            if self._server is not None:
                self._server.kill()
            return
        with suppress(ChildProcessError, ProcessLookupError):
            os.kill(self.pid_of(one), signal.SIGTERM)

    def close(self) -> None:
        """End it. Its workers were ended before."""
        if self._server is not None:
            assert self._control is not None
            self._control.close()
            self._server.kill()
            self._server.wait()
        self._server = self._control = None
        self._asked.clear()

    def _flush(self) -> None:
        """Take the ids that were answered meanwhile: the next answer is the one that is waited for."""
        assert self._control is not None
        while self._asked:
            self._asked[0].known_pid = int(self._control.recv(64))
            self._asked.popleft()

    def _start(self, printed: int) -> None:
        if self._control is not None:
            self._control.close()
        self._asked.clear()
        self._is_ready = False
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._server = subprocess.Popen(
                [
                    *(sys.executable, "-m", "pipeline.execution.fork_server"),
                    *(str(os.getpid()), str(theirs.fileno()), self._device),
                ],
                pass_fds=(theirs.fileno(),),
                cwd=self._root,
                env=dict(self._environment()),
                stdin=subprocess.DEVNULL,
                # An error of its imports belongs to the worker that needs them.
                stdout=printed,
                stderr=printed,
            )


class ForkedWorker:
    """A worker below its reaper, forked or about to be."""

    def __init__(self, server: ForkServer, parent: subprocess.Popen[bytes]) -> None:
        self._server = server
        self._parent = parent
        self.known_pid: int | None = None
        self._code: int | None = None

    @property
    def pid(self) -> int:
        """The reaper's. Raises ChildProcessError for one that did not come to be."""
        return self._server.pid_of(self)

    def terminate(self) -> None:
        """Ask the reaper to end all, or the server where it has not come to this one."""
        if self._code is None:
            self._server.terminate(self)

    def poll(self) -> int | None:
        """The code of a worker that was waited for, or that of the process that it was forked from: with that
        it ends."""
        return self._code if self._code is not None else self._parent.poll()

    def wait(self) -> int:
        """Wait for the reaper's end."""
        if self._code is None:
            self._code = self._server.code_of(self)
        return self._code


def _wait_for(pid: int) -> None:
    """Wait for a process's end, which some other process is the parent of."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        select.select([descriptor], [], [])
    finally:
        os.close(descriptor)
