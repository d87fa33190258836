"""Fork workers from a server process that has imported their modules and has touched no device.

A worker starts in milliseconds, and no code of a provider has run in it. ``ForkServer`` starts the server as
``python -m kernel_pipeline.execution.fork_server PARENT FD DEVICE [LIMITS]``; FD is its end of a socket pair.
For a GPU it imports torch.compile's front end while idle. On a CPU that would take cores from timed threads,
so there it waits for the request ``compile``, after which no fork is answered before the end of the import.
With LIMITS, a ``Confinement`` as JSON, each worker is confined. A request is a message of one line:

    compile     imports torch.compile's front end, for the workers that are forked later; has no answer
    fork        with three descriptors: the worker's end of its own socket pair, the memory that it shares
                with the verifier, and the file for its output; answered with the id of the worker's reaper
    status PID  of a reaper that has ended; answered with its exit code, negative for a signal
"""

from __future__ import annotations

import gc
import importlib
import os
import select
import signal
import socket
import subprocess
import sys
import traceback
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from threading import Lock
from typing import Any, NoReturn, Union

from ..machine import confinement
from ..machine.confinement import Confinement
from ..machine.reaper import die_with, guard, name_process


@dataclass(frozen=True)
class Root:
    """A folder whose code processes run, and variables that only these processes have."""

    folder: Path
    variables: tuple[tuple[str, str], ...]


def placed(root: Path | Root, environment: Mapping[str, str]) -> dict[str, Any]:
    """Return the arguments of ``Popen`` for a process that runs the code of a root. ``environment`` are its
    other variables."""
    folder, variables = (root, ()) if isinstance(root, Path) else (root.folder, root.variables)
    return {"cwd": folder, "env": {**environment, **dict(variables)}}


Process = Union[subprocess.Popen[bytes], "ForkedWorker"]
Start = Callable[[Sequence[int], int], Process]
"""Starts a process that inherits descriptors. The second argument is the descriptor of the file for its
output."""


def by_command(
    command: Sequence[str], root: Path | Root, environment: Callable[[], Mapping[str, str]]
) -> Start:
    """Return a ``Start`` that runs a command in the folder ``root``.

    The descriptors are the command's last arguments. ``environment`` gives its variables at each start.
    """

    def start(descriptors: Sequence[int], printed: int) -> Process:
        return subprocess.Popen(
            [*command, *map(str, descriptors)],
            pass_fds=tuple(descriptors),
            stdin=subprocess.DEVNULL,
            stdout=printed,
            stderr=printed,
            **placed(root, environment()),
        )

    return start


class ForkServer:
    """The process from which workers on a ``device`` are forked, started with the first worker.

    ``root`` is the tree whose code it runs, ``environment`` gives its variables.
    """

    def __init__(self, device: str, root: Path | Root, environment: Callable[[], Mapping[str, str]]) -> None:
        self._device = device
        self._root = root
        self._environment = environment
        self._confined = confinement.CHOSEN.get()
        self._server: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._asked: deque[ForkedWorker] = deque()
        self._lock = Lock()
        self._is_ready = False
        self._compiles = False

    def fork(self, descriptors: Sequence[int], printed: int) -> ForkedWorker:
        """Request a worker without waiting for it. A server that has died is started again."""
        with self._lock:
            if self._server is None or self._server.poll() is not None:
                self._start(printed)
            assert self._server is not None
            made = ForkedWorker(self, self._server)
            self._asked.append(made)
            assert self._control is not None
            with suppress(ConnectionError):  # the server is dead; pid_of reports it
                socket.send_fds(self._control, [b"fork"], [*descriptors, printed])
            return made

    def import_compiler(self) -> None:
        """Let the server import torch.compile's front end: without it each worker imports it, in seconds."""
        with self._lock, suppress(OSError):  # the server is dead; pid_of reports it
            if self._control is not None and not self._compiles:
                self._control.send(b"compile")
                self._compiles = True

    def pid_of(self, one: ForkedWorker) -> int:
        """Wait until the server has forked a worker, and return the id of the worker's reaper.

        Raises ChildProcessError if the server died before.
        """
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
        """Wait until a worker ends, and return its exit code, or the server's if the server has ended."""
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
        """Ask a worker's reaper to end the worker and its children. May be called from any thread.

        A server that is not ready yet is killed instead, so that it creates no worker.
        """
        if not self._is_ready:
            if self._server is not None:
                self._server.kill()
            return
        with suppress(ChildProcessError, ProcessLookupError):
            os.kill(self.pid_of(one), signal.SIGTERM)

    def close(self) -> None:
        """End the server. Its workers were ended before."""
        if self._server is not None:
            assert self._control is not None
            self._control.close()
            self._server.kill()
            self._server.wait()
        self._server = self._control = None
        self._asked.clear()

    def _flush(self) -> None:
        """Read the outstanding answers to ``fork``, so that the next answer belongs to the next request."""
        assert self._control is not None
        while self._asked:
            self._asked[0].known_pid = int(self._control.recv(64))
            self._asked.popleft()

    def _start(self, printed: int) -> None:
        if self._control is not None:
            self._control.close()
        self._asked.clear()
        self._is_ready = self._compiles = False
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._server = subprocess.Popen(
                [
                    *(sys.executable, "-m", "kernel_pipeline.execution.fork_server"),
                    *(str(os.getpid()), str(theirs.fileno()), self._device),
                    *([] if self._confined is None else [self._confined.to_json().decode()]),
                ],
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
                # A failed import is reported with the output of the worker that needs it.
                stdout=printed,
                stderr=printed,
                **placed(self._root, self._environment()),
            )


