"""The matrix product's providers where they differ: layouts, float8, split k, padded copies, few rows."""

import dataclasses
import sys
import types
from typing import Any

import pytest
import torch

from kernel_pipeline import loading
from kernel_pipeline.contract import Gpu
from kernel_pipeline.problems import identity_of
from kernel_pipeline.records.base import digest
from kernel_pipeline.records.point import Point
from kernels.matmul.descriptors import describable, lying
from kernels.matmul.problem import FLOAT8, Problem, tolerance
from tests.kernels.agreement import agree

MATMUL = loading.load("matmul")
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
H200 = Gpu(capability=(9, 0), multiprocessors=132, shared_memory=232448, l2_cache=60 << 20)
A100 = Gpu(capability=(8, 0), multiprocessors=108, shared_memory=163 << 10, l2_cache=40 << 20)
SMALL = {"block_m": 64, "block_n": 32, "block_k": 32, "side": 32, "split_k": 2, "num_warps": 4}


def configuration(name: str, **pinned: Any) -> dict[str, Any]:
    names = MATMUL.kernel.provider(name).variables()
    wanted = {**SMALL, **pinned}
    return {one: wanted.get(one, variable.default) for one, variable in names.items()}


def agrees(name: str, problem: Problem, inputs: tuple[torch.Tensor, ...] = (), **pinned: Any) -> None:
    """The provider gives the reference's answer within the tolerance."""
    given = inputs or MATMUL.inputs(problem, DEVICE, 0)
    entry = MATMUL.entry(MATMUL.kernel.provider(name))
    out = entry(*given, arithmetic=problem.arithmetic, **configuration(name, **pinned))
    (exact,) = MATMUL.expected(problem, given)
    ((shape, dtype),) = MATMUL.outputs(problem)
    assert (tuple(out.shape), out.dtype) == (shape, dtype)
    agree(out, exact, tolerance(problem))


@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
def test_a_layout_is_where_elements_lie(layout: str) -> None:
    problem = Problem(m=3, n=5, k=7, dtype="float32", layout=layout)
    for x, shape, lies in zip(MATMUL.inputs(problem, DEVICE, 0), problem.shapes, layout, strict=True):
        assert x.shape == shape
        assert (x if lies == "n" else x.t()).is_contiguous()


@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
@pytest.mark.parametrize(
    "name", ["torch", "triton_naive", "triton_tiled", "triton_split_k", "triton_persistent"]
)
def test_every_layout_gives_the_product(name: str, layout: str) -> None:
    agrees(name, Problem(m=70, n=48, k=65, dtype="bfloat16", layout=layout))
    agrees(name, Problem(m=33, n=50, k=64, dtype="float32", layout=layout))


@pytest.mark.parametrize("name", ["triton_naive", "triton_tiled", "triton_split_k", "triton_persistent"])
@pytest.mark.parametrize("arithmetic", ["ieee", "fast_accum"])
def test_float8_is_scaled(name: str, arithmetic: str) -> None:
    problem = Problem(m=40, n=50, k=70, dtype=FLOAT8, arithmetic=arithmetic, layout="nt")
    a, b, scale_a, scale_b = MATMUL.inputs(problem, DEVICE, 0)
    agrees(name, problem, (a, b, scale_a, scale_b))
    # Other scales make another product: they are not taken for 1, and neither is left out.
    agrees(name, problem, (a, b, scale_a * 2, scale_b / 8))


@pytest.mark.parametrize("name", ["torch"])
def test_torch_multiplies_float8_on_a_cpu(name: str) -> None:
    agrees(name, Problem(m=40, n=48, k=64, dtype=FLOAT8, layout="nt"))


def test_float8_fills_its_range_and_stands_for_normal_values() -> None:
    a, _, scale, _ = MATMUL.inputs(Problem(m=300, n=8, k=200, dtype=FLOAT8, layout="nt"), DEVICE, 0)
    assert a.float().abs().max() == torch.finfo(torch.float8_e4m3fn).max
    assert (a.double() * scale.double()).std().item() == pytest.approx(1, abs=0.02)


def test_scales_are_asked_for_by_float8_alone() -> None:
    a, b = MATMUL.inputs(Problem(m=4, n=4, k=4), DEVICE, 0)
    one = torch.ones((), device=DEVICE)
    entry = MATMUL.entry(MATMUL.kernel.provider("triton_tiled"))
    values = configuration("triton_tiled")
    with pytest.raises(ValueError, match="only float8_e4m3fn has scales, not bfloat16"):
        entry(a, b, one, one, arithmetic="ieee", **values)
    with pytest.raises(ValueError, match="float8_e4m3fn needs float32 scales for a and b"):
        entry(a.to(torch.float8_e4m3fn), b.to(torch.float8_e4m3fn), one, arithmetic="ieee", **values)


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("reduction", ["atomic", "workspace"])
@pytest.mark.parametrize(("split_k", "k"), [(2, 33), (4, 160), (8, 130), (16, 160)])
def test_every_part_of_k_is_added_once(split_k: int, k: int, reduction: str, dtype: str) -> None:
    """Also where steps are no multiple of the parts, so that the last parts have less or nothing."""
    problem = Problem(m=17, n=35, k=k, dtype=dtype)
    agrees("triton_split_k", problem, split_k=split_k, reduction=reduction)


