"""The process that measures: holds the device, answers one request at a time, may die.

Started by ``supervisor`` as ``python -m pipeline.execution.worker FD PARENT``; FD is its end of a socket
pair.
"""

from __future__ import annotations

import gc
import os
import sys
from multiprocessing.connection import Connection

from pipeline.execution.protocol import Ready, Reply, Request, Setup, receive, send
from pipeline.machine.process import die_with


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


def main(fd: int, parent: int) -> None:
    """Answer requests until the other end closes."""
    die_with(parent)
    connection = Connection(fd)
    setup = receive(connection, Setup)
    # Imported only now: a CPU worker has TRITON_INTERPRET in its environment, a GPU worker its one GPU.
    from pipeline.execution.trial import Trial
    from pipeline.timing import rates

    trial = Trial(setup.device, setup.settings, setup.seed)
    trial.warm_up()
    # What the imports left behind lives as long as the process: no collection need look at it again.
    gc.collect()
    gc.freeze()
    send(connection, Ready())
    while True:
        try:
            request = receive(connection, Request)
        except EOFError:
            return
        if request.measure is None:
            send(connection, rates.measure(setup.device))
            continue
        wanted = request.measure
        outcome = trial.run(wanted.where, wanted.point, wanted.overhead)
        reply = Reply(outcome=outcome, healthy=outcome.status in ("ok", "verified") or healthy(setup.device))
        send(connection, reply)
        if not reply.healthy:
            os._exit(1)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
