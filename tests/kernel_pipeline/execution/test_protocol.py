"""What a supervisor and its worker say to each other."""

import json
from collections.abc import Callable
from contextlib import suppress
from multiprocessing import Pipe
from pathlib import Path
from threading import Thread

import pytest

from kernel_pipeline.execution import message_connection
from kernel_pipeline.execution.message_connection import OutOfTurnError, receive, send
from kernel_pipeline.execution.protocol import (
    Begin,
    Checked,
    Compiled,
    Failed,
    Layout,
    Rate,
    Ready,
    Region,
    Setup,
    Shared,
    Timed,
    Wanted,
)
from kernel_pipeline.records.base import Record, Values
from kernel_pipeline.records.ceilings import Rates
from kernel_pipeline.records.point import Point
from kernel_pipeline.records.settings import TimingSettings
from pipeline import ROOT
from tests import factory

POINT = Point(
    kernel="attention",
    provider="flash",
    problem=Values({"heads": 2, "causal": True, "dtype": "bfloat16"}),
    parameters=Values({"block": 64, "mode": "sum"}),
)
LAYOUT = Layout(dtype="bfloat16", shape=(2, 3), stride=(3, 1), offset=512, apart=1024)
SHARED = Shared(region=Region(bytes=4096), inputs=(LAYOUT,), outputs=(LAYOUT.at(1),), sets=2)
TIMED = factory.measurement().outcome
MESSAGES = [
    Setup(device="cpu", settings=TimingSettings(), seed=7),
    Ready(),
    Begin(where="/some/where", point=POINT, shared=SHARED, bytes=12, interpreted=False, canary=None),
    Rate(),
    Failed(status="timeout", error="no end", healthy=False),
    Timed(timing=TIMED.timing, state=TIMED.state, sets=3),
    Checked(error=None, max_abs_err=0.0, max_rel_err=1e-300),
    Wanted(where="softmax", points=(POINT, POINT)),
    Compiled(points=(POINT,)),
    Rates(copy_gbps=1.0, matmul_tflops={"tf32": 2.0}),
]


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_a_message_comes_as_it_was_sent_and_is_json(message: Record) -> None:
    ours, theirs = Pipe()
    send(ours, message)
    assert receive(theirs, Ready, type(message)) == message
    send(ours, message)
    ((name, body),) = json.loads(theirs.recv_bytes()).items()
    assert (name, body) == (type(message).__name__, message.to_dict())


@pytest.mark.parametrize(
    "text",
    [
        *(
            b"",
            b"{}",
            b"[]",
            b"null",
            b"\xff",
            b'{"Timed": 1}',
            b'{"Ready": {}, "Failed": {}}',
            b"[" * 100_000,
        ),
        *(b'{"Failed": {"status": "ok", "error": "", "more": 1}}', b'{"Setup": {}}', b"9" * 10_000),
    ],
    ids=repr,
)
def test_what_is_no_answer_is_out_of_turn(text: bytes) -> None:
    ours, theirs = Pipe()
    ours.send_bytes(text)
    with pytest.raises(OutOfTurnError):
        receive(theirs, Timed, Failed)


def test_a_message_has_a_limited_size_and_a_closed_end_is_said() -> None:
    ours, theirs = Pipe()
    sending = Thread(target=lambda: suppressed(ours.send_bytes, b" " * (message_connection.MOST_BYTES + 1)))
    sending.start()
    with pytest.raises(OutOfTurnError, match="longer than 16 MiB"):
        receive(theirs, Ready)
    theirs.close()
    sending.join()
    ours, theirs = Pipe()
    ours.close()
    with pytest.raises(EOFError):
        receive(theirs, Ready)


def suppressed(call: Callable[..., object], *arguments: object) -> None:
    with suppress(OSError):
        call(*arguments)


def test_nothing_that_measures_or_plans_pickles() -> None:
    """A pickle runs what it likes in whoever reads it, and no ledger or command line can hold one."""
    for path in [*Path(message_connection.__file__).parent.rglob("*.py"), *(ROOT / "pipeline").rglob("*.py")]:
        text = path.read_text()
        assert "pickle" not in text, path
        assert ".recv()" not in text, path
