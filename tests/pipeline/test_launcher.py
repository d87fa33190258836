"""An invalid option of a scheduler's launcher is reported in one sentence. No scheduler is needed."""

import importlib.util
from typing import Any

import pytest

from kernel_pipeline.errors import UserError
from kernel_pipeline.records.base import Record
from pipeline.command import words
from pipeline.command.options import CompareConfig, ProfileConfig, SweepConfig

SLURM = "hydra/launcher=submitit_slurm"


@pytest.mark.parametrize(
    ("given", "schema", "sentence"),
    [
        ([SLURM], SweepConfig, f"runs the jobs of a multirun: write -m {SLURM}"),
        (["-m", "hydra/launcher=submitit_slrum"], SweepConfig, "Did you mean 'submitit_slurm'"),
        (
            ["-m", "hydra.launcher.partition=h100"],
            SweepConfig,
            f"configures a launcher: write -m {SLURM}, too",
        ),
        (["-m", SLURM], CompareConfig, "is for sweeps: run this command on the device's host"),
        (["-m", SLURM, "tracking.uri=http://me:secret@h"], SweepConfig, "set MLFLOW_TRACKING_URI instead"),
        (["cluster=ray"], ProfileConfig, "cluster= is for sweep: leave it out, and run this command"),
        (["-m", SLURM, "hydra.run.dir=x"], SweepConfig, "hydra.run.dir is a setting of Hydra's own"),
    ],
)
def test_what_can_not_be_is_said(
    given: list[str], schema: type[Record], sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    there(monkeypatch, object())
    with pytest.raises(UserError) as error:
        words.read([*given, "kernel=softmax,layernorm"], schema)
    assert sentence in str(error.value) and "secret" not in str(error.value)


def there(monkeypatch: pytest.MonkeyPatch, found: object | None) -> None:
    """Pretend that the launcher is installed, or that it is not."""
    find = importlib.util.find_spec

    def looked_for(name: str, *rest: Any) -> Any:
        return found if name.startswith("hydra_plugins") else find(name, *rest)

    monkeypatch.setattr(importlib.util, "find_spec", looked_for)


def test_without_the_launcher_a_sentence_says_how_it_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    there(monkeypatch, None)
    with pytest.raises(UserError, match=r"needs hydra-submitit-launcher.*python locks/install.py slurm"):
        words.read(["-m", SLURM, "kernel=softmax"], SweepConfig)


def test_its_settings_go_to_hydra_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    there(monkeypatch, object())
    line = words.read(
        ["-m", SLURM, "hydra.launcher.partition=h100", "kernel=softmax,layernorm", "rows=64"], SweepConfig
    )
    assert line.launcher == "submitit_slurm"
    assert {SLURM, "hydra.launcher.partition=h100"} <= line.given.keys()
