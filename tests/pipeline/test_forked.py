"""Several kernels in processes of their own: what they print, what fails, how many there are at a time."""

from __future__ import annotations

import os
import time
from pathlib import Path

import psutil
import pytest

from pipeline import UserError
from pipeline.command import forked

NAMES = ("a", "b", "c", "d")


@pytest.mark.parametrize("at_once", [1, 2, 8])
def test_each_is_done_and_printed_in_order_and_failures_are_told(
    at_once: int, capfd: pytest.CaptureFixture[str]
) -> None:
    def do(name: str) -> None:
        time.sleep(0.2 if name == "a" else 0.0)  # the first is the last
        print(f"{name} begins")
        os.write(2, f"{name} ends\n".encode())
        if name in "bd":
            raise UserError(f"{name} can't")

    assert list(forked.failures(NAMES, do, at_once)) == [("b", "b can't"), ("d", "d can't")]
    lines = capfd.readouterr().out.splitlines()
    assert [line[0] for line in lines] == ["a", "a", "b", "b", "c", "c", "d", "d"]
    assert {line[2:] for line in lines} == {"begins", "ends"}


def test_no_more_than_so_many_run_at_a_time(tmp_path: Path) -> None:
    def do(name: str) -> None:
        mine = tmp_path / name
        mine.touch()
        time.sleep(0.2)
        (tmp_path / f"{name}-{len(list(tmp_path.glob('?')))}").touch()
        mine.unlink()

    assert not list(forked.failures(NAMES, do, 2))
    seen = [int(path.name[2:]) for path in tmp_path.glob("?-*")]
    assert len(seen) == len(NAMES) and max(seen) <= 2


def test_one_that_dies_is_an_error_with_what_it_said(capfd: pytest.CaptureFixture[str]) -> None:
    def do(name: str) -> None:
        if name == "b":
            raise ZeroDivisionError("planted")

    with pytest.raises(RuntimeError, match="ended with 1"):
        list(forked.failures(NAMES, do, 2))
    assert "ZeroDivisionError: planted" in capfd.readouterr().out


def test_none_outlives_who_stops_listening() -> None:
    before = set(psutil.Process().children(recursive=True))
    failing = forked.failures(NAMES, _fails_first, 4)
    assert next(failing) == ("a", "planted")
    assert len(set(psutil.Process().children()) - before) >= 3
    failing.close()
    assert set(psutil.Process().children(recursive=True)) == before


def _fails_first(name: str) -> None:
    if name == "a":
        raise UserError("planted")
    time.sleep(600)