class ForkedWorker:
    """A worker and its reaper, forked or about to be."""

    def __init__(self, server: ForkServer, parent: subprocess.Popen[bytes]) -> None:
        self._server = server
        self._parent = parent
        self.known_pid: int | None = None
        self._code: int | None = None

    @property
    def pid(self) -> int:
        """The reaper's process id. Raises ChildProcessError if the worker was never forked."""
        return self._server.pid_of(self)

    def terminate(self) -> None:
        """Ask the reaper to end the worker and its children. A server that is not ready yet is killed."""
        if self._code is None:
            self._server.terminate(self)

    def poll(self) -> int | None:
        """Return the worker's exit code, or the ended server's, because workers end with their server.
        Returns None if neither is known."""
        return self._code if self._code is not None else self._parent.poll()

    def wait(self) -> int:
        """Wait until the reaper ends. Returns its exit code."""
        if self._code is None:
            self._code = self._server.code_of(self)
        return self._code


def _wait_for(pid: int) -> None:
    """Wait for the end of a process that is not a child of this process."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        select.select([descriptor], [], [])
    finally:
        os.close(descriptor)


FIRST_COMPILE = (
    *("torch._inductor.compile_fx", "sympy", "torch.distributed.fsdp", "torch._dynamo"),
    *("torch._functorch.aot_autograd", "torch._inductor.lowering"),
)
"""The modules that the first torch.compile imports, in seconds. They are imported one at a time."""

ASK_NVML = "PYTORCH_NVML_BASED_CUDA_CHECK"

IDLE_S = 0.2
"""The server is idle after this time without a request."""

MOST_BYTES = 64
"""The longest request."""


def main(parent: int, fd: int, device: str, confined: Confinement | None = None) -> None:
    """Answer requests until the other end closes."""
    die_with(parent)
    name_process("fork-server")
    # A CUDA context does not survive a fork, so torch must ask NVML in this process whether there is a GPU.
    os.environ[ASK_NVML] = "1"
    control = socket.socket(fileno=fd)
    from . import worker

    worker.prepare(device)
    _freeze()
    left = list(FIRST_COMPILE)
    while True:
        while device == "cuda" and left and not select.select([control], [], [], IDLE_S)[0]:
            _import(left.pop(0))
            if not left:
                _freeze()
        words, descriptors, _, _ = socket.recv_fds(control, MOST_BYTES, 3)
        if not words:
            return
        name, *rest = words.decode().split()
        if name == "fork":
            control.send(str(_forked(control, descriptors, confined)).encode())
        elif name == "compile":
            while left:
                _import(left.pop(0))
            _freeze()
        else:
            control.send(str(_code_of(int(rest[0]))).encode())


def _freeze() -> None:
    """Keep the garbage collector from visiting imported objects, which live as long as the process: workers
    would copy their pages."""
    gc.collect()
    gc.freeze()


def _import(name: str) -> None:
    with suppress(Exception):  # the worker that needs the module reports the error
        importlib.import_module(name)


def _code_of(pid: int) -> int:
    """Return the exit code of a reaper that has ended. A reaper of an earlier server was killed."""
    try:
        _, status = os.waitpid(pid, 0)
    except ChildProcessError:
        return -signal.SIGKILL
    return os.waitstatus_to_exitcode(status)


def _forked(control: socket.socket, descriptors: list[int], confined: Confinement | None) -> int:
    """Fork a reaper whose child is a worker. Returns the reaper's process id."""
    parent = os.getpid()
    pid = os.fork()
    if pid == 0:
        try:
            control.close()
            del os.environ[ASK_NVML]
            connection, memory, printed = descriptors
            for stream in (1, 2):
                os.dup2(printed, stream)
            os.close(printed)
            watch = None
            if confined is not None:
                confinement.enter(confined)
                watch = confined.excess
            guard(parent, partial(_work, connection, memory, confined), watch)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(1)
    for descriptor in descriptors:
        os.close(descriptor)
    return pid


def _work(connection: int, memory: int, confined: Confinement | None) -> NoReturn:
    from . import worker

    code = 1
    try:
        name_process("worker")
        if confined is not None:
            confinement.confine(confined)
        worker.main(connection, memory)
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        # Without clean-up: after a device failure a normal exit may hang.
        os._exit(code)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], *map(Confinement.from_json, sys.argv[4:]))
