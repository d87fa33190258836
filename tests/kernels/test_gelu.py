"""What is true of gelu beside what is true of every kernel."""

from __future__ import annotations

import pytest
import torch

from kernel_pipeline import loading
from kernel_pipeline.tensors import normal
from kernels.gelu.reference import reference
from tests.kernels.kernel_cases import MatrixCase, matrix_cases

GELU = loading.load("gelu")
CASES = matrix_cases(lambda case: case.loaded is GELU)
OWN = matrix_cases(lambda case: case.loaded is GELU and case.is_own)


def test_reference_by_hand() -> None:
    """0.8411919906082768 = 0.5 * (1 + tanh(sqrt(2 / pi) * 1.044715)); and gelu(x) - gelu(-x) = x."""
    out = reference(torch.tensor([[1.0, -1.0, 0.0, 40.0, -40.0]]))
    expected = torch.tensor(
        [[0.8411919906082768, 0.8411919906082768 - 1, 0.0, 40.0, 0.0]], dtype=torch.float64
    )
    torch.testing.assert_close(out, expected, rtol=1e-15, atol=0)


@pytest.mark.parametrize("case", CASES)
def test_far_from_zero_it_is_x_or_nothing(case: MatrixCase) -> None:
    """Where exp overflows and the cube with it: never NaN."""
    far = torch.tensor([20.0, 100.0, 1e4, 6e4, 1e13, 1e30, 3e38], device=case.device)
    x = torch.stack([far, -far])
    out = case.run(x)
    assert torch.equal(out[0], far)
    assert torch.equal(out[1], torch.zeros_like(far))


@pytest.mark.parametrize("case", OWN)
def test_the_left_tail_where_one_plus_tanh_cancels(case: MatrixCase) -> None:
    x = torch.linspace(-10, 0, 1001, device=case.device)[None]
    case.compare(case.run(x), x)


@pytest.mark.parametrize("shape", [(), (37,), (3, 5, 7), (4, 0), (0,), (2, 1, 3, 5)], ids=str)
@pytest.mark.parametrize("case", OWN)
def test_any_number_of_dimensions(case: MatrixCase, shape: tuple[int, ...]) -> None:
    (x,) = normal([shape], "float32", case.device, 0)
    out = case.run(x)
    assert out.shape == shape
    case.compare(out, x)
