"""Options that a function does not have are refused, whoever looks at the call."""

import contextlib
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch._dynamo.exc import TorchRuntimeError
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from kernel_pipeline import ops
from kernels.attention import options as attention_options

ARITHMETICS = "arithmetic must be one of ieee, tf32, fast_accum, not 'no_such'."
CAUSAL = "causal must be one of false, true, not "
TF32 = "tf32 is an arithmetic of float32: bfloat16 is multiplied in full without it."
FAST_ACCUM = "fast_accum is an arithmetic of float8_e4m3fn: sums of float32 are kept in float32."
WINDOW = "window must be the numbers of keys to the left and right, or -1, not "
GROUPS = "granularity group_64 makes 2 groups of k 128, and scales_and_zeros has 1."


@dataclass(frozen=True)
class Refused:
    """A call of a function that it refuses: its tensors, its option, what is said. ``fits`` says whether
    there is such an option for other tensors."""

    name: str
    tensors: Callable[[], tuple[torch.Tensor, ...]]
    options: dict[str, Any]
    said: str
    fits: bool = False

    def __call__(self, *tensors: torch.Tensor) -> Any:
        return getattr(ops, self.name)(*(tensors or self.tensors()), **self.options)


def matrices(dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, ...]:
    return torch.ones(4, 4, dtype=dtype), torch.ones(4, 4, dtype=dtype)


def heads() -> tuple[torch.Tensor, ...]:
    return (torch.ones(1, 1, 4, 8),) * 3


def four_bit() -> tuple[torch.Tensor, ...]:
    return torch.ones(2, 128), torch.zeros(1, 1, 32, 4, dtype=torch.int32), torch.ones(1, 8, 2)


REFUSED = {
    "arithmetic": Refused("matmul", matrices, {"arithmetic": "no_such"}, ARITHMETICS),
    "tf32": Refused("matmul", lambda: matrices(torch.bfloat16), {"arithmetic": "tf32"}, TF32, fits=True),
    "fast_accum": Refused("matmul", matrices, {"arithmetic": "fast_accum"}, FAST_ACCUM, fits=True),
    "granularity": Refused(
        "matmul_int4",
        four_bit,
        {"granularity": "row"},
        "granularity must be one of group_128, group_64, group_32, channel, not 'row'.",
    ),
    "groups": Refused("matmul_int4", four_bit, {"granularity": "group_64"}, GROUPS, fits=True),
    "causal": Refused("attention", heads, {"causal": "no"}, f"{CAUSAL}'no'."),
    "causal, a number": Refused("attention", heads, {"causal": 3}, f"{CAUSAL}3."),
    "causal, none": Refused("attention", heads, {"causal": None}, f"{CAUSAL}None."),
    "causal, a tensor": Refused("attention", heads, {"causal": torch.tensor(True)}, f"{CAUSAL}tensor(True)."),
    "causal, and a window": Refused("attention", heads, {"causal": 3, "window": (1, 1)}, f"{CAUSAL}3."),
    "window": Refused("attention", heads, {"window": (1, -2)}, f"{WINDOW}(1, -2)."),
    "window, a number": Refused("attention", heads, {"window": 3}, f"{WINDOW}3."),
    "scale": Refused("attention", heads, {"scale": "1"}, "scale must be a number or None, not '1'."),
    "ragged, in part": Refused(
        "attention",
        heads,
        {"cu_seqlens": (0, 4)},
        "a ragged batch needs cu_seqlens and max_seqlen, each a pair for queries and keys.",
    ),
    "ragged, as a matrix": Refused(
        "attention",
        heads,
        {"cu_seqlens": (0, 4), "max_seqlen": (4, 4)},
        "q, k and v with options must be (tokens, heads, head_dim) in a ragged batch.",
    ),
    "not of heads": Refused(
        "attention",
        lambda: (torch.ones(1, 4, 8),) * 3,
        {"window": (1, 1)},
        "q, k and v with options must be (batch, heads, seq, head_dim).",
    ),
    **{
        name: Refused("attention", heads, {name: 0.5}, sentence)
        for name, sentence in attention_options.REFUSED.items()
    },
    "attention_with_lse": Refused("attention_with_lse", heads, {"causal": "no"}, f"{CAUSAL}'no'."),
    "attention_backward": Refused(
        "attention_backward",
        lambda: (*heads(), heads()[0], torch.ones(1, 1, 4), heads()[0]),
        {"causal": "no"},
        f"{CAUSAL}'no'.",
    ),
}


class Mode(TorchDispatchMode):
    """Sees each operator, and changes nothing."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


@contextlib.contextmanager
def refuses(said: str) -> Iterator[None]:
    with pytest.raises(ValueError, match=f"^{re.escape(said)}$"):
        yield


def on_cpu(call: Refused) -> None:
    call()


def after_a_good_call(call: Refused) -> None:
    """Where calls of the same tensors are recognised."""
    tensors = call.tensors()
    function = getattr(ops, call.name)
    function(*tensors)
    call(*tensors)


def on_meta(call: Refused) -> None:
    call(*(one.to("meta") for one in call.tensors()))


def on_fake_tensors(call: Refused) -> None:
    with FakeTensorMode() as mode:
        call(*(mode.from_tensor(one) for one in call.tensors()))


def under_a_mode(call: Refused) -> None:
    with Mode():
        call()


def where_a_gradient_is_wanted(call: Refused) -> None:
    first, *others = call.tensors()
    call(first.requires_grad_(), *others)


def under_vmap(call: Refused) -> None:
    first, *others = call.tensors()
    torch.func.vmap(lambda x: call(x, *others))(first[None])


def compiled(call: Refused) -> None:
    torch.compiler.reset()
    try:
        torch.compile(call.__call__, backend="eager")(*call.tensors())
    except TorchRuntimeError as error:  # torch's own, of what an operator says as it is traced
        assert call.fits and call.said in str(error)
        raise ValueError(call.said) from error


def warmed(call: Refused) -> None:
    ops.warm(getattr(ops, call.name), *call.tensors(), **call.options)


PATHS = (
    on_cpu,
    after_a_good_call,
    on_meta,
    on_fake_tensors,
    under_a_mode,
    where_a_gradient_is_wanted,
    under_vmap,
    compiled,
    warmed,
)


ON_EVERY_PATH = ("tf32", "groups", "causal", "window", "attention_with_lse", "attention_backward")
"""A refusal of each function, by a word that others take and by one that nobody takes."""


@pytest.mark.parametrize(
    ("name", "path"),
    [
        *((name, path) for name in ON_EVERY_PATH for path in PATHS),
        *((name, on_cpu) for name in REFUSED if name not in ON_EVERY_PATH),
    ],
    ids=lambda one: one if isinstance(one, str) else one.__name__,
)
def test_what_there_is_not_is_refused(name: str, path: Callable[[Refused], None]) -> None:
    for _ in range(2):  # a call that was refused is not known after it
        with refuses(REFUSED[name].said):
            path(REFUSED[name])


def test_a_number_of_one_truth_value_is_that() -> None:
    q = torch.randn(1, 1, 4, 8)
    torch.testing.assert_close(ops.attention(q, q, q, causal=1), ops.attention(q, q, q, causal=True))


def test_one_scale_is_refused() -> None:
    a, b = matrices()
    with refuses("scale_a and scale_b go together: scale_b is missing."):
        ops.matmul(a, b, torch.ones(()))
    with refuses("scale_a and scale_b go together: scale_a is missing."):
        ops.matmul(a, b, scale_b=torch.ones(()))
