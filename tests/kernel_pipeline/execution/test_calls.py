"""Calls with lists of tensors, named inputs, outputs and workspaces that are handed in, and outputs whose
size depends on the data: right providers are found right, and wrong ones wrong."""

import os
import re
from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch

from kernel_pipeline import loading
from kernel_pipeline.declared import ContractError, Value
from kernel_pipeline.execution.faults import FaultyError
from kernel_pipeline.execution.provider_runner import ProviderRunner
from kernel_pipeline.execution.verifier import Verifier
from kernel_pipeline.records.base import Values
from kernel_pipeline.records.point import Point
from kernel_pipeline.records.settings import TimingSettings
from kernel_pipeline.structures import LEAF, adapted
from tests.planted.tree import PLANTED

from .test_dtypes import checked

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def both() -> Iterator[tuple[Verifier, ProviderRunner]]:
    memory = os.memfd_create("test")
    yield Verifier("cpu", 0, memory), ProviderRunner("cpu", TimingSettings(), memory, pytest.fail)
    os.close(memory)


def said(
    both: tuple[Verifier, ProviderRunner], kernel: str, provider: str, **problem: Value
) -> set[str | None]:
    """Return the verifier's errors for calls on inputs that nobody knew before."""
    point = Point(kernel=kernel, provider=provider, problem=Values(problem))
    return {one.error for one in checked(both, str(PLANTED / kernel), point)}


@pytest.mark.parametrize("biased", [False, True])
def test_named_inputs_and_lists_of_tensors(both: tuple[Verifier, ProviderRunner], biased: bool) -> None:
    problem = {"m": (3, 1, 5), "n": 6, "biased": biased}
    assert said(both, "grouped", "torch", **problem) == {None}
    for one in said(both, "grouped", "never_biased", **problem):
        assert one is None or one.startswith("output 0: 18 of 18 elements are wrong"), one
        assert (one is None) != biased
    for one in said(both, "grouped", "first_weight_for_all", **problem):
        # One of the random elements may be right by chance.
        assert one is not None and re.match("output 1: [456] of 6 elements are wrong", one), one


def test_outputs_and_workspaces_that_are_handed_in(both: tuple[Verifier, ProviderRunner]) -> None:
    for dtype in ("uint16", "uint32", "uint64"):
        assert said(both, "handed", "torch", columns=64, dtype=dtype) == {None}
    wrong = said(both, "handed", "last_row_unwritten", columns=64, dtype="uint64")
    assert all(
        str(one).startswith("output 0: 64 of 320 elements are wrong, the first at (4, 0)") for one in wrong
    )
    assert not any("not -" in str(one) for one in wrong), "numbers of uint64 are shown whole"
    assert None not in said(both, "handed", "returned", columns=64, dtype="uint16")
    # Memory may hold zeros by chance, but not in every call.
    assert said(both, "handed", "workspace_taken_as_zeros", columns=64, dtype="uint16") != {None}


def test_outputs_whose_size_depends_on_the_data(both: tuple[Verifier, ProviderRunner]) -> None:
    def first(provider: str, elements: int = 1000) -> str:
        return str(sorted(map(str, said(both, "selected", provider, elements=elements)))[0])

    assert first("torch") == first("by_nonzero") == first("torch", 0) == "None"
    assert first("of_the_bound").startswith("output 0: its size is 1000, not ")
    assert "elements are wrong, the first at (0,)" in first("places_from_one")


@pytest.mark.parametrize(
    ("provider", "fault"),
    [
        ("beyond_the_bound", r"output 0: shape is \(\d+,\), not \(1000,\)"),
        ("the_input", "memory of an input"),
    ],
)
def test_outputs_that_no_size_makes_right(
    both: tuple[Verifier, ProviderRunner], provider: str, fault: str
) -> None:
    with pytest.raises(Exception, match=fault):
        said(both, "selected", provider, elements=1000)


def test_a_list_that_is_short_is_said(both: tuple[Verifier, ProviderRunner]) -> None:
    with pytest.raises(Exception, match="returned 3 outputs, not 4"):
        said(both, "grouped", "a_group_short", m=(3, 1, 5), n=6)


@pytest.mark.parametrize("numbers", [(2,), (-1,)])
def test_a_bounded_output_that_is_not_there_is_said(numbers: tuple[int, ...]) -> None:
    loaded = loading.load(str(PLANTED / "selected"))
    wrong = replace(loaded, kernel=replace(loaded.kernel, bounded=numbers))
    with pytest.raises(ContractError, match="must number outputs that have an axis"):
        wrong.outputs(loaded.kernel.problem(elements=3))


def test_an_input_that_is_no_tensor_is_a_dimension(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = loading.load(str(PLANTED / "selected"))
    problem = loaded.kernel.problem(elements=3)
    monkeypatch.setattr(loaded.module("reference.py"), "inputs", lambda *_: (torch.ones(3), 0.5))
    with pytest.raises(ContractError, match=r"inputs\(\) gives 0\.5, which is neither a tensor nor None"):
        loaded.inputs(problem, CPU, 0)


def test_a_reference_beyond_its_bound_is_said(
    both: tuple[Verifier, ProviderRunner], monkeypatch: pytest.MonkeyPatch
) -> None:
    module = loading.load(str(PLANTED / "selected")).module("reference.py")
    monkeypatch.setattr(module, "reference", lambda x: (x.repeat(2), x.long()))
    with pytest.raises(
        FaultyError, match=r"gives output 0 of shape \(14,\), where outputs\(\) declares \(7,\)"
    ):
        said(both, "selected", "torch", elements=7)


X, PLACE = torch.arange(3.0), ((3,), torch.float32)


def doubled(out: torch.Tensor, *rest: torch.Tensor, x: torch.Tensor | None = None) -> str:
    """Write twice x, the last of ``rest`` unless it is named."""
    out.copy_((rest[-1] if x is None else x) * 2)
    return "ignored"


@pytest.mark.parametrize(
    ("inputs", "outputs", "workspaces"),
    [
        ([LEAF], [PLACE], []),
        ([LEAF], [PLACE], [PLACE, PLACE]),
        ({"x": LEAF}, [PLACE], []),
        ({"x": LEAF}, {"out": PLACE}, []),
    ],
)
def test_outputs_handed_in_first(inputs: object, outputs: object, workspaces: object) -> None:
    call = adapted(doubled, inputs, outputs, workspaces, "first")
    (out,) = call(X)
    assert torch.equal(out, X * 2)


def test_outputs_handed_in_last_behind_named_inputs_have_names() -> None:
    with pytest.raises(ContractError, match="must name the outputs, too"):
        adapted(doubled, {"x": LEAF}, [PLACE], (), "last")
    (out,) = adapted(doubled, {"x": LEAF}, {"out": PLACE}, (), "last")(X)
    assert torch.equal(out, X * 2)


def test_an_entry_that_takes_and_returns_rows_is_called_itself() -> None:
    assert adapted(doubled, (LEAF, LEAF), [PLACE], (), None) is doubled
