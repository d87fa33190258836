"""The 2:4 sparse product on a GPU: ``mma.sp``, and cuSPARSELt's form of the weights."""

from __future__ import annotations

from itertools import product

import pytest
import torch

from kernel_pipeline import loading
from kernels.matmul_sparse.parameters import Warps, warps_fit, wgmma_fits
from kernels.matmul_sparse.problem import Problem
from kernels.transposed_tiles import Wgmma
from tests.kernels.kernel_cases import Case, gpu

pytestmark = [pytest.mark.gpu, pytest.mark.builds]

SPARSE = loading.load("matmul_sparse")


def case(name: str) -> Case:
    return Case(SPARSE, SPARSE.kernel.provider(name))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("m", [1, 7, 8, 16, 25, 32])
def test_every_way_of_the_cuda_kernel(m: int, dtype: str) -> None:
    problem = Problem(m=m, n=96, k=2048, dtype=dtype)
    one = case("cuda")
    inputs = one.inputs(problem)
    expected = one.in_form.expected(problem, inputs)
    tried = 0
    for values in product((1, 2), (4, 8, 16), (1, 2, 4)):
        warps = dict(zip(("tiles_n", "warps_k", "split_k"), values, strict=True))
        if warps_fit(problem, Warps(**warps), None) is None:
            one.verify(problem, inputs, warps, expected)
            tried += 1
    assert tried >= 2


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("m", [1, 16, 19, 64, 100, 300])
def test_every_tile_of_hoppers_kernel(m: int, dtype: str) -> None:
    problem = Problem(m=m, n=336, k=1408, dtype=dtype)  # 11 steps, and no whole blocks of w
    one = case("cuda_wgmma")
    if (reason := one.provider.runs_on(gpu())) is not None:
        pytest.skip(reason)
    inputs = one.inputs(problem)
    expected = one.in_form.expected(problem, inputs)
    tried = 0
    for values in product((16, 32, 64, 128, 256), (128, 256), (1, 2, 4, 8), (2, 3, 4)):
        tiles = dict(zip(("block_m", "block_n", "split_k", "stages"), values, strict=True))
        if wgmma_fits(problem, Wgmma(**tiles), gpu()) is None:
            one.verify(problem, inputs, tiles, expected)
            tried += 1
    assert tried >= 8


@pytest.mark.parametrize("m", [16, 256])
def test_cusparselt_is_given_the_kernels_weights(m: int) -> None:
    problem = Problem(m=m, n=512, k=1024)
    one = case("torch_cusparselt")
    inputs = one.inputs(problem)
    (found,) = one.in_form.expected(problem, inputs)
    (exact,) = SPARSE.expected(problem, SPARSE.inputs(problem, torch.device("cuda"), 0))
    torch.testing.assert_close(found, exact)
    one.verify(problem, inputs, {"alg_id": 0})