@pytest.mark.parametrize("epilogue_parts", [1, 2, 4])
@pytest.mark.parametrize("n", [96, 97])  # stored by TMA, and by threads
def test_a_persistent_program_stores_every_part_of_every_tile(n: int, epilogue_parts: int) -> None:
    problem = Problem(m=130, n=n, k=40, dtype="bfloat16")
    agrees("triton_persistent", problem, block_n=64, epilogue_parts=epilogue_parts)


def test_what_tma_can_copy_is_not_copied_before() -> None:
    x = torch.randn(6, 64, dtype=torch.bfloat16)
    assert describable(x)[0].data_ptr() == x.data_ptr()
    assert describable(x[:, :40])[0].data_ptr() == x.data_ptr()
    rows, is_transposed = describable(x.t())
    assert (rows.data_ptr(), is_transposed) == (x.data_ptr(), True)


@pytest.mark.parametrize(
    "x",
    [
        torch.randn(5, 63, dtype=torch.bfloat16),
        torch.randn(5, 64, dtype=torch.bfloat16)[:, 1:],
        torch.randn(5, 126, dtype=torch.bfloat16)[:, ::2],
        torch.randn(1, 64, dtype=torch.bfloat16).expand(5, 64),
        torch.randn(63, 5, dtype=torch.bfloat16).t(),
    ],
    ids=["odd", "unaligned", "every second", "one row", "odd transposed"],
)
def test_what_tma_can_not_copy_gets_padded_rows(x: torch.Tensor) -> None:
    for rows, is_transposed in (lying(x), describable(x)):
        assert torch.equal(rows.t() if is_transposed else rows, x)
        assert rows.stride(1) == 1
        assert rows.stride(0) >= rows.shape[1]
    assert rows.stride(0) * rows.itemsize % 16 == 0 == rows.data_ptr() % 16


@pytest.mark.parametrize("m", [1, 2, 3, 8])
@pytest.mark.parametrize("layout", ["nn", "nt"])
def test_few_rows(layout: str, m: int) -> None:
    problem = Problem(m=m, n=45, k=140, dtype="bfloat16", layout=layout)
    agrees("triton_gemv", problem, block_n=16)
    agrees("triton_gemv", problem, block_n=16, split_k=1)


def test_quack_is_given_both_matrices_and_does_not_tune(monkeypatch: pytest.MonkeyPatch) -> None:
    given = []
    stub = types.ModuleType("quack.gemm_interface")
    stub.gemm = lambda a, b, **options: given.append(options) or a @ b  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "quack", types.ModuleType("quack"))
    monkeypatch.setitem(sys.modules, "quack.gemm_interface", stub)
    a, b = MATMUL.inputs(Problem(m=4, n=5, k=6, dtype="float32"), torch.device("cpu"), 0)
    entry = MATMUL.entry(MATMUL.kernel.provider("quack"))
    torch.testing.assert_close(entry(a, b, arithmetic="ieee"), a @ b)
    assert given == [{"tuned": False}]


def test_fast_accumulation_is_allowed_what_14_bits_make() -> None:
    """Sums that are cut to 13 bits behind the leading one after every 32 products."""
    problem = Problem(m=48, n=48, k=16384, dtype=FLOAT8, arithmetic="fast_accum", layout="nt")
    a, b, scale_a, scale_b = MATMUL.inputs(problem, torch.device("cpu"), 0)
    (exact,) = MATMUL.expected(problem, (a, b, scale_a, scale_b))
    total = torch.zeros(exact.shape, dtype=torch.float64)
    for p, q in zip(a.double().split(32, dim=1), b.double().split(32), strict=True):
        mantissa, exponent = torch.frexp(total + p @ q)
        total = torch.ldexp(torch.trunc(mantissa * 2**14) / 2**14, exponent)
    out = (total * scale_a * scale_b).bfloat16().double()
    allowed = tolerance(problem)
    error, limit = (out - exact).abs(), allowed.atol + allowed.rtol * exact.abs()
    assert (error <= limit).all()
    assert (error / limit).max() > 0.1, "far wider than what happens"
    # It is no float32 sum, and ieee does not take it for one.
    strict = tolerance(dataclasses.replace(problem, arithmetic="ieee"))
    assert (error > strict.atol + strict.rtol * exact.abs()).any()


def test_a_problem_from_before_there_were_layouts_is_the_same_point() -> None:
    """Its digest is that of rows in the repository."""
    problem = identity_of(Problem(m=1024, n=1024, k=1024, dtype="bfloat16"))
    assert "layout" not in problem
    point = Point(kernel="matmul", provider="cuda_naive", problem=problem)
    assert digest(point.to_dict()) == "9fb294f9bb165476"
    assert identity_of(Problem(m=8, n=8, k=8, layout="nt"))["layout"] == "nt"
