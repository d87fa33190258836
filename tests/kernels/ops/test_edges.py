"""For edge cases functions agree with torch, with and without a gradient."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional

from kernel_pipeline import ops
from kernels.attention.torch import visible

Call = Callable[..., torch.Tensor]
Shapes = tuple[tuple[int, ...], ...]


def sdpa(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool) -> torch.Tensor:
    """torch's own, with the last query at the last key's position."""
    mask = visible(q, k) if causal and q.shape[-2] != k.shape[-2] else None
    grouped = q.dim() == 4 and q.shape[1] != k.shape[1]
    return functional.scaled_dot_product_attention(
        q, k, v, mask, is_causal=causal and mask is None, enable_gqa=grouped
    )


def last(*shape: int) -> Shapes:
    return (shape, shape[-1:])


SHAPES: tuple[tuple[int, ...], ...] = ((), (0,), (5,), (0, 4), (4, 0), (2, 0, 3), (2, 3, 0), (1, 1), (0, 0))

CALLS: dict[str, tuple[Call, Call, list[Shapes]]] = {
    "softmax": (ops.softmax, lambda x: torch.softmax(x, -1), [(one,) for one in SHAPES]),
    "softmax of columns": (
        lambda x: ops.softmax(x, 0),
        lambda x: torch.softmax(x, 0),
        [(one,) for one in SHAPES],
    ),
    "gelu": (ops.gelu, lambda x: functional.gelu(x, approximate="tanh"), [(one,) for one in SHAPES]),
    "square": (ops.square, torch.square, [(one,) for one in SHAPES]),
    "vector_add": (
        ops.vector_add,
        torch.add,
        [*((one, one) for one in SHAPES), ((0, 4), (4,)), ((3, 1), (1, 4)), ((), (3,)), ((2,), (3,))],
    ),
    "rmsnorm": (
        ops.rmsnorm,
        lambda x, w: functional.rms_norm(x, w.shape, w, 1e-6),
        [*(last(*one) for one in SHAPES if one), ((2, 3, 4), (3, 4)), ((2, 4), (3,)), ((), ())],
    ),
    "layernorm": (
        lambda x, w: ops.layernorm(x, w, w * 2),
        lambda x, w: functional.layer_norm(x, w.shape, w, w * 2),
        [*(last(*one) for one in SHAPES if one), ((2, 3, 4), (3, 4)), ((2, 4), (3,)), ((), ())],
    ),
    "matmul": (
        ops.matmul,
        torch.matmul,
        [
            *[((0, 4), (4, 3)), ((2, 0), (0, 3)), ((2, 4), (4, 0)), ((2, 3, 0), (0, 4)), ((0, 3, 4), (4, 2))],
            *[((2, 0, 4), (4, 2)), ((0,), (0,)), ((0,), (0, 3)), ((2, 0), (0,)), ((5, 0, 3), (5, 3, 2))],
            *[
                ((4,), (4, 2)),
                ((3, 4), (4,)),
                ((2, 3, 4), (4,)),
                ((2, 1, 3, 4), (5, 4, 2)),
                ((4,), (2, 4, 3)),
            ],
            *[((2, 3), (4, 5)), ((), (3,)), ((2, 3, 0), (0, 0))],
        ],
    ),
}

QKV = [
    *[(1, 2, 2, 0, 5, 8), (1, 2, 2, 5, 0, 8), (0, 2, 2, 3, 3, 8), (1, 0, 0, 3, 3, 8), (1, 2, 2, 3, 3, 0)],
    *[(1, 2, 2, 0, 0, 8), (0, 2, 2, 3, 5, 8), (1, 2, 2, 7, 3, 8), (1, 4, 2, 7, 3, 8), (1, 2, 2, 1, 1, 8)],
    *[
        (1, 2, 2, 7, 3, 64),
        (1, 4, 2, 3, 7, 64),
        (1, 4, 2, 7, 7, 64),
        (1, 2, 2, 0, 5, 64),
        (1, 3, 2, 4, 4, 64),
    ],
]
"""Batch, heads, heads of keys, queries, keys, and the dimensions of a head."""


def made(shapes: Shapes, dtype: torch.dtype, wanted: bool) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(one, generator=generator).to(dtype).requires_grad_(wanted) for one in shapes]


def outcome(call: Call, inputs: list[torch.Tensor]) -> tuple[Any, ...] | None:
    """The answer, and the gradients of the inputs that need one; None for a refused call."""
    try:
        out = call(*inputs)
    except (RuntimeError, IndexError, ValueError):
        return None
    wanted = [one for one in inputs if one.requires_grad]
    given = torch.linspace(-1, 2, out.numel()).view(out.shape).to(out.dtype)
    grads = torch.autograd.grad(out, wanted, given) if wanted else ()
    return (out.detach(), *grads)


def agree(ours: Call, theirs: Call, shapes: Shapes, dtype: torch.dtype) -> None:
    plain, right = outcome(ours, made(shapes, dtype, False)), outcome(theirs, made(shapes, dtype, True))
    trained = outcome(ours, made(shapes, dtype, True))
    assert (plain is None, trained is None) == (right is None,) * 2
    if plain is not None and trained is not None and right is not None:
        bound = {"rtol": 16 * torch.finfo(dtype).eps, "atol": 32 * torch.finfo(dtype).eps}
        torch.testing.assert_close(trained, right, **bound)
        torch.testing.assert_close(plain[0], right[0], **bound)
        assert not any(one.isnan().any() for one in trained)


@pytest.mark.parametrize(
    ("name", "shapes"), [(name, shapes) for name, (*_, several) in CALLS.items() for shapes in several]
)
def test_an_edge_is_torchs_with_a_gradient_and_without(name: str, shapes: Shapes) -> None:
    agree(*CALLS[name][:2], shapes, torch.float32)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("causal", [False, True], ids=["", "causal"])
@pytest.mark.parametrize("sizes", QKV, ids=str)
def test_attention_too(sizes: tuple[int, ...], causal: bool, dtype: torch.dtype) -> None:
    batch, heads, kv_heads, queries, keys, head_dim = sizes
    kv = (batch, kv_heads, keys, head_dim)
    shapes = ((batch, heads, queries, head_dim), kv, kv)
    agree(lambda *qkv: ops.attention(*qkv, causal), lambda *qkv: sdpa(*qkv, causal), shapes, dtype)


def test_a_backward_pass_looks_at_what_it_is_given() -> None:
    """torch's operators for it read past a tensor's end."""
    q, k, v = made(((1, 2, 8, 64),) * 3, torch.bfloat16, False)
    lse = torch.zeros(1, 2, 8)
    for given, sentence in (
        (
            (q[:, :, :4], lse, q),
            r"out must be like q, \(1, 2, 8, 64\) of torch.bfloat16, not \(1, 2, 4, 64\)",
        ),
        ((q, lse, q.float()), r"d_out must be like q, .* of torch.float32\."),
        ((q, lse[:, :1], q), r"lse must be \(1, 2, 8\) of torch.float32, not \(1, 1, 8\)"),
        ((q, lse.double(), q), "lse must be .* not .* of torch.float64"),
    ):
        with pytest.raises(ValueError, match=sentence):
            ops.attention_backward(q, k, v, *given)
        with pytest.raises(ValueError, match=sentence):
            torch.ops.kernel_pipeline.attention_backward(q, k, v, *given)


@pytest.mark.parametrize("causal", [False, True], ids=["", "causal"])
@pytest.mark.parametrize("sizes", QKV[:-1], ids=str)
def test_a_forward_pass_and_its_backward_pass_are_right_by_themselves(
    sizes: tuple[int, ...], causal: bool
) -> None:
    _ = ops.attention, ops.attention_backward
    batch, heads, kv_heads, queries, keys, head_dim = sizes
    kv = (batch, kv_heads, keys, head_dim)
    inputs = made(((batch, heads, queries, head_dim), kv, kv), torch.float32, True)
    right = sdpa(*inputs, causal)
    given = torch.linspace(-1, 2, right.numel()).view(right.shape)
    grads = torch.autograd.grad(right, inputs, given)
    q, k, v = (one.detach() for one in inputs)
    out, lse = torch.ops.kernel_pipeline.attention_with_lse(q, k, v, causal)
    found = ops.attention_backward(q, k, v, out, lse, given, causal)
    torch.testing.assert_close((out, *found), (right.detach(), *grads), rtol=1e-4, atol=1e-5)


def test_flash_attention_is_called_where_torch_itself_would(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch's check knows the GPU; its own mask is for equally many queries and keys, and is not part of
    the question."""
    asked: list[tuple[bool, bool]] = []
    answer = True

    def can(params: Any, debug: bool = False) -> bool:
        asked.append((params.is_causal, params.enable_gqa))
        return answer

    monkeypatch.setattr(torch.backends.cuda, "can_use_flash_attention", can)
    trains = ops.function("attention").trains
    with FakeTensorMode():
        q, k = (
            torch.empty(1, heads, length, 64, dtype=torch.bfloat16, device="cuda")
            for heads, length in ((4, 8), (2, 16))
        )
        assert trains(q, k, k) and trains(q, k, k, True) and trains(q, q, q, causal=True)
        assert asked == [(False, True), (False, True), (True, False)]
        answer = False
        assert not trains(q, k, k)
        assert not trains(k, q, q, True) and not trains(q.float(), k.float(), k.float())
