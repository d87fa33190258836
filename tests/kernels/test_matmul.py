"""What is particular to the matrix product: tolerance, arithmetic, the order of tiles, what fits."""

import dataclasses
from collections.abc import Callable

import pytest
import torch

from kernel_pipeline import loading
from kernel_pipeline.contract import Gpu
from kernels.matmul.parameters import Tiles
from kernels.matmul.problem import Problem, interpreted, tolerance
from kernels.matmul.torch import matmul
from kernels.matmul.triton import tiled
from tests.kernels.agreement import agree, wrong

MATMUL = loading.load("matmul")
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
H200 = Gpu(capability=(9, 0), multiprocessors=132, shared_memory=232448, l2_cache=60 << 20)
SMALL = Tiles(block_m=32, block_n=32, block_k=32, num_warps=4, num_stages=2)
ARITHMETICS = [("bfloat16", "ieee"), ("float16", "ieee"), ("float32", "ieee"), ("float32", "tf32")]


def run(a: torch.Tensor, b: torch.Tensor, arithmetic: str = "ieee", tiles: Tiles = SMALL) -> torch.Tensor:
    return tiled(a, b, arithmetic=arithmetic, **dataclasses.asdict(tiles))


def cut_to_tf32(x: torch.Tensor) -> torch.Tensor:
    return (x.view(torch.int32) & ~0x1FFF).view(torch.float32)


Made = tuple[Problem, torch.Tensor, torch.Tensor, torch.Tensor]


def made(k: int, dtype: str, arithmetic: str = "ieee") -> Made:
    problem = Problem(m=48, n=65, k=k, dtype=dtype, arithmetic=arithmetic)
    a, b = MATMUL.inputs(problem, torch.device("cpu"), 0)
    (exact,) = MATMUL.expected(problem, (a, b))
    return problem, a, b, exact


