"""What a process may want while it answers: the mode of the launch gap set, by another process."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from kernel_pipeline.execution.child_process import MOST_MODES, ChildProcess, GoneError
from kernel_pipeline.execution.fork_server import by_command
from kernel_pipeline.execution.protocol import Echo, Echoed, Setup
from kernel_pipeline.records.settings import TimingSettings
from pipeline import ROOT

WANTS = """
import sys
from multiprocessing.connection import Connection
from kernel_pipeline.execution.message_connection import receive, send
from kernel_pipeline.execution.protocol import Echo, Echoed, ModeSet, ModeWanted, Ready, Setup
connection = Connection(int(sys.argv[2]))
receive(connection, Setup)
send(connection, Ready())
while True:
    request = receive(connection, Echo)
    for _ in range(int(sys.argv[1])):
        send(connection, ModeWanted())
        receive(connection, ModeSet)
    send(connection, Echoed(token=request.token))
"""


@pytest.fixture
def memory() -> Iterator[int]:
    descriptor = os.memfd_create("test")
    yield descriptor
    os.close(descriptor)


def partner(times: int, memory: int, tmp_path: Path) -> ChildProcess:
    (tmp_path / "wants.py").write_text(WANTS)
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    start = by_command([sys.executable, str(tmp_path / "wants.py"), str(times)], ROOT, lambda: environment)
    made = ChildProcess("worker", Setup(device="cpu", settings=TimingSettings(), seed=0), start)
    made.launch(memory)
    made.begin()
    return made


@pytest.mark.parametrize("times", [0, 1, 3])
def test_the_mode_is_set_as_often_as_it_is_wanted_before_the_answer(
    memory: int, tmp_path: Path, times: int
) -> None:
    made = partner(times, memory, tmp_path)
    seen: list[int] = []
    try:
        for token in ("a", "b"):
            answer = made.ask(Echo(token=token), Echoed, 60.0, lambda: seen.append(1))
            assert answer == Echoed(token=token)
        assert len(seen) == 2 * times
    finally:
        made.close()


def test_who_wants_it_without_end_or_out_of_turn_is_given_up(memory: int, tmp_path: Path) -> None:
    made = partner(MOST_MODES + 1, memory, tmp_path)
    with pytest.raises(GoneError, match=f"asked to set the mode {MOST_MODES + 1} times"):
        made.ask(Echo(token="a"), Echoed, 60.0, lambda: None)
    made = partner(1, memory, tmp_path)
    with pytest.raises(GoneError, match="answered out of turn"):
        made.ask(Echo(token="a"), Echoed, 60.0)
