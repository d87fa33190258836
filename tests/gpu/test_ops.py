"""Functions of kernel_pipeline.ops on a GPU: graphs, streams, Inductor, CUDA sources."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional

from kernel_pipeline import ops
from kernel_pipeline.machine import device
from kernel_pipeline.ops import plans
from tests.kernels.ops.conftest import chosen, nothing_planned

__all__ = ["chosen", "nothing_planned"]

pytestmark = pytest.mark.gpu

PROVIDERS = [
    ("triton_row", {"num_warps": 8}),
    ("triton_online", {"block_size": 1024, "num_warps": 4}),
    ("cuda", {"block_size": 1024, "num_warps": 4}),
]
Chosen = Callable[..., list[Any]]


def rows(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.randn(shape, device="cuda", dtype=dtype)


@pytest.mark.parametrize(("provider", "parameters"), PROVIDERS)
def test_a_captured_call_computes_anew_at_every_replay(
    provider: str, parameters: dict[str, Any], chosen: Chosen
) -> None:
    chosen(provider, parameters)
    x = rows(8, 16, 4096)
    assert ops.warm(ops.softmax, x).provider == provider
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = ops.softmax(x)
    for _ in range(2):
        x.normal_()
        graph.replay()
        torch.testing.assert_close(out, torch.softmax(x, -1), rtol=2e-2, atol=1e-5)


@pytest.mark.parametrize(("provider", "parameters"), PROVIDERS)
def test_a_call_is_on_the_current_stream(provider: str, parameters: dict[str, Any], chosen: Chosen) -> None:
    chosen(provider, parameters)
    x = rows(64, 4096)
    ops.warm(ops.softmax, x)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        torch.cuda._sleep(100_000_000)
        x.fill_(1.0)
        out = ops.softmax(x)
    stream.synchronize()
    torch.testing.assert_close(out.float(), torch.full_like(out, 1 / 4096).float(), rtol=1e-2, atol=0)


TRITON: list[tuple[Callable[..., torch.Tensor], str, dict[str, Any], int]] = [
    (ops.softmax, "triton_row", {"num_warps": 4}, 1),
    (ops.softmax, "triton_tile", {"block_size": 4096, "num_warps": 4}, 1),
    (ops.softmax, "triton_online", {"block_size": 1024, "num_warps": 4}, 1),
    (ops.rmsnorm, "triton_tile", {"block_size": 2048, "num_warps": 4}, 2),
    (ops.layernorm, "triton_row", {"num_warps": 4}, 3),
    (ops.gelu, "triton", {"block_size": 1024, "num_warps": 4}, 1),
    (ops.square, "triton_row", {"num_warps": 4}, 1),
    (ops.vector_add, "triton", {"block_size": 1024, "num_warps": 4}, 2),
]


@pytest.mark.parametrize(("function", "provider", "parameters", "count"), TRITON)
def test_triton_is_asked_once(
    function: Callable[..., torch.Tensor],
    provider: str,
    parameters: dict[str, Any],
    count: int,
    chosen: Chosen,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Later calls repeat the launch, with other tensors, on any stream and in graphs; a tensor that lies less
    aligned gets the kernel for it."""
    from triton.runtime.jit import JITFunction

    chosen(provider, parameters)

    def tensors(offset: int = 0) -> list[torch.Tensor]:
        rows_of_x = 1 if function is not ops.vector_add else count
        whole = [torch.randn(32 * 1024 + offset, device="cuda") for _ in range(rows_of_x)]
        x = [one[offset:].view(4, 8, 1024) for one in whole]
        return x + [torch.randn(1024, device="cuda") for _ in range(count - rows_of_x)]

    def agree(out: torch.Tensor, given: list[torch.Tensor]) -> None:
        right = ops.function(function.__name__).by_torch(*(one.double() for one in given))
        torch.testing.assert_close(out.double(), right, rtol=1e-4, atol=1e-5)

    with torch.no_grad():
        given = tensors()
        agree(function(*given), given)
        given = tensors(offset=1)
        agree(function(*given), given)  # compiles for any address
        launched: list[object] = []
        run = JITFunction.run

        def counted(self: Any, *args: Any, **options: Any) -> Any:
            launched.append(self)
            return run(self, *args, **options)

        monkeypatch.setattr(JITFunction, "run", counted)
        for offset in (0, 4, 0):  # 4 elements are 16 bytes
            given = tensors(offset)
            with torch.cuda.stream(torch.cuda.Stream()):
                torch.cuda.current_stream().wait_stream(torch.cuda.default_stream())
                out = function(*given)
            torch.cuda.synchronize()
            agree(out, given)
        assert not launched
        given = tensors(offset=1)
        agree(function(*given), given)
        assert launched
        given = tensors()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out = function(*given)
        for one in given:
            one.normal_()
        graph.replay()
        agree(out, given)


