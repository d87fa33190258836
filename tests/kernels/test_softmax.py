"""What is true of every softmax, whatever its rounding."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernel_pipeline import loading
from kernels.rows import Matrix, Row
from kernels.softmax.reference import reference
from tests.kernels.kernel_cases import MatrixCase, matrix_cases

SOFTMAX = loading.load("softmax")
CASES = matrix_cases(lambda case: case.loaded is SOFTMAX)
OWN = matrix_cases(lambda case: case.loaded is SOFTMAX and case.is_own)


def test_reference_by_hand() -> None:
    weights = reference(torch.tensor([[0.0, math.log(3)], [5.0, 5.0]], dtype=torch.float64))
    expected = torch.tensor([[0.25, 0.75], [0.5, 0.5]], dtype=torch.float64)
    torch.testing.assert_close(weights, expected, rtol=1e-15, atol=0)


@pytest.mark.parametrize("case", CASES)
def test_rows_sum_to_one(case: MatrixCase) -> None:
    (x,) = case.of_size(1823, torch.float32)
    sums = case.run(10 * x).double().sum(dim=1)
    torch.testing.assert_close(sums, torch.ones_like(sums), rtol=2e-6, atol=0)


@pytest.mark.parametrize("case", CASES)
def test_adding_to_a_row_changes_nothing(case: MatrixCase) -> None:
    # Multiples of 1/64 below 16: adding 1000 to them rounds nothing away.
    x = (case.of_size(261, torch.float32)[0].clamp(-4, 4) * 64).round() / 64
    torch.testing.assert_close(case.run(x + 1000), case.run(x), rtol=1e-6, atol=0)


@pytest.mark.parametrize("case", CASES)
def test_rows_do_not_touch_each_other(case: MatrixCase) -> None:
    (x,) = case.of_size(261, torch.float32)
    order = torch.arange(x.shape[0] - 1, -1, -1, device=x.device)
    # Not to the bit: torch reduces a row in an order that follows its alignment.
    tolerance = case.allowed(torch.float32)
    torch.testing.assert_close(
        case.run(x[order]), case.run(x)[order], rtol=tolerance.rtol, atol=tolerance.atol
    )


@pytest.mark.parametrize("case", CASES)
def test_minus_infinity_has_no_weight(case: MatrixCase) -> None:
    """Masked rows: whole blocks of 128 of -inf first, in the middle, last, and all but one element."""
    (x,) = case.of_shape((4, 450), torch.float32)
    x[0, :200] = x[1, 130:300] = x[2, 128:] = x[3] = -torch.inf
    x[3, 300] = -5.0
    out = case.run(x)
    case.compare(out, x)
    assert torch.equal(out[x == -torch.inf], torch.zeros_like(out[x == -torch.inf]))
    assert out[3, 300] == 1


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
@pytest.mark.parametrize("column", [0, 127, 128, 260])
def test_one_bad_number_spoils_its_row_and_no_other(case: MatrixCase, bad: float, column: int) -> None:
    (x,) = case.of_shape((3, 261), torch.float32)
    x[1, column] = bad
    out = case.run(x)
    assert out[1].isnan().all()
    assert not out[[0, 2]].isnan().any()


@pytest.mark.parametrize("case", CASES)
def test_a_rising_and_a_falling_row(case: MatrixCase) -> None:
    """The running maximum changes at every step, or never after the first."""
    rising = torch.linspace(-60, 60, 1000, device=case.device)
    x = torch.stack([rising, rising.flip(0), 1e30 * rising, -1e30 * rising])
    case.compare(case.run(x), x)


@pytest.mark.parametrize("case", OWN)
def test_no_columns_are_refused(case: MatrixCase) -> None:
    with pytest.raises(case.refusal, match=r"^softmax needs at least one column"):
        case.run(torch.empty(4, 0, device=case.device))


@pytest.mark.parametrize("case", OWN)
def test_what_is_no_matrix_is_refused(case: MatrixCase) -> None:
    with pytest.raises(
        case.refusal, match=r"^softmax (needs rows and columns, got shape|takes a 2-D tensor)"
    ):
        case.run(torch.ones(4, device=case.device))


def test_a_row_that_no_block_holds_is_refused() -> None:
    provider = SOFTMAX.kernel.provider("triton_row")
    sentence = "one block holds a row: 65537 columns > 65536"
    assert provider.fits(Matrix(columns=65537), Row(num_warps=32), None) == sentence
    assert provider.fits(Matrix(columns=65536), Row(num_warps=32), None) is None
    with pytest.raises(ValueError, match=sentence):
        SOFTMAX.entry(provider)(torch.empty(1, 65537, device="meta"), num_warps=4)


FINITE = st.floats(min_value=-(2.0**100), max_value=2.0**100, width=32)


@settings(max_examples=25, deadline=None, derandomize=True)
@given(row=st.lists(FINITE | st.just(-math.inf), min_size=1, max_size=80))
@pytest.mark.parametrize("case", [one for one in OWN if not any(case.is_simulated for case in one.values)])
def test_any_row(case: MatrixCase, row: list[float]) -> None:
    x = torch.tensor([row], device=case.device)
    case.compare(case.run(x, block_size=32), x)
