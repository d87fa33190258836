"""Refusals of the CUDA operators, launch parameters outside of every grid, and every strategy of a plan."""

from __future__ import annotations

import ctypes
import itertools
import json
from collections.abc import Iterable, Iterator
from typing import Any

import pytest
import torch

from kernel_pipeline import loading
from kernel_pipeline.contract import EPSILON, Gpu
from kernel_pipeline.loading import Tensors
from kernel_pipeline.machine import device
from kernel_pipeline.toolchain import extension
from kernels.rows import Matrix
from kernels.rows_plan import STRATEGIES, RowsPlan
from tests.kernels.kernel_cases import MATRICES

pytestmark = [pytest.mark.gpu, pytest.mark.builds]

CASES = {
    case.loaded.name: case
    for case in MATRICES
    if case.provider.entry == "cuda.cu:cuda" and "strategy" in case.provider.variables()
}


@pytest.fixture(params=CASES)
def name(request: pytest.FixtureRequest) -> str:
    kernel: str = request.param
    CASES[kernel].load()
    return kernel


def cuda(name: str, inputs: Tensors, block_size: int, num_warps: int, **plan: Any) -> torch.Tensor:
    out: torch.Tensor = getattr(torch.ops, name).cuda(*inputs, block_size, num_warps, **plan)
    return out


def inputs_of(name: str, shape: tuple[int, int], dtype: torch.dtype = torch.float32) -> Tensors:
    return CASES[name].of_shape(shape, dtype)


def check(name: str, out: torch.Tensor, inputs: Tensors) -> None:
    CASES[name].compare(out, *inputs)


def check_launches(name: str, inputs: Tensors, launches: Iterable[tuple[int, int]]) -> None:
    """Every launch gives the right answer, which is computed once."""
    compare = CASES[name].comparison(*inputs)
    for block_size, num_warps in launches:
        out = cuda(name, inputs, block_size, num_warps)
        compare(out, block_size=block_size, num_warps=num_warps)


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


@pytest.mark.parametrize("columns", [1, 31, 4096, 12289])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_odd_launch_parameters(name: str, columns: int, dtype: torch.dtype) -> None:
    launches = ((32, 32), (96, 3), (3 * 1024, 7), (2**20, 32))
    check_launches(name, inputs_of(name, (5, columns), dtype), launches)


# Blocks, clusters of every size, rows that take two passes, and so few that two launches take them; by
# vectors, with scalars at both ends, and, with 5 elements between rows, an element at a time.
@pytest.mark.parametrize(
    ("rows", "columns"), [(1, 262144), (2, 300007), (3, 100003), (140, 40000), (133, 20001)]
)
@pytest.mark.parametrize(("padding", "dtype"), [(0, torch.float32), (0, torch.bfloat16), (5, torch.bfloat16)])
def test_rows_of_any_length(name: str, rows: int, columns: int, padding: int, dtype: torch.dtype) -> None:
    x, *parameters = inputs_of(name, (rows, columns + padding), dtype)
    inputs = (x[:, :columns], *(parameter[:columns] for parameter in parameters))
    check_launches(name, inputs, itertools.product((64, 1024, 16384), (1, 4, 16, 32)))


# Larger than L2, which gets another eviction priority.
@pytest.mark.parametrize("columns", [70000, 70001])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_large_tensors(name: str, columns: int, dtype: torch.dtype) -> None:
    launches = itertools.product((1024, 32768), (4, 16))
    check_launches(name, inputs_of(name, (800, columns), dtype), launches)


