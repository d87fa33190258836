import math

import pytest
import torch

from kernel_pipeline import verification as verify
from kernel_pipeline.contract import Tolerance
from kernel_pipeline.verification import Declared, Expected, Verdict

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
        (INF, 65520.0, True),  # the smallest number that float16 rounds to infinity
        (INF, 1e300, True),
        (-INF, -1e300, True),
        (-INF, 1e300, False),
        (INF, 65519.0, False),  # float16 rounds it to 65504
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


@pytest.mark.parametrize("out", [None, 3.0, [1.0], (torch.ones(2),)])
def test_what_is_no_tensor_is_wrong(out: object) -> None:
    reference = torch.ones(2, dtype=torch.float64)
    verdict = verify.compare(out, reference, torch.float32, EXACT)
    assert verdict == Verdict(0.0, 0.0, f"returned {type(out).__name__}, not a tensor", 0.0)


def test_empty_and_single_outputs_are_compared() -> None:
    none = torch.empty(0, dtype=torch.float64)
    assert verify.compare(none.float(), none, torch.float32, EXACT) == Verdict(0.0, 0.0, None, 0.0)
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


@pytest.mark.parametrize("outputs", [(), (ONE.float(),), (ONE.float(), TWO.float(), TWO.float())], ids=len)
def test_too_few_or_too_many_outputs_are_wrong(outputs: tuple[torch.Tensor, ...]) -> None:
    verdict = verify.compare_all(outputs, expected(ONE, TWO))
    assert verdict == Verdict(0.0, 0.0, f"returned {len(outputs)} outputs, not 2", 0.0)


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
        (torch.tensor([2.0**54]).double(), ((1,), torch.int64), "let it give integers"),
        (torch.tensor([1.0, INF]).double(), ((2,), torch.int64), None),
        (torch.tensor([2.0**60]).double(), ((1,), torch.float32), None),
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
    assert verify.unfit((torch.zeros(2),) * 2, (one,)) == "gives 2 outputs, where outputs() declares 1"
    second = verify.unfit((torch.zeros(2), torch.zeros(3)), (one, one))
    assert second == "gives output 1 of shape (3,), where outputs() declares (2,)"


@pytest.mark.parametrize("dtype", [torch.int8, torch.int32, torch.int64, torch.bool])
def test_integers_are_compared_exactly(dtype: torch.dtype) -> None:
    reference = torch.tensor([0, 1, 1]).to(dtype)
    assert verify.compare(reference.clone(), reference, dtype, EXACT).error is None
    verdict = verify.compare(torch.tensor([0, 1, 0]).to(dtype), reference, dtype, EXACT)
    assert verdict.error == "1 of 3 elements are wrong, the first at (2,): 0, not 1"


@pytest.mark.parametrize(
    ("out", "reference", "error"),
    [
        (2**53 + 1, 2**53, 1.0),
        (2**61 + 255, 2**60, float(2**60 + 255)),  # float64 has too few bits for the 255
        (2**63 - 1, -(2**63), 2.0**64),  # the difference needs more than 64 bits
    ],
)
def test_large_integers_differ_by_what_lies_between_them(out: int, reference: int, error: float) -> None:
    one = torch.tensor([out])
    verdict = verify.compare(one, torch.tensor([reference]), torch.int64, EXACT)
    assert (verdict.max_abs_err, verdict.error is None) == (error, False)


@pytest.mark.parametrize(
    ("out", "fault"),
    [
        (torch.ones(3), "shape is (3,), not (2,)"),
        (torch.ones(1), "shape is (1,), not (2,)"),
        (torch.ones(2).double(), "dtype is torch.float64, not torch.float32"),
        (torch.ones(2, device="meta"), "is on meta, not on cpu"),
    ],
)
def test_an_output_that_does_not_fit_has_no_error_in_numbers(out: torch.Tensor, fault: str) -> None:
    assert verify.compare(out, ONE, torch.float32, EXACT) == Verdict(0.0, 0.0, fault, 0.0)


def test_an_element_within_its_tolerance_is_right_beside_one_that_is_wrong() -> None:
    within = Tolerance(rtol=0.0, atol=0.5)
    said = error([1.25, 1.5, 1.75, 1.0, INF], [1.0, 1.0, 1.0, 1.0, INF], within)
    assert said == "1 of 5 elements are wrong, the first at (2,): 1.75, not 1"


def test_a_reference_that_the_dtype_holds_is_not_rounded() -> None:
    assert error([1.0], [1.0 + 2**-40]) is not None


def test_an_integer_is_not_what_a_fraction_is_cut_to() -> None:
    verdict = verify.compare(torch.tensor([2]), torch.tensor([2.5]).double(), torch.int64, EXACT)
    assert (verdict.max_abs_err, verdict.error) == (
        0.5,
        "1 of 1 elements are wrong, the first at (0,): 2, not 2.5",
    )


