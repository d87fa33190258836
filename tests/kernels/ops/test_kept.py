"""A function keeps no more for the backward pass than torch's own."""

from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
import torch
from torch.nn import functional

from kernel_pipeline import ops
from kernel_pipeline.loading import load

N = 64
Tensors = tuple[torch.Tensor, ...]

MATRIX = (torch.randn(N, N),)
ROWS = (torch.randn(N, N), torch.randn(N), torch.randn(N))
HEADS = tuple(torch.randn(1, 2, N, 64) for _ in range(3))


def packed(kernel: str) -> tuple[Tensors, Callable[..., torch.Tensor]]:
    """The inputs of a product with packed weights, and the product as torch has it."""
    loaded = load(kernel)
    inputs = loaded.inputs(loaded.kernel.problem(m=4 * N, n=N, k=128), torch.device("cpu"), 0)
    module = loaded.module("op.py")
    further = (128, "group_128") if kernel == "matmul_int4" else (128,)
    return inputs, lambda x, *w: x @ module.weights(*w, *further).to(x.dtype).t()


PACKED = {name: packed(name) for name in ("matmul_int4", "matmul_sparse")}

CALLS: dict[str, tuple[Callable[..., Any], Callable[..., Any], Tensors]] = {
    "softmax": (ops.softmax, lambda x: torch.softmax(x, -1), MATRIX),
    "gelu": (ops.gelu, lambda x: functional.gelu(x, approximate="tanh"), MATRIX),
    "square": (ops.square, torch.square, MATRIX),
    "vector_add": (ops.vector_add, torch.add, MATRIX * 2),
    "rmsnorm": (ops.rmsnorm, lambda x, w: functional.rms_norm(x, (N,), w, 1e-6), ROWS[:2]),
    "layernorm": (ops.layernorm, lambda x, w, b: functional.layer_norm(x, (N,), w, b), ROWS),
    "matmul": (ops.matmul, torch.matmul, MATRIX * 2),
    "matmul of vectors": (ops.matmul, torch.matmul, (torch.randn(N), torch.randn(N))),
    "matmul of batches": (ops.matmul, torch.matmul, (torch.randn(2, 1, N, N), torch.randn(3, N, 4))),
    "attention": (ops.attention, functional.scaled_dot_product_attention, HEADS),
    "attention in bfloat16": (
        ops.attention,
        functional.scaled_dot_product_attention,
        tuple(x.bfloat16() for x in HEADS),
    ),
    **{name: (getattr(ops, name), theirs, inputs) for name, (inputs, theirs) in PACKED.items()},
}


def wanted(name: str) -> list[tuple[bool, ...]]:
    """The inputs that may need a gradient: no packed weights."""
    inputs = CALLS[name][2]
    if name in PACKED:
        return [(True, *(False for _ in inputs[1:]))]
    return [one for one in product((True, False), repeat=len(inputs)) if any(one)]


COPIED = {
    *(("matmul of batches", 0), ("matmul of batches", 1), ("rmsnorm", 0)),
    *((name, place) for name in PACKED for place in (1, 2)),
}
"""Arguments of which torch keeps something that it made of them, where the argument itself is kept here: a
change in place of those is an error here alone."""

EVERY = [pytest.param(name, one, id=f"{name} {one}") for name in CALLS for one in wanted(name)]


def given(inputs: Tensors, of: tuple[bool, ...]) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Leaves, and tensors made of them that may be changed in place."""
    leaves = [x.clone().requires_grad_(one) for x, one in zip(inputs, of, strict=True)]
    return leaves, [x * 1 if one else x for x, one in zip(leaves, of, strict=True)]


def kept(call: Callable[..., Any], inputs: Tensors, of: tuple[bool, ...]) -> int:
    """Bytes that a call keeps for its backward pass."""
    held: dict[int, int] = {}
    _, tensors = given(inputs, of)

    def pack(x: torch.Tensor) -> torch.Tensor:
        held[x.untyped_storage().data_ptr()] = x.untyped_storage().nbytes()
        return x

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        out = call(*tensors)
    del out
    return sum(held.values())


@pytest.mark.parametrize(("name", "of"), EVERY)
def test_no_more_is_kept_than_torch_keeps(name: str, of: tuple[bool, ...]) -> None:
    ours, theirs, inputs = CALLS[name]
    assert kept(ours, inputs, of) <= kept(theirs, inputs, of)


@pytest.mark.parametrize(("name", "of"), EVERY)
def test_what_torch_lets_be_changed_in_place_may_be_changed(name: str, of: tuple[bool, ...]) -> None:
    def differentiated(call: Callable[..., Any], changed: int) -> Tensors | None:
        leaves, tensors = given(inputs, of)
        out = call(*tensors)
        with torch.no_grad():
            tensors[changed].add_(1)
        try:
            return torch.autograd.grad(out.float().square().sum(), [x for x in leaves if x.requires_grad])
        except RuntimeError as error:
            assert "modified by an inplace operation" in str(error)
            return None

    ours, theirs, inputs = CALLS[name]
    for place in range(len(inputs)):
        right, found = differentiated(theirs, place), differentiated(ours, place)
        if right is not None and (name, place) not in COPIED:
            assert found is not None, f"argument {place}"
            torch.testing.assert_close(found, right, rtol=0.02, atol=0.02)
