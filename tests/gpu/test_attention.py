"""Attention on a GPU: long sequences, every measured shape, and real backends."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
import torch

from kernel_pipeline import loading
from kernel_pipeline.contract import Provider
from kernels.attention.parameters import CUDA_TILES, Problem, WarpSpecialized
from tests.gpu_sharing import much_memory
from tests.kernels.agreement import agree
from tests.kernels.kernel_cases import Case, gpu, tolerances

pytestmark = pytest.mark.gpu

CUDA = torch.device("cuda")
LOADED = [loading.load(name) for name in ("attention", "attention_backward", "attention_with_lse")]
PROVIDERS = [
    pytest.param(loaded, provider, id=f"{loaded.name}-{provider.name}")
    for loaded in LOADED
    for provider in loaded.kernel.providers
]
SHAPES: list[dict[str, Any]] = [
    {"batch": 2, "heads": 4, "seq_q": 4096, "head_dim": 128},
    {"batch": 2, "heads": 4, "seq_q": 2048, "head_dim": 64},
    {"batch": 2, "heads": 4, "seq_q": 1000, "head_dim": 96},
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
    for smaller in (
        {},
        {"block_m": 64, "num_warps": 4},
        {"block": 64, "num_warps": 4},
        {"split_k": 2},
        {"block_m": 128},
        {"block_m": 192},
    ):
        if smaller.keys() <= provider.variables().keys():
            parameters = provider.parameters(**smaller)
            if provider.fits(problem, parameters, here) is None:
                return dataclasses.asdict(parameters)
    pytest.skip("nothing fits")


def check(loaded: loading.Loaded, provider: Provider, problem: Problem) -> None:
    parameters = fitting(provider, problem)
    inputs = loaded.inputs(problem, CUDA, 0)
    outputs = Case(loaded, provider).call(problem, inputs, parameters)
    allowed = tolerances(loaded.kernel, problem, len(outputs))
    with much_memory():
        for out, exact, within in zip(outputs, loaded.expected(problem, inputs), allowed, strict=True):
            error = (out.double() - exact).abs() - within.rtol * exact.abs()
            assert error.max() <= within.atol
        del exact, error


@pytest.mark.parametrize(
    ("dimensions", "causal"),
    [(SHAPES[0], False), *zip(SHAPES, (True, True, False, True, True, False), strict=True)],
    ids=str,
)
@pytest.mark.parametrize(("loaded", "provider"), PROVIDERS)
def test_agrees_at_full_size(
    loaded: loading.Loaded, provider: Provider, dimensions: dict[str, Any], causal: bool
) -> None:
    check(loaded, provider, made(dimensions, causal))


@pytest.mark.parametrize(("loaded", "provider"), PROVIDERS)
def test_agrees_in_float16(loaded: loading.Loaded, provider: Provider) -> None:
    check(loaded, provider, made(SHAPES[0], causal=True, dtype="float16"))


@pytest.mark.parametrize("loaded", LOADED, ids=lambda loaded: loaded.name)
def test_own_kernels_give_the_same_twice(loaded: loading.Loaded) -> None:
    problem = made(SHAPES[0], causal=True)
    inputs = loaded.inputs(problem, CUDA, 0)
    here = gpu()
    assert here is not None
    for provider in loaded.kernel.providers:
        if not provider.is_own or provider.runs_on(here) or provider.name == "triton_split_k":
            continue
        parameters = fitting(provider, problem)
        if "deterministic" in parameters:
            parameters["deterministic"] = True
        case = Case(loaded, provider)
        first = case.call(problem, inputs, parameters)
        for _ in range(3):
            again = case.call(problem, inputs, parameters)
            assert all(map(torch.equal, first, again)), provider.name


FLASH = Case(LOADED[0], LOADED[0].kernel.provider("cuda_flash"))
PACKED = [Case(LOADED[i], LOADED[i].kernel.provider("cuda_flash_packed")) for i in (0, 2)]
LENGTHS = [
    pytest.param((1, 1, 1, 1, 1), id="one of each"),
    pytest.param((2, 3, 1, 77, 77), id="a part of a tile"),
    pytest.param((1, 2, 2, 128, 128), id="a tile"),
    pytest.param((2, 4, 2, 300, 1000), id="tiles that end within a block of keys"),
    pytest.param((1, 2, 1, 5, 1409), id="few queries at the end of many keys"),
    pytest.param((9, 20, 5, 333, 400), id="several tiles a multiprocessor"),
]
OF_DTYPES = [
    pytest.param(*one.values, dtype, id=f"{one.id}-{dtype}")
    for dtype, some in (("bfloat16", LENGTHS), ("float16", LENGTHS[-1:]))
    for one in some
]
"""Both dtypes take the same instructions but for the product's, so one length tells of float16."""


