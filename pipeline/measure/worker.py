"""The process that measures: holds the device, answers one request at a time, may die.

Started by ``supervisor`` as ``python -m pipeline.measure.worker FD PARENT``; FD is its end of a socket pair.
"""

from __future__ import annotations

import gc
import os
import sys
from multiprocessing.connection import Connection

from pipeline.measure.process import die_with
from pipeline.measure.protocol import Measure, MeasureRates, Ready, Reply, Setup


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
    setup: Setup = connection.recv()
    # Imported only now: a CPU worker has TRITON_INTERPRET in its environment, a GPU worker its one GPU.
    from pipeline.measure import rates
    from pipeline.measure.trial import Trial

    trial = Trial(setup.device, setup.settings, setup.seed)
    trial.warm_up()
    # What the imports left behind lives as long as the process: no collection need look at it again.
    gc.collect()
    gc.freeze()
    connection.send(Ready())
    while True:
        try:
            request: Measure | MeasureRates = connection.recv()
        except EOFError:
            return
        if isinstance(request, MeasureRates):
            connection.send(rates.measure(setup.device))
            continue
        outcome = trial.run(request.point, request.overhead)
        reply = Reply(outcome, outcome.status in ("ok", "verified", "unsupported") or healthy(setup.device))
        connection.send(reply)
        if not reply.healthy:
            os._exit(1)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