def test_a_complex_number_is_wrong_by_the_part_that_is() -> None:
    reference = torch.zeros(3, 3, dtype=torch.complex128)
    out = reference.to(torch.complex64)
    out.imag[1, 1] = 5
    assert verify.compare(out, reference, torch.complex64, EXACT).error == (
        "1 of 9 elements are wrong, the first at (1, 1): the imaginary part is 5, not 0"
    )


def test_the_share_of_the_tolerance_is_that_of_the_worst_element_that_is_allowed_an_error() -> None:
    reference = torch.tensor([0.0, 1.0, 4.0], dtype=torch.float64)
    out, half = torch.tensor([0.0, 1.375, 4.5]), Tolerance(rtol=0.5, atol=0.0)
    verdict = verify.compare(out, reference, torch.float32, half)
    assert (verdict.error, verdict.used) == (None, 0.75)


@pytest.mark.parametrize(
    ("got", "want", "said"),
    [
        (1, 2, "1, not 2"),
        (1, 2.0, "1, not 2"),
        (1, 2.5, "1, not 2.5"),
        (123456789.0, 123456780.0, "1.2345679e+08, not 1.2345678e+08"),
        (123456780.0, 123456789.0, "1.2345678e+08, not 1.2345679e+08"),
        (1.23456789, 2.0, "1.23457, not 2"),
        (1.0, 1.0 + 2**-52, "1, not 1.0000000000000002"),
        (NAN, 1.0, "nan, not 1"),
    ],
)
def test_two_numbers_that_differ_look_different(got: float, want: float, said: str) -> None:
    assert verify.unlike(got, want) == said


BUFFER = torch.zeros(8)
FOUR: Declared = ((4,), torch.float32)


@pytest.mark.parametrize(
    ("out", "fault"),
    [
        (torch.zeros(4), None),
        (None, "returned NoneType, not a plain tensor"),
        (torch.nn.Parameter(torch.zeros(4)), "returned Parameter, not a plain tensor"),
        (torch.zeros(4).to_sparse(), "returned Tensor, not a plain tensor"),
        (torch.zeros(2, 2), "shape is (2, 2), not (4,)"),
        (torch.zeros(5), "shape is (5,), not (4,)"),
        (torch.zeros(4).double(), "dtype is torch.float64, not torch.float32"),
        (torch.zeros(4, device="meta"), "is on meta, not on cpu"),
    ],
)
def test_an_output_is_a_plain_tensor_of_what_was_declared(out: object, fault: str | None) -> None:
    assert verify.fault((out,), (FOUR,), (BUFFER,), in_place=False) == fault  # type: ignore[arg-type]
    both = verify.fault((torch.zeros(4), out), (FOUR, FOUR), (BUFFER,), in_place=False)  # type: ignore[arg-type]
    assert both == (fault and f"output 1: {fault}")


def test_outputs_are_as_many_as_declared_and_on_any_device_where_there_is_no_input() -> None:
    assert verify.fault((), (FOUR,), (), in_place=False) == "returned 0 outputs, not 1"
    two = (torch.zeros(4), torch.zeros(4))
    assert verify.fault(two, (FOUR,), (), in_place=False) == "returned 2 outputs, not 1"
    assert verify.fault((torch.zeros(4, device="meta"),), (FOUR,), (), in_place=False) is None


@pytest.mark.parametrize(
    ("begin", "end", "is_free"), [(0, 4, True), (1, 5, False), (4, 8, False), (7, 11, False), (8, 12, True)]
)
def test_an_output_shares_no_element_with_an_input_or_another_output(
    begin: int, end: int, is_free: bool
) -> None:
    memory = torch.zeros(12)
    out, other = memory[begin:end], memory[4:8]
    fault = None if is_free else "lies in the memory of an input"
    assert verify.fault((out,), (FOUR,), (BUFFER, other), in_place=False) == fault
    assert verify.fault((out,), (FOUR,), (other,), in_place=True) is None
    both = None if is_free else "output 1: lies in the memory of output 0"
    for in_place in (False, True):
        assert verify.fault((other, out), (FOUR, FOUR), (BUFFER,), in_place) == both


def test_an_output_spans_what_lies_between_its_rows() -> None:
    memory = torch.zeros(4, 4)
    declared = ((4, 2), torch.float32)
    assert verify.fault((memory[:, :2],), (declared,), (memory[:, 2:],), in_place=False) is not None
    assert verify.fault((torch.empty(0),), (((0,), torch.float32),), (memory,), in_place=False) is None


def any_answer(
    reference: torch.Tensor,
    *inputs: torch.Tensor,
    other: torch.Tensor | None = None,
    tolerance: Tolerance = EXACT,
    dtype: torch.dtype = torch.float32,
) -> str | None:
    answer = Expected((reference,), ((tuple(reference.shape), dtype),), (tolerance,))
    return verify.any_answer(answer, inputs, (reference + 99 if other is None else other,))


RAMP = torch.arange(1.0, 7.0, dtype=torch.float64).reshape(2, 3)


