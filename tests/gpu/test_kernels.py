"""What kernels must do that only a GPU can show: tensors past 2**31 elements, full sizes, CUDA graphs.

The tests in tests/kernels run on the GPU, too, where there is one.
"""

from __future__ import annotations

import pytest
import torch
from torch._dynamo.utils import counters

from tests.kernels.kernel_cases import EVERY, FLOATS, Case, params

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU"),
]

CUDA = torch.device("cuda")
CASES = params(case for case in EVERY if "cuda" in case.provider.devices)


@pytest.mark.parametrize("num_warps", [1, 4, 16, 32])
@pytest.mark.parametrize("block_size", [64, 512, 4096])
@pytest.mark.parametrize(
    "case", params(case for case in EVERY if {"block_size", "num_warps"} <= set(case.provider.axes))
)
def test_every_launch(case: Case, block_size: int, num_warps: int) -> None:
    inputs = case.inputs(1823, torch.bfloat16)
    case.check(case.run(*inputs, block_size=block_size, num_warps=num_warps), *inputs)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("columns", [32768, 65536])
@pytest.mark.parametrize("case", CASES)
def test_wide_rows(case: Case, columns: int, dtype: torch.dtype) -> None:
    inputs = case.kernel.inputs((256, columns), dtype, CUDA, 0)
    case.check(case.run(*inputs, num_warps=32), *inputs)


@pytest.mark.parametrize("case", CASES)
def test_more_elements_than_32_bits_count(case: Case) -> None:
    """Past element 2**31, and two rows that are further apart than that."""
    if torch.cuda.mem_get_info()[0] < 40 * 2**30:
        pytest.skip("needs 40 GiB of free GPU memory")
    rows, columns = 2**17 + 5, 2**14 + 3
    x = torch.empty(rows, columns, dtype=torch.float16, device=CUDA)
    x.normal_(generator=torch.Generator(device=CUDA).manual_seed(0))
    _, *parameters = case.kernel.inputs((1, columns), torch.float16, CUDA, 0)
    out = case.run(x, *parameters)
    for some in (slice(0, 8), slice(rows // 2, rows // 2 + 8), slice(rows - 8, rows)):
        case.check(out[some], x[some], *parameters)
    far_apart = case.with_parameters(x[:: rows - 1, :100])
    case.check(case.run(*far_apart), *far_apart)


@pytest.mark.parametrize(
    "case", params(case for case in EVERY if "cuda" in case.provider.devices and case.is_own)
)
def test_more_rows_than_a_grid_has_in_y(case: Case) -> None:
    inputs = case.kernel.inputs((2**20 + 1, 5), torch.float32, CUDA, 0)
    case.check(case.run(*inputs), *inputs)


@pytest.mark.parametrize("case", CASES)
def test_replays_in_a_cuda_graph(case: Case) -> None:
    """Timing replays launches, so no provider may synchronize or read its inputs on the host."""
    inputs = case.inputs(781, torch.float32)
    case.run(*inputs)  # Compiles and loads, which a capture forbids.
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = case.run(*inputs)
    for tensor, other in zip(inputs, case.inputs(781, torch.float32, seed=1), strict=True):
        tensor.copy_(other)
    graph.replay()
    torch.cuda.synchronize()
    case.check(out, *inputs)


@pytest.mark.parametrize("case", params(case for case in EVERY if case.provider.name == "torch_compile"))
def test_torch_compile_compiles_every_shape(case: Case) -> None:
    """More shapes than Dynamo's default limit, after which it would run eagerly without a word."""
    before = counters["stats"]["unique_graphs"]
    for size in range(101, 113):
        inputs = case.inputs(size, torch.float32)
        case.check(case.run(*inputs), *inputs)
    assert counters["stats"]["unique_graphs"] == before + 12
