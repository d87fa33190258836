"""What the CUDA operators refuse, and launch parameters that no grid has."""

from __future__ import annotations

import pytest
import torch

import kernels
from kernels import Tensors
from pipeline.toolchain import extension
from tests.kernels.kernel_cases import MATRICES

pytestmark = pytest.mark.gpu

CASES = {case.loaded.name: case for case in MATRICES if case.provider.entry == "cuda.cu:cuda"}


@pytest.fixture(params=CASES)
def name(request: pytest.FixtureRequest) -> str:
    kernel: str = request.param
    CASES[kernel].load()
    return kernel


def cuda(name: str, inputs: Tensors, block_size: int, num_warps: int) -> torch.Tensor:
    out: torch.Tensor = getattr(torch.ops, name).cuda(*inputs, block_size, num_warps)
    return out


def inputs_of(name: str, shape: tuple[int, int], dtype: torch.dtype = torch.float32) -> Tensors:
    return CASES[name].of_shape(shape, dtype)


def check(name: str, out: torch.Tensor, inputs: Tensors) -> None:
    CASES[name].compare(out, *inputs)


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
        cuda(name, inputs_of(name, (4, 4)), block_size, num_warps)


@pytest.mark.parametrize(("block_size", "num_warps"), [(32, 32), (96, 3), (3 * 1024, 7), (2**20, 32)])
@pytest.mark.parametrize("columns", [1, 31, 4096, 12289])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_odd_launch_parameters(
    name: str, block_size: int, num_warps: int, columns: int, dtype: torch.dtype
) -> None:
    inputs = inputs_of(name, (5, columns), dtype)
    check(name, cuda(name, inputs, block_size, num_warps), inputs)


# Blocks, clusters of every size, rows that have to be streamed, and so few that two launches take them; by
# whole packs, with packs cut at both ends, and, with 5 elements between rows, an element at a time.
@pytest.mark.parametrize("num_warps", [1, 4, 16, 32])
@pytest.mark.parametrize("block_size", [64, 1024, 16384])
@pytest.mark.parametrize(
    ("rows", "columns"), [(1, 262144), (2, 300007), (3, 100003), (140, 40000), (133, 20001)]
)
@pytest.mark.parametrize("padding", [0, 5])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rows_of_any_length(
    name: str, num_warps: int, block_size: int, rows: int, columns: int, padding: int, dtype: torch.dtype
) -> None:
    x, *parameters = inputs_of(name, (rows, columns + padding), dtype)
    inputs = (x[:, :columns], *(parameter[:columns] for parameter in parameters))
    check(name, cuda(name, inputs, block_size, num_warps), inputs)


# More than L2 holds, where the caches are told otherwise.
@pytest.mark.parametrize("num_warps", [4, 16])
@pytest.mark.parametrize("block_size", [1024, 32768])
@pytest.mark.parametrize("columns", [70000, 70001])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_large_tensors(name: str, num_warps: int, block_size: int, columns: int, dtype: torch.dtype) -> None:
    inputs = inputs_of(name, (800, columns), dtype)
    check(name, cuda(name, inputs, block_size, num_warps), inputs)


# So many rows and elements that odd rows get copies of weight and bias: several rows a block, one, a cluster
# of them, and rows of fewer elements than an access has. Parameters may begin inside 16 bytes, too.
@pytest.mark.parametrize(("block_size", "num_warps"), [(1024, 4), (16384, 16), (64, 1)])
@pytest.mark.parametrize(
    ("rows", "columns"), [(600000, 7), (5400, 781), (420, 10001), (140, 60001), (130, 262143)]
)
@pytest.mark.parametrize("begins", [0, 1])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_many_odd_rows(
    name: str, block_size: int, num_warps: int, rows: int, columns: int, begins: int, dtype: torch.dtype
) -> None:
    x, *parameters = inputs_of(name, (rows, columns + 1), dtype)
    inputs = (x[:, :columns].contiguous(), *(p[begins:][:columns] for p in parameters))
    check(name, cuda(name, inputs, block_size, num_warps), inputs)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_odd_rows_get_the_parameters_of_their_call(name: str, dtype: torch.dtype) -> None:
    x, *parameters = inputs_of(name, (4096, 1823), dtype)
    for shift in range(20):
        # The copies of the last call's parameters lie where those of this one's will.
        inputs = (x, *(parameter.roll(shift) for parameter in parameters))
        check(name, cuda(name, inputs, 2048, 4), inputs)


