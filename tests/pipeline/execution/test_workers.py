"""Which worker a provider gets, with processes that only note what becomes of them."""

from __future__ import annotations

from typing import Any, cast

from pipeline.execution.workers import Workers


class Noted:
    """A process's partner that does nothing."""

    def __init__(self) -> None:
        self.is_running = True
        self.calls: list[str] = []

    @property
    def is_alive(self) -> bool:
        return "died" not in self.calls

    def begin(self) -> None:
        self.calls.append("begin")

    def settle(self) -> None:
        self.calls.append("settle")

    def end(self) -> None:
        self.calls.append("end")

    def close(self) -> None:
        self.is_running = False
        self.calls.append("close")

    def abandon(self) -> None:
        self.calls.append("abandon")


def workers(most_waiting: int = 0) -> tuple[Workers, list[Noted]]:
    made: list[Noted] = []

    def launched() -> Any:
        made.append(Noted())
        return made[-1]

    return Workers(launched, most_waiting, lambda one: cast(Noted, one).calls.append("leave")), made


def owner(name: str) -> tuple[str, str]:
    return "kernel", name


def test_another_provider_gets_the_spare_and_the_worker_before_it_is_left_ended_and_waited_for() -> None:
    some, made = workers()
    some.turn_to(owner("a"))
    some.prepare_next()
    some.turn_to(owner("a"))
    assert some.now is made[0] and len(made) == 2, "its own points stay where they are"
    some.turn_to(owner("b"))
    assert some.now is made[1] and made[0].calls == ["begin", "leave", "end"]
    some.prepare_next()
    some.settle()
    assert made[0].calls[-1] == "close" and made[2].calls == ["begin", "settle"]


def test_the_kept_provider_and_the_last_that_wait_keep_theirs() -> None:
    some, made = workers(most_waiting=1)
    some.kept = owner("baseline")
    for name in ("baseline", "a", "b"):
        some.turn_to(owner(name))
    assert [one.calls for one in made] == [["begin"]] * 3
    some.turn_to(owner("c"))  # one more waits, and the one that has waited longest ends
    assert made[1].calls == ["begin", "leave", "end"]
    some.turn_to(owner("baseline"))
    assert some.now is made[0]
    some.turn_to(owner("a"))
    assert some.now is made[4], "a process of its own again"


def test_all_that_there_are_end_and_those_that_are_started_later_are_abandoned_too() -> None:
    some, made = workers(most_waiting=5)
    for name in "abc":
        some.turn_to(owner(name))
        some.prepare_next()
    some.abandon()
    assert all(one.calls[-1] == "abandon" for one in made)
    some.close()
    assert not any(one.is_running for one in made)
    some.launch()
    assert made[-1].calls == ["abandon"]
