"""What only a GPU can show of attention: long sequences, every shape that is measured, and real backends."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch

import kernels
from kernels.attention import Problem
from kernels.contract import Provider
from tests.kernels.kernel_cases import gpu, tolerances

pytestmark = pytest.mark.gpu

CUDA = torch.device("cuda")
LOADED = [kernels.load(name) for name in ("attention", "attention_backward")]
PROVIDERS = [
    pytest.param(loaded, provider, id=f"{loaded.name}-{provider.name}")
    for loaded in LOADED
    for provider in loaded.kernel.providers
]
SHAPES: list[dict[str, Any]] = [
    {"batch": 2, "heads": 4, "seq_q": 4096, "head_dim": 128},
    {"batch": 2, "heads": 4, "seq_q": 2048, "head_dim": 64},
    {"batch": 2, "heads": 16, "kv_heads": 2, "seq_q": 1500, "head_dim": 128},
    {"batch": 1, "heads": 2, "seq_q": 1023, "seq_k": 2049, "head_dim": 64},
    {"batch": 16, "heads": 32, "kv_heads": 8, "seq_q": 1, "seq_k": 8192, "head_dim": 128},
]


def made(dimensions: dict[str, Any], causal: bool, dtype: str = "bfloat16") -> Problem:
    given = {"kv_heads": dimensions["heads"], "seq_k": dimensions["seq_q"]} | dimensions
    return Problem(**given, causal=causal, dtype=dtype)


def fitting(provider: Provider, problem: Problem) -> dict[str, Any]:
    """The defaults, or smaller blocks where they do not fit; skips the test if nothing does."""
    here = gpu()
    if here is None or provider.runs_on(here) or not provider.is_installed:
        pytest.skip("it does not run here")
    if provider.parameters is None:
        if reason := provider.fits(problem, None, here):
            pytest.skip(reason)
        return {}
    for smaller in ({}, {"block_m": 64, "num_warps": 4}, {"block": 64, "num_warps": 4}, {"split_k": 2}):
        if smaller.keys() <= provider.variables().keys():
            parameters = provider.parameters(**smaller)
            if provider.fits(problem, parameters, here) is None:
                return dataclasses.asdict(parameters)
    pytest.skip("nothing fits")


def check(loaded: kernels.Loaded, provider: Provider, problem: Problem) -> None:
    parameters = fitting(provider, problem)
    inputs = loaded.inputs(problem, CUDA, 0)
    outputs = kernels.as_tuple(loaded.entry(provider)(*inputs, causal=problem.causal, **parameters))
    allowed = tolerances(loaded.kernel, problem, len(outputs))
    for out, exact, within in zip(outputs, loaded.expected(problem, inputs), allowed, strict=True):
        error = (out.double() - exact).abs() - within.rtol * exact.abs()
        assert error.max() <= within.atol


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dimensions", SHAPES, ids=str)
@pytest.mark.parametrize(("loaded", "provider"), PROVIDERS)
def test_agrees_at_full_size(
    loaded: kernels.Loaded, provider: Provider, dimensions: dict[str, Any], causal: bool
) -> None:
    check(loaded, provider, made(dimensions, causal))


@pytest.mark.parametrize(("loaded", "provider"), PROVIDERS)
def test_agrees_in_float16(loaded: kernels.Loaded, provider: Provider) -> None:
    check(loaded, provider, made(SHAPES[0], causal=True, dtype="float16"))


@pytest.mark.parametrize("loaded", LOADED, ids=lambda loaded: loaded.name)
def test_own_kernels_give_the_same_twice(loaded: kernels.Loaded) -> None:
    problem = made(SHAPES[0], causal=True)
    inputs = loaded.inputs(problem, CUDA, 0)
    here = gpu()
    assert here is not None
    for provider in loaded.kernel.providers:
        if not provider.is_own or provider.runs_on(here) or provider.name == "triton_split_k":
            continue
        parameters = fitting(provider, problem)
        entry = loaded.entry(provider)
        first = kernels.as_tuple(entry(*inputs, causal=True, **parameters))
        for _ in range(3):
            again = kernels.as_tuple(entry(*inputs, causal=True, **parameters))
            assert all(map(torch.equal, first, again)), provider.name


def test_past_two_to_the_31_elements() -> None:
    """Keys of 2**31 elements and more: the last head's are further away than 32 bits count."""
    if torch.cuda.mem_get_info()[0] < 30 * 2**30:
        pytest.skip("needs 30 GiB of free GPU memory")
    forward = LOADED[0]
    problem = made({"batch": 1, "heads": 17, "seq_q": 1, "seq_k": 2**20, "head_dim": 128}, causal=False)
    inputs = forward.inputs(problem, CUDA, 0)
    allowed = forward.kernel.tolerance(problem)
    assert not isinstance(allowed, tuple)
    (exact,) = forward.expected(problem, inputs)
    for name, parameters in (
        ("triton_split_k", {"split_k": 16, "block_n": 64, "num_warps": 4, "num_stages": 3}),
        ("triton_flash", {"block_m": 64, "block_n": 64, "num_warps": 4, "num_stages": 2}),
    ):
        out = forward.entry(forward.kernel.provider(name))(*inputs, causal=False, **parameters)
        assert ((out.double() - exact).abs() <= allowed.atol + allowed.rtol * exact.abs()).all(), name
