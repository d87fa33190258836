"""A machine with an H200, and tables that the command writes from planted ledgers."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from kernel_pipeline.machine import device
from kernel_pipeline.machine.device import Device
from kernel_pipeline.ops import source, table_files
from kernel_pipeline.records.measurement import Measurement
from pipeline import tune
from pipeline.command.options import TuneConfig
from pipeline.command.run import run_stage
from pipeline.store import results
from tests import factory
from tests.commands import exit_code
from tests.factory import H200

from .tables import ENVIRONMENT, GPU, Beside, Written, forget_tables


@pytest.fixture(autouse=True)
def gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the commands see an H200."""
    here = Device(kind="cuda", name="NVIDIA H200", index=0, uuid="GPU-0")
    monkeypatch.setattr(device, "resolve", lambda wanted: here)
    monkeypatch.setattr(device, "capabilities", lambda one: GPU)
    monkeypatch.setattr(tune, "fingerprint", lambda one: ENVIRONMENT)


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Simulate a process that has read no table and has issued no warnings."""
    forget_tables()
    source._of_files.cache_clear()
    monkeypatch.setattr(table_files, "said", set())
    yield
    forget_tables()


@pytest.fixture
def written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Written:
    """Return a function that lets the command write a table from a ledger's rows and selects that table,
    which no earlier one hides."""

    def made(rows: Sequence[Measurement], name: str = "") -> Path:
        forget_tables()
        factory.write_results(tmp_path / name, rows)
        assert exit_code(run_stage, "tune", TuneConfig, tune.run, f"output={tmp_path / name}") == 0
        path = results.tuned_path(tmp_path / name, H200)
        monkeypatch.setenv(table_files.VARIABLE, str(path))
        return path

    return made


@pytest.fixture
def beside(monkeypatch: pytest.MonkeyPatch) -> Beside:
    """Return a function that puts a table's text beside a table, as that of an H100, and selects both."""

    def put(path: Path, text: str) -> None:
        other = path.with_name("nvidia-h100.json")
        other.write_text(text.replace(f'"gpu": "{H200}"', '"gpu": "nvidia-h100"'))
        monkeypatch.setenv(table_files.VARIABLE, str(path.parent))
        forget_tables()

    return put
