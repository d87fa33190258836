"""What a sweep has to measure, from what its ledger holds."""

from __future__ import annotations

import pytest

from kernel_pipeline import loading
from pipeline.execution.compile_pool import Ahead, Compilers
from pipeline.execution.schedule import Agenda
from pipeline.points.point import Point
from pipeline.points.searches import SearchBudget
from pipeline.store.record import Measurement, Status
from tests import factory

BLOCKS = (256, 512, 1024, 2048, 4096, 8192)
GRID = [
    factory.made_point(provider="triton_online", block_size=block, num_warps=warps)
    for block in BLOCKS
    for warps in (4, 8)
]
ALONE = factory.made_point(provider="torch")
AHEAD = Ahead(loading.load("softmax"), Compilers(None))


def budget(trials: int | None) -> SearchBudget:
    return SearchBudget(sampler="random", trials=trials, seconds=None if trials else 5.0, ahead=8, seed=0)


def row(point: Point, status: Status = "ok", attempts: int = 1) -> Measurement:
    """The ledger's, of a point that was timed or has failed."""
    made = factory.moved(factory.measurement(status=status), point)
    return made.model_copy(update={"attempts": attempts})


def known(*rows: Measurement) -> dict[Point, Measurement]:
    return {one.point: one for one in rows}


def test_without_a_search_every_point_is_due_that_is_not_known_or_is_tried_again() -> None:
    rows = known(row(GRID[0]), row(GRID[1], "timeout"), row(GRID[2], "incorrect"), row(GRID[3], "timeout", 3))
    agenda = Agenda(GRID, rows, "passing", None, AHEAD)
    assert agenda.due == [GRID[1], *GRID[4:]]
    assert agenda.total == agenda.expected == len(agenda.due) and agenda.searches is None


@pytest.mark.parametrize("trials", [len(GRID), len(GRID) + 1])
def test_of_no_more_configurations_than_trials_each_is_due(trials: int) -> None:
    agenda = Agenda([ALONE, *GRID], known(row(GRID[0])), "passing", budget(trials), AHEAD)
    assert agenda.due == [ALONE, *GRID[1:]] and not agenda.searches


def test_a_search_is_told_what_is_known_and_failures_that_may_pass_are_tried_again() -> None:
    rows = known(row(GRID[0]), row(GRID[1], "timeout"), row(GRID[2], "incorrect"), row(GRID[3], "timeout", 3))
    agenda = Agenda([ALONE, *GRID], rows, "passing", budget(6), AHEAD)
    assert agenda.due == [ALONE, GRID[1]]
    assert agenda.searches is not None
    assert (agenda.searches.known, agenda.searches.left, agenda.total) == (3, 2, 4)
    assert agenda.refill(agenda.due) == agenda.due, "these come first"
    (asked,) = agenda.refill([])
    assert asked in GRID[4:]
    assert {point.provider for point in agenda.examples} == {"torch", "triton_online"}
    again = Agenda(GRID, rows, "failed", budget(6), AHEAD)
    assert again.due == GRID[1:4], "retry=failed"


def test_the_fastest_of_a_search_is_what_was_told_and_none_of_another_point() -> None:
    agenda = Agenda([ALONE, *GRID], known(row(GRID[0])), "passing", budget(6), AHEAD)
    assert agenda.tell(row(ALONE)) is None
    (chosen,) = [point for point in agenda.refill([]) if point != ALONE]
    assert agenda.tell(row(chosen, "incorrect")) is not None, "that of the ledger"
    best = agenda.tell(row(agenda.refill([])[0]))
    assert best is not None and best[0] in GRID
