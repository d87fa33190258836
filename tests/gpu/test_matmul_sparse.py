"""The 2:4 sparse product where only a GPU can show it: ``mma.sp``, and cuSPARSELt's form of the weights."""

from __future__ import annotations

from itertools import product

import pytest
import torch

import kernels
from kernels.matmul_sparse import Problem, Warps, warps_fit
from tests.kernels.kernel_cases import Case

pytestmark = pytest.mark.gpu

SPARSE = kernels.load("matmul_sparse")


def case(name: str) -> Case:
    return Case(SPARSE, SPARSE.kernel.provider(name))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("m", [1, 7, 8, 16, 25, 32])
def test_every_way_of_the_cuda_kernel(m: int, dtype: str) -> None:
    problem = Problem(m=m, n=80, k=2048, dtype=dtype)
    one = case("cuda")
    inputs = one.inputs(problem)
    tried = 0
    for warps_k, split_k in product((4, 8, 16), (1, 2, 4)):
        if warps_fit(problem, Warps(warps_k=warps_k, split_k=split_k), None) is None:
            one.verify(problem, inputs, {"warps_k": warps_k, "split_k": split_k})
            tried += 1
    assert tried >= 2


@pytest.mark.parametrize("m", [16, 256])
def test_cusparselt_is_given_the_kernels_weights(m: int) -> None:
    problem = Problem(m=m, n=512, k=1024)
    one = case("torch_cusparselt")
    inputs = one.inputs(problem)
    (found,) = one.in_form.expected(problem, inputs)
    (exact,) = SPARSE.expected(problem, SPARSE.inputs(problem, torch.device("cuda"), 0))
    torch.testing.assert_close(found, exact)
    one.verify(problem, inputs, {"alg_id": 0})
