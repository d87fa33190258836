"""A recognised call gives the same answer as at first, in any state of torch."""

import warnings
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest
import torch
from torch.autograd import forward_ad
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from kernel_pipeline import ops
from kernel_pipeline.ops import calls


class Seen(TorchDispatchMode):
    """Keeps the names of the operators that the dispatcher is given."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(
        self, func: Any, types: object, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))


class SeenFunctions(TorchFunctionMode):
    """Keeps the names of the functions that the mode sees."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_function__(
        self, func: Any, types: object, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))


class Marked(torch.Tensor):
    """A subclass, which every function keeps."""


@pytest.fixture
def x() -> torch.Tensor:
    """A matrix whose softmax is known."""
    x = torch.randn(4, 6)
    for _ in range(3):
        ops.softmax(x)
    assert known("softmax") == 1
    return x


def known(name: str) -> int:
    return sum(len(kinds) for kinds in ops.function(name)._known.values())


@pytest.mark.parametrize("mode", [Seen, SeenFunctions])
def test_a_mode_sees_the_operator(mode: Callable[[], Any], x: torch.Tensor) -> None:
    with mode() as seen:
        ops.softmax(x)
    assert "kernel_pipeline.softmax.default" in seen.names


def test_a_trace_records_the_operator(x: torch.Tensor) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        traced = torch.jit.trace(ops.softmax, x)
    assert "kernel_pipeline::softmax" in str(traced.graph)


def test_a_subclass_stays_one(x: torch.Tensor) -> None:
    assert type(ops.softmax(x.as_subclass(Marked))) is Marked


def test_torch_func_and_dual_numbers_are_torchs(x: torch.Tensor) -> None:
    rows = x.expand(3, 4, 6).contiguous() * torch.arange(3)[:, None, None]
    torch.testing.assert_close(torch.vmap(ops.softmax)(rows), torch.softmax(rows, -1))
    jacobians = (torch.func.jacrev(call)(x[0]) for call in (ops.softmax, lambda x: torch.softmax(x, -1)))
    torch.testing.assert_close(*jacobians)
    weights = torch.randn(4, 6)
    slope = torch.func.grad(lambda x: (ops.softmax(x) * weights).sum())(x)
    torch.testing.assert_close(slope, torch.func.grad(lambda x: (torch.softmax(x, -1) * weights).sum())(x))
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(x, weights)
        mine, right = (forward_ad.unpack_dual(out).tangent for out in (ops.softmax(dual), dual.softmax(-1)))
    torch.testing.assert_close(mine, right)


def test_a_gradient_is_wanted_where_it_was_not(x: torch.Tensor) -> None:
    w = torch.nn.Parameter(torch.randn(6))
    with torch.no_grad():
        for _ in range(3):
            assert ops.rmsnorm(x, w).grad_fn is None
    assert ops.rmsnorm(x, w).grad_fn is not None
    with torch.no_grad():
        assert ops.rmsnorm(x, w).grad_fn is None
    assert known("rmsnorm") == 1


@pytest.mark.parametrize(
    "state",
    [nullcontext, torch.inference_mode, lambda: torch.autocast("cpu"), lambda: torch.device("cpu")],
    ids=["none", "inference", "autocast", "default_device"],
)
def test_the_answer_is_the_same_in_any_state(
    state: Callable[[], AbstractContextManager[Any]], x: torch.Tensor
) -> None:
    right = torch.softmax(x, -1)
    with state():
        for _ in range(3):
            torch.testing.assert_close(ops.softmax(x), right)
            torch.testing.assert_close(ops.softmax(x.clone()), right)
    torch.testing.assert_close(ops.softmax(x), right)


def test_a_tensor_that_stands_for_its_negative_is_made_it(
    chosen: Callable[..., list[Any]], x: torch.Tensor
) -> None:
    """A provider reads memory, which does not hold the sign."""
    ops.function("softmax").forget()
    if torch.cuda.is_available():
        chosen("torch")  # x is on the CPU, where no kernel of a GPU runs
    else:
        chosen("triton_row", {"num_warps": 4})
    negative = torch.complex(x, x).conj().imag
    assert negative.is_neg()
    for one in (negative, x, negative):
        torch.testing.assert_close(ops.softmax(one), torch.softmax(one, -1))


