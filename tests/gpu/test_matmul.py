"""The matrix product's kernels that only a GPU can run: every tile, layout and edge of those for Hopper."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from kernel_pipeline import loading
from kernels.matmul import STEPS
from kernels.matmul.parameters import Wgmma
from kernels.matmul.problem import FLOAT8, Problem, tolerance
from kernels.matmul.tf32_tiles import Tf32Tiles
from tests.kernels.agreement import agree
from tests.kernels.kernel_cases import EVERY, gpu

pytestmark = [pytest.mark.gpu, pytest.mark.builds]

MATMUL = loading.load("matmul")
CUDA = torch.device("cuda")
CASES = {case.provider.name: case for case in EVERY if case.loaded.name == "matmul"}
LAYOUTS = ("nn", "nt", "tn", "tt")

# Less than a tile; a tile and a bit; several clusters and a row; no row at a multiple of 16 bytes.
SHAPES = [(1, 8, 8), (64, 256, 64), (129, 264, 72), (300, 520, 1000), (257, 511, 333), (1024, 1536, 4096)]


@functools.lru_cache(maxsize=1)
def given(problem: Problem) -> tuple[loading.Tensors, torch.Tensor]:
    """The inputs and the right answer, which many parameters are tried with one after another."""
    inputs = MATMUL.inputs(problem, CUDA, 0)
    (exact,) = MATMUL.expected(problem, inputs)
    return inputs, exact


def agrees(name: str, problem: Problem, **pinned: Any) -> torch.Tensor:
    """The provider gives the reference's answer, or the test is skipped where it does not fit."""
    case = CASES[name]
    if not case.runs_here:
        pytest.skip(f"{name} needs another GPU")
    defaults = {one: variable.default for one, variable in case.provider.variables().items()}
    parameters = {**defaults, **pinned}
    made = None if case.provider.parameters is None else case.provider.parameters(**parameters)
    if reason := case.provider.fits(problem, made, gpu()):
        pytest.skip(reason)
    inputs, exact = given(problem)
    (out,) = case.call(problem, inputs, parameters)
    agree(out, exact, tolerance(problem))
    return out


def tiles_of(problem: Problem, **pinned: Any) -> Iterator[dict[str, Any]]:
    """Every shape of a tile of cuda_wgmma that the problem takes, with the values that are named."""
    case = CASES["cuda_wgmma"]
    if not case.runs_here:
        pytest.skip("needs Hopper")
    for block_m, block_n in itertools.product((64, 128), (64, 128, 256)):
        values = {"block_m": block_m, "block_n": block_n, "stages": 3, "cluster_size": 1, **pinned}
        if case.provider.fits(problem, Wgmma(**values), gpu()) is None:
            yield values


@pytest.mark.parametrize(
    ("dtype", "cluster_size"), [("bfloat16", 1), ("bfloat16", 2), ("bfloat16", 4), ("float16", 2)]
)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_wgmma_layouts(dtype: str, layout: str, shape: tuple[int, int, int], cluster_size: int) -> None:
    m, n, k = shape
    problem = Problem(m=m, n=n, k=k, dtype=dtype, layout=layout)
    for tiles in tiles_of(problem, cluster_size=cluster_size):
        agrees("cuda_wgmma", problem, **tiles)


@pytest.mark.parametrize(("cluster_size", "split_k"), [(1, 2), (1, 4), (1, 8), (2, 2), (2, 4), (4, 2)])
@pytest.mark.parametrize("layout", ["nn", "nt"])
@pytest.mark.parametrize(
    "shape", [(1, 64, 512), (130, 264, 1000), (300, 511, 777), (512, 512, 512), (64, 1000, 8192)], ids=str
)
def test_wgmma_blocks_that_share_a_tile(
    shape: tuple[int, int, int], layout: str, cluster_size: int, split_k: int
) -> None:
    m, n, k = shape
    problem = Problem(m=m, n=n, k=k, dtype="bfloat16", layout=layout)
    for tiles in tiles_of(problem, cluster_size=cluster_size, split_k=split_k):
        agrees("cuda_wgmma", problem, **tiles)


@pytest.mark.parametrize(("stages", "block_n"), [(3, 128), (4, 128), (6, 128), (3, 256), (4, 256)])
@pytest.mark.parametrize("group_m", [4, 8, 16])
def test_wgmma_pipelines(group_m: int, stages: int, block_n: int) -> None:
    problem = Problem(m=2049, n=1032, k=777, dtype="bfloat16", layout="nt")
    agrees("cuda_wgmma", problem, group_m=group_m, stages=stages, block_n=block_n)


# A few rows, columns or both more than whole tiles, where tiles for them would be a wave more; rows at
# multiples of 16 bytes and at none.
LEFT_OVER = [
    (2049, 4095, 1023),
    (2049, 4096, 1024),
    (2056, 4096, 1024),
    (2050, 4095, 1000),
    (2048, 4097, 1024),
    (2053, 4099, 1029),
    (4225, 1031, 2048),
    (1025, 8193, 520),
]


