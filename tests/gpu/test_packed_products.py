"""The products with packed weights on a GPU: torch's packing and cuSPARSELt's, every configuration of the
CUDA kernels, and Triton's tensor cores."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
import torch

from kernel_pipeline import loading
from kernels.matmul_int4.cuda import cuda_stream_k
from kernels.matmul_int4.parameters import ROWS_OF_X
from kernels.matmul_int4.problem import Problem as Int4
from kernels.matmul_int4.reference import pack
from kernels.matmul_sparse.problem import Problem as Sparse
from tests.kernels.kernel_cases import Case, gpu

pytestmark = [pytest.mark.gpu, pytest.mark.builds]

INT4, SPARSE = loading.load("matmul_int4"), loading.load("matmul_sparse")
KINDS = [
    *((Int4, granularity) for granularity in ("group_128", "group_64", "group_32", "channel")),
    (Sparse, None),
]
WARPS = {"tiles_n": (1, 2), "warps_k": (4, 8, 16), "split_k": (1, 2, 4)}
WGMMA = {
    "block_m": (16, 32, 64, 128, 256),
    "block_n": (128, 256),
    "split_k": (1, 2, 4, 8),
    "stages": (2, 3, 4),
}


def case(problem: Any, name: str) -> Case:
    loaded = INT4 if isinstance(problem, Int4) else SPARSE
    return Case(loaded, loaded.kernel.provider(name))


def made(kind: tuple[type, str | None], **dimensions: Any) -> Any:
    problem, granularity = kind
    return problem(**dimensions, **({} if granularity is None else {"granularity": granularity}))


def verified(problem: Any, name: str, values: dict[str, tuple[int, ...]]) -> int:
    """Verify the provider in each combination of values that fits; returns their number."""
    one = case(problem, name)
    here = gpu()
    assert here is not None and one.provider.parameters is not None
    if (reason := one.provider.runs_on(here)) is not None:
        pytest.skip(reason)
    inputs = one.inputs(problem)
    expected = one.in_form.expected(problem, inputs)
    tried = 0
    for combination in product(*values.values()):
        parameters = dict(zip(values, combination, strict=True))
        if one.provider.fits(problem, one.provider.parameters(**parameters), here) is None:
            one.verify(problem, inputs, parameters, expected)
            tried += 1
    return tried


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind[1] or "sparse")
@pytest.mark.parametrize(
    ("m", "dtype"),
    [*((m, "bfloat16") for m in (1, 3, 7, 8, 9, 16, 17, 25, 32)), (1, "float16"), (25, "float16")],
)
def test_every_configuration_of_the_cuda_kernel(m: int, dtype: str, kind: tuple[type, str | None]) -> None:
    assert verified(made(kind, m=m, n=96, k=2048, dtype=dtype), "cuda", WARPS) >= 2


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind[1] or "sparse")
@pytest.mark.parametrize(
    ("m", "dtype"), [*((m, "bfloat16") for m in (1, 16, 19, 64, 100, 300)), (19, "float16"), (300, "float16")]
)
def test_every_tile_of_hoppers_kernel(m: int, dtype: str, kind: tuple[type, str | None]) -> None:
    # 11 steps, and no whole blocks of w.
    assert verified(made(kind, m=m, n=336, k=1408, dtype=dtype), "cuda_wgmma", WGMMA) >= 8


@pytest.mark.parametrize("granularity", ["group_128", "group_64", "group_32", "channel"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize(
    # Fewer tiles than multiprocessors; more; whole tiles alone; some shared and some whole.
    "shape",
    [(33, 336, 1408), (260, 4096, 2048), (100, 256, 128), (649, 14336, 1024), (1000, 8208, 1152)],
    ids=str,
)
def test_blocks_that_share_the_steps_of_tiles(
    shape: tuple[int, int, int], dtype: str, granularity: str
) -> None:
    m, n, k = shape
    problem = Int4(m=m, n=n, k=k, dtype=dtype, granularity=granularity)
    assert verified(problem, "cuda_stream_k", {"block_m": ROWS_OF_X}) >= 1


def test_shared_tiles_again_and_again() -> None:
    """Blocks wait for each other's sums: by hundreds of calls, also on two streams at a time."""
    problem = Int4(m=260, n=4096, k=4096)
    one = case(problem, "cuda_stream_k")
    inputs = one.inputs(problem)
    arguments = (*inputs, problem.granularity, 96)
    one.verify(problem, inputs, {"block_m": 96})
    first = cuda_stream_k(*arguments)
    streams = [torch.cuda.Stream() for _ in range(2)]
    outputs = []
    torch.cuda.synchronize()
    for _ in range(200):
        for stream in streams:
            with torch.cuda.stream(stream):
                outputs.append(cuda_stream_k(*arguments))
    torch.cuda.synchronize()
    assert all(torch.equal(out, first) for out in outputs)