@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_inductor_takes_the_operator_as_it_is(mode: str, chosen: Chosen) -> None:
    chosen("triton_row", {"num_warps": 8})
    torch.compiler.reset()
    w = torch.ones(1024, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    b = torch.zeros_like(w, requires_grad=True)

    def call(x: torch.Tensor) -> torch.Tensor:
        return ops.softmax(ops.layernorm(x * 2, w, b)).square()

    def right(x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(functional.layer_norm(x * 2, (1024,), w, b), -1).square()

    compiled = torch.compile(call, fullgraph=True, mode=mode)
    for _ in range(3):
        # What a graph of the last step wrote, as a gradient that is added to, is written over in the next.
        w.grad = b.grad = None
        torch.compiler.cudagraph_mark_step_begin()
        x = rows(4, 32, 1024).requires_grad_()
        y = x.detach().clone().requires_grad_()
        out = compiled(x)
        torch.testing.assert_close(out, right(y), rtol=5e-2, atol=1e-5)
        grad = torch.randn_like(out)
        out.backward(grad)
        right(y).backward(grad)
        assert x.grad is not None and y.grad is not None
        torch.testing.assert_close(x.grad, y.grad, rtol=5e-2, atol=5e-3)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("kv_heads", [8, 2])
def test_attention_is_trained_by_the_kernels(causal: bool, kv_heads: int, chosen: Chosen) -> None:
    here = plans.gpu_of(torch.device("cuda", 0))
    assert here is not None
    if here.capability[0] != 9:
        pytest.skip("both kernels need Hopper")
    forward = {"block_m": 128, "block_n": 128, "stages": 2}
    backward = {"block_m": 64, "stages": 2, "deterministic": False}
    chosen("cuda_flash", backward, attention_with_lse=forward)
    shapes = [(2, 8, 256, 128), (2, kv_heads, 256, 128), (2, kv_heads, 256, 128)]
    ours = [rows(*shape).requires_grad_() for shape in shapes]
    exact = [x.detach().double().requires_grad_() for x in ours]
    grad = rows(*shapes[0])
    ops.attention(*ours, causal=causal).backward(grad)
    functional.scaled_dot_product_attention(*exact, is_causal=causal, enable_gqa=kv_heads != 8).backward(
        grad.double()
    )
    for mine, right in zip(ours, exact, strict=True):
        assert mine.grad is not None and right.grad is not None
        scale = right.grad.abs().max()
        assert (mine.grad.double() - right.grad).abs().max() < 0.02 * scale
    plan = ops.function("attention_backward").plan(
        *(x.detach() for x in (*ours, grad)), torch.zeros(2, 8, 256, device="cuda"), grad, causal
    )
    assert plan.choice.provider == "cuda_flash"
    plan = ops.function("attention_with_lse").plan(*(x.detach() for x in ours), causal)
    assert plan.choice.provider == "cuda_flash"


WINDOWS: list[dict[str, Any]] = [
    {"window": (31, 0)},
    {"causal": True, "window": (40, -1), "scale": 0.3},
    {"window": (16, 8)},
]


def agree(call: Callable[..., torch.Tensor], *given: torch.Tensor, **words: Any) -> None:
    """A call and its gradients are those of the CPU in float64, where torch computes them with a mask."""
    ours = [x.detach().requires_grad_() for x in given]
    exact = [x.detach().cpu().double().requires_grad_() for x in given]
    out = call(*ours, **words)
    if "cu_seqlens" in words:
        words["cu_seqlens"] = [one.cpu() for one in words["cu_seqlens"]]
    right = ops.attention(*exact, **words)
    grad = torch.randn_like(out)
    found = (out, *torch.autograd.grad(out, ours, grad))
    for mine, one in zip(
        found, (right, *torch.autograd.grad(right, exact, grad.cpu().double())), strict=True
    ):
        assert (mine.cpu().double() - one).abs().max() < 0.02 * one.abs().max()


@pytest.mark.parametrize("lengths", [(96, 96), (64, 100), (100, 64), (1, 200)], ids=str)
@pytest.mark.parametrize("words", WINDOWS, ids=str)
def test_torchs_flash_attention_computes_windows(words: dict[str, Any], lengths: tuple[int, int]) -> None:
    queries, keys = lengths
    q = rows(2, queries, 8, 65)[..., :64].transpose(1, 2)  # rows at odd multiples of two bytes
    k, v = rows(2, 2, keys, 64), rows(2, 2, keys, 64)
    agree(ops.attention, q, k, v, **words)
    with torch.profiler.profile() as seen:
        ops.attention(q, k, v, **words)
    assert "aten::_flash_attention_forward" in {one.key for one in seen.key_averages()}
    agree(ops.attention, q.float(), k.float(), v.float(), **words)  # by a mask


def test_inductor_takes_a_window() -> None:
    torch.compiler.reset()
    q, k, v = rows(2, 8, 96, 64), rows(2, 2, 128, 64), rows(2, 2, 128, 64)
    agree(torch.compile(ops.attention, fullgraph=True), q, k, v, causal=True, window=(20, -1), scale=0.3)


def test_torchs_flash_attention_computes_ragged_batches() -> None:
    lengths = torch.tensor([[30, 1, 97], [64, 5, 97]], device="cuda")
    ends = functional.pad(lengths.cumsum(1), (1, 0)).int().unbind()
    q, k, v = (rows(int(lengths[one].sum()), heads, 64) for one, heads in ((0, 8), (1, 2), (1, 2)))
    agree(ops.attention, q, k, v, causal=True, window=(20, 0), cu_seqlens=ends, max_seqlen=(97, 97))


def test_a_gpu_is_told_as_the_pipeline_tells_it() -> None:
    here = device.resolve("cuda")
    assert plans.gpu_of(torch.device("cuda", 0)) == device.capabilities(here)
    assert plans.slug_of(torch.device("cuda", 0)) == here.slug
