"""The process that judges: it owns the inputs and imports no provider.

Started by ``supervisor`` as ``python -m pipeline.execution.judging PARENT FD MEMORY``; FD is its end of a
socket pair, MEMORY the descriptor of the shared memory of a CPU.
"""

from __future__ import annotations

import gc
import sys
from multiprocessing.connection import Connection

from pipeline.execution.protocol import Setup, receive, serve
from pipeline.machine.process import die_with
from pipeline.machine.torch import quick_import
from pipeline.points.frozen import Record


def main(parent: int, fd: int, memory: int) -> None:
    """Answer requests until the other end closes."""
    die_with(parent)
    connection = Connection(fd)
    with quick_import():
        from pipeline.execution import appraisal, judge, verification
        from pipeline.execution.appraisal import Appraiser
        from pipeline.execution.faults import failed
        from pipeline.machine import vector_math

    setup = receive(connection, Setup)
    appraiser = Appraiser(setup.device, setup.seed, memory, setup.values)
    if appraiser.device.type == "cpu":
        vector_math.resolve()
    verification.warm_up(appraiser.device)
    gc.collect()
    gc.freeze()

    def answer(request: Record) -> Record:
        try:
            return appraiser.answer(request)
        except Exception as error:
            return failed(error)

    serve(connection, answer, *judge.REQUESTS, *appraisal.REQUESTS)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
