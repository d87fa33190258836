"""What the CUDA operators refuse, and launch parameters that no grid has."""

from __future__ import annotations

import pytest
import torch

import kernels
from pipeline.measure import extension

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU"),
]

KERNELS = ("gelu", "softmax", "square")


@pytest.fixture(params=KERNELS)
def name(request: pytest.FixtureRequest) -> str:
    kernel: str = request.param
    extension.load(kernel, extension.CUDA_SOURCE)
    return kernel


def cuda(name: str, x: torch.Tensor, block_size: int, num_warps: int) -> torch.Tensor:
    out: torch.Tensor = getattr(torch.ops, name).cuda(x, block_size, num_warps)
    return out


@pytest.mark.parametrize(
    ("block_size", "num_warps", "sentence"),
    [
        (0, 4, "block_size must be a multiple of 32 from 32 to 1048576, not 0"),
        (100, 4, "block_size must be a multiple of 32 from 32 to 1048576, not 100"),
        (2**40, 4, "block_size must be a multiple of 32 from 32 to 1048576, not 1099511627776"),
        (1024, 0, r"num_warps must be from 1 to 32 \(.*\), not 0"),
        (1024, 33, r"num_warps must be from 1 to 32 \(.*\), not 33"),
    ],
)
def test_launch_parameters_are_refused(name: str, block_size: int, num_warps: int, sentence: str) -> None:
    with pytest.raises(RuntimeError, match=f"^{sentence}$"):
        cuda(name, torch.ones(4, 4, device="cuda"), block_size, num_warps)


@pytest.mark.parametrize(("block_size", "num_warps"), [(32, 32), (96, 3), (3 * 1024, 7), (2**20, 32)])
@pytest.mark.parametrize("columns", [1, 31, 4096, 12289])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_odd_launch_parameters(
    name: str, block_size: int, num_warps: int, columns: int, dtype: torch.dtype
) -> None:
    kernel = kernels.load(name)
    (x,) = kernel.inputs((5, columns), dtype, torch.device("cuda"), 0)
    allowed = kernel.tolerance(dtype)
    torch.testing.assert_close(
        cuda(name, x, block_size, num_warps).double(),
        kernel.reference(x),
        rtol=allowed.rtol,
        atol=allowed.atol,
    )


def test_elements_that_are_not_floats_are_refused(name: str) -> None:
    x = torch.ones(4, 4, device="cuda", dtype=torch.int32)
    with pytest.raises(RuntimeError, match=r"must be float32, bfloat16 or float16, not Int$"):
        cuda(name, x, 1024, 4)


def test_naive_square_takes_a_matrix() -> None:
    extension.load("square", extension.CUDA_SOURCE)
    with pytest.raises(RuntimeError, match=r"takes a 2-D tensor, not one of 1 dimensions$"):
        torch.ops.square.cuda_naive(torch.ones(4, device="cuda"))
