"""The four-bit product on a GPU: torch's packing and every configuration of the CUDA kernel."""

from __future__ import annotations

from itertools import product

import pytest
import torch

from kernel_pipeline import loading
from kernel_pipeline.contract import Provider
from kernels.matmul_int4.parameters import Tiles, Warps, tiles_fit, warps_fit, wgmma_fits
from kernels.matmul_int4.problem import Problem
from kernels.matmul_int4.reference import pack
from kernels.transposed_tiles import Wgmma
from tests.kernels.kernel_cases import Case, gpu

pytestmark = [pytest.mark.gpu, pytest.mark.builds]

INT4 = loading.load("matmul_int4")


def case(name: str) -> Case:
    return Case(INT4, INT4.kernel.provider(name))


def test_the_packing_is_torchs() -> None:
    generator = torch.Generator(device="cuda").manual_seed(3)
    q = torch.randint(0, 16, (64, 512), dtype=torch.int32, device="cuda", generator=generator)
    bytes_ = (q[:, ::2] << 4 | q[:, 1::2]).to(torch.uint8)
    assert torch.equal(pack(q), torch.ops.aten._convert_weight_to_int4pack(bytes_, 8))


@pytest.mark.parametrize("granularity", ["group_128", "group_64", "group_32"])
@pytest.mark.parametrize("m", [1, 17, 128])
def test_torchs_own_product_of_it(m: int, granularity: str) -> None:
    problem = Problem(m=m, n=256, k=1024, granularity=granularity)
    one = case("torch_int4pack")
    one.verify(problem, one.inputs(problem), {})


@pytest.mark.parametrize("granularity", ["group_128", "group_64", "group_32", "channel"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("m", [1, 3, 8, 9, 16, 17, 32])
def test_every_way_of_the_cuda_kernel(m: int, dtype: str, granularity: str) -> None:
    problem = Problem(m=m, n=96, k=2048, dtype=dtype, granularity=granularity)
    one = case("cuda")
    inputs = one.inputs(problem)
    expected = one.in_form.expected(problem, inputs)
    tried = 0
    for tiles_n, warps_k, split_k in product((1, 2), (4, 8, 16), (1, 2, 4)):
        parameters = {"tiles_n": tiles_n, "warps_k": warps_k, "split_k": split_k}
        if warps_fit(problem, Warps(**parameters), gpu()) is None:
            one.verify(problem, inputs, parameters, expected)
            tried += 1
    assert tried >= 2


@pytest.mark.parametrize("granularity", ["group_128", "group_64", "group_32", "channel"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("m", [1, 16, 19, 64, 100, 300])
def test_every_tile_of_hoppers_kernel(m: int, dtype: str, granularity: str) -> None:
    # 11 steps, and no whole blocks of w.
    problem = Problem(m=m, n=336, k=1408, dtype=dtype, granularity=granularity)
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


@pytest.mark.parametrize("value", [torch.inf, -torch.inf, torch.nan])
def test_one_extreme_value_in_each_input_of_the_cuda_kernel(value: float) -> None:
    problem = Problem(m=5, n=64, k=512)
    one = case("cuda")
    for which in (0, 2):
        inputs = one.inputs(problem)
        inputs[which].view(-1)[inputs[which].numel() // 3] = value
        one.verify(problem, inputs, {"tiles_n": 2, "warps_k": 4, "split_k": 1})


def test_inputs_that_begin_anywhere() -> None:
    problem = Problem(m=5, n=64, k=512)
    one = case("cuda")
    inputs = tuple(torch.cat([x.new_ones(1), x.flatten()])[1:].view(x.shape) for x in one.inputs(problem))
    one.verify(problem, inputs, {"tiles_n": 1, "warps_k": 4, "split_k": 2})


@pytest.mark.parametrize("name", ["triton_gemm", "triton_split_k"])
@pytest.mark.parametrize("block_m", [16, 64, 128])
@pytest.mark.parametrize("block_n", [32, 64, 128])
def test_triton_with_tensor_cores(name: str, block_m: int, block_n: int) -> None:
    one = case(name)
    provider: Provider = one.provider
    for granularity, num_warps in product(("group_128", "group_32", "channel"), (4, 8)):
        problem = Problem(m=block_m + 3, n=block_n + 8, k=1024, granularity=granularity)
        assert provider.parameters is not None
        values = {name: variable.default for name, variable in provider.variables().items()}
        values |= {"block_m": block_m, "block_n": block_n, "num_warps": num_warps}
        if tiles_fit(problem, Tiles(**{k: v for k, v in values.items() if k != "split_k"}), gpu()) is None:
            one.verify(problem, one.inputs(problem), values)
