"""The process that runs providers: holds the device, answers one request at a time, may die.

Started by ``supervisor``, below a warden, as ``python -m pipeline.execution.worker FD MEMORY``; FD is its end
of a socket pair, MEMORY the descriptor of the memory that it shares with the judge on a CPU. With the word
``compiles`` before these it may expect points of torch.compile.
"""

from __future__ import annotations

import gc
import importlib
import os
import sys
from contextlib import suppress
from multiprocessing.connection import Connection

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
from pipeline.machine.process import die_with
from pipeline.machine.torch import quick_import
from pipeline.points.frozen import Record

FIRST_COMPILE = (
    *("sympy", "torch.distributed.fsdp", "torch._dynamo", "torch._functorch.aot_autograd"),
    *("torch._inductor.lowering", "torch._inductor.compile_fx"),
)
"""What the first torch.compile would import: 1.4 s on an AMD EPYC, in steps of less than half a second."""

REQUESTS = (Begin, Time, Stamp, Again, Arm, Empty, Go, Show, Sustain, End, Echo, Rate, Release)


def healthy(device: str) -> bool:
    """Whether the device still does what it is told in this process."""
    if device == "cpu":
        return True
    import torch

    try:
        torch.cuda.synchronize()
        torch.zeros(1, device="cuda").item()
    except RuntimeError:
        return False
    return True


def main(fd: int, memory: int, compiles: bool) -> None:
    """Answer requests until the other end closes. Who ``compiles`` imports what that takes while it waits for
    a point, whose Triton program or library others compile."""
    die_with(os.getppid())
    connection = Connection(fd)
    # Imported only now: a CPU worker has INTERPRETERS in its environment, a GPU worker its one GPU.
    with quick_import():
        from pipeline.execution.endurance import Endurance
        from pipeline.execution.faults import failed
        from pipeline.execution.process_state import of_triton, put_back
        from pipeline.machine import vector_math

        if not connection.poll():
            # Nobody waits for it yet: what the first torch.compile would import takes seconds, too.
            with suppress(ImportError):
                importlib.import_module("torch._inductor.compile_fx")
    setup = receive(connection, Setup)
    if setup.device == "cpu":
        vector_math.resolve()

    def set_mode() -> None:
        send(connection, ModeWanted())
        receive(connection, ModeSet)

    trial = Endurance(setup.device, setup.settings, memory, set_mode, setup.values)
    trial.warm_up()
    # What the imports left behind lives as long as the process: no collection need look at it again.
    gc.collect()
    gc.freeze()
    variables = of_triton()
    left = list(FIRST_COMPILE) if compiles else []
    is_at_a_point = False

    def go_on() -> bool:
        if left and not is_at_a_point:
            with suppress(Exception):  # who needs what can't be imported says so
                importlib.import_module(left.pop(0))
        return bool(left)

    def answer(request: Record) -> Record:
        nonlocal is_at_a_point
        if isinstance(request, (Begin, End)):
            is_at_a_point = isinstance(request, Begin)
        if isinstance(request, Echo):
            return Echoed(token=request.token)
        try:
            if isinstance(request, End):
                put_back(variables)
            return trial.answer(request)
        except Exception as error:
            return failed(error).model_copy(update={"healthy": healthy(setup.device)})

    if not serve(connection, answer, *REQUESTS, meanwhile=go_on):
        # At once: a device that has failed may let no exit come to its end.
        os._exit(1)


if __name__ == "__main__":
    main(int(sys.argv[-2]), int(sys.argv[-1]), "compiles" in sys.argv[1:-2])