@pytest.mark.filterwarnings("ignore:.*does not run on meta")
def test_what_looks_alike_is_told_apart(chosen: Callable[..., list[Any]], x: torch.Tensor) -> None:
    ops.function("softmax").forget()
    problems = chosen("torch")
    alike = [x, x.double(), x.bfloat16(), torch.randn(6, 4).t(), torch.randn(4, 12)[:, ::2], x.to("meta")]
    for _ in range(3):
        for one in alike:
            out = ops.softmax(one)
            assert (out.dtype, out.device) == (one.dtype, one.device)
            torch.testing.assert_close(out, torch.softmax(one, -1))
            assert not torch.equal(ops.softmax(x, 0), ops.softmax(x))
    assert len(problems) == len(alike) - 1, "float64 is torch's, and each other form is chosen for once"
    assert known("softmax") == calls.MOST_KNOWN


def test_a_tensor_may_come_twice(x: torch.Tensor) -> None:
    for _ in range(3):
        torch.testing.assert_close(ops.vector_add(x, x), x + x)
        torch.testing.assert_close(ops.vector_add(x, x.clone()), x + x)
        torch.testing.assert_close(ops.vector_add(x, x.t().contiguous().t()), x + x)
    assert known("vector_add") == 2, "by form, whether the tensors are one or two"
    w = torch.nn.Parameter(x.clone())
    assert ops.vector_add(w, w).grad_fn is not None


def test_what_is_left_out_has_its_default(chosen: Callable[..., list[Any]]) -> None:
    problems = chosen("sdpa_flash")
    q = torch.randn(1, 1, 8, 64, dtype=torch.bfloat16)
    k, v = q.clone(), q.clone()
    for _ in range(2):
        for words in ({}, {"causal": False}, {"causal": True}):
            right = torch.nn.functional.scaled_dot_product_attention(
                q, k, v, is_causal=bool(words.get("causal"))
            )
            torch.testing.assert_close(ops.attention(q, k, v, **words), right)
            torch.testing.assert_close(ops.attention(q, k, v, *words.values()), right)
    assert [one.causal for one in problems] == [False, True]


def test_arguments_that_are_no_tensors_count(chosen: Callable[..., list[Any]]) -> None:
    problems = chosen("torch")
    a, b = torch.randn(16, 32), torch.randn(32, 16)
    for _ in range(2):
        torch.testing.assert_close(ops.matmul(a, b), a @ b)
        torch.testing.assert_close(ops.matmul(a, b, None, None, "ieee"), a @ b)
        for eps in (1e-6, 0.5):
            right = torch.nn.functional.rms_norm(a, (32,), b[:, 0], eps)
            torch.testing.assert_close(ops.rmsnorm(a, b[:, 0], eps), right)
    assert len(problems) == 2, "of the product, and of the eps that providers have"


def test_scales_may_come_or_not() -> None:
    a, b = torch.randn(16, 32), torch.randn(32, 16)
    small = a.to(torch.float8_e4m3fn), b.t().contiguous().to(torch.float8_e4m3fn).t()
    one = torch.ones(())
    with torch.no_grad():
        right = (small[0].float() @ small[1].float()).bfloat16()
        for _ in range(3):
            torch.testing.assert_close(ops.matmul(*small, one, one.clone()), right, rtol=2e-2, atol=1e-1)
            torch.testing.assert_close(ops.matmul(a, b), a @ b)


def test_forgotten_calls_are_chosen_for_again(chosen: Callable[..., list[Any]], x: torch.Tensor) -> None:
    problems = chosen("torch")
    ops.softmax(x)
    assert problems == []
    ops.function("softmax").forget()
    ops.softmax(x)
    assert len(problems) == 1


def test_no_tensor_is_held() -> None:
    x = torch.randn(3, 5)
    for _ in range(2):
        ops.gelu(x)
    alive = weakref.ref(x)
    del x
    assert alive() is None


@pytest.mark.parametrize("args", [(), (torch.ones(2, 3),)], ids=["none", "one"])
def test_a_missing_argument_is_named(args: tuple[torch.Tensor, ...], x: torch.Tensor) -> None:
    ops.rmsnorm(x, x[0])
    with pytest.raises(TypeError, match=f"missing a required argument: '{('x', 'weight')[len(args)]}'"):
        ops.rmsnorm(*args)
    with pytest.raises(TypeError, match="too many positional arguments"):
        ops.gelu(x, x)
