"""The functions whose first call by several threads may be wrong are called by one thread before."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode

from pipeline.machine import torch_install


class Calls(TorchFunctionMode):
    """What torch is asked for meanwhile, by function, dtype and number of elements."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: set[tuple[str, torch.dtype, int]] = set()

    def __torch_function__(
        self, function: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if args and isinstance(args[0], torch.Tensor):
            self.seen.add((function.__name__, args[0].dtype, args[0].numel()))
        return function(*args, **(kwargs or {}))


def test_each_function_is_called_on_an_element_of_each_dtype() -> None:
    with Calls() as calls:
        torch_install.resolve_vector_math()
    assert calls.seen == {
        (name, dtype, 1)
        for name in torch_install.VECTOR_FUNCTIONS
        for dtype in (torch.float32, torch.float64)
    }
    assert {"exp", "erf", "sqrt", "tanh"} <= set(torch_install.VECTOR_FUNCTIONS), "what kernels call"


STARTED = """
import os, socket, threading
from multiprocessing.connection import Connection

from pipeline.execution.protocol import Ready, Setup, receive, send
from pipeline.execution import MODULE
from pipeline.machine import torch_install
from pipeline.timing.settings import TimingSettings

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


@pytest.mark.parametrize(
    ("module", "prepared", "arguments"),
    [
        # In the process that it is forked from.
        ("worker", 'worker.prepare("cpu")', 'there.detach(), os.memfd_create("test")'),
        ("verifier_process", "", 'os.getppid(), there.detach(), os.memfd_create("test")'),
    ],
)
def test_worker_and_judge_call_them_before_they_answer(module: str, prepared: str, arguments: str) -> None:
    program = STARTED.replace("PREPARED", prepared).replace("MODULE", module).replace("ARGUMENTS", arguments)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["resolved", "ready"], done.stderr
