"""What is true of every layer and RMS normalization, whatever its rounding."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernel_pipeline import loading
from kernel_pipeline.loading import Loaded
from kernels.rows import Matrix, Row, Tile
from tests.kernels.kernel_cases import MatrixCase, matrix_cases

LAYERNORM, RMSNORM = loading.load("layernorm"), loading.load("rmsnorm")
NORMS = [pytest.param(loaded, id=loaded.name) for loaded in (LAYERNORM, RMSNORM)]
CASES = matrix_cases(lambda case: case.loaded in (LAYERNORM, RMSNORM))
LAYER_CASES = matrix_cases(lambda case: case.loaded is LAYERNORM)
OWN = matrix_cases(lambda case: case.loaded in (LAYERNORM, RMSNORM) and case.is_own)


def plain(case: MatrixCase, x: torch.Tensor) -> list[torch.Tensor]:
    """The inputs with a weight of ones and a bias of zeros."""
    _, *parameters = case.with_parameters(x)
    return [x, *(torch.full_like(p, value) for p, value in zip(parameters, (1.0, 0.0), strict=False))]


def close(case: MatrixCase, out: torch.Tensor, expected: torch.Tensor) -> None:
    tolerance = case.allowed(expected.dtype)
    torch.testing.assert_close(out, expected, rtol=tolerance.rtol, atol=tolerance.atol)


def test_layernorm_by_hand() -> None:
    x = torch.tensor([[1.0, 3.0]], dtype=torch.float64)
    weight, bias = torch.tensor([2.0, 1.0]).double(), torch.tensor([0.5, 0.0]).double()
    unit = (1 + 1e-5) ** -0.5
    expected = torch.tensor([[-2 * unit + 0.5, unit]], dtype=torch.float64)
    torch.testing.assert_close(
        LAYERNORM.expected(Matrix(columns=2), (x, weight, bias))[0], expected, rtol=1e-15, atol=0
    )


def test_rmsnorm_by_hand() -> None:
    x, weight = torch.tensor([[1.0, 7.0]]).double(), torch.tensor([2.0, 1.0]).double()
    expected = torch.tensor([[2.0, 7.0]], dtype=torch.float64) / (25 + 1e-6) ** 0.5
    torch.testing.assert_close(
        RMSNORM.expected(Matrix(columns=2), (x, weight))[0], expected, rtol=1e-15, atol=0
    )


@pytest.mark.parametrize("case", LAYER_CASES)
def test_a_layer_norms_rows_have_mean_zero_and_variance_one(case: MatrixCase) -> None:
    (x, *_) = case.of_size(1823, torch.float32)
    out = case.run(*plain(case, 10 * x + 3)).double()
    torch.testing.assert_close(out.mean(dim=1), torch.zeros_like(out[:, 0]), rtol=0, atol=2e-6)
    torch.testing.assert_close(out.var(dim=1, correction=0), torch.ones_like(out[:, 0]), rtol=2e-6, atol=0)


@pytest.mark.parametrize("case", matrix_cases(lambda case: case.loaded is RMSNORM))
def test_an_rms_norms_rows_have_mean_square_one(case: MatrixCase) -> None:
    (x, *_) = case.of_size(1823, torch.float32)
    squares = case.run(*plain(case, 10 * x + 3)).double().square().mean(dim=1)
    torch.testing.assert_close(squares, torch.ones_like(squares), rtol=2e-6, atol=0)


@pytest.mark.parametrize("case", LAYER_CASES)
def test_adding_to_a_row_changes_nothing(case: MatrixCase) -> None:
    x, *parameters = case.of_size(261, torch.float32)
    # Multiples of 1/64 below 16: adding 1000 to them rounds nothing away.
    x = (x.clamp(-4, 4) * 64).round() / 64
    torch.testing.assert_close(
        case.run(x + 1000, *parameters), case.run(x, *parameters), rtol=1e-4, atol=1e-4
    )


# What a row begins with says nothing of the rest: distances to it would be large, and their squares rounded.
@pytest.mark.parametrize("columns", [16384, 16383])
@pytest.mark.parametrize(
    "case", matrix_cases(lambda case: case.provider.name in {"triton_online", "triton_two_pass"})
)
def test_the_beginning_of_a_two_pass_row_may_be_far_off(case: MatrixCase, columns: int) -> None:
    x, *parameters = case.of_shape((2, columns), torch.float32)
    x[0, :64] += 1000
    x[1, 0] = 3e4
    out = case.run(x, *parameters, block_size=64).double()
    exact = case.exact(x, *parameters)
    wrong = (out - exact).norm(dim=1) / exact.norm(dim=1)
    assert (wrong < 1e-6).all(), wrong


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    "case", matrix_cases(lambda case: case.provider.name in {"triton_online", "triton_two_pass"})
)
def test_steps_may_be_shorter_than_a_load(case: MatrixCase, dtype: torch.dtype) -> None:
    inputs = case.of_shape((3, 64), dtype)
    case.compare(case.run(*inputs, block_size=2, num_warps=1), *inputs)


@pytest.mark.parametrize("case", CASES)
def test_a_factor_changes_nothing(case: MatrixCase) -> None:
    x, *parameters = case.of_size(261, torch.float32)
    # So large that eps does not count.
    close(case, case.run(2.0**20 * x, *parameters), case.run(2.0**16 * x, *parameters))


@pytest.mark.parametrize("case", CASES)
def test_a_row_of_zeros(case: MatrixCase) -> None:
    inputs = case.with_parameters(torch.zeros(3, 261, device=case.device))
    out = case.run(*inputs)
    expected = inputs[2] if case.loaded is LAYERNORM else torch.zeros_like(out[0])
    assert torch.equal(out, expected.expand_as(out))


@pytest.mark.parametrize("case", CASES)
def test_rows_do_not_touch_each_other(case: MatrixCase) -> None:
    x, *parameters = case.of_size(261, torch.float32)
    order = torch.arange(x.shape[0] - 1, -1, -1, device=x.device)
    # Not to the bit: torch reduces a row in an order that follows its alignment.
    close(case, case.run(x[order], *parameters), case.run(x, *parameters)[order])


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("column", [0, 127, 128, 260])
def test_a_nan_spoils_its_row_and_no_other(case: MatrixCase, column: int) -> None:
    x, *parameters = case.of_shape((3, 261), torch.float32)
    x[1, column] = torch.nan
    out = case.run(x, *parameters)
    assert out[1].isnan().all()
    assert not out[[0, 2]].isnan().any()


@pytest.mark.parametrize("case", OWN)
def test_no_columns_are_refused(case: MatrixCase) -> None:
    with pytest.raises(case.refusal, match=f"^{case.loaded.name} needs at least one column"):
        case.run(*case.with_parameters(torch.empty(4, 0, device=case.device)))


@pytest.mark.parametrize("case", OWN)
def test_what_is_no_matrix_is_refused(case: MatrixCase) -> None:
    x, *parameters = case.of_size(37, torch.float32)
    sentence = f"^{case.loaded.name} (needs rows and columns, got shape|takes a 2-D tensor)"
    with pytest.raises(case.refusal, match=sentence):
        case.run(x[0], *parameters)


@pytest.mark.parametrize("case", OWN)
def test_a_weight_that_does_not_fit_is_refused(case: MatrixCase) -> None:
    x, weight, *bias = case.of_size(37, torch.float32)
    for wrong in (weight[:-1], weight.half(), weight[None]):
        sentence = rf"^{case.loaded.name} needs a weight (of shape \(37,\) and|with a number for each column)"
        with pytest.raises(case.refusal, match=sentence):
            case.run(x, wrong, *bias)


@pytest.mark.parametrize("case", OWN)
def test_a_bias_that_does_not_fit_is_refused(case: MatrixCase) -> None:
    x, weight, *bias = case.of_size(37, torch.float32)
    for shift in bias:
        for wrong in (shift[:-1], shift.half(), shift[None]):
            sentence = (
                rf"^{case.loaded.name} needs a bias (of shape \(37,\) and|with a number for each column)"
            )
            with pytest.raises(case.refusal, match=sentence):
                case.run(x, weight, wrong)


@pytest.mark.parametrize("loaded", NORMS)
def test_rows_that_no_block_holds_are_refused(loaded: Loaded) -> None:
    sentence = "one block holds a row: 65537 columns > 65536"
    wide = Matrix(rows=1, columns=65537)
    inputs = loaded.inputs(wide, torch.device("meta"), 0)
    launches: dict[str, tuple[Any, dict[str, int]]] = {
        "triton_row": (Row(num_warps=32), {"num_warps": 32}),
        "triton_tile": (Tile(block_size=2**17, num_warps=32), {"block_size": 2**17, "num_warps": 32}),
    }
    for name, (parameters, launch) in launches.items():
        provider = loaded.kernel.provider(name)
        assert provider.fits(wide, parameters, None) == sentence
        with pytest.raises(ValueError, match=sentence):
            loaded.entry(provider)(*inputs, **launch)
    held = Matrix(columns=65536)
    assert loaded.kernel.provider("triton_row").fits(held, Row(num_warps=32), None) is None
    tile = Tile(block_size=2**16, num_warps=32)
    assert loaded.kernel.provider("triton_tile").fits(held, tile, None) is None


@pytest.mark.parametrize("name", ["layernorm", "rmsnorm", "softmax"])
def test_launches_that_no_sweep_should_wait_for_are_refused(name: str) -> None:
    kernel = loading.load(name).kernel

    def refusal(provider: str, block_size: int, num_warps: int) -> str | None:
        tile = Tile(block_size=block_size, num_warps=num_warps)
        return kernel.provider(provider).fits(Matrix(columns=1823), tile, None)

    sentence = "one block holds whole rows: 1823 columns > block_size 1024"
    assert refusal("triton_tile", 1024, 4) == sentence
    two_pass = "triton_two_pass" if name == "rmsnorm" else "triton_online"
    for provider in ("triton_tile", two_pass):
        full = "too much for the registers: 128 elements a thread > 64"
        assert refusal(provider, 16384, 4) == full
        assert refusal(provider, 16384, 8) is None
    wide, row = Matrix(columns=50257), kernel.provider("triton_row")
    assert row.fits(wide, Row(num_warps=16), None) == full
    assert row.fits(wide, Row(num_warps=32), None) is None


FINITE = st.floats(min_value=-(2.0**40), max_value=2.0**40, width=32)


@settings(max_examples=25, deadline=None, derandomize=True)
@given(row=st.lists(FINITE, min_size=1, max_size=80))
@pytest.mark.parametrize("case", matrix_cases(lambda case: case.loaded is RMSNORM and case.is_own))
def test_any_row(case: MatrixCase, row: list[float]) -> None:
    inputs = case.with_parameters(torch.tensor([row], device=case.device))
    case.compare(case.run(*inputs, block_size=32), *inputs)