def lengths_of(
    lengths: tuple[int, int, int, int, int], head_dim: int, causal: bool, dtype: str = "bfloat16"
) -> Problem:
    """A problem of some batch entries, heads, key heads, queries and keys."""
    names = ("batch", "heads", "kv_heads", "seq_q", "seq_k")
    return Problem(**dict(zip(names, lengths, strict=True)), head_dim=head_dim, causal=causal, dtype=dtype)


def flash(
    problem: Problem,
    tiles: tuple[int, int, int],
    inputs: loading.Tensors | None = None,
    expected: loading.Tensors | None = None,
) -> torch.Tensor:
    """cuda_flash gives the reference's answer for block_m, block_n and stages, or the test is skipped."""
    if not FLASH.runs_here:
        pytest.skip("needs Hopper")
    parameters = WarpSpecialized(block_m=tiles[0], block_n=tiles[1], stages=tiles[2])
    if reason := FLASH.provider.fits(problem, parameters, gpu()):
        pytest.skip(reason)
    given = FLASH.inputs(problem) if inputs is None else inputs
    return FLASH.verify(problem, given, dataclasses.asdict(parameters), expected)[0]


@pytest.mark.builds
@pytest.mark.parametrize("head_dim", CUDA_TILES)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
    "lengths", [(32, 64, 1, 28, 28), (2, 6, 2, 77, 300), (2, 8, 2, 150, 389), (3, 4, 1, 1, 1409)]
)
@pytest.mark.parametrize("case", PACKED, ids=lambda case: case.loaded.name)
def test_packed_queries(
    case: Case, lengths: tuple[int, int, int, int, int], causal: bool, head_dim: int
) -> None:
    problem = lengths_of(lengths, head_dim, causal=causal)
    parameters = fitting(case.provider, problem)
    q, k, v = case.inputs(problem)
    for given in (q, q.transpose(1, 2).contiguous().transpose(1, 2)):
        case.verify(problem, (given, k, v), parameters)


@pytest.mark.builds
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("lengths", "dtype"), OF_DTYPES)
@pytest.mark.parametrize("head_dim", CUDA_TILES)
def test_cuda_flash_tiles(
    head_dim: int, dtype: str, lengths: tuple[int, int, int, int, int], causal: bool
) -> None:
    if not FLASH.runs_here:
        pytest.skip("needs Hopper")
    problem = lengths_of(lengths, head_dim, causal, dtype)
    inputs = FLASH.inputs(problem)
    expected = FLASH.in_form.expected(problem, inputs)
    tried = 0
    for (block_m, block_n), stages in product(CUDA_TILES[head_dim], (2, 3, 4)):
        parameters = WarpSpecialized(block_m=block_m, block_n=block_n, stages=stages)
        if FLASH.provider.fits(problem, parameters, gpu()) is None:
            flash(problem, (block_m, block_n, stages), inputs, expected)
            tried += 1
    # A tile larger than the problem is not tried.
    are_all = min(problem.seq_q, problem.seq_k) >= max(map(max, CUDA_TILES[head_dim]))
    assert tried >= (len(CUDA_TILES[head_dim]) if are_all else 1)


def between(x: torch.Tensor) -> torch.Tensor:
    """Heads between rows, as a projection leaves them."""
    return x.transpose(1, 2).contiguous().transpose(1, 2)


def shifted(x: torch.Tensor) -> torch.Tensor:
    """Rows that begin at no multiple of 16 bytes."""
    return torch.nn.functional.pad(x, (3, 5))[..., 3:-5]


def apart(x: torch.Tensor) -> torch.Tensor:
    """Rows whose elements are not neighbours."""
    return x.mT.contiguous().mT


def padded(x: torch.Tensor) -> torch.Tensor:
    """NaN around the rows and the elements of each head."""
    return torch.nn.functional.pad(x, (8, 16, 2, 1), value=float("nan"))[..., 2:-1, 8:-16]


