"""What made rows old is said with its old and new value."""

from __future__ import annotations

import pytest

from kernel_pipeline import loading
from pipeline.execution.identity import Identity
from pipeline.execution.old_rows import OldRows, of_environment, reasons
from pipeline.store.provenance import run_of
from pipeline.timing.settings import TimingSettings
from tests import factory

HERE = factory.environment(factory.H100)
TORCH = loading.load("softmax").kernel.provider("torch")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"driver": "1.2"}, ["driver was 1.2, is " + str(HERE.driver)]),
        ({"flags": {"CUDA_LAUNCH_BLOCKING": "1"}}, ["CUDA_LAUNCH_BLOCKING was 1, is not set"]),
        (
            {"flags": {"TORCH_SYMM_MEM_DISABLE_MULTICAST": "1"}},
            ["TORCH_SYMM_MEM_DISABLE_MULTICAST was 1, and is in no key any more"],
        ),
        ({"triton": "0"}, ["other parts of the environment were in the key"]),
    ],
)
def test_an_environments_change_names_the_field(change: dict[str, object], said: list[str]) -> None:
    assert of_environment(HERE.model_copy(update=change), HERE, TORCH) == said


def test_a_row_is_old_by_its_settings_and_source_and_that_is_counted() -> None:
    identity = Identity(loading.load("softmax"), HERE, TimingSettings(), 0)
    row = factory.measurement(gpu=factory.H100, source="0" * 16)
    then = TimingSettings(min_samples=7).model_dump()
    run = run_of(row.origin, row.parts, "softmax").model_copy(update={"timing": then, "seed": 0})
    why = reasons(row, identity, {run.run: run})
    assert "min_samples was 7, is 20" in why
    assert "the source of softmax/torch changed" in why
    old = OldRows()
    for _ in range(1200):
        old.add(["A was 1, is 2"])
    old.add(["A was 1, is 2", "B was 3, is not set"])
    assert old.said() == "1,201 rows are old: A was 1, is 2; B was 3, is not set (1 of them)"
