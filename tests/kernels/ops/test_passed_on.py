"""Functions are passed on as any other: pickled, copied, sent to other processes, given whatever there is."""

from __future__ import annotations

import copy
import io
import multiprocessing
import pickle
import re
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.testing._internal.two_tensor import TwoTensor

from kernel_pipeline import ops


class Block(torch.nn.Module):
    """A module that holds functions, as people write them."""

    def __init__(self) -> None:
        super().__init__()
        self.act = ops.gelu
        self.attend = ops.attention

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.act(x)
        return out


@pytest.mark.parametrize("name", ops.names())
def test_a_function_is_pickled_and_copied_as_itself(name: str) -> None:
    function = getattr(ops, name)
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        assert pickle.loads(pickle.dumps(function, protocol)) is function
    assert copy.deepcopy(function) is copy.copy(function) is function
    assert getattr(__import__(function.__module__, fromlist=["ops"]), function.__qualname__) is function


def test_a_module_that_holds_functions_is_saved_and_copied() -> None:
    file = io.BytesIO()
    torch.save(Block(), file)
    file.seek(0)
    x = torch.randn(3, 4)
    for made in (torch.load(file, weights_only=False), copy.deepcopy(Block())):
        assert torch.equal(made(x), ops.gelu(x)) and made.attend is ops.attention
    choice = ops.warm(ops.gelu, x)
    assert pickle.loads(pickle.dumps(choice)) == copy.deepcopy(choice) == choice


@pytest.mark.slow
def test_a_process_that_was_spawned_takes_it() -> None:
    x = torch.randn(3, 4)
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        (found,) = pool.map(ops.gelu, [x])
    assert torch.equal(found, ops.gelu(x))


class Plain(torch.Tensor):
    """No more than its data."""


class Refusing(torch.Tensor):
    """A tensor subclass of which nothing can be computed."""

    @classmethod
    def __torch_function__(cls, *_: Any) -> Any:
        return NotImplemented


class Wrapping(torch.Tensor):
    """Whose operators are computed its own way: none of ours."""

    def __new__(cls, inner: torch.Tensor) -> Wrapping:
        made: Wrapping = torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)  # type: ignore[attr-defined]
        return made

    @classmethod
    def __torch_dispatch__(cls, *_: Any) -> Any:
        return NotImplemented


def nested(layout: torch.layout) -> torch.Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        rows = [torch.randn(2, 6), torch.randn(3, 6)]
        made: torch.Tensor = torch.nested.nested_tensor(rows, layout=layout)
        return made


OTHERS: dict[str, Callable[[torch.Tensor], Any]] = {
    "jagged": lambda x: nested(torch.jagged),
    "nested": lambda x: nested(torch.strided),
    "sparse_coo": lambda x: x.to_sparse(),
    "sparse_csr": lambda x: x.to_sparse_csr(),
    "mkldnn": lambda x: x.to_mkldnn(),
    "quantized": lambda x: torch.quantize_per_tensor(x, 0.1, 0, torch.qint8),
    "Refusing": lambda x: x.as_subclass(Refusing),
    "Wrapping": Wrapping,
    "MaskedTensor": lambda x: torch.masked.masked_tensor(x, x > 0),
    "list": lambda x: x.tolist(),
    "ndarray": lambda x: x.numpy(),
    "NoneType": lambda x: None,
}

CALLS: dict[str, Callable[[Any], Any]] = {
    "softmax": ops.softmax,
    "softmax as an operator is called": lambda x: ops.softmax(x, dim=-1),
    "rmsnorm": lambda x: ops.rmsnorm(x, torch.randn(6)),
    "rmsnorm's weight": lambda x: ops.rmsnorm(torch.randn(4, 6), x),
    "vector_add": lambda x: ops.vector_add(torch.randn(4, 6), x),
    "matmul": lambda x: ops.matmul(x, torch.randn(6, 3)),
    "warm": lambda x: ops.warm(ops.softmax, x),
}


CLASSES = ("Refusing", "Wrapping", "MaskedTensor")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("name", "kind"),
    [(name, kind) for name in CALLS for kind in OTHERS if name != "warm" or kind not in CLASSES],
)
def test_what_is_no_dense_tensor_gets_a_sentence(name: str, kind: str) -> None:
    given = OTHERS[kind](torch.randn(4, 6))
    if kind in CLASSES:
        sentence = rf"{kind} does not implement \w+: pass a plain tensor, or .*\."
    elif isinstance(given, torch.Tensor):
        sentence = rf"\w+ must be a dense tensor, not a {kind} tensor: make it dense, or .*\."
    else:
        sentence = rf"\w+ must be a tensor, not {kind}\."
    for _ in range(2):
        with pytest.raises(TypeError) as refused:
            CALLS[name](given)
        assert re.fullmatch(sentence, str(refused.value))


def test_a_class_that_says_how_its_operators_are_computed_is_obeyed() -> None:
    x = torch.randn(4, 6)
    assert isinstance(ops.softmax(x.as_subclass(Plain)), Plain)
    out = ops.vector_add(TwoTensor(x, x + 1), TwoTensor(x, x + 1))
    assert torch.equal(out.a, 2 * x) and torch.equal(out.b, 2 * (x + 1))
    with pytest.raises(NotImplementedError, match="not implemented for 'Int'"):
        ops.softmax(x.int().as_subclass(Plain))