def test_an_answer_that_takes_no_work_is_named() -> None:
    assert any_answer(RAMP, RAMP.float() + 1) is None
    assert any_answer(torch.zeros_like(RAMP)) == "zeros"
    assert any_answer(torch.full_like(RAMP, 3.0)) == "the mean"
    assert any_answer(RAMP, tolerance=Tolerance(rtol=0.0, atol=2.5)) == "the mean"
    assert any_answer(RAMP, tolerance=Tolerance(rtol=0.0, atol=2.4)) is None
    # Any input counts, whatever its shape, if it has as many elements.
    assert any_answer(RAMP, RAMP[:1].float(), RAMP.float() + 1, RAMP.float().reshape(6)) == "an input"
    assert any_answer(RAMP, other=RAMP) == "the answer to other inputs"


def test_whole_and_complex_outputs_have_answers_that_take_no_work() -> None:
    assert any_answer(torch.tensor([3, 3]), dtype=torch.int32) == "the mean"
    assert any_answer(torch.tensor([3, 5]), dtype=torch.int32) is None
    assert any_answer(torch.tensor([2j, 2j]), dtype=torch.complex64) == "the mean"
    assert any_answer(ONE + 1, torch.tensor([2 + 1j, 2 + 1j]), other=ONE) == "the mean"
    assert any_answer(RAMP, RAMP * (1 + 0j)) is None, "a complex input is no real output"
    assert any_answer(RAMP, RAMP * (1 + 0j), RAMP) == "an input", "the next one is"


@pytest.mark.parametrize("more", [-1, 1])
def test_an_input_with_another_number_of_elements_is_no_answer(more: int) -> None:
    reference = torch.arange(verify.PREFIX + 2, dtype=torch.float64)
    assert any_answer(reference, torch.arange(verify.PREFIX + 2 + more).float()) is None


def test_the_mean_of_a_single_number_is_no_answer() -> None:
    assert any_answer(torch.tensor([5.0])) is None
    assert any_answer(torch.tensor([5.0, 5.0])) == "the mean"


@pytest.mark.parametrize("place", [0, verify.PREFIX - 1, verify.PREFIX, verify.PREFIX + 7])
def test_one_element_shows_that_an_answer_is_wrong(place: int) -> None:
    reference = torch.zeros(verify.PREFIX + 8, dtype=torch.float64)
    assert any_answer(reference) == "zeros"
    reference[place] = 1.0
    assert any_answer(reference) is None


def test_an_answer_has_to_be_right_for_every_output() -> None:
    zeros = torch.zeros_like(TWO)

    def found(*references: torch.Tensor) -> str | None:
        return verify.any_answer(expected(*references), (), (RAMP, RAMP))

    assert found(zeros, zeros) == "zeros"
    assert found(zeros, TWO) == "the mean"
    assert found(zeros, RAMP) is None


def test_an_output_without_elements_is_answered_by_anything() -> None:
    assert any_answer(torch.empty(0, 3, dtype=torch.float64)) == "zeros"


def test_answers_that_take_no_work_are_shown_to_a_comparison_of_the_kernels() -> None:
    seen: list[torch.Tensor] = []

    def compare(outputs: tuple[torch.Tensor, ...]) -> str | None:
        seen.append(outputs[0])
        return None if len(seen) == 2 else "not the largest"

    declared = (((2, 3), torch.float32),)
    assert verify.any_answer(Expected((RAMP,), declared, (EXACT,), compare), (), (RAMP,)) == "the mean"
    assert seen[0].equal(torch.zeros(2, 3)) and seen[1].equal(torch.full((2, 3), 3.5))
    # A reference of another shape is only an argument of the comparison and not an output.
    assert verify.any_answer(Expected((ONE,), declared, (EXACT,), compare), (), (RAMP,)) is None
    assert len(seen) == 2


@pytest.mark.parametrize(
    ("x", "dtype", "bits"),
    [
        (torch.tensor([255, 256]), torch.uint8, [255, 0]),
        (torch.tensor([65535]), torch.uint16, [65535]),
        (torch.tensor([2**32 - 1]), torch.uint32, [2**32 - 1]),
        (torch.tensor([-1]), torch.uint64, [2**64 - 1]),
        (torch.tensor([0, 2]), torch.bool, [False, True]),
        (torch.tensor([1.5], dtype=torch.float64), torch.float16, [1.5]),
        (torch.tensor([3]), torch.float32, [3.0]),
    ],
    ids=str,
)
def test_a_reference_is_narrowed_to_the_outputs_dtype(
    x: torch.Tensor, dtype: torch.dtype, bits: list[object]
) -> None:
    found = verify.narrowed(x, dtype)
    assert (found.dtype, found.tolist()) == (dtype, bits)


def test_a_comparison_of_the_kernels_sees_outputs_that_fit_alone() -> None:
    declared = (FOUR, FOUR)
    answer = Expected((torch.zeros(4),) * 2, declared, (EXACT,) * 2, lambda outputs: "not sorted")
    right = torch.zeros(4)
    assert verify.compare_all((right, right), answer) == Verdict(0.0, 0.0, "not sorted", 0.0)
    unfit = Verdict(0.0, 0.0, "output 1: shape is (3,), not (4,)", 0.0)
    assert verify.compare_all((right, right[:3]), answer) == unfit
