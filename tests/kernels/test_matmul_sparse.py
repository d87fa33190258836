"""What is particular to the 2:4 sparse product: the packing, the tolerance, what fits, what is refused."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch

import kernels
from kernels.matmul_sparse import (
    Algorithm,
    Problem,
    Tiles,
    Warps,
    cusparselt_fits,
    tiles_fit,
    tolerance,
    warps_fit,
)
from kernels.matmul_sparse.reference import PLACES, dense, pack, patterns, unpack

SPARSE = kernels.load("matmul_sparse")
CPU = torch.device("cpu")


@pytest.mark.parametrize(("n", "k"), [(16, 64), (32, 192), (19, 300), (1, 1)])
def test_what_is_packed_can_be_unpacked(n: int, k: int) -> None:
    codes = patterns(Problem(m=1, n=n, k=k), CPU, 0)
    assert torch.equal(unpack(pack(codes), n), codes)


def test_two_of_four_are_kept_in_their_order() -> None:
    problem = Problem(m=1, n=48, k=256)
    _, values, metadata = SPARSE.inputs(problem, CPU, 0)
    w = dense(values, metadata)
    kept = w.view(48, 64, 4) != 0
    assert (kept.sum(dim=2) == 2).all()
    assert torch.equal(w[w != 0].view(values.shape), values)
    # Each of the six patterns about as often as the others.
    seen = [kept[..., first] & kept[..., second] for first, second in PLACES]
    assert all(0.12 < one.double().mean() < 0.21 for one in seen)


def multiplied(values: torch.Tensor, metadata: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """16 rows of w times 8 of x, as the CUDA kernel gives a warp's registers to two ``mma.sp.m16n8k32``,
    and as PTX says that these read them: 64 columns."""
    total = torch.zeros(16, 8, dtype=torch.float64)
    for instruction in range(2):
        a = torch.zeros(16, 16, dtype=torch.float64)
        b = torch.zeros(32, 8, dtype=torch.float64)
        selected = torch.zeros(16, 8, dtype=torch.int64)
        for lane in range(32):
            g, t = divmod(lane, 4)
            for half in range(2):
                words = values[g + 8 * half, 8 * t : 8 * t + 8].view(4, 2)[2 * instruction :][:2]
                a[g + 8 * half, 2 * t : 2 * t + 2] = words[0]
                a[g + 8 * half, 2 * t + 8 : 2 * t + 10] = words[1]
            for quarter in range(4):
                column = 32 * (quarter % 2) + 4 * (quarter // 2) + 8 * instruction
                column += 16 * (t // 2) + 2 * (t % 2)
                b[8 * quarter + 2 * t : 8 * quarter + 2 * t + 2, g] = x[g, column : column + 2]
            # The selector names two threads of four; each has four groups of both rows.
            if t // 2 == instruction:
                for half in range(2):
                    bits = int(metadata[lane]) >> 16 * half
                    for place in range(4):
                        selected[g + 8 * half, 4 * (t % 2) + place] = bits >> 4 * place & 15
        spread = torch.zeros(16, 8, 4, dtype=torch.float64)
        spread.scatter_(2, torch.stack([selected & 3, selected >> 2], dim=2), a.view(16, 8, 2))
        total += spread.view(16, 32) @ b
    return total


def test_the_tensor_cores_get_what_belongs_together() -> None:
    problem = Problem(m=8, n=16, k=64)
    x, values, metadata = (tensor.double() for tensor in SPARSE.inputs(problem, CPU, 0))
    metadata = metadata.long()
    (exact,) = SPARSE.expected(problem, (x, values, metadata.int()))
    torch.testing.assert_close(multiplied(values, metadata[0, 0], x).t(), exact)


Made = tuple[Problem, tuple[torch.Tensor, ...], torch.Tensor]


def made(**dimensions: Any) -> Made:
    problem = Problem(**{"m": 24, "n": 64, "k": 2048} | dimensions)
    inputs = SPARSE.inputs(problem, CPU, 0)
    (exact,) = SPARSE.expected(problem, inputs)
    return problem, inputs, exact


def wrong(out: torch.Tensor, exact: torch.Tensor, problem: Problem) -> torch.Tensor:
    allowed = tolerance(problem)
    return (out.double() - exact).abs() > allowed.atol + allowed.rtol * exact.abs()


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
class TestTolerance:
    def test_allows_parts_rounded_to_the_outputs_dtype(self, dtype: str) -> None:
        problem, (x, values, metadata), exact = made(dtype=dtype)
        w = dense(values, metadata).double()
        total = torch.zeros(exact.shape, dtype=x.dtype)
        for p, q in zip(x.double().chunk(8, dim=1), w.chunk(8, dim=1), strict=True):
            total = (total.double() + (p @ q.t()).to(x.dtype).double()).to(x.dtype)
        assert not wrong(total, exact, problem).any()

    def test_refuses_other_metadata(self, dtype: str) -> None:
        problem, (x, values, metadata), exact = made(dtype=dtype)
        for other in (metadata.roll(1, dims=2), metadata.roll(1, dims=1)):
            (out,) = SPARSE.expected(problem, (x, values, other))
            assert wrong(out, exact, problem).double().mean() > 0.5

    def test_refuses_a_step_left_out(self, dtype: str) -> None:
        problem, (x, values, metadata), exact = made(dtype=dtype)
        x = x.clone()
        x[:, 128:256] = 0
        (out,) = SPARSE.expected(problem, (x, values, metadata))
        assert wrong(out, exact, problem).double().mean() > 0.5


BASE = Problem(m=16, n=8192, k=8192)


@pytest.mark.parametrize(
    ("dimensions", "fits", "parameters", "sentence"),
    [
        ({}, cusparselt_fits, Algorithm(), None),
        (
            {"m": 1},
            cusparselt_fits,
            Algorithm(),
            "cuSPARSELt takes multiples of 16 for m and of 32 for n and k: m is 1",
        ),
        ({}, tiles_fit, Tiles(), None),
        ({}, tiles_fit, Tiles(block_m=32), "a smaller block does: block_m 32 > 16 for m = 16"),
        ({}, warps_fit, Warps(), None),
        ({"k": 8256}, warps_fit, Warps(), "k must be a multiple of 128: 8256 is none"),
        ({"n": 8200}, warps_fit, Warps(), "n must be a multiple of 16: 8200 is none"),
        ({"m": 33}, warps_fit, Warps(), "keeps the sums of all rows of x in registers: m 33 > 32"),
        ({"m": 17}, warps_fit, Warps(warps_k=16), "too much for the registers: warps_k 16 at m 17"),
        ({"k": 512}, warps_fit, Warps(), "fewer warps do: warps_k 8 x split_k 1 > 4 steps"),
    ],
)
def test_what_fits(dimensions: dict[str, Any], fits: Any, parameters: Any, sentence: str | None) -> None:
    assert fits(dataclasses.replace(BASE, **dimensions), parameters, None) == sentence


@pytest.mark.parametrize("name", ["triton_gemm", "cuda"])
@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        (lambda x, values, metadata: (x[0], values, metadata), r"needs x \(m, k\)"),
        (lambda x, values, metadata: (x, values, metadata.long()), "int32 for metadata"),
        (lambda x, values, metadata: (x, values[:, :8], metadata), r"needs values \(16, 32\)"),
        (lambda x, values, metadata: (x, values, metadata[:, :, :8]), r"metadata \(1, 1, 32\)"),
        (lambda x, values, metadata: (x.half(), values, metadata), "got float16, bfloat16, int32"),
    ],
)
def test_refuses(name: str, changed: Any, sentence: str) -> None:
    provider = SPARSE.kernel.provider(name)
    assert provider.parameters is not None
    inputs = changed(*SPARSE.inputs(Problem(m=2, n=16, k=64), CPU, 0))
    with pytest.raises(ValueError, match=sentence):
        getattr(SPARSE.module(provider.file), provider.function)(
            *inputs, **dataclasses.asdict(provider.parameters())
        )


def test_work_counts_what_is_kept() -> None:
    work = SPARSE.kernel.work(BASE)
    assert work.operations == {"bfloat16": 16 * 8192 * 8192}
    assert work.bytes == 8192 * 8192 * 2 * 9 // 16 + 2 * 16 * 8192 * 2
