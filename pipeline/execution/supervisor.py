"""The measuring process from outside: started, asked, given up when it hangs, replaced when it dies."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from types import TracebackType
from typing import IO, Self

from pipeline import ROOT, UserError
from pipeline.execution.protocol import Measure, R, Ready, Reply, Request, Setup, receive, send
from pipeline.machine.device import Device
from pipeline.points.point import Point
from pipeline.store.ceilings import NO_OVERHEAD, Rates
from pipeline.store.record import Outcome, Status
from pipeline.timing.settings import TimingSettings

RATES_TIMEOUT_S = 300.0
"""Far more than the device's own limits take to measure."""

START_TIMEOUT_S = 600.0
"""Far more than a worker takes to import torch, from a slow disk on a busy machine too."""


class WorkerError(Exception):
    """The worker ended or hung instead of answering."""

    def __init__(self, status: Status, text: str) -> None:
        super().__init__(text)
        self.status = status


class Supervisor:
    """A worker on one device, replaced as often as needed. A context manager: no worker outlives it.

    ``root`` is the tree whose instrument and kernels measure: another commit's, to compare the two.
    """

    def __init__(
        self, device: Device, settings: TimingSettings, seed: int, timeout_s: float, root: Path = ROOT
    ) -> None:
        self.device = device
        self.setup = Setup(device=device.kind, settings=settings, seed=seed)
        self.timeout_s = timeout_s
        self.root = root
        self.overhead = NO_OVERHEAD
        self._abandoned = False
        self._ready = False
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: Connection | None = None
        self._stderr: IO[bytes] | None = None
        self._said = 0

    def measure(self, where: str, point: Point) -> Outcome:
        """The outcome at a point of the kernel that ``where`` names, also when the worker does not survive
        it."""
        wanted = Measure(where=where, point=point, overhead=self.overhead)
        try:
            reply = self._ask(Request(measure=wanted), Reply, self.timeout_s)
        except WorkerError as error:
            return Outcome(status=error.status, error=str(error))
        if not reply.healthy:
            self.close()
        return reply.outcome

    def start(self) -> None:
        """Start the worker now, so that it is ready when the first point is."""
        if self._process is None:
            self._start()

    def abandon(self) -> None:
        """Kill the worker from another thread, and any that is started later; the thread that waits for an
        answer learns that it is gone."""
        self._abandoned = True
        process = self._process
        if process is not None:
            process.kill()

    def rates(self) -> Rates:
        """The device's own limits. Raises UserError when they can't be measured."""
        try:
            return self._ask(Request(), Rates, RATES_TIMEOUT_S)
        except WorkerError as error:
            raise UserError(f"the ceilings of {self.device.name} could not be measured: {error}.") from error

    def _ask(self, request: Request, answer: type[R], timeout_s: float) -> R:
        self.start()
        assert self._connection is not None
        assert self._stderr is not None
        try:
            if not self._ready:
                # What a worker takes to start is no part of the time that its first request may take.
                self._receive(Ready, START_TIMEOUT_S)
                self._ready = True
            self._said = os.fstat(self._stderr.fileno()).st_size
            send(self._connection, request)
            return self._receive(answer, timeout_s)
        except (EOFError, OSError) as gone:
            raise WorkerError("runtime_error", self._epitaph()) from gone

    def _receive(self, kind: type[R], timeout_s: float) -> R:
        assert self._connection is not None
        if not self._connection.poll(timeout_s):
            self.close()
            raise WorkerError("timeout", f"no answer in {timeout_s:g} s; its worker was replaced")
        return receive(self._connection, kind)

    def _start(self) -> None:
        ours, theirs = socket.socketpair()
        environment = dict(os.environ)
        # Inductor's own pool of compile processes would outlive a worker that is killed.
        environment["TORCHINDUCTOR_COMPILE_THREADS"] = "1"
        if self.device.kind == "cuda":
            assert self.device.uuid is not None
            environment["CUDA_VISIBLE_DEVICES"] = self.device.uuid
        else:
            environment |= {"CUDA_VISIBLE_DEVICES": "", "TRITON_INTERPRET": "1"}
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the worker
        fd = theirs.fileno()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "pipeline.execution.worker", str(fd), str(os.getpid())],
            pass_fds=[fd],
            cwd=self.root,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=self._stderr,
            stderr=self._stderr,
        )
        if self._abandoned:
            self._process.kill()
        theirs.close()
        self._ready = False
        self._said = 0
        self._connection = Connection(ours.detach())
        with suppress(ConnectionError):  # it is dead already; who waits for its first message is told
            send(self._connection, self.setup)

    def _epitaph(self) -> str:
        """How the worker ended, in one line, with what it said last of this request; the next one starts
        another."""
        assert self._process is not None
        assert self._stderr is not None
        code = self._process.wait()
        self._stderr.seek(self._said)
        words = [line for line in self._stderr.read().decode(errors="replace").splitlines() if line.strip()]
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"exited with {code}"
        self.close()
        return f"the worker {how}" + (f": {words[-1]}" if words else "")

    def close(self) -> None:
        """End the worker, at once."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        if self._connection is not None:
            self._connection.close()
        if self._stderr is not None:
            self._stderr.close()
        self._process = self._connection = self._stderr = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