@pytest.mark.parametrize(
    ("dtype", "layout", "pinned"),
    [
        *(("bfloat16", layout, {"cluster_size": size}) for layout in LAYOUTS for size in (1, 2)),
        *((dtype, "nn", {"block_n": 128}) for dtype in ("bfloat16", "float16")),
    ],
    ids=str,
)
@pytest.mark.parametrize("shape", LEFT_OVER, ids=str)
def test_wgmma_leftover_rows_and_columns(
    dtype: str, layout: str, shape: tuple[int, int, int], pinned: dict[str, Any]
) -> None:
    m, n, k = shape
    agrees("cuda_wgmma", Problem(m=m, n=n, k=k, dtype=dtype, layout=layout), **pinned)


@pytest.mark.parametrize("m", [2049, 2048])
@pytest.mark.parametrize("step", [1, 3, 8])
@pytest.mark.parametrize("offset", [0, 1, 5])
def test_wgmma_takes_strided_matrices_that_begin_anywhere(offset: int, step: int, m: int) -> None:
    """Rows of wider matrices, from an element of their first row on."""
    problem = Problem(m=m, n=4096, k=1024, dtype="bfloat16")
    case = CASES["cuda_wgmma"]
    if not case.runs_here:
        pytest.skip("needs Hopper")
    a, b = MATMUL.inputs(problem, CUDA, 0)
    wide = [
        torch.full((x.shape[0], x.shape[1] + step + offset), torch.nan, device=CUDA, dtype=x.dtype)
        for x in (a, b)
    ]
    views = tuple(x[:, offset : offset + of.shape[1]].copy_(of) for x, of in zip(wide, (a, b), strict=True))
    parameters = {one: variable.default for one, variable in case.provider.variables().items()}
    (out,) = case.call(problem, views, parameters)
    (exact,) = MATMUL.expected(problem, (a, b))
    agree(out, exact, tolerance(problem))


def test_wgmma_leftover_rows_give_the_same_bits_each_time_and_are_done_before_the_stream_goes_on() -> None:
    """The next work on the stream reads all of the output, leftover rows too, in each of many calls."""
    problem = Problem(m=2055, n=4095, k=1023, dtype="bfloat16")
    first = agrees("cuda_wgmma", problem)
    inputs = MATMUL.inputs(problem, CUDA, 0)
    case = CASES["cuda_wgmma"]
    parameters = {one: variable.default for one, variable in case.provider.variables().items()}
    for _ in range(100):
        (out,) = case.call(problem, inputs, parameters)
        copied = out.clone()
        out.fill_(torch.nan)
        assert torch.equal(copied, first)


@pytest.mark.parametrize("arithmetic", ["ieee", "fast_accum"])
@pytest.mark.parametrize("split_k", [1, 2])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_wgmma_float8(shape: tuple[int, int, int], split_k: int, arithmetic: str) -> None:
    m, n, k = shape
    problem = Problem(m=m, n=n, k=k, dtype=FLOAT8, arithmetic=arithmetic, layout="nt")
    for tiles in tiles_of(problem, split_k=split_k):
        agrees("cuda_wgmma", problem, **tiles)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("name", ["triton_persistent", "triton_tiled"])
def test_float8(name: str, shape: tuple[int, int, int]) -> None:
    m, n, k = shape
    problem = Problem(m=m, n=n, k=k, dtype=FLOAT8, arithmetic="fast_accum", layout="nt")
    small = {"block_m": 64, "block_n": 64, "block_k": 32}
    agrees(name, problem, **small)
    agrees(name, dataclasses.replace(problem, arithmetic="ieee"), **small)


@pytest.mark.parametrize("pinned", [{}, {"block_n": 128, "split_k": 2}], ids=str)
def test_wgmma_gives_the_same_bits_each_time(pinned: dict[str, Any]) -> None:
    """A race of copies and multiplications would show in some of many calls."""
    problem = Problem(m=1024, n=1024, k=2048, dtype="bfloat16", layout="nt")
    first = agrees("cuda_wgmma", problem, **pinned)
    inputs = MATMUL.inputs(problem, CUDA, 0)
    case = CASES["cuda_wgmma"]
    defaults = {one: variable.default for one, variable in case.provider.variables().items()}
    for _ in range(200):
        assert torch.equal(case.call(problem, inputs, {**defaults, **pinned})[0], first)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("parts", [1, 2, 4])
@pytest.mark.parametrize("shape", [(300, 520, 1000), (257, 511, 333)], ids=str)
def test_persistent(shape: tuple[int, int, int], parts: int, layout: str) -> None:
    m, n, k = shape
    problem = Problem(m=m, n=n, k=k, dtype="bfloat16", layout=layout)
    agrees("triton_persistent", problem, epilogue_parts=parts, block_n=256)


@pytest.mark.parametrize("reduction", ["atomic", "workspace"])
@pytest.mark.parametrize("split_k", [2, 16])
def test_split_k(split_k: int, reduction: str) -> None:
    problem = Problem(m=100, n=1000, k=5000, dtype="bfloat16", layout="nt")
    agrees("triton_split_k", problem, split_k=split_k, reduction=reduction)


