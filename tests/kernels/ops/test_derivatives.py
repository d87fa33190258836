"""Functions are differentiated as torch's are."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional

from kernel_pipeline import ops
from kernel_pipeline.ops import asked


def of_double(*shapes: tuple[int, ...], seed: int = 0) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator, dtype=torch.float64).requires_grad_() for shape in shapes]


CASES = {
    "softmax": (ops.softmax, [(2, 3, 5)]),
    "softmax of columns": (lambda x: ops.softmax(x, 0), [(3, 5)]),
    "gelu": (ops.gelu, [(2, 7)]),
    "square": (ops.square, [(2, 7)]),
    "vector_add": (ops.vector_add, [(3, 4), (4,)]),
    "rmsnorm": (ops.rmsnorm, [(2, 3, 5), (5,)]),
    "rmsnorm, eps": (lambda x, w: ops.rmsnorm(x, w, eps=0.1), [(3, 5), (5,)]),
    "layernorm": (ops.layernorm, [(2, 3, 5), (5,), (5,)]),
    "matmul": (ops.matmul, [(3, 4), (4, 2)]),
    "matmul of batches": (ops.matmul, [(2, 3, 4), (4, 2)]),
    "matmul of batches of both": (ops.matmul, [(2, 3, 4), (2, 4, 2)]),
    "matmul of vectors": (ops.matmul, [(4,), (4,)]),
    "attention": (ops.attention, [(1, 2, 3, 4)] * 3),
    "attention, causal": (lambda q, k, v: ops.attention(q, k, v, True), [(1, 2, 3, 4)] * 3),
    "attention, grouped": (
        lambda q, k, v: ops.attention(q, k, v, causal=True),
        [(2, 4, 2, 8), (2, 2, 3, 8), (2, 2, 3, 8)],
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_the_gradient_is_that_of_the_function(name: str) -> None:
    call, shapes = CASES[name]
    assert torch.autograd.gradcheck(call, of_double(*shapes))


@pytest.mark.parametrize("name", [name for name in CASES if "attention" not in name])
def test_the_gradients_gradient_too(name: str) -> None:
    call, shapes = CASES[name]
    assert torch.autograd.gradgradcheck(call, of_double(*shapes))


IN_TORCH: dict[str, Callable[..., torch.Tensor]] = {
    "softmax": lambda x: functional.softmax(x, -1),
    "gelu": lambda x: functional.gelu(x, approximate="tanh"),
    "rmsnorm": lambda x, w: functional.rms_norm(x, w.shape, w, 1e-6),
    "layernorm": lambda x, w, b: functional.layer_norm(x, w.shape, w, b, 1e-5),
    "matmul": torch.matmul,
    "attention, causal": lambda *qkv: functional.scaled_dot_product_attention(*qkv, is_causal=True),
}


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", IN_TORCH)
def test_gradients_are_as_exact_as_torchs(name: str, dtype: torch.dtype, compiled: bool) -> None:
    call, shapes = CASES[name]
    if "attention" in name:
        shapes = [(1, 2, 16, 64)] * 3
    inputs = [x.detach().to(dtype).requires_grad_() for x in of_double(*shapes)]
    exact = [x.detach().double().requires_grad_() for x in inputs]
    (drawn,) = of_double(tuple(call(*inputs).shape), seed=1)
    grad = drawn.detach().to(dtype)
    if compiled:
        torch.compiler.reset()
        call = torch.compile(call, fullgraph=True, backend="aot_eager")
    call(*inputs).backward(grad)
    IN_TORCH[name](*exact).backward(grad.double())
    eps = torch.finfo(dtype).eps
    for ours, right in zip(inputs, exact, strict=True):
        assert ours.grad is not None and ours.grad.dtype == dtype and right.grad is not None
        torch.testing.assert_close(ours.grad.double(), right.grad, rtol=8 * eps, atol=32 * eps)


def test_attention_is_differentiated_by_the_kernel_for_it(chosen: Callable[..., list[Any]]) -> None:
    problems = chosen("sdpa_flash")
    q, k, v = (torch.randn(1, 2, 64, 64, dtype=torch.bfloat16, requires_grad=True) for _ in range(3))
    ops.attention(q, k, v).sum().backward()
    assert [(one.kernel, one.problem) for one in asked._asked.values() if one.problem is not None] == [
        ("attention_with_lse", problems[0]),
        ("attention_backward", problems[1]),
    ]
    with torch.no_grad():
        ops.attention(q, k, v)
    assert {one.kernel for one in asked._asked.values()} >= {"attention", "attention_backward"}


def test_what_has_no_derivative_says_so() -> None:
    q, k, v, out, d_out = (
        torch.randn(1, 1, 4, 64, dtype=torch.bfloat16, requires_grad=True) for _ in range(5)
    )
    made = ops.attention_backward(q, k, v, out, torch.zeros(1, 1, 4), d_out)
    with pytest.raises(NotImplementedError, match="attention_backward has no derivative"):
        made[0].sum().backward()


def test_the_weights_of_a_packed_product_are_constants() -> None:
    from kernel_pipeline.loading import load

    loaded = load("matmul_int4")
    problem = loaded.kernel.problem(m=2, n=16, k=128)
    x, packed, scales = loaded.inputs(problem, torch.device("cpu"), 0)
    x.requires_grad_()
    ops.matmul_int4(x, packed, scales).sum().backward()
    w = loaded.module("op.py").weights(packed, scales, 128, "group_128")
    assert x.grad is not None
    torch.testing.assert_close(x.grad.double(), w.sum(0).expand(2, -1), rtol=0.05, atol=0.5)


def test_opcheck_passes_where_a_gradient_is_wanted() -> None:
    x = torch.randn(2, 3, 8, requires_grad=True)
    w, b = (torch.randn(8, requires_grad=True) for _ in range(2))
    q, k, v = (torch.randn(1, 2, 8, 64, requires_grad=True) for _ in range(3))
    calls: dict[str, tuple[Any, ...]] = {
        "softmax": (x, -1),
        "gelu": (x.detach().transpose(0, 1).requires_grad_(),),
        "rmsnorm": (x, w, 1e-6),
        "layernorm": (x, w, b, 1e-5),
        "matmul": (x, torch.randn(5, 8).t().requires_grad_()),
        "attention": (q, k, v, True),
    }
    for name, args in calls.items():
        told = torch.library.opcheck(ops.function(name).operator, args)
        assert set(told.values()) == {"SUCCESS"}, (name, told)
