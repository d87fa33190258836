"""Weights that a provider prepares once for each set of inputs, random outputs, and the memory of a call, in
real processes."""

import dataclasses
import re
from collections.abc import Iterator

import pytest
import torch

from kernel_pipeline import loading
from kernel_pipeline.contract import Provider
from kernel_pipeline.declared import ContractError
from kernel_pipeline.execution import instance
from kernel_pipeline.execution.supervisor import Supervisor
from kernel_pipeline.machine import device
from kernel_pipeline.records.base import Values
from kernel_pipeline.records.measurement import Outcome
from kernel_pipeline.records.point import Point
from kernel_pipeline.records.settings import TimingSettings
from pipeline.keys import identity
from tests.planted import dropout, linear
from tests.planted.tree import PLANTED

SETTINGS = TimingSettings(stopping="count", min_samples=3)

LINEAR = str(PLANTED / "linear")

N = 1 << 14


@pytest.fixture(scope="module")
def worker() -> Iterator[Supervisor]:
    with Supervisor(device.cpu(), SETTINGS, seed=0, timeout_s=120.0) as made:
        yield made


def point(provider: str) -> Point:
    problem = Values({"rows": 16, "columns": 512, "dtype": "float32"})
    return Point(kernel="linear", provider=provider, problem=problem)


def measured(worker: Supervisor, provider: str) -> Outcome:
    return worker.measure(LINEAR, point(provider), is_audited=True)


@pytest.mark.slow
def test_prepared_weights_are_timed_apart_from_the_call(worker: Supervisor) -> None:
    prepared, plain = (measured(worker, name) for name in ("transposed", "torch"))
    assert (prepared.status, plain.status) == ("ok", "ok")
    assert measured(worker, "viewed").status == "ok", "prepared tensors may lie in the weights' memory"
    assert prepared.prepare_ms is not None and prepared.prepare_ms > 0
    assert plain.prepare_ms is None and "prepare_ms" not in plain.to_dict(defaults=False)


@pytest.mark.parametrize(
    ("provider", "status", "error"),
    [
        ("keeps", "incorrect", "on other inputs: "),
        ("ahead", "incorrect", "on new inputs: "),
        ("spoils", "incorrect", "first call: changed its input"),
        ("writes", "incorrect", "first call: changed its prepared weights"),
        ("ragged", "runtime_error", "`longer_each_time` gives tensors of other shapes"),
        ("listed", "runtime_error", "`listed` gives list, not a tensor or a tuple of tensors"),
    ],
)
def test_a_wrong_preparation_is_found(worker: Supervisor, provider: str, status: str, error: str) -> None:
    """The weights are new with each set, and an audit writes the other inputs after they were prepared."""
    found = measured(worker, provider)
    assert found.status == status and found.error is not None and error in found.error, found


def test_inputs_outside_of_a_sweep_are_prepared_too() -> None:
    found = instance.standalone(LINEAR, point("transposed"))
    x, w, bias = loading.load(LINEAR).inputs(found.problem, torch.device("cpu"), 1)
    taken = found.inputs(torch.device("cpu"), 1)
    assert torch.equal(taken[0], x) and torch.equal(taken[1], w.t()) and torch.equal(taken[2], bias)
    torch.testing.assert_close(found.call(*taken), x @ w.t() + bias, rtol=1e-4, atol=1e-4)


def test_an_entry_that_gets_memory_for_its_output_may_take_prepared_weights() -> None:
    loaded = loading.load(LINEAR)
    handed = dataclasses.replace(loaded, kernel=dataclasses.replace(loaded.kernel, destination="last"))
    provider = Provider("placed", "torch.py:placed", prepare="torch.py:transpose")
    found = instance.standalone(LINEAR, point("transposed"))
    taken = found.inputs(torch.device("cpu"), 1)
    (out,) = handed.call(dataclasses.replace(provider, name="transposed"), found.problem, {})(*taken)
    torch.testing.assert_close(out, found.call(*taken))


