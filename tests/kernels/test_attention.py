"""What is particular to attention: masks, shared heads, splits, tolerance, what fits and what is refused."""

import dataclasses
import math
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
import torch

from kernel_pipeline import loading
from kernel_pipeline.contract import Gpu
from kernels.attention import interpreted
from kernels.attention.checks import check_attention
from kernels.attention.cuda_checks import check_flash
from kernels.attention.descriptors import copied_if_needed
from kernels.attention.parameters import Problem, refused
from kernels.attention_backward.reference import hidden, scaled
from tests.kernels.agreement import agree, wrong

FORWARD = loading.load("attention")
BACKWARD = loading.load("attention_backward")
WITH_LSE = loading.load("attention_with_lse")
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
H200 = Gpu(capability=(9, 0), multiprocessors=132, shared_memory=232448, l2_cache=60 << 20)
OWN: dict[str, dict[str, int]] = {
    "triton_flash": {"block_m": 32, "block_n": 32, "num_warps": 2, "num_stages": 2},
    "triton_split_k": {"split_k": 4, "block_n": 32, "num_warps": 4, "num_stages": 2},
    "triton_flash_hopper": {"block_m": 64, "block_n": 64, "num_warps": 4, "num_stages": 2, "per_sm": 1},
}
BY_TORCH = ("manual", "sdpa_math")


def small(**dimensions: Any) -> Problem:
    given = {"batch": 2, "heads": 2, "head_dim": 64, "seq_q": 40} | dimensions
    given = {"kv_heads": given["heads"], "seq_k": given["seq_q"]} | given
    return Problem(**given)


def call(provider: str, inputs: tuple[torch.Tensor, ...], causal: bool, loaded: Any = FORWARD) -> Any:
    """A provider's outputs."""
    found = loaded.kernel.provider(provider)
    parameters = OWN[provider] if loaded is FORWARD and provider in OWN else {}
    return loaded.entry(found)(*inputs, causal=causal, **parameters)


def can_run(provider: str) -> bool:
    needs = FORWARD.kernel.provider(provider).needs
    return DEVICE.type == "cpu" or needs is None or torch.cuda.get_device_capability() >= (9, 0)


SHAPES = [
    {"seq_q": 1, "seq_k": 300},
    {"seq_q": 1, "seq_k": 300, "heads": 8, "kv_heads": 2},
    {"seq_q": 3, "seq_k": 129, "heads": 4, "kv_heads": 1, "causal": True},
    {"seq_q": 33, "seq_k": 97, "causal": True},
    {"seq_q": 33, "seq_k": 97, "heads": 4, "kv_heads": 2, "causal": True},
    {"seq_q": 97, "seq_k": 33},
    {"seq_q": 65, "seq_k": 65, "causal": True, "head_dim": 128, "dtype": "float16"},
    {"seq_q": 2, "seq_k": 2, "causal": True},
]


@pytest.mark.parametrize("dimensions", SHAPES, ids=str)
@pytest.mark.parametrize("provider", [*BY_TORCH, *OWN])
def test_agrees_where_queries_and_keys_are_of_different_numbers(
    provider: str, dimensions: dict[str, Any]
) -> None:
    """The masks are aligned at the bottom right, and neighbouring heads share keys."""
    problem = small(**dimensions)
    if not can_run(provider):
        pytest.skip("needs Hopper")
    if provider == "triton_split_k" and problem.seq_q > 3:
        pytest.skip("it is for few queries")
    inputs = FORWARD.inputs(problem, DEVICE, 0)
    (exact,) = FORWARD.expected(problem, inputs)
    agree(call(provider, inputs, problem.causal), exact, FORWARD.kernel.tolerance(problem))


