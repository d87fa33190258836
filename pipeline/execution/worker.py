"""The process that runs one provider: holds the device, answers one request at a time, may die.

Forked by ``fork_server``, below a warden. Its end of a socket pair is its only way out; the memory that it
shares with the judge on a CPU is a descriptor, too.
"""

from __future__ import annotations

import os
from multiprocessing.connection import Connection

import torch

from pipeline.execution import trial
from pipeline.execution.endurance import Endurance
from pipeline.execution.faults import failed
from pipeline.execution.protocol import (
    Again,
    Arm,
    Begin,
    Echo,
    Echoed,
    Empty,
    End,
    Go,
    ModeSet,
    ModeWanted,
    Rate,
    Release,
    Setup,
    Show,
    Stamp,
    Sustain,
    Time,
    receive,
    send,
    serve,
)
from pipeline.machine import vector_math
from pipeline.machine.process import die_with
from pipeline.points.frozen import Record

REQUESTS = (Begin, Time, Stamp, Again, Arm, Empty, Go, Show, Sustain, End, Echo, Rate, Release)


def healthy(device: str) -> bool:
    """Whether the device still does what it is told in this process."""
    if device == "cpu":
        return True
    try:
        torch.cuda.synchronize()
        torch.zeros(1, device="cuda").item()
    except RuntimeError:
        return False
    return True


def prepare(device: str) -> None:
    """Do what each worker on such a device would else do for itself, as far as it touches no device."""
    if device == "cpu":
        vector_math.resolve()
    else:
        trial.load_triton()


def main(fd: int, memory: int) -> None:
    """Answer requests until the other end closes."""
    die_with(os.getppid())
    connection = Connection(fd)
    setup = receive(connection, Setup)

    def set_mode() -> None:
        send(connection, ModeWanted())
        receive(connection, ModeSet)

    running = Endurance(setup.device, setup.settings, memory, set_mode, setup.values)
    running.warm_up()

    def answer(request: Record) -> Record:
        if isinstance(request, Echo):
            return Echoed(token=request.token)
        try:
            return running.answer(request)
        except Exception as error:
            return failed(error).model_copy(update={"healthy": healthy(setup.device)})

    serve(connection, answer, *REQUESTS)
