from __future__ import annotations

import math

import pytest
import torch

from kernels.contract import Tolerance
from pipeline.execution import verification as verify
from pipeline.execution.verification import Declared, Expected

EXACT = Tolerance(rtol=0.0, atol=0.0)
INF, NAN = math.inf, math.nan


def error(
    out: list[float], reference: list[float], tolerance: Tolerance = EXACT, dtype: torch.dtype = torch.float32
) -> str | None:
    wide = torch.tensor(reference, dtype=torch.float64)
    return verify.compare(torch.tensor(out, dtype=dtype), wide, dtype, tolerance).error


@pytest.mark.parametrize(
    ("out", "reference", "tolerance", "right"),
    [
        (1.5, 1.0, Tolerance(rtol=0.0, atol=0.5), True),
        (1.5, 1.0, Tolerance(rtol=0.5, atol=0.0), True),
        (2.0, 1.0, Tolerance(rtol=0.5, atol=0.5), True),
        (-2.0, -1.0, Tolerance(rtol=0.5, atol=0.5), True),
        (1.5, 1.0, Tolerance(rtol=0.49, atol=0.0), False),
        (1.5, 1.0, Tolerance(rtol=0.0, atol=0.49), False),
        (0.5, 0.0, Tolerance(rtol=1e9, atol=0.0), False),
        (-0.0, 0.0, EXACT, True),
    ],
)
def test_tolerance_is_absolute_plus_relative_to_the_reference_and_includes_its_edge(
    out: float, reference: float, tolerance: Tolerance, right: bool
) -> None:
    assert (error([out], [reference], tolerance) is None) is right


@pytest.mark.parametrize("reference", [1.0, NAN, INF, -INF])
@pytest.mark.parametrize("out", [1.0, NAN, INF, -INF])
def test_nan_and_infinities_must_be_where_the_reference_has_them(out: float, reference: float) -> None:
    same = out == reference or (math.isnan(out) and math.isnan(reference))
    assert (error([out], [reference], Tolerance(rtol=1e9, atol=1e9)) is None) is same


@pytest.mark.parametrize(
    ("out", "reference", "right"),
    [
        (INF, 65520.0, True),  # the first number that float16 rounds to infinity
        (INF, 1e300, True),
        (-INF, -1e300, True),
        (-INF, 1e300, False),
        (INF, 65519.0, False),  # float16 holds 65504
        (65504.0, 65520.0, True),  # within tolerance
        (65504.0, 1e6, False),
    ],
)
def test_what_the_dtype_cannot_hold_is_infinity(out: float, reference: float, right: bool) -> None:
    assert (error([out], [reference], Tolerance(rtol=1e-3, atol=0.0), torch.float16) is None) is right


@pytest.mark.parametrize("elements", [1, 7, 8, 9, 16, 17])
def test_every_element_counts_across_chunks(monkeypatch: pytest.MonkeyPatch, elements: int) -> None:
    monkeypatch.setattr(verify, "CHUNK", 8)
    reference = torch.arange(1.0, elements + 1, dtype=torch.float64)
    assert verify.compare(reference.float(), reference, torch.float32, EXACT).error is None
    for place in range(elements):
        out = reference.float()
        out[place] += 1
        verdict = verify.compare(out, reference, torch.float32, EXACT)
        assert verdict.error == (
            f"1 of {elements} elements are wrong, the first at ({place},): {place + 2}, not {place + 1}"
        )
        assert verdict.max_abs_err == 1.0
        assert verdict.max_rel_err == pytest.approx(1 / (place + 1))


def test_says_how_many_are_wrong_and_where_the_first_is() -> None:
    reference = torch.zeros(3, 4, dtype=torch.float64)
    out = torch.zeros(3, 4)
    out[1, 2] = out[2, 0] = 5
    assert verify.compare(out, reference, torch.float32, EXACT).error == (
        "2 of 12 elements are wrong, the first at (1, 2): 5, not 0"
    )


def test_relative_error_leaves_out_references_below_the_absolute_tolerance() -> None:
    reference = torch.tensor([0.0, 1e-9, 2.0], dtype=torch.float64)
    out = torch.tensor([1e-3, 1e-3, 2.5])
    verdict = verify.compare(out, reference, torch.float32, Tolerance(rtol=0.25, atol=1e-2))
    assert verdict.error is None
    assert verdict.max_abs_err == 0.5
    assert verdict.max_rel_err == 0.25


def test_an_output_of_another_layout_is_compared_by_place() -> None:
    reference = torch.arange(6, dtype=torch.float64).reshape(2, 3)
    out = reference.float().t().contiguous().t()
    assert verify.compare(out, reference, torch.float32, EXACT).error is None


@pytest.mark.parametrize("out", [None, 3.0, [1.0], (torch.ones(2),)])
def test_what_is_no_tensor_is_wrong(out: object) -> None:
    reference = torch.ones(2, dtype=torch.float64)
    verdict = verify.compare(out, reference, torch.float32, EXACT)
    assert verdict.error == f"returned {type(out).__name__}, not a tensor"