def test_the_reference_is_the_definition() -> None:
    """Written out row by row, and by autograd: a slip in the reference would hide the same in a kernel."""
    problem = small(batch=1, heads=4, kv_heads=2, seq_q=5, seq_k=9, causal=True)
    q, k, v = (x.double().requires_grad_() for x in FORWARD.inputs(problem, torch.device("cpu"), 0))
    rows = []
    for head in range(4):
        for query in range(5):
            seen = query + 5  # of 9 keys, the last query sees all
            scores = k[0, head // 2, :seen] @ q[0, head, query] / math.sqrt(64)
            rows.append(torch.softmax(scores, 0) @ v[0, head // 2, :seen])
    out = torch.stack(rows).view(1, 4, 5, 64)
    (found,) = FORWARD.expected(problem, (q.detach(), k.detach(), v.detach()))
    torch.testing.assert_close(found, out.detach())

    d_out = torch.randn(out.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    gradients = torch.autograd.grad(out, (q, k, v), d_out)
    given = [x.detach() for x in (q, k, v, out, log_sums(q, k), d_out)]
    for found, exact in zip(BACKWARD.expected(problem, tuple(given)), gradients, strict=True):
        torch.testing.assert_close(found, exact)


def log_sums(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    """Return the logarithm of the sum of each row's exponentials under a causal mask."""
    group = q.shape[1] // k.shape[1]
    mask = hidden(0, q.shape[2], q.shape[2], k.shape[2], q.device)
    rows = [
        scaled(q[entry, head].detach().double(), k[entry, head // group].detach().double())
        .masked_fill(mask, -math.inf)
        .logsumexp(1)
        for entry in range(q.shape[0])
        for head in range(q.shape[1])
    ]
    return torch.stack(rows).view(q.shape[:3])


@pytest.mark.parametrize("provider", ["manual", "sdpa_flash", "triton_flash"])
def test_the_backward_pass_is_autograds(provider: str) -> None:
    """With the output and the sums of a real forward pass, under a mask and with heads that share keys."""
    if not can_run("triton_flash_hopper"):
        pytest.skip("needs Hopper")
    problem = small(heads=4, kv_heads=2, seq_q=70, causal=True, dtype="float16")
    q, k, v = FORWARD.inputs(problem, DEVICE, 0)
    d_out = torch.randn(q.shape, generator=torch.Generator(DEVICE).manual_seed(1), device=DEVICE)
    wide = [x.double().requires_grad_() for x in (q, k, v)]
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        out = torch.nn.functional.scaled_dot_product_attention(*wide, is_causal=True, enable_gqa=True)
    gradients = torch.autograd.grad(out, wide, d_out.half().double())
    inputs = (q, k, v, out.detach().half(), log_sums(q, k).float(), d_out.half())
    found = BACKWARD.kernel.provider(provider)
    parameters = {} if provider != "triton_flash" else {"block": 64, "block_step": 32}
    launch = {} if provider != "triton_flash" else {"num_warps": 4, "num_stages": 2}
    for part, exact in zip(
        BACKWARD.entry(found)(*inputs, causal=True, **parameters, **launch), gradients, strict=True
    ):
        torch.testing.assert_close(part.double(), exact, rtol=2e-2, atol=4e-2)


BACKWARD_SHAPES = [
    {"seq_q": 33, "seq_k": 97, "causal": True},
    {"batch": 1, "seq_q": 97, "seq_k": 33, "heads": 4, "kv_heads": 2},
    {"batch": 1, "seq_q": 65, "seq_k": 130, "kv_heads": 1, "causal": True, "head_dim": 128},
    {"seq_q": 1, "seq_k": 70, "dtype": "float16"},
]


@pytest.mark.parametrize("dimensions", BACKWARD_SHAPES, ids=str)
def test_the_backward_kernel_agrees_and_gives_the_same_twice(dimensions: dict[str, Any]) -> None:
    if not can_run("triton_flash_hopper"):
        pytest.skip("needs Hopper")
    problem = small(**dimensions)
    inputs = BACKWARD.inputs(problem, DEVICE, 0)
    entry = BACKWARD.entry(BACKWARD.kernel.provider("triton_flash"))
    launch = {"causal": problem.causal, "block": 32, "block_step": 64, "num_warps": 2, "num_stages": 2}
    first = entry(*inputs, **launch)
    allowed = BACKWARD.kernel.tolerance(problem)
    for part, exact, within in zip(first, BACKWARD.expected(problem, inputs), allowed, strict=True):
        agree(part, exact, within)
    assert all(map(torch.equal, first, entry(*inputs, **launch)))


@pytest.mark.parametrize("provider", OWN)
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_what_is_not_finite_stays_in_its_row(provider: str, value: float) -> None:
    """A NaN or an infinity in a query reaches its own row, not those that a block adds past the end."""
    if not can_run(provider):
        pytest.skip("needs Hopper")
    problem = small(batch=1, seq_q=40, seq_k=70)
    q, k, v = FORWARD.inputs(problem, DEVICE, 0)
    q[0, 1, 39, 5] = value
    out = call(provider, (q, k, v), causal=False)
    assert out[0, 1, 39].isnan().all()
    assert out[0, 0].isfinite().all() and out[0, 1, :39].isfinite().all()


@pytest.mark.parametrize("provider", OWN)
def test_large_scores_do_not_overflow(provider: str) -> None:
    """The largest of a row is subtracted before anything is exponentiated."""
    if not can_run(provider):
        pytest.skip("needs Hopper")
    problem = small(batch=1, seq_q=40, seq_k=70)
    q, k, v = FORWARD.inputs(problem, DEVICE, 0)
    out = call(provider, (q * 1000, k, v), causal=False)
    picked = torch.einsum("bhqd,bhkd->bhqk", q.double(), k.double()).argmax(3)
    exact = torch.gather(v.double(), 2, picked[..., None].expand(*picked.shape, 64))
    near = (out.double() - exact).abs().amax(3) < 0.1
    assert near.double().mean() > 0.9, "the largest score alone counts, but for rows where two are near"


def test_only_what_the_copy_engine_cannot_address_is_copied() -> None:
    x = torch.randn(2, 3, 8, 64).bfloat16()
    swapped = x.transpose(1, 2)
    for fine in (x, x[:, 1:], swapped, x[..., 8:]):
        assert copied_if_needed(fine) is fine
    for other in (x.mT, x[..., 1:], x[..., ::2], x[:, :, :1].expand(x.shape)):
        copied = copied_if_needed(other)
        assert copied is not other and copied.is_contiguous() and torch.equal(copied, other)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("causal", [False, True])
def test_the_tolerance_refuses_a_block_of_keys_left_out(causal: bool, dtype: str) -> None:
    problem = small(batch=1, heads=1, seq_q=2048, causal=causal, dtype=dtype)
    q, k, v = FORWARD.inputs(problem, torch.device("cpu"), 0)
    (exact,) = FORWARD.expected(problem, (q, k, v))
    scores = scaled(q[0, 0].double(), k[0, 0].double())
    if causal:
        scores[hidden(0, 2048, 2048, 2048, q.device)] = -math.inf
    scores[:, 1024:1056] = -math.inf
    lacking = torch.softmax(scores, 1) @ v[0, 0].double()
    assert wrong(lacking, exact[0, 0], FORWARD.kernel.tolerance(problem)).sum() > 20


def test_the_tolerance_refuses_a_mask_that_is_off_by_one() -> None:
    problem = small(batch=1, heads=1, seq_q=1024, causal=True)
    q, k, v = FORWARD.inputs(problem, torch.device("cpu"), 0)
    (exact,) = FORWARD.expected(problem, (q, k, v))
    scores = scaled(q[0, 0].double(), k[0, 0].double())
    scores[hidden(1, 1024, 1024, 1024, q.device)] = -math.inf
    assert (
        wrong(
            torch.softmax(scores, 1) @ v[0, 0].double(), exact[0, 0], FORWARD.kernel.tolerance(problem)
        ).sum()
        > 200
    )


def test_an_interpreters_problem_keeps_its_kind() -> None:
    one = interpreted(small(batch=16, heads=32, kv_heads=8, seq_q=1, seq_k=131072))
    assert (one.batch, one.heads, one.kv_heads, one.seq_q, one.seq_k) == (1, 2, 1, 1, 160)
    odd = interpreted(small(seq_q=1023, seq_k=2049, causal=True))
    assert (odd.seq_q, odd.seq_k) == (161, 161)


@pytest.mark.parametrize(
    ("dimensions", "sentence"),
    [
        ({}, None),
        ({"heads": 6, "kv_heads": 4}, "heads must be a multiple of kv_heads: 6 is not a multiple of 4"),
        (
            {"seq_q": 5, "seq_k": 4, "causal": True},
            "the first queries would see no key: seq_q 5 > seq_k 4 with causal",
        ),
        ({"seq_q": 5, "seq_k": 4}, None),
    ],
)
def test_which_problems_there_are(dimensions: dict[str, Any], sentence: str | None) -> None:
    problem = small(**dimensions)
    assert refused(problem) == sentence
    for loaded in (FORWARD, BACKWARD):
        for provider in loaded.kernel.providers:
            parameters = None if provider.parameters is None else provider.parameters()
            reason = provider.fits(problem, parameters, H200)
            assert sentence is None or reason == sentence


@pytest.mark.parametrize("provider", OWN)
@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({0: (2, 2, 40)}, r"needs q of \(batch, heads, seq_q, head_dim\)"),
        ({1: (2, 2, 41, 64)}, r"needs q of \(batch, heads, seq_q, head_dim\)"),
        ({0: (2, 3, 40, 64)}, "kv_heads must divide heads, got 2 and 3"),
        ({0: (2, 2, 50, 64)}, "every query must see a key, got 50 queries and 40 keys"),
        (dict.fromkeys(range(3), (2, 2, 40, 32)), "head_dim of 64 or 128, got 32"),
    ],
    ids=str,
)
def test_refuses(provider: str, changed: dict[int, tuple[int, ...]], sentence: str) -> None:
    shapes = [changed.get(number, (2, 2, 40, 64)) for number in range(3)]
    with pytest.raises(ValueError, match=sentence):
        call(provider, tuple(torch.ones(shape, dtype=torch.bfloat16) for shape in shapes), causal=True)


def test_only_the_kernels_in_cuda_cpp_take_a_head_dim_of_96() -> None:
    q, k, v = (torch.ones((2, 2, 40, 96), dtype=torch.bfloat16) for _ in range(3))
    check_flash(q, k, v, True)
    with pytest.raises(ValueError, match="head_dim of 64 or 128, got 96"):
        check_attention(q, k, v, True)
    for other in (k[..., :64], k[:, :1, :30], k[:0]):
        with pytest.raises(ValueError):
            check_flash(q, other, other, True)


@pytest.mark.parametrize("gives", [lambda out, sums: out, lambda out, sums: (out, sums)])
def test_flash_attention_4_gets_what_it_takes(
    monkeypatch: pytest.MonkeyPatch, gives: Callable[..., Any]
) -> None:
    """Its tensors are (batch, sequence, heads, head_dim); some versions give the rows' sums, too."""
    problem = small(heads=4, kv_heads=2, seq_q=6, seq_k=9, causal=True)
    inputs = FORWARD.inputs(problem, torch.device("cpu"), 0)

    def forward(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool) -> Any:
        assert (q.shape, k.shape, v.shape) == ((2, 6, 4, 64), (2, 9, 2, 64), (2, 9, 2, 64))
        return gives(
            call("manual", tuple(x.transpose(1, 2) for x in (q, k, v)), causal).transpose(1, 2), None
        )

    def backward(*swapped: torch.Tensor, causal: bool) -> Any:
        *five, lse = swapped
        q, k, v, out, d_out = (x.transpose(1, 2) for x in five)
        made = call("manual", (q, k, v, out, lse, d_out), causal, BACKWARD)
        return tuple(x.transpose(1, 2) for x in made)

    package, cute, interface = (ModuleType(name) for name in ("flash_attn", "cute", "interface"))
    monkeypatch.setattr(cute, "flash_attn_func", forward, raising=False)
    monkeypatch.setattr(interface, "_flash_attn_bwd", backward, raising=False)
    for name, module in (("", package), (".cute", cute), (".cute.interface", interface)):
        monkeypatch.setitem(sys.modules, f"flash_attn{name}", module)
    assert torch.equal(call("flash_attn_4", inputs, True), call("manual", inputs, True))
    inputs = BACKWARD.inputs(problem, torch.device("cpu"), 0)
    found = call("flash_attn_4", inputs, True, BACKWARD)
    assert all(map(torch.equal, found, call("manual", inputs, True, BACKWARD)))


@pytest.mark.parametrize("is_apart", [False, True])
@pytest.mark.parametrize(
    ("seq_q", "causal", "is_masked"), [(6, False, False), (6, True, True), (1, True, False)]
)
def test_packed_queries_are_those_of_one_head(
    monkeypatch: pytest.MonkeyPatch, seq_q: int, causal: bool, is_masked: bool, is_apart: bool
) -> None:
    """Also where the heads of q do not lie one behind the other, and with lse."""
    q, k, v = FORWARD.inputs(small(heads=4, kv_heads=2, seq_q=seq_q, seq_k=9), torch.device("cpu"), 0)
    if is_apart:
        q = q.transpose(1, 2).contiguous().transpose(1, 2)

    def flash(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *others: Any) -> torch.Tensor:
        assert (q.shape, k.shape[:2]) == ((2, 2, 2 * seq_q, 64), (2, 2))
        assert others == (is_masked, seq_q, 128, 128, 3)
        heads = q.reshape(2, 4, seq_q, 64)
        return call("manual", (heads, k, v), is_masked).reshape(q.shape)

    monkeypatch.setattr(torch.ops.attention, "cuda_flash", flash, raising=False)
    entry = FORWARD.entry(FORWARD.kernel.provider("cuda_flash_packed"))
    out = entry(q, k, v, causal=causal, block_m=128, block_n=128, stages=3)
    right = call("manual", (q, k, v), causal)
    assert torch.equal(out, right)

    def flash_with_lse(q: torch.Tensor, *others: Any) -> tuple[torch.Tensor, torch.Tensor]:
        made = flash(q, *others)
        return made, made[..., 0]

    monkeypatch.setattr(torch.ops.attention_with_lse, "cuda_flash", flash_with_lse, raising=False)
    entry = WITH_LSE.entry(WITH_LSE.kernel.provider("cuda_flash_packed"))
    out, lse = entry(q, k, v, causal=causal, block_m=128, block_n=128, stages=3)
    assert torch.equal(out, right) and torch.equal(lse, right[..., 0])


def test_operations_are_counted_as_papers_do() -> None:
    problem = small(batch=2, heads=3, seq_q=5, seq_k=7)
    every = 2 * 3 * 5 * 7 * 64
    assert FORWARD.kernel.work(problem).operations == {"bfloat16": 4 * every}
    assert BACKWARD.kernel.work(problem).operations == {"bfloat16": 10 * every}
    causal = dataclasses.replace(problem, causal=True)
    assert FORWARD.kernel.work(causal).operations == {"bfloat16": 2 * every}
    assert BACKWARD.kernel.work(causal).operations == {"bfloat16": 5 * every}