@pytest.mark.builds
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("head_dim", CUDA_TILES)
@pytest.mark.parametrize("lying", [between, shifted, apart, padded])
def test_cuda_flash_takes_every_layout(
    lying: Callable[[torch.Tensor], torch.Tensor], head_dim: int, causal: bool
) -> None:
    problem = lengths_of((2, 4, 4, 200, 300), head_dim, causal)
    q, k, v = FLASH.inputs(problem)
    expected = flash(problem, (128, 128, 2), (q, k, v))
    out = flash(problem, (128, 128, 2), (lying(q), lying(k), lying(v)))
    assert torch.equal(out, expected)
    assert (out.transpose(1, 2) if lying is between else out).is_contiguous()


@pytest.mark.builds
@pytest.mark.parametrize("causal", [False, True])
def test_cuda_flash_takes_heads_that_share_memory(causal: bool) -> None:
    problem = lengths_of((2, 4, 4, 200, 300), 128, causal)
    q, k, v = FLASH.inputs(problem)
    flash(problem, (128, 128, 2), (q, k[:, :1].expand(k.shape), v[:, :1].expand(v.shape)))


@pytest.mark.builds
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("head_dim", CUDA_TILES)
def test_cuda_flash_takes_large_scores(head_dim: int, causal: bool) -> None:
    """Scores of hundreds, whose exponentials are beyond float32: the largest first, last or anywhere."""
    problem = lengths_of((1, 2, 2, 300, 700), head_dim, causal)
    q, k, v = FLASH.inputs(problem)
    rising = torch.linspace(0, 1, 700, device=CUDA, dtype=q.dtype)[:, None]
    for keys in (20 * k, 20 * k.abs() * rising, 20 * k.abs() * (1 - rising), -20 * k.abs(), 0 * k):
        out = flash(problem, (128, 128, 2), (q.abs(), keys, v))
        assert out.isfinite().all()


@pytest.mark.builds
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
    ("head_dim", "tiles"),
    [
        (64, (192, 128, 3)),
        (96, (128, 192, 2)),
        (96, (192, 112, 3)),
        (128, (128, 128, 2)),
        (128, (128, 176, 2)),
    ],
)
def test_cuda_flash_gives_the_same_bits_each_time(
    head_dim: int, tiles: tuple[int, int, int], causal: bool
) -> None:
    """A race of copies, products and turns would show in some of many calls."""
    problem = lengths_of((4, 16, 4, 700, 900), head_dim, causal)
    inputs = FLASH.inputs(problem)
    first = flash(problem, tiles, inputs)
    parameters = dict(zip(("block_m", "block_n", "stages"), tiles, strict=True))
    for _ in range(200):
        assert torch.equal(FLASH.call(problem, inputs, parameters)[0], first)


@pytest.mark.builds
def test_cuda_flash_past_two_to_the_31_elements() -> None:
    """Queries and outputs of 2**31 elements and more: the last are further away than 32 bits count."""
    if not FLASH.runs_here:
        pytest.skip("needs Hopper")
    with much_memory():
        _flash_past_two_to_the_31_elements()


def _flash_past_two_to_the_31_elements() -> None:
    if torch.cuda.mem_get_info()[0] < 20 * 2**30:
        pytest.skip("needs 20 GiB of free GPU memory")
    problem = lengths_of((2, 66, 2, 2**17, 130), 128, causal=False)
    q = torch.randn(problem.shape, device=CUDA, dtype=torch.bfloat16)
    k, v = (torch.randn(shape, device=CUDA, dtype=torch.bfloat16) for shape in problem.shapes[1:])
    (out,) = FLASH.call(problem, (q, k, v), {"block_m": 128, "block_n": 128, "stages": 2})
    rows = lengths_of((1, 1, 1, 500, 130), 128, causal=False)
    (exact,) = LOADED[0].expected(rows, (q[-1:, -1:, -500:], k[-1:, -1:], v[-1:, -1:]))
    FLASH.check((out[-1:, -1:, -500:],), (exact,), rows)


@pytest.mark.builds
def test_cuda_flash_refuses_tiles_that_there_are_none_of() -> None:
    if not FLASH.runs_here:
        pytest.skip("needs Hopper")
    problem = lengths_of((1, 1, 1, 64, 64), 64, causal=False)
    with pytest.raises(RuntimeError, match="no tiles of 128 queries and 176 keys for a head_dim of 64"):
        FLASH.call(problem, FLASH.inputs(problem), {"block_m": 128, "block_n": 176, "stages": 2})


def test_past_two_to_the_31_elements() -> None:
    """Keys of 2**31 elements and more: the last head's are further away than 32 bits count."""
    with much_memory():
        _past_two_to_the_31_elements()


def _past_two_to_the_31_elements() -> None:
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
        agree(out, exact, allowed)
