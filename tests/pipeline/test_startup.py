"""What commands do before their work begins: no more than it takes."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest
from hydra._internal.hydra import Hydra

from pipeline import sweep
from pipeline.command import misspelt
from pipeline.command.options import SweepConfig
from pipeline.command.run import run_each
from pipeline.execution import supervisor
from pipeline.machine import device
from tests.project import python

WORDS = ("kernel=softmax", "prvider=torch")

OPENED = """
import sys
opened = []
sys.addaudithook(lambda event, given: event == "open" and opened.append(str(given[0])))
{}
print([name for name in opened if "entry_points" in name])
"""


def test_a_name_that_nobody_knows_is_said_before_a_command_is_imported() -> None:
    done = python("-X", "importtime", "-m", "pipeline.sweep", *WORDS)
    assert (done.returncode, done.stdout) == (2, "")
    assert "error: unknown option of softmax 'prvider'. Did you mean 'provider'?" in done.stderr
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert "pydantic" in imported
    assert imported & {"hydra", "omegaconf", "rich", "pipeline.execution.supervisor"} == set()


def test_it_is_said_as_the_command_itself_says_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        misspelt.refuse("sweep", WORDS)
    early = capsys.readouterr().err
    monkeypatch.setattr(sys, "argv", ["sweep", *WORDS])
    with pytest.raises(SystemExit, match="2"):
        run_each("sweep", SweepConfig, sweep.run)
    assert capsys.readouterr().err == early


@pytest.mark.parametrize(
    "words",
    [
        ("kernel=softmax", "size=1024", "block_size=512", "provider=torch"),
        ("kernel=softmax,gelu", "rows=4096"),
        ("experiment=first_look", "prvider=torch"),
        ("kernel=./elsewhere", "prvider=torch"),
        ("-m", "kernel=softmax,square", "prvider=torch"),
        ("--cfg", "job", *WORDS),
    ],
    ids=str,
)
def test_nothing_else_is_refused_early(words: tuple[str, ...]) -> None:
    misspelt.refuse("sweep", words)


@pytest.mark.parametrize("name", ["new", "results", "publish"])
def test_a_command_about_kernels_that_need_not_be_there_takes_any_name(name: str) -> None:
    misspelt.refuse(name, ["kernel=no_such"])


def test_no_package_is_looked_at_for_plugins() -> None:
    done = python(
        "-c", OPENED.format("from pipeline.timing.settings import TimingSettings; TimingSettings()")
    )
    assert done.stdout == "[]\n", done.stderr


def test_who_measures_looks_at_none_either() -> None:
    environment = supervisor._environment(device.cpu())
    done = python("-c", OPENED.format("import torch, triton"), **environment)
    assert done.stdout == "[]\n", done.stderr


def test_a_command_without_flags_is_composed_once_for_the_preset_and_once_with_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    composed: list[list[str]] = []
    compose = Hydra.compose_config

    def counted(self: Hydra, overrides: list[str], **named: Any) -> Any:
        composed.append(overrides)
        return compose(self, overrides=overrides, **named)

    monkeypatch.setattr(Hydra, "compose_config", counted)
    monkeypatch.setattr(sys, "argv", ["sweep", "kernel=softmax", "device=cpu", "tracking=none"])
    found: list[str] = []
    with pytest.raises(SystemExit, match="0"):
        run_each("sweep", SweepConfig, lambda configs: found.extend(one.preset.name for one in configs))
    assert (len(composed), found) == (2, ["cpu"])
    assert composed[1][-1] == "preset=cpu"


def test_a_sweep_here_imports_nothing_of_clusters() -> None:
    program = "import json, sys; import pipeline.sweep; print(json.dumps(sorted(sys.modules)))"
    imported = json.loads(python("-c", program).stdout)
    assert "pipeline.execution.team" in imported
    assert [name for name in imported if name.startswith("pipeline.cluster")] == []
