"""A call's side effects: its plan, its count, its warnings."""

import json
import re
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from kernel_pipeline import loading, ops
from kernel_pipeline.ops import plans
from tests.processes import completed

ROOT = Path(__file__).parents[3]
TILE = {"num_warps": 4}


@pytest.mark.parametrize("shape", [(6,), (4, 6), (2, 3, 6), (2, 1, 3, 6)], ids=lambda shape: f"{len(shape)}d")
def test_rows_of_any_shape_are_a_matrix(shape: tuple[int, ...], chosen: Callable[..., list[Any]]) -> None:
    problems = chosen("triton_row" if not torch.cuda.is_available() else "torch", TILE)
    x = torch.randn(shape)
    for _ in range(2):
        torch.testing.assert_close(ops.softmax(x), torch.softmax(x, -1))
    assert [(one.rows, one.columns) for one in problems] == [(x.numel() // 6, 6)]


def test_strides_of_any_kind_are_served(chosen: Callable[..., list[Any]]) -> None:
    chosen("torch")
    whole = torch.randn(4, 6, 10)
    w = torch.randn(20)[::2]
    for x in (whole.transpose(0, 1), whole[:, ::2], whole[..., 3:5], whole.permute(2, 1, 0), whole[:, :1]):
        for call, right in (
            (ops.softmax, torch.softmax(x, -1)),
            (ops.gelu, torch.nn.functional.gelu(x, approximate="tanh")),
        ):
            for _ in range(2):
                torch.testing.assert_close(call(x), right)
            assert getattr(torch.ops.kernel_pipeline, call.__name__)(x).is_contiguous()
    x = whole.transpose(0, 1)
    torch.testing.assert_close(ops.rmsnorm(x, w), torch.nn.functional.rms_norm(x, (10,), w, 1e-6))


def test_a_matrix_keeps_its_layout(chosen: Callable[..., list[Any]]) -> None:
    problems = chosen("torch")
    a, b = torch.randn(3, 4), torch.randn(5, 4)
    torch.testing.assert_close(ops.matmul(a, b.t()), a @ b.t())
    torch.testing.assert_close(ops.matmul(a.repeat(2, 2)[::2, ::2], b.t()), a.repeat(2, 2)[::2, ::2] @ b.t())
    assert [one.layout for one in problems] == ["nt", "nt"]


def test_one_form_is_chosen_for_once_and_another_on_its_own(chosen: Callable[..., list[Any]]) -> None:
    problems = chosen("torch")
    for _ in range(3):
        ops.softmax(torch.randn(4, 6))
        ops.softmax(torch.randn(4, 6), -1)
        ops.softmax(torch.randn(4, 6), dim=-1)
    assert len(problems) == 1
    ops.softmax(torch.randn(4, 7))
    ops.softmax(torch.randn(4, 6).bfloat16())
    ops.softmax(torch.randn(6, 4).t())
    assert [(one.columns, one.dtype) for one in problems] == [
        (6, "float32"),
        (7, "float32"),
        (6, "bfloat16"),
        (6, "float32"),
    ]


def test_what_is_no_problem_is_torchs_and_says_why(chosen: Callable[..., list[Any]]) -> None:
    problems = chosen("triton_row", TILE)
    x = torch.randn(4, 6)
    for call, right, reason in (
        (lambda: ops.softmax(x, 0), torch.softmax(x, 0), "dimension 0 is not the last"),
        (lambda: ops.softmax(x.double()), torch.softmax(x.double(), -1), "not float64"),
        (lambda: ops.softmax(x[:0]), x[:0], "empty"),
        (lambda: ops.vector_add(x, x[0]), x + x[0], "the other"),
        (lambda: ops.rmsnorm(x, x[0], 0.5), torch.nn.functional.rms_norm(x, (6,), x[0], 0.5), ", not 0.5."),
    ):
        ops.function("softmax").forget()
        torch.testing.assert_close(call(), right)
        assert reason in ops.untuned()[0].choice.reason or any(
            reason in one.choice.reason for one in ops.untuned()
        )
    assert problems == []


def test_no_grad_and_no_mode_means_no_dispatcher() -> None:
    x = torch.randn(3, 4)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        ops.gelu(x)
        with torch.no_grad():
            ops.gelu(torch.nn.Parameter(x))
    assert not [event.key for event in profile.key_averages() if "kernel_pipeline" in event.key]
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        ops.gelu(torch.nn.Parameter(x))
    assert [event.key for event in profile.key_averages() if "kernel_pipeline" in event.key]


def test_a_compiled_call_is_an_operator_of_the_graph(chosen: Callable[..., list[Any]]) -> None:
    chosen("torch")
    graphs: list[torch.fx.GraphModule] = []

    def backend(graph: torch.fx.GraphModule, inputs: object) -> Callable[..., Any]:
        graphs.append(graph)
        return graph.forward

    torch.compiler.reset()
    x = torch.randn(4, 6)
    compiled = torch.compile(lambda x: ops.softmax(x, dim=-1) + 1, backend=backend, fullgraph=True)
    torch.testing.assert_close(compiled(x), torch.softmax(x, -1) + 1)
    (graph,) = graphs
    assert "kernel_pipeline.softmax" in graph.code


@pytest.mark.parametrize("columns", [64, 72, 75])
def test_what_is_traced_for_a_gpu_has_no_address(columns: int) -> None:
    """If attention needs a gradient, the tensors are inspected before torch's function gets them."""
    _ = ops.attention
    with FakeTensorMode(), warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        strides = (64 * columns, 16 * columns, columns, 1)
        q = torch.empty_strided((2, 4, 16, 64), strides, dtype=torch.bfloat16, device="cuda")
        out, lse = torch.ops.kernel_pipeline.attention_with_lse(q, q, q, True)
    assert not [one for one in said if "data pointer" in str(one.message)]
    assert (out.shape, lse.shape, out.device.type) == ((2, 4, 16, 64), (2, 4, 16), "cuda")


@pytest.mark.parametrize("provider", ["torch", "manual"])
def test_attentions_heads_lie_in_the_output_as_in_the_queries(
    provider: str, chosen: Callable[..., list[Any]]
) -> None:
    chosen(provider)
    torch.compiler.reset()
    compiled = torch.compile(ops.attention, backend="aot_eager", fullgraph=True)
    rows = torch.randn(2, 8, 3, 16)  # batch, rows, heads, elements, as a linear layer makes queries
    for q in (rows.transpose(1, 2), rows.transpose(1, 2).contiguous()):
        for x in (q, q.detach().requires_grad_()):
            for call in (compiled, torch.ops.kernel_pipeline.attention):
                out = call(x, x, x, True)
                assert out.stride() == q.stride()
                right = torch.nn.functional.scaled_dot_product_attention(x, x, x, is_causal=True)
                torch.testing.assert_close(out, right)


def test_dynamic_shapes_are_one_graph(chosen: Callable[..., list[Any]]) -> None:
    chosen("torch")
    torch.compiler.reset()
    compiled = torch.compile(ops.gelu, backend="aot_eager", fullgraph=True, dynamic=True)
    for rows in (3, 5, 8):
        x = torch.randn(rows, 6)
        torch.testing.assert_close(compiled(x), torch.nn.functional.gelu(x, approximate="tanh"))


def test_a_program_is_exported(chosen: Callable[..., list[Any]]) -> None:
    chosen("torch")

    class Module(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return ops.softmax(x)

    x = torch.randn(4, 6)
    exported = torch.export.export(Module(), (x,))
    torch.testing.assert_close(exported.module()(x), torch.softmax(x, -1))


@pytest.mark.parametrize(
    ("provider", "parameters", "sentence"),
    [
        ("no_such", {}, "there is no such provider"),
        ("quack", {}, 'it is not installed: pip install "quack-kernels"'),
        ("triton_tile", {"block_size": 256, "num_warps": 1}, "one block holds whole rows"),
        ("cuda", {"block_size": 1024, "num_warps": 4}, "it does not run on cpu"),
    ],
)
def test_a_provider_that_is_not_there_is_warned_of_once(
    provider: str, parameters: dict[str, Any], sentence: str, chosen: Callable[..., list[Any]]
) -> None:
    if provider == "quack" and torch.cuda.is_available():
        pytest.skip("it may be there")
    chosen(provider, parameters)
    x = torch.randn(4, 600)
    with pytest.warns(UserWarning, match=sentence) as told:
        torch.testing.assert_close(ops.softmax(x), torch.softmax(x, -1))
        torch.testing.assert_close(ops.softmax(x[:3]), torch.softmax(x[:3], -1))
    assert len(told) == 1
    assert sentence in ops.untuned()[0].choice.reason and ops.untuned()[0].choice.how == "torch"


def test_a_default_that_does_not_fit_is_not_warned_of(chosen: Callable[..., list[Any]]) -> None:
    chosen("no_such", how="default")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ops.softmax(torch.randn(2, 3))


def test_what_was_not_tuned_is_counted(chosen: Callable[..., list[Any]]) -> None:
    chosen("torch", how="generalised")
    for _ in range(3):
        ops.softmax(torch.randn(4, 6))
    ops.softmax(torch.randn(2, 5))
    ops.function("softmax").forget()
    ops.softmax(torch.randn(4, 6))
    assert [(one.kernel, one.calls, one.dimensions) for one in ops.untuned()] == [
        ("softmax", 4, {"rows": 4, "columns": 6, "dtype": "float32"}),
        ("softmax", 1, {"rows": 2, "columns": 5, "dtype": "float32"}),
    ]
    chosen("torch")
    ops.softmax(torch.randn(4, 9))
    assert len(ops.untuned()) == 2, "what was measured is no gap"


PROGRAM = """
import torch
from kernel_pipeline.ops import gelu, softmax
for rows in {rows}:
    x = torch.randn(rows, 6)
    softmax(x), softmax(x), gelu(x), softmax(x.double())
"""


def run(path: Path, *rows: int) -> str:
    """Run the program with a file for untuned problems; returns its warnings."""
    done = completed(
        [sys.executable, "-c", PROGRAM.format(rows=rows)],
        cwd=ROOT,
        env={"PATH": "/usr/bin:/bin", "KERNELS_UNTUNED": str(path)},
    )
    assert done.returncode == 0, done.stderr
    return done.stderr


def test_problems_that_were_not_tuned_are_written_for_a_sweep(tmp_path: Path) -> None:
    path = tmp_path / "new" / "untuned.json"
    assert [run(path, 4), run(path, 4, 5)] == [""] * 2
    problems = [{"rows": rows, "columns": 6, "dtype": "float32"} for rows in (4, 5)]
    assert json.loads(path.read_text()) == {"gelu": {"problems": problems}, "softmax": {"problems": problems}}


def test_a_file_of_other_content_stays_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("not ours\n")
    assert "notes.txt is not a list of problems: name another file by KERNELS_UNTUNED." in run(path, 4)
    assert path.read_text() == "not ours\n"


def test_warm_makes_the_backward_pass_ready_too(chosen: Callable[..., list[Any]]) -> None:
    chosen("sdpa_flash")
    q, k, v = (torch.randn(1, 1, 8, 64, dtype=torch.bfloat16, requires_grad=True) for _ in range(3))
    ops.warm(ops.attention, q, k, v)
    assert (
        ops.function("attention_backward")
        .plan(*(x.detach() for x in (q, k, v, q)), torch.zeros(1, 1, 8), q.detach(), False)
        .asked.calls
    )
    assert q.grad is None


def test_warm_wants_one_of_the_functions() -> None:
    with pytest.raises(
        ValueError, match=r"is not a function of kernel_pipeline\.ops; its functions: attention"
    ):
        ops.warm(torch.softmax, torch.randn(2, 3), -1)


def test_the_oldest_plans_make_room(
    chosen: Callable[..., list[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    from kernel_pipeline.ops import calls

    monkeypatch.setattr(calls, "MOST_PLANS", 2)
    chosen("torch_square", how="generalised")
    for rows in (1, 2, 3, 1):
        ops.square(torch.randn(rows, 3))
    assert sorted(one.calls for one in ops.untuned()) == [1, 1, 2]


def test_another_gpu_is_the_current_one_while_its_tensors_are_worked_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    current = [0]

    class Guard:
        def __init__(self, index: int) -> None:
            self.index = index

        def __enter__(self) -> None:
            current.append(self.index)

        def __exit__(self, *_: object) -> None:
            current.pop()

    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch._C, "_cuda_getDevice", lambda: current[-1], raising=False)
    monkeypatch.setattr(torch.cuda, "device", Guard)
    provider = ops.function("softmax").loaded.kernel.provider("triton_row")
    run = plans._on(torch.device("cuda:1"), lambda: current[-1], provider)
    assert run() == 1 and current == [0]
    assert plans._on(torch.device("cuda:0"), lambda: current[-1], provider)() == 0


def test_an_operator_in_cuda_makes_its_tensors_gpu_the_current_one() -> None:
    """Only for these and torch's own functions does a plan skip that (``plans.SWITCHING``)."""

    def has_guard(source: Path) -> bool:
        """Whether a source or a header that it includes, however deep, sets the GPU."""
        text = source.read_text()
        places = [
            folder / one
            for one in re.findall(r'#include "(\S+)"', text)
            for folder in (source.parent, includes)
        ]
        return "DeviceGuard guard(" in text or any(has_guard(one) for one in places if one.is_file())

    includes = loading.ROOT / "include"
    for name in loading.names():
        for source in (loading.ROOT / name).glob("*.cu"):
            assert has_guard(source), f"{name}/{source.name}"
