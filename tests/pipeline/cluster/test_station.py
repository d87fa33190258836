"""A station in this process, on this host's CPU, without what measures."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Self

import pytest

from pipeline import UserError
from pipeline.cluster import station
from pipeline.cluster.messages import Assignment
from pipeline.cluster.station import Station
from pipeline.machine import device, environment
from pipeline.machine.lock import DeviceLock
from pipeline.timing.settings import TimingSettings

CPU = device.cpu()


class Counted:
    """Instead of what measures: how often it was started."""

    started = 0

    def __init__(self, *asked: object, **more: object) -> None: ...

    def start(self) -> None:
        Counted.started += 1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None: ...


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Locks, builds and a checkout's number of its own."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(station, "ROOT", tmp_path)
    monkeypatch.setattr(station, "LOCAL", tmp_path)
    monkeypatch.setattr(station, "Supervisor", Counted)
    monkeypatch.setattr(Counted, "started", 0)


def made(measures: bool) -> Station:
    assignment = Assignment(
        kind="cpu",
        measures=measures,
        flags=environment.flags("cpu"),
        drawn="",
        settings=TimingSettings(),
        seed=0,
        timeout_s=1.0,
        kernels=(),
        packages=(),
    )
    return Station(assignment.model_dump_json())


def is_free() -> bool:
    try:
        with DeviceLock(CPU, 0.0, lambda sentence: None):
            return True
    except UserError:
        return False


@pytest.mark.usefixtures("host")
def test_what_measures_starts_while_the_station_is_looked_at() -> None:
    one = made(measures=True)
    one.describe()
    assert Counted.started == 1 and not is_free()
    one.begin(None)
    assert Counted.started == 1


@pytest.mark.usefixtures("host")
def test_a_device_that_another_command_has_is_waited_for_once_the_station_is_wanted() -> None:
    one = made(measures=True)
    with DeviceLock(CPU, 0.0, lambda sentence: None):
        one.describe()
        with pytest.raises(UserError, match=r"gave up after 0 s"):
            one.begin(0.0)
    assert Counted.started == 0
    one.begin(None)
    assert Counted.started == 1 and not is_free()


@pytest.mark.usefixtures("host")
def test_an_errand_takes_the_device_itself() -> None:
    one = made(measures=False)
    one.describe()
    assert Counted.started == 0 and is_free()
