"""The modules that commands import before their work begins."""

import pytest

from kernel_pipeline.execution import supervisor
from kernel_pipeline.machine import device
from tests.project import python

OPENED = """
import sys
opened = []
sys.addaudithook(lambda event, given: event == "open" and opened.append(str(given[0])))
{}
print([name for name in opened if "entry_points" in name])
"""


def imported(*words: str) -> tuple[set[str], str]:
    """Return the modules that a command imports, and its last line on stderr."""
    done = python("-X", "importtime", "-m", *words)
    lines = done.stderr.splitlines()
    return {line.rpartition("|")[2].strip() for line in lines}, lines[-1]


def test_help_imports_neither_hydra_nor_torch() -> None:
    modules, _ = imported("pipeline.sweep", "--help", "kernel=softmax")
    assert "pydantic" in modules
    assert modules & {"hydra", "rich", "torch", "kernel_pipeline.execution.supervisor"} == set()


@pytest.mark.parametrize("command", ["sweep", "codegen", "profile", "counters"])
def test_a_misspelt_name_is_said_without_torch(command: str) -> None:
    modules, said = imported(f"pipeline.{command}", "kernel=softmax", "prvider=torch")
    assert said.startswith("error: unknown option of softmax 'prvider'. Did you mean 'provider'?")
    assert modules & {"torch", "triton", "pandas", "ray", "mlflow"} == set()


def test_no_package_is_looked_at_for_plugins() -> None:
    done = python(
        "-c", OPENED.format("from kernel_pipeline.records.settings import TimingSettings; TimingSettings()")
    )
    assert done.stdout == "[]\n", done.stderr


def test_workers_look_at_none_either() -> None:
    environment = supervisor._environment(device.cpu())
    done = python("-c", OPENED.format("import torch, triton"), **environment)
    assert done.stdout == "[]\n", done.stderr