def one_after_the_other(a: torch.Tensor, b: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Sums of fused multiply-adds: a product of two float32 is exact in float64."""
    total = torch.zeros(a.shape[0], b.shape[1], dtype=dtype)
    for i in range(a.shape[1]):
        total = (total.double() + a[:, i, None].double() * b[None, i].double()).to(dtype)
    return total


@pytest.mark.parametrize("k", [1, 2, 1023, 16384])
@pytest.mark.parametrize(("dtype", "arithmetic"), ARITHMETICS)
class TestTolerance:
    def test_allows_float32_sums_one_after_the_other(self, k: int, dtype: str, arithmetic: str) -> None:
        problem, a, b, exact = made(k, dtype, arithmetic)
        given = (cut_to_tf32(a), cut_to_tf32(b)) if arithmetic == "tf32" else (a, b)
        agree(one_after_the_other(*given, torch.float32).to(a.dtype), exact, tolerance(problem))

    def test_allows_parts_rounded_to_the_outputs_dtype(self, k: int, dtype: str, arithmetic: str) -> None:
        problem, a, b, exact = made(k, dtype, arithmetic)
        total = torch.zeros(exact.shape, dtype=a.dtype)
        for p, q in zip(a.chunk(8, dim=1), b.chunk(8), strict=True):
            part = (p.double() @ q.double()).to(a.dtype)
            total = (total.double() + part.double()).to(a.dtype)
        agree(total, exact, tolerance(problem))

    def test_refuses_a_step_left_out(self, k: int, dtype: str, arithmetic: str) -> None:
        problem, a, b, exact = made(k, dtype, arithmetic)
        for left_out in (slice(0, 16), slice((k - 1) // 16 * 16, k)):
            lacking = exact - a[:, left_out].double() @ b[left_out].double()
            assert wrong(lacking.to(a.dtype), exact, tolerance(problem)).double().mean() > 0.1

    def test_refuses_two_outputs_that_changed_places(self, k: int, dtype: str, arithmetic: str) -> None:
        problem, a, _, exact = made(k, dtype, arithmetic)
        out = exact.to(a.dtype)
        out[0, 0], out[5, 7] = exact[5, 7].to(a.dtype), exact[0, 0].to(a.dtype)
        assert wrong(out, exact, tolerance(problem)).sum() == 2


@pytest.mark.parametrize("k", [1023, 16384])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_the_tolerance_refuses_sums_in_the_outputs_dtype(dtype: str, k: int) -> None:
    problem, a, b, exact = made(k, dtype)
    assert wrong(one_after_the_other(a, b, a.dtype), exact, tolerance(problem)).any()


@pytest.mark.parametrize("k", [1, 2, 1023, 16384])
def test_the_tolerance_refuses_tf32_where_ieee_was_asked(k: int) -> None:
    problem, a, b, exact = made(k, "float32")
    out = cut_to_tf32(a).double() @ cut_to_tf32(b).double()
    assert wrong(out, exact, tolerance(problem)).any()


def transposed(x: torch.Tensor) -> torch.Tensor:
    return x.t().contiguous().t()


def sliced(x: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.pad(x, (3, 8), value=torch.nan)[:, 3:-8]


def every_second(x: torch.Tensor) -> torch.Tensor:
    return x.repeat_interleave(2, dim=0).repeat_interleave(2, dim=1)[::2, ::2]


def one_row_repeated(x: torch.Tensor) -> torch.Tensor:
    return x[:1].expand(x.shape)


LAYOUTS = [torch.Tensor.contiguous, transposed, sliced, every_second, one_row_repeated]


@pytest.mark.parametrize("of_b", LAYOUTS, ids=lambda layout: layout.__name__)
@pytest.mark.parametrize("of_a", LAYOUTS, ids=lambda layout: layout.__name__)
def test_triton_takes_any_strides(
    of_a: Callable[[torch.Tensor], torch.Tensor], of_b: Callable[[torch.Tensor], torch.Tensor]
) -> None:
    problem = Problem(m=37, n=70, k=65, dtype="float32")
    a, b = MATMUL.inputs(problem, DEVICE, 0)
    a, b = of_a(a), of_b(b)
    (exact,) = MATMUL.expected(problem, (a, b))
    out = run(a, b)
    assert out.is_contiguous()
    agree(out, exact, tolerance(problem))


SHAPES = [(1, 1, 1), (1, 64, 33), (16, 16, 32), (65, 1, 31), (130, 97, 65)]


@pytest.mark.parametrize(
    ("dtype", "arithmetic", "group_m", "shape"),
    [
        *((*arithmetic, 4, shape) for arithmetic in ARITHMETICS for shape in SHAPES),
        # The order of the tiles knows no dtype.
        *((*ARITHMETICS[0], group_m, SHAPES[-1]) for group_m in (1, 8)),
    ],
    ids=str,
)
def test_triton_agrees(dtype: str, arithmetic: str, group_m: int, shape: tuple[int, int, int]) -> None:
    m, n, k = shape
    problem = Problem(m=m, n=n, k=k, dtype=dtype, arithmetic=arithmetic)
    a, b = MATMUL.inputs(problem, DEVICE, 0)
    out = run(a, b, arithmetic, dataclasses.replace(SMALL, block_m=16, group_m=group_m))
    assert out.dtype == a.dtype
    agree(out, *MATMUL.expected(problem, (a, b)), tolerance(problem))


@pytest.mark.parametrize("value", [torch.inf, -torch.inf, torch.nan])
def test_what_is_past_the_end_stays_out(value: float) -> None:
    """One infinity or NaN reaches its own row or column of the output, not those that a tile adds."""
    a, b = MATMUL.inputs(Problem(m=33, n=47, k=40, dtype="float32"), DEVICE, 0)
    a[32, 39] = value
    b[39, 46] = value
    out = run(a, b)
    assert not out[32].isfinite().any()
    assert not out[:, 46].isfinite().any()
    assert out[:32, :46].isfinite().all()


def test_an_interpreters_problem_stays_odd() -> None:
    small = interpreted(Problem(m=2049, n=4096, k=37))
    assert (small.m, small.n, small.k) == (97, 96, 37)


@pytest.mark.parametrize("before", [False, True])
@pytest.mark.parametrize("arithmetic", ["ieee", "tf32"])
def test_the_flag_is_for_one_call(arithmetic: str, before: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    flags = torch.backends.cuda.matmul
    seen = []

    def multiply(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        seen.append((flags.allow_tf32, flags.fp32_precision))
        raise RuntimeError("as cuBLAS may")

    monkeypatch.setattr(torch, "mm", multiply)
    first = flags.allow_tf32, flags.fp32_precision
    try:
        if before:
            flags.allow_tf32 = True
        was = flags.allow_tf32, flags.fp32_precision
        with pytest.raises(RuntimeError, match="as cuBLAS may"):
            matmul(torch.ones(2, 2), torch.ones(2, 2), arithmetic=arithmetic)
        assert seen == [(arithmetic == "tf32", arithmetic)]
        assert (flags.allow_tf32, flags.fp32_precision) == was
    finally:
        flags.allow_tf32, flags.fp32_precision = first


def test_torch_compile_compiles_with_the_flag_set() -> None:
    """One graph an arithmetic, compiled and called while the flag says so."""
    flags = torch.backends.cuda.matmul
    graphs, calls = [], []

    def backend(graph: torch.fx.GraphModule, _: object) -> Callable[..., object]:
        graphs.append([str(node.target) for node in graph.graph.nodes if node.op == "call_function"])

        def call(*inputs: torch.Tensor) -> object:
            calls.append(flags.fp32_precision)
            return graph.forward(*inputs)

        return call

    torch._dynamo.reset()
    entry = torch.compile(
        MATMUL.module("torch_compiled.py").matmul, backend=backend, dynamic=False, fullgraph=True
    )
    a, b = torch.randn(5, 7), torch.randn(7, 3)
    first = flags.allow_tf32, flags.fp32_precision
    for arithmetic in ("tf32", "ieee", "tf32"):
        torch.testing.assert_close(entry(a, b, arithmetic), a @ b)
        assert (flags.allow_tf32, flags.fp32_precision) == first
    assert calls == ["tf32", "ieee", "tf32"]
    assert len(graphs) == 2
    assert all(len(graph) == 1 and "mm" in graph[0] for graph in graphs)


OWN = [provider.name for provider in MATMUL.kernel.providers if provider.is_own]


@pytest.mark.parametrize("name", OWN)
@pytest.mark.parametrize(
    ("shapes", "arithmetic", "dtypes", "sentence"),
    [
        (((2, 3), (2, 3)), "ieee", ("float32", "float32"), r"needs \(m, k\) and \(k, n\)"),
        (((2, 3, 1), (3, 2)), "ieee", ("float32", "float32"), r"needs \(m, k\) and \(k, n\)"),
        (((2, 3), (3, 2)), "ieee", ("float32", "float16"), "needs one dtype"),
        (((2, 3), (3, 2)), "ieee", ("float64", "float64"), "float16, got float64"),
        (((2, 3), (3, 2)), "tf32", ("bfloat16", "bfloat16"), "tf32 is an arithmetic of float32"),
        (((2, 3), (3, 2)), "fast_accum", ("float16", "float16"), "fast_accum is an arithmetic of float8"),
        (((2, 3), (3, 2)), "ieee", ("float8_e4m3fn", "float8_e4m3fn"), "float8_e4m3fn"),
    ],
)
def test_refuses(
    name: str, shapes: tuple[tuple[int, ...], ...], arithmetic: str, dtypes: tuple[str, str], sentence: str
) -> None:
    provider = MATMUL.kernel.provider(name)
    made = [
        torch.ones(shape, dtype=getattr(torch, dtype)) for shape, dtype in zip(shapes, dtypes, strict=True)
    ]
    entry = getattr(MATMUL.module(provider.file), provider.function)
    values = {} if provider.parameters is None else dataclasses.asdict(provider.parameters())
    with pytest.raises(ValueError, match=sentence):
        entry(*made, arithmetic=arithmetic, **values)


def test_work_is_named_by_its_arithmetic() -> None:
    problem = Problem(m=3, n=5, k=7, dtype="float32", arithmetic="tf32")
    assert MATMUL.kernel.work(problem).operations == {"tf32": 210}
    assert MATMUL.kernel.work(problem).bytes == 4 * (21 + 35 + 15)
    eighth = dataclasses.replace(problem, dtype="float8_e4m3fn", arithmetic="fast_accum")
    assert MATMUL.kernel.work(eighth).operations == {"float8_fast_accum": 210}
    # One byte an element of the inputs and two of the output, and a scale of each input.
    assert MATMUL.kernel.work(eighth).bytes == 21 + 35 + 2 * 15 + 8
    half = dataclasses.replace(problem, dtype="bfloat16", arithmetic="ieee")
    assert MATMUL.kernel.work(half).operations == {"bfloat16": 210}