def test_empty_and_single_outputs_are_compared() -> None:
    assert error([], []) is None
    one = torch.tensor(1.0, dtype=torch.float64)
    assert verify.compare(one.float(), one, torch.float32, EXACT).error is None
    assert verify.compare(one.float() + 1, one, torch.float32, EXACT).error is not None


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_uninitialised_memory_is_nan_inside_and_torch_as_before_outside(dtype: torch.dtype) -> None:
    x = torch.ones(1000, dtype=dtype)
    before = torch.get_deterministic_debug_mode()
    with verify.poisoned_memory():
        assert torch.empty_like(x).isnan().all()
        assert torch.empty(3, 5, dtype=dtype).isnan().all()
        assert x.new_empty(7).isnan().all()
    assert torch.get_deterministic_debug_mode() == before
    with pytest.raises(RuntimeError, match="planted"), verify.poisoned_memory():
        raise RuntimeError("planted")
    assert torch.get_deterministic_debug_mode() == before


@pytest.mark.parametrize(
    "x",
    [
        torch.tensor([1.0, NAN, INF]),
        torch.tensor(1.0),
        torch.arange(6.0).reshape(2, 3).t(),
        torch.arange(6.0)[::2],
        torch.ones(4, dtype=torch.bfloat16),
        torch.ones(4, dtype=torch.int64),
        torch.empty(0),
    ],
    ids=["nan", "no dimension", "transposed", "strided", "bfloat16", "integers", "empty"],
)
def test_an_input_is_unchanged_while_every_bit_is(x: torch.Tensor) -> None:
    copy = x.clone()
    assert verify.unchanged((x,), (copy,))
    if x.numel():
        copy.view(-1)[0:1].fill_(-7) if copy.is_contiguous() else copy.fill_(-7)
        assert not verify.unchanged((x,), (copy,))


def test_a_change_of_sign_of_zero_is_a_change() -> None:
    assert not verify.unchanged((torch.tensor([0.0]),), (torch.tensor([-0.0]),))


def expected(*references: torch.Tensor, tolerances: tuple[Tolerance, ...] | None = None) -> Expected:
    declared = tuple((tuple(x.shape), torch.float32) for x in references)
    return Expected(references, declared, tolerances or (EXACT,) * len(references))


ONE, TWO = torch.ones(2, dtype=torch.float64), torch.full((3,), 2.0, dtype=torch.float64)


def test_every_output_is_compared_each_by_its_own_tolerance() -> None:
    both = expected(ONE, TWO)
    assert verify.compare_all((ONE.float(), TWO.float()), both).error is None
    wrong = verify.compare_all((ONE.float(), TWO.float() + 1), both)
    assert wrong.error == "output 1: 3 of 3 elements are wrong, the first at (0,): 3, not 2"
    assert (wrong.max_abs_err, wrong.max_rel_err) == (1.0, 0.5)
    loose = expected(ONE, TWO, tolerances=(EXACT, Tolerance(rtol=0.0, atol=1.0)))
    assert verify.compare_all((ONE.float(), TWO.float() + 1), loose).error is None
    first = verify.compare_all((ONE.float() + 1, TWO.float() + 1), loose)
    assert str(first.error).startswith("output 0: 2 of 2")


def test_a_single_output_has_no_number() -> None:
    wrong = verify.compare_all((ONE.float() + 1,), expected(ONE))
    assert wrong.error == "2 of 2 elements are wrong, the first at (0,): 2, not 1"


@pytest.mark.parametrize("outputs", [(), (ONE.float(),), (ONE.float(), TWO.float(), TWO.float())], ids=len)
def test_too_few_or_too_many_outputs_are_wrong(outputs: tuple[torch.Tensor, ...]) -> None:
    verdict = verify.compare_all(outputs, expected(ONE, TWO))
    assert verdict.error == f"returned {len(outputs)} outputs, not 2"


@pytest.mark.parametrize(
    ("reference", "declared", "fault"),
    [
        (torch.zeros(2, 3), ((2, 3), torch.float32), None),
        (torch.zeros(6), ((2, 3), torch.float32), "an output of shape (6,), where outputs() declares (2, 3)"),
        (torch.zeros(1), ((), torch.float32), "an output of shape (1,), where outputs() declares ()"),
        (
            torch.zeros(2) * 1j,
            ((2,), torch.float32),
            "an output as torch.complex64, where outputs() declares",
        ),
        (torch.tensor([2.0**53 - 1], dtype=torch.float64), ((1,), torch.int64), None),
        (torch.tensor([2.0**53]).double(), ((1,), torch.int64), "let it give integers"),
        (torch.tensor([2**60]), ((1,), torch.int64), None),
        (3.0, ((), torch.float32), "an output that is float, not a tensor"),
    ],
)
def test_a_reference_has_the_shape_that_is_declared_and_holds_what_the_output_does(
    reference: torch.Tensor, declared: Declared, fault: str | None
) -> None:
    said = verify.unfit((reference,), (declared,))
    assert said is None if fault is None else said is not None and fault in said


def test_a_reference_has_as_many_outputs_as_are_declared() -> None:
    one = ((2,), torch.float32)
    assert verify.unfit((torch.zeros(2),), (one, one)) == "gives 1 outputs, where outputs() declares 2"


@pytest.mark.parametrize("dtype", [torch.int8, torch.int32, torch.int64, torch.bool])
def test_integers_are_compared_exactly(dtype: torch.dtype) -> None:
    reference = torch.tensor([0, 1, 1]).to(dtype)
    assert verify.compare(reference.clone(), reference, dtype, EXACT).error is None
    verdict = verify.compare(torch.tensor([0, 1, 0]).to(dtype), reference, dtype, EXACT)
    assert verdict.error == "1 of 3 elements are wrong, the first at (2,): 0, not 1"
