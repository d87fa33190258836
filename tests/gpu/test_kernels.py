"""Kernels on a GPU: tensors past 2**31 elements, full sizes, CUDA graphs.

The tests in tests/kernels run on the GPU, too, where there is one.
"""

from __future__ import annotations

import pytest
import torch
from torch._dynamo.utils import counters

from kernel_pipeline.declared import Value
from tests.gpu_sharing import much_memory
from tests.kernels.kernel_cases import SMALL, Case, MatrixCase, cases, matrix_cases, with_values

pytestmark = pytest.mark.gpu

CUDA = torch.device("cuda")


def on_gpu(case: Case) -> bool:
    return "cuda" in case.provider.devices


def ends(values: tuple[Value, ...]) -> list[Value]:
    """The smallest and the largest value."""
    return list(dict.fromkeys((values[0], values[-1])))


@pytest.mark.parametrize(("block_size", "num_warps"), [(64, 1), (64, 32), (512, 4), (4096, 32)])
@pytest.mark.parametrize(
    "case",
    matrix_cases(lambda case: on_gpu(case) and {"block_size", "num_warps"} <= set(case.provider.variables())),
)
def test_launches_of_few_and_many_threads(case: MatrixCase, block_size: int, num_warps: int) -> None:
    """Both ends of both parameters, and one between. ``test_values_of_every_parameter`` has
    one parameter at a time."""
    inputs = case.of_size(1823, torch.bfloat16)
    case.compare(case.run(*inputs, block_size=block_size, num_warps=num_warps), *inputs)


@pytest.mark.parametrize(
    ("case", "name", "value"),
    with_values((case for one in cases(on_gpu) for case in one.values if isinstance(case, Case)), ends),
)
def test_values_of_every_parameter(case: Case, name: str, value: Value) -> None:
    problem = case.problem(1823)
    parameters = case.configuration(problem, pinned={name: value})
    case.verify(problem, case.inputs(problem), parameters)


@pytest.mark.parametrize(("columns", "dtype"), [(32768, torch.float32), (65536, torch.bfloat16)])
@pytest.mark.parametrize("case", matrix_cases(on_gpu))
def test_wide_rows(case: MatrixCase, columns: int, dtype: torch.dtype) -> None:
    inputs = case.of_shape((256, columns), dtype)
    try:
        out = case.run(*inputs, num_warps=32)
    except ValueError as refusal:
        assert str(columns) in str(refusal)
        pytest.skip(f"refused: {refusal}")
    case.compare(out, *inputs)


@pytest.mark.parametrize("case", matrix_cases(lambda case: on_gpu(case) and case.is_own))
def test_more_elements_than_32_bits_count(case: MatrixCase) -> None:
    """Past element 2**31, and two rows that are further apart than that."""
    with much_memory():
        _more_elements_than_32_bits_count(case)


def _more_elements_than_32_bits_count(case: MatrixCase) -> None:
    if torch.cuda.mem_get_info()[0] < 40 * 2**30:
        pytest.skip("needs 40 GiB of free GPU memory")
    rows, columns = 2**17 + 5, 2**14 + 3
    generator = torch.Generator(device=CUDA).manual_seed(0)
    inputs = [
        one
        if one.dim() == 1
        else torch.empty(rows, columns, dtype=torch.float16, device=CUDA).normal_(generator=generator)
        for one in case.of_shape((1, columns), torch.float16)
    ]
    out = case.run(*inputs)
    for some in (slice(0, 8), slice(rows // 2, rows // 2 + 8), slice(rows - 8, rows)):
        case.compare(out[some], *(one if one.dim() == 1 else one[some] for one in inputs))
    far_apart = case.with_parameters(inputs[0][:: rows - 1, :100])
    case.compare(case.run(*far_apart), *far_apart)


@pytest.mark.parametrize("case", matrix_cases(lambda case: on_gpu(case) and case.is_own))
def test_more_rows_than_a_grid_has_in_y(case: MatrixCase) -> None:
    inputs = case.of_shape((2**20 + 1, 5), torch.float32)
    case.compare(case.run(*inputs), *inputs)


@pytest.mark.parametrize("case", cases(on_gpu, slow=True))
def test_replays_in_a_cuda_graph(case: Case) -> None:
    """Timing replays launches, so no provider may synchronize or read its inputs on the host."""
    problem = case.problem(781)
    parameters = case.configuration(problem, preferred=SMALL)
    inputs = case.inputs(problem)
    case.call(problem, inputs, parameters)  # Compiles and loads, which a capture forbids.
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph):
            out = case.call(problem, inputs, parameters)
    except RuntimeError as error:
        if case.provider.is_own or case.provider.compiled:
            raise
        pytest.skip(f"torch's own, which events time: {error}")
    others = case.inputs(problem, seed=1)
    for tensor, other in zip(inputs, others, strict=True):
        tensor.copy_(other)
    graph.replay()
    torch.cuda.synchronize()
    case.check(out, case.in_form.expected(problem, others), problem)


@pytest.mark.long
@pytest.mark.parametrize(
    "case",
    cases(
        lambda case: case.provider.name == "torch_compile" and case.loaded.name in ("square", "matmul"),
        slow=True,
    ),
)
def test_torch_compile_compiles_every_shape(case: Case) -> None:
    """More shapes than Dynamo's default limit, after which it would run eagerly without a word. All providers
    are compiled by one function."""
    before = counters["stats"]["unique_graphs"]
    for size in range(101, 110):
        problem = case.problem(size)
        case.verify(problem, case.inputs(problem), case.configuration(problem))
    assert counters["stats"]["unique_graphs"] == before + 9