def test_the_packing_is_torchs() -> None:
    generator = torch.Generator(device="cuda").manual_seed(3)
    q = torch.randint(0, 16, (64, 512), dtype=torch.int32, device="cuda", generator=generator)
    bytes_ = (q[:, ::2] << 4 | q[:, 1::2]).to(torch.uint8)
    assert torch.equal(pack(q), torch.ops.aten._convert_weight_to_int4pack(bytes_, 8))


@pytest.mark.parametrize("granularity", ["group_128", "group_64", "group_32"])
@pytest.mark.parametrize("m", [1, 17, 128])
def test_torchs_own_product_of_it(m: int, granularity: str) -> None:
    problem = Int4(m=m, n=256, k=1024, granularity=granularity)
    one = case(problem, "torch_int4pack")
    one.verify(problem, one.inputs(problem), {})


@pytest.mark.parametrize("value", [torch.inf, -torch.inf, torch.nan])
def test_one_extreme_value_in_each_input_of_the_cuda_kernel(value: float) -> None:
    problem = Int4(m=5, n=64, k=512)
    one = case(problem, "cuda")
    for which in (0, 2):
        inputs = one.inputs(problem)
        inputs[which].view(-1)[inputs[which].numel() // 3] = value
        one.verify(problem, inputs, {"tiles_n": 2, "warps_k": 4, "split_k": 1})


def test_inputs_that_begin_anywhere() -> None:
    problem = Int4(m=5, n=64, k=512)
    one = case(problem, "cuda")
    inputs = tuple(torch.cat([x.new_ones(1), x.flatten()])[1:].view(x.shape) for x in one.inputs(problem))
    one.verify(problem, inputs, {"tiles_n": 1, "warps_k": 4, "split_k": 2})


@pytest.mark.parametrize("name", ["triton_gemm", "triton_split_k"])
@pytest.mark.parametrize("block_m", [16, 64, 128])
@pytest.mark.parametrize("block_n", [32, 64, 128])
def test_triton_with_tensor_cores(name: str, block_m: int, block_n: int) -> None:
    for granularity in ("group_128", "group_32", "channel"):
        problem = Int4(m=block_m + 3, n=block_n + 8, k=1024, granularity=granularity)
        verified(problem, name, defaults(name, block_m=block_m, block_n=block_n) | {"num_warps": (4, 8)})


def defaults(name: str, **values: int) -> dict[str, tuple[int, ...]]:
    variables = INT4.kernel.provider(name).variables()
    return {one: (values.get(one, int(variable.default or 0)),) for one, variable in variables.items()}


@pytest.mark.parametrize("m", [16, 256])
def test_cusparselt_is_given_the_kernels_weights(m: int) -> None:
    problem = Sparse(m=m, n=512, k=1024)
    one = case(problem, "torch_cusparselt")
    inputs = one.inputs(problem)
    (found,) = one.in_form.expected(problem, inputs)
    (exact,) = SPARSE.expected(problem, SPARSE.inputs(problem, torch.device("cuda"), 0))
    torch.testing.assert_close(found, exact)
    one.verify(problem, inputs, {"alg_id": 0})