# Of the norms, whose clusters of a GPU take these rows one after another.
@pytest.mark.parametrize(
    ("rows", "columns"),
    [(701, 40000), (277, 65536), (131, 262144), (701, 33001), (650, 50258), (277, 100003), (131, 262143)],
)
@pytest.mark.parametrize("padding", [0, 64])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_many_long_rows(name: str, rows: int, columns: int, padding: int, dtype: torch.dtype) -> None:
    x, *parameters = inputs_of(name, (rows, columns + padding), dtype)
    x[:, columns:] = float("nan")  # read beside a row's last elements, but not its own
    inputs = (x[:, :columns], *(p[:columns].contiguous() for p in parameters))
    for block_size, num_warps in (
        (16384, 16),
        (32768, 16),
        (16384, 8),
        (8192, 8),
        (4096, 4),
        (6144, 6),
        (12288, 6),
        (4096, 2),
    ):
        check(name, cuda(name, inputs, block_size, num_warps), inputs)


# A warp has 2048 elements, or more in shared memory: the sum of so many, squared, is larger than any number.
@pytest.mark.parametrize(("rows", "columns"), [(3, 4096), (3, 20000), (3, 70000), (300, 65536)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rows_of_large_numbers(name: str, rows: int, columns: int, dtype: torch.dtype) -> None:
    x, *parameters = inputs_of(name, (rows, columns), dtype)
    x = x.sign() * 1e16  # the norms promise no more, and its square is a number, too
    ordered = x.sort(dim=1).values
    for block_size, num_warps in ((1024, 1), (4096, 2), (16384, 8), (16384, 16), (32768, 4), (32768, 16)):
        for inputs in ((x, *parameters), (ordered, *parameters)):
            check(name, cuda(name, inputs, block_size, num_warps), inputs)


@pytest.mark.parametrize("columns", [65536, 100001])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_long_row_leaves_the_others_alone(name: str, columns: int, dtype: torch.dtype) -> None:
    x, *parameters = inputs_of(name, (300, columns), dtype)
    expected = cuda(name, (x, *parameters), 32768 if dtype == torch.bfloat16 else 16384, 16)
    x[3] = float("nan")
    x[35, 7] = float("inf")
    x[299] = 0.0
    result = cuda(name, (x, *parameters), 32768 if dtype == torch.bfloat16 else 16384, 16)
    same = [row for row in range(300) if row not in {3, 35, 299}]
    assert torch.equal(result[same], expected[same])
    assert bool(result[3].isnan().all())


def test_elements_that_are_not_floats_are_refused(name: str) -> None:
    inputs = tuple(x.int() for x in inputs_of(name, (4, 4)))
    with pytest.raises(RuntimeError, match=r"must be float32, bfloat16 or float16, not Int$"):
        cuda(name, inputs, 1024, 4)


@pytest.mark.parametrize("layout", ["contiguous", "transposed"])
def test_torch_accepts_the_operator(name: str, layout: str) -> None:
    x, *parameters = inputs_of(name, (37, 64))
    x = x if layout == "contiguous" else x.t().contiguous().t()
    torch.library.opcheck(getattr(torch.ops, name).cuda.default, (x, *parameters, 1024, 4))


@pytest.mark.parametrize("dynamic", [False, True])
def test_torch_compile_takes_the_operator(name: str, dynamic: bool) -> None:
    # The lambda below is one code object for every kernel, and Dynamo keeps only so many versions of it.
    torch._dynamo.reset()
    operator = getattr(torch.ops, name).cuda
    compiled = torch.compile(lambda *inputs: operator(*inputs, 1024, 4) + 1, fullgraph=True, dynamic=dynamic)
    for rows in (37, 5):
        inputs = inputs_of(name, (rows, 64))
        torch.testing.assert_close(compiled(*inputs), cuda(name, inputs, 1024, 4) + 1)


def test_naive_square_takes_a_matrix() -> None:
    extension.load(extension.Place.of(kernels.load("square")), "cuda.cu")
    with pytest.raises(RuntimeError, match=r"takes a 2-D tensor, not one of 1 dimensions$"):
        torch.ops.square.cuda_naive(torch.ones(4, device="cuda"))