@pytest.mark.parametrize("m", [1, 2, 5, 8])
@pytest.mark.parametrize("layout", ["nn", "nt"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize(("n", "k"), [(8192, 4096), (1000, 1000), (333, 777), (5, 3)])
def test_few_rows(n: int, k: int, dtype: str, layout: str, m: int) -> None:
    problem = Problem(m=m, n=n, k=k, dtype=dtype, layout=layout)
    for columns, num_warps in itertools.product((32, 64, 128), (4, 8 if m > 4 else 16)):
        if layout == "nn" or columns == 32:
            agrees("cuda_gemv", problem, columns=columns, num_warps=num_warps)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize("name", [one.name for one in STEPS])
def test_steps(name: str, dtype: str) -> None:
    fits = 0
    for m, n, k in (*SHAPES, (1, 1, 1), (37, 40, 24), (259, 133, 77), (1, 4096, 8192)):
        for layout in LAYOUTS:
            problem = Problem(m=m, n=n, k=k, dtype=dtype, layout=layout)
            if CASES[name].provider.fits(problem, None, gpu()) is None:
                agrees(name, problem)
                fits += 1
    if not fits:
        pytest.skip(f"{name} takes no {dtype}")


@pytest.mark.parametrize("name", [one.name for one in STEPS])
def test_steps_take_strided_matrices_that_begin_anywhere(name: str) -> None:
    """Rows of wider matrices, and matrices without gaps that begin at an element."""
    problem = Problem(m=300, n=264, k=136, dtype="bfloat16")
    case = CASES[name]
    if not case.runs_here:
        pytest.skip(f"{name} needs another GPU")
    a, b = MATMUL.inputs(problem, CUDA, 0)
    (exact,) = MATMUL.expected(problem, (a, b))
    for step, offset in ((3, 1), (0, 1), (8, 8)):
        views = []
        for x in (a, b):
            wide = torch.full((x.numel() + (step + 1) * x.shape[0],), torch.nan, device=CUDA, dtype=x.dtype)
            views.append(wide.as_strided(x.shape, (x.shape[1] + step, 1), offset).copy_(x))
        (out,) = case.call(problem, tuple(views), {})
        agree(out, exact, tolerance(problem))


@pytest.mark.parametrize("name", ["step_mma", "step_wgmma"])
def test_steps_give_the_same_bits_each_time(name: str) -> None:
    """A race of copies and multiplications would show in some of many calls."""
    problem = Problem(m=1024, n=1024, k=2048, dtype="bfloat16")
    first = agrees(name, problem)
    inputs = MATMUL.inputs(problem, CUDA, 0)
    for _ in range(200):
        assert torch.equal(CASES[name].call(problem, inputs, {})[0], first)


@pytest.mark.parametrize(
    ("name", "problem", "sentence"),
    [
        ("step_vector_loads", Problem(m=8, n=6, k=8, dtype="float32"), "multiples of 4, not 6 and 8"),
        ("step_mma", Problem(m=8, n=8, k=12, dtype="bfloat16"), "multiples of 8, not 8 and 12"),
        ("step_wgmma", Problem(m=8, n=8, k=8, dtype="float32"), "takes no Float"),
    ],
)
def test_steps_refuse_what_they_do_not_multiply(name: str, problem: Problem, sentence: str) -> None:
    case = CASES[name]
    if not case.runs_here:
        pytest.skip(f"{name} needs another GPU")
    with pytest.raises(RuntimeError, match=sentence):
        case.call(problem, MATMUL.inputs(problem, CUDA, 0), {})


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("block_n", [128, 256])
def test_tf32(block_n: int, layout: str) -> None:
    """Several tiles a block, leftover rows and columns, rows that begin anywhere; the same bits each time."""
    case = CASES["cuda_wgmma_tf32"]
    if not case.runs_here:
        pytest.skip("needs Hopper")
    for m, n, k in ((2500, 3001, 530), (129, 257, 77), (1, 131, 1030), (4096, 512, 8)):
        problem = Problem(m=m, n=n, k=k, dtype="float32", layout=layout, arithmetic="tf32")
        if case.provider.fits(problem, Tf32Tiles(block_n=block_n), gpu()) is None:
            first = agrees("cuda_wgmma_tf32", problem, block_n=block_n)
            inputs = MATMUL.inputs(problem, CUDA, 0)
            for _ in range(20):
                assert torch.equal(case.call(problem, inputs, {"block_n": block_n})[0], first)


def test_wgmma_refuses_what_it_has_no_tensor_cores_for() -> None:
    case = CASES["cuda_wgmma"]
    if not case.runs_here:
        pytest.skip("needs Hopper")
    inputs = MATMUL.inputs(Problem(m=64, n=64, k=64, dtype="float32"), CUDA, 0)
    parameters = {one: variable.default for one, variable in case.provider.variables().items()}
    with pytest.raises(RuntimeError, match="takes bfloat16, float16 and float8_e4m3fn, not Float"):
        case.call(Problem(m=64, n=64, k=64, dtype="float32"), inputs, parameters)
