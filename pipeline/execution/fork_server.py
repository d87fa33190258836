"""The process from which workers are forked: it imports once what all of them need, and touches no device.

Started by ``forks`` as ``python -m pipeline.execution.fork_server PARENT FD DEVICE``; FD is its end of a
socket pair. For a GPU it imports, while it has nothing to do, what torch.compile takes the first time; on a
CPU that would take the cores of what is timed. It is asked in messages of one line:

    fork        with three descriptors (the worker's end of its own socket pair, the memory that it shares
                with the verifier, the file for what it prints); answered with the id of the worker's reaper
    status PID  of a reaper that has ended; answered with its exit code, negative for a signal
"""

from __future__ import annotations

import gc
import importlib
import os
import select
import signal
import socket
import sys
import traceback
from contextlib import suppress
from functools import partial
from typing import NoReturn

from pipeline.machine.reaper import die_with, guard, name_process

FIRST_COMPILE = (
    *("torch._inductor.compile_fx", "sympy", "torch.distributed.fsdp", "torch._dynamo"),
    *("torch._functorch.aot_autograd", "torch._inductor.lowering"),
)
"""The modules that the first torch.compile imports, which takes seconds; one is imported at a time."""

ASK_NVML = "PYTORCH_NVML_BASED_CUDA_CHECK"

IDLE_S = 0.2
"""Without a request for so long, it has nothing to do."""

MOST_BYTES = 64
"""The longest request."""


def main(parent: int, fd: int, device: str) -> None:
    """Answer requests until the other end closes."""
    die_with(parent)
    name_process("fork-server")
    # A context of CUDA's driver survives no fork: whether there is a GPU, torch asks NVML, in this process.
    os.environ[ASK_NVML] = "1"
    control = socket.socket(fileno=fd)
    from pipeline.execution import worker

    worker.prepare(device)
    # The imported objects live as long as the process: the collector need not look at them again, and no
    # worker copies their pages.
    gc.collect()
    gc.freeze()
    left = list(FIRST_COMPILE) if device == "cuda" else []
    while True:
        while left and not select.select([control], [], [], IDLE_S)[0]:
            with suppress(Exception):  # who needs what can't be imported says so
                importlib.import_module(left.pop(0))
        words, descriptors, _, _ = socket.recv_fds(control, MOST_BYTES, 3)
        if not words:
            return
        name, *rest = words.decode().split()
        if name == "fork":
            control.send(str(_forked(control, descriptors)).encode())
        else:
            control.send(str(_code_of(int(rest[0]))).encode())


def _code_of(pid: int) -> int:
    """The exit code of a reaper that has ended. A reaper of a server that died before this one was killed."""
    try:
        _, status = os.waitpid(pid, 0)
    except ChildProcessError:
        return -signal.SIGKILL
    return os.waitstatus_to_exitcode(status)


def _forked(control: socket.socket, descriptors: list[int]) -> int:
    """The process id of a reaper whose child is a worker."""
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
            guard(parent, partial(_work, connection, memory))
        finally:
            os._exit(1)
    for descriptor in descriptors:
        os.close(descriptor)
    return pid


def _work(connection: int, memory: int) -> NoReturn:
    from pipeline.execution import worker

    code = 1
    try:
        name_process("worker")
        worker.main(connection, memory)
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        # At once: a device that has failed may let no exit come to its end.
        os._exit(code)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