# So many rows and elements that rows of odd width get realigned copies of weight and bias: several rows a
# block, one, a cluster a row, and rows of fewer elements than an access has. Parameters may begin inside 16
# bytes, too.
@pytest.mark.parametrize(
    ("rows", "columns"), [(600000, 7), (5400, 781), (420, 10001), (140, 60001), (130, 262143)]
)
@pytest.mark.parametrize("begins", [0, 1])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_many_odd_rows(name: str, rows: int, columns: int, begins: int, dtype: torch.dtype) -> None:
    x, *parameters = inputs_of(name, (rows, columns + 1), dtype)
    inputs = (x[:, :columns].contiguous(), *(p[begins:][:columns] for p in parameters))
    check_launches(name, inputs, ((1024, 4), (16384, 16), (64, 1)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_odd_rows_get_the_parameters_of_their_call(name: str, dtype: torch.dtype) -> None:
    x, *parameters = inputs_of(name, (4096, 1823), dtype)
    for shift in range(20):
        # The copies of the last call's parameters lie where those of this one's will.
        inputs = (x, *(parameter.roll(shift) for parameter in parameters))
        check(name, cuda(name, inputs, 2048, 4), inputs)


# The persistent clusters of the norms take these rows.
@pytest.mark.parametrize(
    ("rows", "columns"),
    [(701, 40000), (277, 65536), (131, 262144), (701, 33001), (650, 50258), (277, 100003), (131, 262143)],
)
@pytest.mark.parametrize(("padding", "dtype"), [(0, torch.float32), (64, torch.bfloat16)])
def test_many_long_rows(name: str, rows: int, columns: int, padding: int, dtype: torch.dtype) -> None:
    x, *parameters = inputs_of(name, (rows, columns + padding), dtype)
    x[:, columns:] = float("nan")  # read beside a row's last elements, but not its own
    inputs = (x[:, :columns], *(p[:columns].contiguous() for p in parameters))
    launches = ((16384, 16), (32768, 16), (16384, 8), (8192, 8), (4096, 4), (6144, 6), (12288, 6), (4096, 2))
    check_launches(name, inputs, launches)


# A warp has 2048 elements, or more in shared memory: the sum of so many, squared, is larger than any number.
@pytest.mark.parametrize(("rows", "columns"), [(3, 4096), (3, 20000), (3, 70000), (300, 65536)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rows_of_large_numbers(name: str, rows: int, columns: int, dtype: torch.dtype) -> None:
    x, *parameters = inputs_of(name, (rows, columns), dtype)
    x = x.sign() * 1e16  # the norms promise no more, and its square is a number, too
    ordered = x.sort(dim=1).values
    for inputs in ((x, *parameters), (ordered, *parameters)):
        launches = ((1024, 1), (4096, 2), (16384, 8), (16384, 16), (32768, 4), (32768, 16))
        check_launches(name, inputs, launches)


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


DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@pytest.fixture(scope="module")
def gpu() -> Gpu:
    found = device.capabilities(device.gpus()[0])
    assert found is not None
    return found


def explicit_plans(name: str, problem: Matrix, gpu: Gpu) -> Iterator[RowsPlan]:
    """Every strategy with each cluster size and number of stages that fits the problem."""
    fits = CASES[name].provider.fits
    for strategy, block_size, num_warps, cluster_size, stages in itertools.product(
        STRATEGIES[1:], (1024, 8192), (4, 8), (0, 1, 2, 3, 4, 8, 16), (0, 3, 4, 6)
    ):
        plan = RowsPlan(
            block_size=block_size,
            num_warps=num_warps,
            strategy=strategy,
            cluster_size=cluster_size,
            stages=stages,
        )
        if fits(problem, plan, gpu) is None:
            yield plan


# Rows of a block and of a cluster; fewer rows than clusters, and many more; rows of whole vectors, and rows
# that begin anywhere within 16 bytes.
@pytest.mark.parametrize(
    ("rows", "columns"),
    [(1, 4096), (3, 781), (37, 12671), (700, 8192), (701, 8191), (300, 40001), (2, 100_003), (1, 262_144)],
)
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_strategy_with_what_it_can_be_told(
    name: str, rows: int, columns: int, dtype: str, gpu: Gpu
) -> None:
    inputs = inputs_of(name, (rows, columns), DTYPES[dtype])
    compare = CASES[name].comparison(*inputs)
    tried = set()
    for plan in explicit_plans(name, Matrix(rows=rows, columns=columns, dtype=dtype), gpu):
        options = {"strategy": plan.strategy, "cluster_size": plan.cluster_size, "stages": plan.stages}
        try:
            out, launched = recorded(name, inputs, plan.block_size, plan.num_warps, **options)
        except RuntimeError as error:
            # Whether a cluster fits on the GPU beside so much shared memory is known by its driver alone.
            assert "no persistent cluster of" in str(error), plan
            continue
        compare(out, plan=plan)
        tried.add(plan.strategy)
        assert launched["strategy"] == plan.strategy
        assert plan.cluster_size in {0, launched["cluster"][0]}
        assert plan.stages in {0, launched["stages"]}
        assert launched["block"][0] == 32 * plan.num_warps
    assert tried >= ({"multi_pass", "persistent"} if columns <= 16 * 8192 else {"multi_pass"})


def recorded(name: str, inputs: Tensors, *launch: int, **plan: Any) -> tuple[torch.Tensor, dict[str, Any]]:
    """The output, and the library's record of its last launch."""
    library = ctypes.CDLL(str(extension.load(extension.Place.for_kernel(loading.load(name)), "cuda.cu")))
    library.kernels_recorded_launches.restype = ctypes.c_char_p
    library.kernels_record_launches(1)
    try:
        out = cuda(name, inputs, *launch, **plan)
        return out, json.loads(library.kernels_recorded_launches())[-1]
    finally:
        library.kernels_record_launches(0)


# Softmax of rows whose maximum is far below zero: a persistent warp without a scalar of its own adds none.
@pytest.mark.parametrize("columns", [8191, 8192])
def test_persistent_rows_of_low_numbers(name: str, columns: int) -> None:
    x, *parameters = inputs_of(name, (300, columns))
    inputs = (x - 1000.0, *parameters)
    out = cuda(name, inputs, 4096, 4, strategy="persistent")
    allowed = CASES[name].allowed(x.dtype)
    # A mean of -1000 is rounded to float32 before it is subtracted, and that is multiplied by the weights.
    mean_rounding = 1000.0 * EPSILON["float32"] * max([float(p.abs().max()) for p in parameters], default=0.0)
    torch.testing.assert_close(
        out.double(), CASES[name].exact(*inputs), rtol=allowed.rtol, atol=allowed.atol + mean_rounding
    )


@pytest.mark.parametrize(
    ("plan", "sentence"),
    [
        (
            {"strategy": "resident"},
            "strategy must be auto, register_resident, .* or split_multi_pass, not resident",
        ),
        ({"cluster_size": 4}, "strategy auto takes no cluster_size, not 4"),
        ({"stages": 4}, "strategy auto takes no stages, not 4"),
        ({"strategy": "persistent", "stages": 7}, "stages must be 0 or from 3 to 6, not 7"),
        ({"strategy": "persistent", "cluster_size": 17}, "cluster_size must be from 0 to 16, not 17"),
        (
            {"strategy": "register_resident", "cluster_size": 3},
            ".* needs a power of two as cluster_size, not 3",
        ),
        ({"strategy": "split_multi_pass"}, "strategy split_multi_pass is for few rows of more than .*"),
    ],
)
def test_a_plan_that_can_not_be_is_refused(name: str, plan: dict[str, Any], sentence: str) -> None:
    with pytest.raises(RuntimeError, match=f"^{sentence}$"):
        cuda(name, inputs_of(name, (4096, 64)), 1024, 4, **plan)


def test_rows_that_begin_unlike_their_outputs_are_refused_by_vector_strategies(name: str) -> None:
    x, *parameters = inputs_of(name, (300, 4097))
    inputs = (x[:, :4096], *(parameter[:4096] for parameter in parameters))
    for strategy in ("shared_memory_resident", "persistent"):
        with pytest.raises(RuntimeError, match=r"begin alike within 16 bytes$"):
            cuda(name, inputs, 4096, 4, strategy=strategy)
    check(name, cuda(name, inputs, 4096, 4, strategy="register_resident"), inputs)


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
    extension.load(extension.Place.for_kernel(loading.load("square")), "cuda.cu")
    with pytest.raises(RuntimeError, match=r"takes a 2-D tensor, not one of 1 dimensions$"):
        torch.ops.square.cuda_naive(torch.ones(4, device="cuda"))
