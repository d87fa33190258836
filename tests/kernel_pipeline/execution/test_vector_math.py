"""Functions whose first call may be wrong when several threads make it are first called by one thread."""

import sys

import pytest

from tests.processes import completed

STARTED = """
import os, socket, threading
from multiprocessing.connection import Connection

from kernel_pipeline.execution.message_connection import receive, send
from kernel_pipeline.execution.protocol import Ready, Setup
from kernel_pipeline.execution import MODULE
from kernel_pipeline.machine import torch_install
from kernel_pipeline.records.settings import TimingSettings

torch_install.resolve_vector_math = lambda: print("resolved", flush=True)
here, there = socket.socketpair()
ours = Connection(here.detach())
send(ours, Setup(device="cpu", settings=TimingSettings(), seed=0))

def ask():
    receive(ours, Ready)
    print("ready", flush=True)
    ours.close()

threading.Thread(target=ask, daemon=True).start()
PREPARED
MODULE.main(ARGUMENTS)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("module", "prepared", "arguments"),
    [
        # The worker is forked from a process that has called prepare().
        ("worker", 'worker.prepare("cpu")', 'there.detach(), os.memfd_create("test")'),
        ("verifier_process", "", 'os.getppid(), there.detach(), os.memfd_create("test")'),
    ],
)
def test_worker_and_judge_call_them_before_they_answer(module: str, prepared: str, arguments: str) -> None:
    program = STARTED.replace("PREPARED", prepared).replace("MODULE", module).replace("ARGUMENTS", arguments)
    done = completed([sys.executable, "-c", program])
    assert done.stdout.split() == ["resolved", "ready"], done.stderr
