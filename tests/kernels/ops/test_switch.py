"""One switch lets torch compute every call, and ``explain`` says so; what else torch serves, it says too."""

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch

from kernel_pipeline import ops
from kernel_pipeline.loading import Loaded
from kernel_pipeline.ops import switch
from tests.kernels.ops.test_every_op import OPS, call_of

WITHIN = "torch computes every call within ops.by_torch()."


def plan_of(x: torch.Tensor) -> str:
    return ops.warm(ops.gelu, x).reason


def test_within_the_block_torch_computes_known_calls_too(chosen: Callable[..., list[Any]]) -> None:
    problems = chosen("torch", how="generalised")
    x = torch.randn(4, 6)
    right = torch.nn.functional.gelu(x, approximate="tanh")
    for _ in range(3):
        ops.gelu(x)
    calls = ops.untuned()[0].calls
    with ops.by_torch():
        for _ in range(3):
            torch.testing.assert_close(ops.gelu(x), right)
        with ops.by_torch():
            assert plan_of(x) == WITHIN
        assert plan_of(x) == WITHIN, "the outer block holds"
        assert str(ops.explain(ops.gelu, x)) == f"gelu\n  called     torch\n  because    {WITHIN}"
        torch.testing.assert_close(torch.ops.kernel_pipeline.gelu(x), right)
    assert ops.untuned()[0].calls == calls and len(ops.untuned()) == 1, "these calls are no gaps"
    assert plan_of(x) == "it was planted."
    ops.gelu(x)
    assert ops.untuned()[0].calls == calls + 1 and len(problems) == 1, "its plan was kept"


def test_an_exception_leaves_the_block(chosen: Callable[..., list[Any]]) -> None:
    chosen("torch", how="generalised")
    with pytest.raises(KeyError), ops.by_torch():
        raise KeyError
    assert plan_of(torch.randn(2, 3)) == "it was planted."


def test_a_call_that_began_before_the_block_is_not_recognised_in_it(
    chosen: Callable[..., list[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another thread enters the block while a kind of call is about to be kept."""
    from kernel_pipeline.ops import calls

    chosen("torch", how="generalised")
    x = torch.randn(4, 6)
    entered, leave = threading.Event(), threading.Event()

    def within() -> None:
        with ops.by_torch():
            entered.set()
            leave.wait(60)

    known, thread = calls.known, threading.Thread(target=within)

    def late(*args: Any) -> Any:
        kind = known(*args)
        if not thread.ident:
            thread.start()
            entered.wait(60)
        return kind

    monkeypatch.setattr(calls, "known", late)
    ops.gelu(x)
    assert not ops.function("gelu")._known
    assert plan_of(x) == WITHIN, "the switch is on in all threads"
    leave.set()
    thread.join()


def test_the_variable_switches_for_the_whole_process(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(4, 6)
    for value, is_on in (("1", True), ("0", False), ("", False)):
        monkeypatch.setenv(switch.VARIABLE, value)
        switch._is_set.cache_clear()
        ops.function("gelu").forget()
        assert (plan_of(x) == "torch computes every call, because KERNELS_TORCH is set.") == is_on
    switch._is_set.cache_clear()


def test_compiled_code_obeys_at_run_time(chosen: Callable[..., list[Any]]) -> None:
    problems = chosen("torch")
    torch.compiler.reset()
    x = torch.randn(4, 7)
    compiled = torch.compile(ops.gelu, backend="aot_eager", fullgraph=True)
    with ops.by_torch():
        torch.testing.assert_close(compiled(x), torch.nn.functional.gelu(x, approximate="tanh"))
    assert problems == []
    compiled(x)
    assert len(problems) == 1


@pytest.mark.parametrize("loaded", OPS)
def test_an_explanation_agrees_with_the_call(loaded: Loaded) -> None:
    _, args = call_of(loaded)
    call = getattr(ops, loaded.name)
    if not torch.cuda.is_available():
        assert ops.explain(call, *args).choice == ops.warm(call, *args)
    on_meta = [one.to("meta") if isinstance(one, torch.Tensor) else one for one in args]
    for gpu in ("nvidia-h200", "nvidia-h100-80gb-hbm3"):
        found = ops.explain(call, *on_meta, gpu=gpu)
        assert found.choice.provider in str(found) and gpu in str(found)


def test_what_torch_serves_is_said_in_a_sentence() -> None:
    x = torch.randn(4, 6)
    q = torch.randn(1, 1, 8, 64, dtype=torch.bfloat16, requires_grad=True)
    for found, reason in (
        (ops.explain(ops.softmax, x.double()), "not float64."),
        (ops.explain(ops.softmax, x, 0), "dimension 0 is not the last."),
        (ops.explain(ops.softmax, x, gpu=None), "these tensors are not on a GPU."),
        (ops.explain(ops.attention, q, q, q), "these tensors are not on a GPU."),
        (ops.explain(ops.attention, *[q.float()] * 3), "attention computes this gradient by torch."),
    ):
        assert (found.choice.provider, found.choice.how) in (("torch", "torch"), ("sdpa_flash", "torch"))
        assert str(found).endswith(reason)
    assert ops.explain(ops.attention, q, q, q).kernel == "attention_with_lse"


def test_a_mistake_is_a_sentence_as_in_a_call() -> None:
    x = torch.randn(4, 6)
    for error, sentence, attempt in (
        (ValueError, "is not a function of kernel_pipeline.ops", lambda: ops.explain(torch.softmax, x, -1)),
        (ValueError, "3 is not a function of", lambda: ops.explain(3, x)),  # type: ignore[arg-type]
        (TypeError, "missing a required argument: 'x'", lambda: ops.explain(ops.softmax)),
        (TypeError, "x must be a tensor, not int", lambda: ops.explain(ops.softmax, 3)),
        (ValueError, "arithmetic must be one of", lambda: ops.explain(ops.matmul, x, x.t(), arithmetic="x")),
    ):
        with pytest.raises(error, match=sentence):
            attempt()
