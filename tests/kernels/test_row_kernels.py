"""Properties of softmax, layer and RMS normalization that hold for any rounding."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernel_pipeline import loading
from kernel_pipeline.loading import Loaded
from kernels.rows import Matrix, Row, Tile
from tests.kernels.kernel_cases import MatrixCase, matrix_cases

SOFTMAX, LAYERNORM, RMSNORM = (loading.load(name) for name in ("softmax", "layernorm", "rmsnorm"))
ROW_KERNELS = (SOFTMAX, LAYERNORM, RMSNORM)
LOADED = [pytest.param(loaded, id=loaded.name) for loaded in ROW_KERNELS]
CASES = matrix_cases(lambda case: case.loaded in ROW_KERNELS)
OWN = matrix_cases(lambda case: case.loaded in ROW_KERNELS and case.is_own)
SOFTMAXES = matrix_cases(lambda case: case.loaded is SOFTMAX)
TWO_PASS = matrix_cases(
    lambda case: case.loaded is not SOFTMAX and case.provider.name in {"triton_online", "triton_two_pass"}
)


UNIT = (1 + 1e-5) ** -0.5


@pytest.mark.parametrize(
    ("loaded", "inputs", "expected"),
    [
        (SOFTMAX, [[[0.0, math.log(3)]]], [[0.25, 0.75]]),
        (SOFTMAX, [[[5.0, 5.0]]], [[0.5, 0.5]]),
        (LAYERNORM, [[[1.0, 3.0]], [2.0, 1.0], [0.5, 0.0]], [[-2 * UNIT + 0.5, UNIT]]),
        (RMSNORM, [[[1.0, 7.0]], [2.0, 1.0]], [[2 / (25 + 1e-6) ** 0.5, 7 / (25 + 1e-6) ** 0.5]]),
    ],
)
def test_references_by_hand(loaded: Loaded, inputs: list[list[float]], expected: list[list[float]]) -> None:
    given = tuple(torch.tensor(one, dtype=torch.float64) for one in inputs)
    (out,) = loaded.expected(Matrix(columns=2), given)
    torch.testing.assert_close(out, torch.tensor(expected, dtype=torch.float64), rtol=1e-15, atol=0)


@pytest.mark.parametrize("case", matrix_cases(lambda case: case.loaded in (SOFTMAX, LAYERNORM)))
def test_adding_to_a_row_changes_nothing(case: MatrixCase) -> None:
    x, *parameters = case.of_size(261, torch.float32)
    # Multiples of 1/64 below 16: adding 1000 to them rounds nothing away.
    x = (x.clamp(-4, 4) * 64).round() / 64
    bound = {"rtol": 1e-6, "atol": 0.0} if case.loaded is SOFTMAX else {"rtol": 1e-4, "atol": 1e-4}
    torch.testing.assert_close(case.run(x + 1000, *parameters), case.run(x, *parameters), **bound)


# The start of a row says nothing of the rest: distances to it would be large, and their squares rounded.
@pytest.mark.parametrize("columns", [16384, 16383])
@pytest.mark.parametrize("case", TWO_PASS)
def test_the_start_of_a_two_pass_row_may_be_far_off(case: MatrixCase, columns: int) -> None:
    x, *parameters = case.of_shape((2, columns), torch.float32)
    x[0, :64] += 1000
    x[1, 0] = 3e4
    out = case.run(x, *parameters, block_size=64).double()
    exact = case.exact(x, *parameters)
    wrong = (out - exact).norm(dim=1) / exact.norm(dim=1)
    assert (wrong < 1e-6).all(), wrong


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("case", TWO_PASS)
def test_steps_may_be_shorter_than_a_load(case: MatrixCase, dtype: torch.dtype) -> None:
    inputs = case.of_shape((3, 64), dtype)
    case.compare(case.run(*inputs, block_size=2, num_warps=1), *inputs)


@pytest.mark.parametrize("case", SOFTMAXES)
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
@pytest.mark.parametrize("column", [0, 127, 128, 260])
def test_a_bad_number_spoils_its_row_and_no_other(case: MatrixCase, column: int) -> None:
    for bad in (torch.nan, torch.inf) if case.loaded is SOFTMAX else (torch.nan,):
        x, *parameters = case.of_shape((3, 261), torch.float32)
        x[1, column] = bad
        out = case.run(x, *parameters)
        assert out[1].isnan().all()
        assert not out[[0, 2]].isnan().any()


@pytest.mark.parametrize("case", SOFTMAXES)
def test_a_rising_and_a_falling_row(case: MatrixCase) -> None:
    """The running maximum changes at every step, or never after the first."""
    rising = torch.linspace(-60, 60, 1000, device=case.device)
    x = torch.stack([rising, rising.flip(0), 1e30 * rising, -1e30 * rising])
    case.compare(case.run(x), x)


@pytest.mark.parametrize("case", OWN)
def test_inputs_that_do_not_fit_are_refused(case: MatrixCase) -> None:
    name = case.loaded.name
    with pytest.raises(case.refusal, match=f"^{name} needs at least one column"):
        case.run(*case.with_parameters(torch.empty(4, 0, device=case.device)))
    x, *parameters = case.of_size(37, torch.float32)
    with pytest.raises(case.refusal, match=f"^{name} (needs rows and columns, got shape|takes a 2-D tensor)"):
        case.run(x[0], *parameters)
    for place, (kind, one) in enumerate(zip(("weight", "bias"), parameters, strict=False)):
        for wrong in (one[:-1], one.half(), one[None]):
            sentence = rf"^{name} needs a {kind} (of shape \(37,\) and|with a number for each column)"
            with pytest.raises(case.refusal, match=sentence):
                case.run(x, *parameters[:place], wrong, *parameters[place + 1 :])


@pytest.mark.parametrize("loaded", LOADED)
def test_rows_that_no_block_holds_are_refused(loaded: Loaded) -> None:
    sentence = "one block holds a row: 65537 columns > 65536"
    wide, held = Matrix(rows=1, columns=65537), Matrix(columns=65536)
    inputs = loaded.inputs(wide, torch.device("meta"), 0)
    tile, fitting = (Tile(block_size=size, num_warps=32) for size in (2**17, 2**16))
    for name, parameters, fits in (("triton_row", Row(num_warps=32), None), ("triton_tile", tile, fitting)):
        provider = loaded.kernel.provider(name)
        assert provider.fits(wide, parameters, None) == sentence
        assert provider.fits(held, fits or parameters, None) is None
        with pytest.raises(ValueError, match=sentence):
            loaded.entry(provider)(*inputs, **vars(parameters))


@pytest.mark.parametrize("loaded", LOADED)
def test_launches_that_no_sweep_should_wait_for_are_refused(loaded: Loaded) -> None:
    kernel = loaded.kernel

    def refusal(provider: str, block_size: int, num_warps: int) -> str | None:
        tile = Tile(block_size=block_size, num_warps=num_warps)
        return kernel.provider(provider).fits(Matrix(columns=1823), tile, None)

    sentence = "one block holds whole rows: 1823 columns > block_size 1024"
    assert refusal("triton_tile", 1024, 4) == sentence
    full = "too much for the registers: 128 elements per thread > 64"
    for provider in ("triton_tile", "triton_two_pass" if loaded is RMSNORM else "triton_online"):
        assert refusal(provider, 16384, 4) == full
        assert refusal(provider, 16384, 8) is None
    wide, row = Matrix(columns=50257), kernel.provider("triton_row")
    assert row.fits(wide, Row(num_warps=16), None) == full
    assert row.fits(wide, Row(num_warps=32), None) is None


def finite(limit: float) -> st.SearchStrategy[float]:
    return st.floats(min_value=-limit, max_value=limit, width=32)


@settings(max_examples=25, deadline=None, derandomize=True)
@given(row=st.lists(finite(2.0**100) | st.just(-math.inf), min_size=1, max_size=80))
@pytest.mark.parametrize(
    "case", matrix_cases(lambda case: case.loaded is SOFTMAX and case.is_own and not case.is_simulated)
)
def test_any_row_of_softmax(case: MatrixCase, row: list[float]) -> None:
    x = torch.tensor([row], device=case.device)
    case.compare(case.run(x, block_size=32), x)


@settings(max_examples=25, deadline=None, derandomize=True)
@given(row=st.lists(finite(2.0**40), min_size=1, max_size=80))
@pytest.mark.parametrize("case", matrix_cases(lambda case: case.loaded is RMSNORM and case.is_own))
def test_any_row_of_rmsnorm(case: MatrixCase, row: list[float]) -> None:
    inputs = case.with_parameters(torch.tensor([row], device=case.device))
    case.compare(case.run(*inputs, block_size=32), *inputs)