def test_weights_are_prepared_among_inputs_in_a_row_alone() -> None:
    loaded = loading.load(str(PLANTED / "grouped"))
    provider = dataclasses.replace(loaded.kernel.providers[0], prepare="torch.py:transpose")
    dimensions = {name: one.default for name, one in loaded.kernel.dimensions().items()}
    problem = loaded.kernel.problem(**dimensions | {"m": (2, 3), "n": 4, "k": 5})
    with pytest.raises(ContractError, match="must return a tuple of tensors, without lists"):
        loaded.call(provider, problem, {})


def test_a_key_covers_the_function_that_prepares() -> None:
    loaded = loading.load(LINEAR)
    declared = loaded.kernel.provider("transposed")
    digests = {
        identity.source(loaded, dataclasses.replace(declared, prepare=prepare)).digest
        for prepare in (None, "torch.py:transpose", "torch.py:keep")
    }
    assert len(digests) == 3


@pytest.mark.parametrize(
    ("declared", "message"),
    [
        ({"prepare": "torch.py"}, "prepare 'torch.py' of one must be FILE.py:FUNCTION."),
        ({"prepare": "a.py:f", "reference": "a.py"}, "one has prepare and reference: leave one of them out."),
    ],
)
def test_a_wrong_declaration_is_one_sentence(declared: dict[str, str], message: str) -> None:
    with pytest.raises(ContractError) as raised:
        Provider("one", "torch.py:one", **declared)
    assert str(raised.value) == message


def test_weights_are_named_and_are_arguments_of_the_reference() -> None:
    with pytest.raises(ContractError, match="transposed has prepare, but the kernel names no weights: write"):
        dataclasses.replace(linear.kernel, weights=())
    loaded = loading.load(LINEAR)
    wrong = dataclasses.replace(loaded, kernel=dataclasses.replace(loaded.kernel, weights=("w", "b")))
    with pytest.raises(
        ContractError, match=r"weights names b, which is not an argument of reference\(x, w, bias\)"
    ):
        wrong.weights()


def measured_dropout(worker: Supervisor, provider: str) -> Outcome:
    problem = Values({"n": N, "p": 0.25, "dtype": "float32"})
    point = Point(kernel="dropout", provider=provider, problem=problem)
    return worker.measure(str(PLANTED / "dropout"), point)


@pytest.mark.slow
def test_outputs_of_the_right_distribution_are_right_and_memory_is_beyond_inputs_and_outputs(
    worker: Supervisor,
) -> None:
    whole, parts = (measured_dropout(worker, name) for name in ("torch", "by_parts"))
    assert (whole.status, parts.status) == ("ok", "ok"), (whole, parts)
    assert whole.any_answer is None
    assert whole.host_us is None, "on a CPU a call's time is the host's"
    # torch's CPU dropout holds a mask of the whole input, and by_parts a result and a mask of 1024 elements.
    assert whole.peak_mib is not None and parts.peak_mib is not None
    assert N / 2**20 <= whole.peak_mib <= 16 * N / 2**20
    assert 1024 * 4 / 2**20 <= parts.peak_mib < whole.peak_mib / 2


@pytest.mark.parametrize(
    ("provider", "error"),
    [
        ("more", r"2\d\.\d\d% of the elements are zero, not 25.00%"),
        ("pairs", "or not independently"),
        ("unscaled", r"first call: \d+ elements are neither 0 nor x / \(1 - p\)"),
        ("same", "call 2: gave the same outputs as the call before"),
        ("same_later", "after timing: gave the same outputs as the call before"),
    ],
)
def test_a_wrong_distribution_is_found(worker: Supervisor, provider: str, error: str) -> None:
    found = measured_dropout(worker, provider)
    assert found.status == "incorrect" and found.error is not None
    assert re.search(error, found.error), found.error


def test_draws_need_a_comparison_of_several_calls() -> None:
    for wrong in ({"draws": 1}, {"comparison": None}):
        with pytest.raises(ContractError, match="draws needs two calls or more, and a comparison that tests"):
            dataclasses.replace(dropout.kernel, **wrong)
