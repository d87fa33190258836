"""Attention's options: served, computed by torch, or refused."""

from __future__ import annotations

import inspect
import itertools
import math
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from kernel_pipeline import ops
from kernels.attention import options

ROOT = Path(__file__).parents[3]
ALL = (-1, -1)
WINDOWS = [ALL, (-1, 0), (2, 0), (0, 0), (3, -1), (2, 1), (-1, 1), (100, 100)]
LENGTHS = [(7, 7), (4, 9), (9, 4), (1, 6), (6, 1)]
TOLERANCE = {"rtol": 1e-4, "atol": 1e-5}
OF_TORCH = {
    "scale": {"scale": 0.3},
    "window": {"window": (2, 1)},
    "causal window": {"causal": True, "window": (2, -1)},
    "all": {"causal": True, "window": (3, 2), "scale": -0.2},
}


def weights(
    q: torch.Tensor, k: torch.Tensor, causal: bool, scale: float | None, window: tuple[int, int]
) -> torch.Tensor:
    """The probabilities by definition; 0 for a query that sees no key."""
    place = torch.arange(q.shape[2])[:, None] + k.shape[2] - q.shape[2]
    ahead = torch.arange(k.shape[2]) - place
    left, right = window
    seen = (ahead >= (-left if left >= 0 else -math.inf)) & (ahead <= (right if right >= 0 else math.inf))
    seen = seen & (ahead <= 0) if causal else seen
    scores = q @ k.repeat_interleave(q.shape[1] // k.shape[1], 1).mT
    scores = scores * (q.shape[3] ** -0.5 if scale is None else scale)
    return torch.softmax(scores.masked_fill(~seen, -math.inf), -1).masked_fill(~seen, 0.0)


def right(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    causal: bool = False,
    scale: float | None = None,
    window: tuple[int, int] = ALL,
) -> torch.Tensor:
    """Attention in float64."""
    q, k, v = q.double(), k.double(), v.double()
    return weights(q, k, causal, scale, window) @ v.repeat_interleave(q.shape[1] // v.shape[1], 1)


def made(seq_q: int, seq_k: int, kv_heads: int = 2, *, wanted: bool = False) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes = [(2, 4, seq_q, 8), (2, kv_heads, seq_k, 8), (2, kv_heads, seq_k, 8)]
    return [torch.randn(one, generator=generator).requires_grad_(wanted) for one in shapes]


def gradients(call: Callable[..., torch.Tensor], *inputs: torch.Tensor) -> list[torch.Tensor]:
    inputs = tuple(one.detach().requires_grad_() for one in inputs)
    out = call(*inputs)
    given = torch.linspace(-1, 2, out.numel()).view(out.shape).to(out.dtype)
    return [out.detach().double(), *(one.double() for one in torch.autograd.grad(out, inputs, given))]


@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
@pytest.mark.parametrize("window", WINDOWS, ids=str)
def test_options_are_those_of_the_definition(window: tuple[int, int], lengths: tuple[int, int]) -> None:
    for causal, scale, kv_heads in itertools.product((False, True), (None, 0.3), (4, 2)):
        inputs = made(*lengths, kv_heads)
        words: dict[str, Any] = {"causal": causal, "scale": scale, "window": window}
        found = gradients(lambda *qkv, words=words: ops.attention(*qkv, **words), *inputs)
        torch.testing.assert_close(
            found, gradients(lambda *qkv, words=words: right(*qkv, **words), *inputs), **TOLERANCE
        )
        with torch.no_grad():
            torch.testing.assert_close(ops.attention(*inputs, **words).double(), found[0], **TOLERANCE)


def test_options_that_change_nothing_are_served(chosen: Callable[..., list[Any]]) -> None:
    problems = chosen("sdpa_flash")
    q = torch.randn(1, 2, 8, 64, dtype=torch.bfloat16)
    for words in (
        {"scale": 64**-0.5},
        {"window": ALL},
        {"window": [7, 8], "softcap": 0.0, "dropout_p": 0.0, "attn_mask": None, "block_table": None},
    ):
        torch.testing.assert_close(ops.attention(q, q, q, **words), ops.attention(q, q, q))
    for words in ({"window": (-1, 0)}, {"window": (9, 0), "causal": True}):
        torch.testing.assert_close(ops.attention(q, q, q, **words), ops.attention(q, q, q, causal=True))
    assert [one.causal for one in problems] == [False, True]
    choice = ops.warm(ops.attention, q, q, q, window=(-1, 0))
    assert choice == ops.warm(ops.attention, q, q, q, True) != ops.warm(ops.attention, q, q, q, window=(3, 0))
    q.requires_grad_()
    of_both = ops.explain(ops.attention, q, q, q, window=(-1, 0))
    assert of_both.kernel == "attention_with_lse"
    assert of_both.backward is not None and of_both.backward.kernel == "attention_backward"
    assert of_both.backward.problem == of_both.problem
    assert str(of_both).endswith(f"\n{of_both.backward}")


@pytest.mark.parametrize("name", OF_TORCH)
def test_what_torch_computes_is_said(name: str) -> None:
    q, k, v = made(4, 9)
    with_scale = "scale" in OF_TORCH[name]
    said = (
        "no kernel takes a scale other than 1 / sqrt(head_dim)." if with_scale else "no kernel has a window."
    )
    assert ops.explain(ops.attention, q, k, v, **OF_TORCH[name]).choice.reason == said
    assert ops.warm(ops.attention, q, k, v, **OF_TORCH[name]).reason == said


def test_a_scale_that_is_no_number_is_not_the_default() -> None:
    assert "a scale other than" in ops.explain(ops.attention, *made(4, 4), scale=math.nan).choice.reason


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("name", OF_TORCH)
def test_options_are_compiled_in_one_graph(name: str, backend: str) -> None:
    torch.compiler.reset()
    compiled = torch.compile(ops.attention, backend=backend, fullgraph=True)
    for lengths in ((5, 7), (6, 8)):
        found, eager = (
            gradients(lambda *qkv, call=call: call(*qkv, **OF_TORCH[name]), *made(*lengths))
            for call in (compiled, ops.attention)
        )
        torch.testing.assert_close(found, eager)


@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_options_are_transformed() -> None:
    q, k, v = made(4, 6)
    rows = torch.stack([q, 2 * q])
    words: dict[str, Any] = OF_TORCH["all"]
    several = torch.func.vmap(lambda q: ops.attention(q, k, v, **words))(rows)
    torch.testing.assert_close(several[1].double(), right(2 * q, k, v, **words), **TOLERANCE)
    slope = torch.func.grad(lambda q: ops.attention(q, k, v, **words).sum())(q)
    q.requires_grad_()
    (expected,) = torch.autograd.grad(right(q, k, v, **words).sum(), q)
    torch.testing.assert_close(slope, expected, **TOLERANCE)
    with torch.no_grad(), ops.by_torch():
        torch.testing.assert_close(
            ops.attention(q, k, v, **words).double(), right(q, k, v, **words), **TOLERANCE
        )


LENGTHS_OF = ([3, 0, 5, 1], [4, 2, 5, 3])


def ragged() -> tuple[list[torch.Tensor], dict[str, Any]]:
    """Tensors of (tokens, heads, head_dim), and the options that say whose tokens they are."""
    ends = [torch.tensor([0, *itertools.accumulate(one)], dtype=torch.int32) for one in LENGTHS_OF]
    tensors = [one[0].transpose(0, 1) for one in made(sum(LENGTHS_OF[0]), sum(LENGTHS_OF[1]))]
    return tensors, {"cu_seqlens": tuple(ends), "max_seqlen": tuple(map(max, LENGTHS_OF))}


def right_of_ragged(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, **words: Any) -> torch.Tensor:
    lengths = (*LENGTHS_OF, LENGTHS_OF[1])
    parts = zip(*(x.split(some) for x, some in zip((q, k, v), lengths, strict=True)), strict=True)
    return torch.cat(
        [right(*(x.transpose(0, 1)[None] for x in part), **words)[0].transpose(0, 1) for part in parts]
    )


def flash(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *args: Any, **words: Any) -> tuple[Any, ...]:
    """Stands for torch's operator on a GPU."""
    given = {"scale": words.get("scale"), "window": (words["window_size_left"], words["window_size_right"])}
    assert args[4:] == (0.0, False, False)
    if args[0] is None:
        assert args[1:4] == (None, q.shape[1], k.shape[1])
        out = right(*(x.transpose(1, 2) for x in (q, k, v)), **given).transpose(1, 2)
    else:
        assert [one.diff().tolist() for one in args[:2]] == list(LENGTHS_OF) and args[2:4] == (5, 5)
        out = right_of_ragged(q, k, v, **given)
    lse = q.new_zeros(q.shape[0], q.shape[2], q.shape[1]) if args[0] is None else q.new_zeros(q.shape[1::-1])
    state = torch.zeros(2, dtype=torch.uint64)
    return torch.empty_like(q).copy_(out), lse, state, state[0].clone(), q.new_empty(0)


def flash_backward(grad: torch.Tensor, *args: Any, **words: Any) -> tuple[torch.Tensor, ...]:
    q, k, v, out, grad = (x.double().transpose(1, 2) for x in (*args[:4], grad))
    scale = words.get("scale")
    p = weights(q, k, False, scale, (words["window_size_left"], words["window_size_right"]))
    group = q.shape[1] // k.shape[1]
    keys, values = (x.repeat_interleave(group, 1) for x in (k, v))
    ds = p * (grad @ values.mT - (out * grad).sum(-1, keepdim=True))
    ds = ds * (q.shape[3] ** -0.5 if scale is None else scale)
    dk, dv = (x.unflatten(1, (-1, group)).sum(2) for x in (ds.mT @ q, p.mT @ grad))
    made = zip((ds @ keys, dk, dv), args[:3], strict=True)
    return tuple(torch.empty_like(like).copy_(x.transpose(1, 2)) for x, like in made)


@pytest.fixture
def on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Tensors on the CPU go the way of those on a GPU that torch's flash attention takes."""
    monkeypatch.setattr(options, "takes_flash", lambda *_: True)
    with torch.library._scoped_library("aten", "IMPL") as library:
        library.impl("_flash_attention_forward", flash, "CPU")
        library.impl("_flash_attention_backward", flash_backward, "CPU")
        yield


@pytest.mark.usefixtures("on_a_gpu")
@pytest.mark.parametrize("backend", [None, "eager", "aot_eager"])
@pytest.mark.parametrize("name", [name for name in OF_TORCH if "window" in OF_TORCH[name]])
def test_torchs_flash_attention_gets_the_window(name: str, backend: str | None) -> None:
    torch.compiler.reset()
    call = ops.attention if backend is None else torch.compile(ops.attention, backend=backend, fullgraph=True)
    inputs = made(5, 7)
    found, expected = (
        gradients(lambda *qkv, one=one: one(*qkv, **OF_TORCH[name]), *inputs) for one in (call, right)
    )
    torch.testing.assert_close(found, expected, **TOLERANCE)


@pytest.mark.parametrize("name", ["window", "causal window", "all"])
def test_a_ragged_batch_is_a_sequence_after_the_other(name: str) -> None:
    tensors, words = ragged()
    found = gradients(lambda *qkv: ops.attention(*qkv, **words, **OF_TORCH[name]), *tensors)
    expected = gradients(lambda *qkv: right_of_ragged(*qkv, **OF_TORCH[name]), *tensors)
    torch.testing.assert_close(found, expected, **TOLERANCE)


@pytest.mark.usefixtures("on_a_gpu")
def test_torchs_flash_attention_gets_the_ragged_batch() -> None:
    tensors, words = ragged()
    out = ops.attention(*tensors, causal=True, scale=0.3, **words)
    torch.testing.assert_close(out.double(), right_of_ragged(*tensors, causal=True, scale=0.3), **TOLERANCE)


def test_lengths_that_are_not_the_tokens_are_refused() -> None:
    (q, k, v), words = ragged()
    with pytest.raises(RuntimeError, match="split_sizes to sum exactly"):
        ops.attention(q, k[1:], v[1:], **words)


def test_an_unknown_keyword_is_named() -> None:
    q, k, v = made(4, 4)
    for words in ({"windw": (1, 1)}, {"window": (1, 1), "windw": 0}):
        with pytest.raises(TypeError, match="got an unexpected keyword argument 'windw'"):
            ops.attention(q, k, v, **words)
    with pytest.raises(TypeError, match="unexpected keyword argument 'window'"):
        ops.attention_with_lse(q, k, v, window=(1, 1))


def test_the_page_has_every_option() -> None:
    page = (ROOT / "docs/kernels/attention.md").read_text()
    table = page.partition("## Options")[2].partition("\n## ")[0]
    told = set(re.findall(r"`(\w+)`", "".join(re.findall(r"^\| (.*?) \|", table, re.MULTILINE))))
    taken = set(inspect.signature(ops.attention).parameters) - {"q", "k", "v", "refused"}
    assert told == taken | set(options.REFUSED)
