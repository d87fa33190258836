"""What a supervisor and its worker say to each other."""

from __future__ import annotations

from multiprocessing import Pipe
from pathlib import Path

import pytest
from pydantic import ValidationError

from pipeline.execution import protocol
from pipeline.execution.protocol import Done, Measure, Ready, Reply, Request, Setup, Wanted, receive, send
from pipeline.points.frozen import Record, Values
from pipeline.points.point import Point
from pipeline.store.ceilings import NO_OVERHEAD, Rates
from pipeline.timing.settings import TimingSettings
from tests import factory

POINT = Point(
    kernel="attention",
    provider="flash",
    problem=Values({"heads": 2, "causal": True, "dtype": "bfloat16"}),
    parameters=Values({"block": 64, "mode": "sum"}),
)
MESSAGES = [
    Setup(device="cpu", settings=TimingSettings(), seed=7),
    Ready(),
    Request(measure=Measure(where="/some/where", point=POINT, overhead=NO_OVERHEAD)),
    Request(),
    Reply(outcome=factory.measurement().outcome, healthy=True),
    Reply(outcome=factory.measurement(status="timeout").outcome, healthy=False),
    Wanted(where="softmax", points=(POINT, POINT)),
    Done(points=(POINT,)),
    Rates(copy_gbps=1.0, matmul_tflops={"tf32": 2.0}),
]


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_a_message_comes_as_it_was_sent_and_is_json(message: Record) -> None:
    ours, theirs = Pipe()
    send(ours, message)
    assert receive(theirs, type(message)) == message
    send(ours, message)
    text = theirs.recv_bytes()
    assert text.startswith(b"{") and text.decode() == message.model_dump_json()


def test_another_message_is_refused_and_a_closed_end_is_said() -> None:
    ours, theirs = Pipe()
    send(ours, MESSAGES[0])
    with pytest.raises(ValidationError):
        receive(theirs, Reply)
    ours.close()
    with pytest.raises(EOFError):
        receive(theirs, Reply)


def test_nothing_of_the_pipeline_pickles() -> None:
    """A pickle runs what it likes in whoever reads it, and no ledger or command line can hold one."""
    root = Path(protocol.__file__).parents[1]
    for path in root.rglob("*.py"):
        text = path.read_text()
        assert "pickle" not in text, path
        assert ".recv()" not in text, path
