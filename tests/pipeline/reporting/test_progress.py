"""What progress says in a file, where there is no bar."""

import io

import pytest

from pipeline.reporting import terminal
from pipeline.reporting.sweep_output import best_so_far
from pipeline.reporting.terminal import Bars, Progress, Terminal
from tests import factory


def test_a_search_shows_the_best_so_far(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(terminal, "LINE_EVERY_S", -1.0)
    written = io.StringIO()
    point = factory.made_point(provider="triton_online", size=4096, block_size=1024, num_warps=8)
    with Progress(Terminal(file=written, width=80), "softmax on h200", 2) as shown:
        shown.advance("first")
        for _ in range(2):
            shown.advance("again", best_so_far(point, 12.345))
    best = "best so far of 4096 float32: 12.3 us, triton_online 1024x8w"
    assert written.getvalue().splitlines() == [
        "softmax on h200: 1 of 2",
        f"softmax on h200: 2 of 2; {best}",
        f"softmax on h200: 3 of 3; {best}",
    ]


def test_each_of_several_devices_has_a_line_and_two_sweeps_share_the_terminal() -> None:
    console = Terminal(file=io.StringIO(), width=100, force_terminal=True)
    with Bars(console) as bars:
        first = Progress(console, "softmax on h200", 4, bars, ["node1/cuda:0", "node1/cuda:1"])
        second = Progress(console, "softmax on h100", 4, bars, ["node2/cuda:0"])
        with first, second:
            first.advance("one", device="node1/cuda:1")
            first.advance("two", device="node1/cuda:1")
            second.advance("three", device="node2/cuda:0")
            lines = {task.description: (task.completed, task.fields["step"]) for task in bars.lines.tasks}
        assert lines == {
            "softmax on h200": (2, ""),
            "  node1/cuda:0": (0, ""),
            "  node1/cuda:1": (2, "two"),
            "softmax on h100": (1, "three"),
        }
        assert bars.lines.tasks == []
