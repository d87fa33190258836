"""What is particular to the 2:4 sparse product: the packing, the tolerance, what fits, what is refused."""

from typing import Any

import pytest
import torch

from kernel_pipeline import loading
from kernel_pipeline.contract import Gpu
from kernels.matmul_sparse.problem import Problem, tolerance
from kernels.matmul_sparse.reference import PLACES, dense, pack, patterns, unpack
from tests.kernels.agreement import agree, wrong

SPARSE = loading.load("matmul_sparse")
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


def transposed(words: list[int]) -> list[int]:
    """What four threads have after the CUDA kernel's exchange of a word each."""

    def permuted(own: int, other: int, selector: int) -> int:
        both = (own | other << 32).to_bytes(8, "little")
        return int.from_bytes(bytes(both[selector >> 4 * i & 7] for i in range(4)), "little")

    by_bytes = [permuted(words[t], words[t ^ 2], 0x6240 if t < 2 else 0x3715) for t in range(4)]
    made = []
    for t in range(4):
        own = 0xF0F0F0F0 if t % 2 else 0x0F0F0F0F
        other = by_bytes[t ^ 1] >> 4 if t % 2 else by_bytes[t ^ 1] << 4
        made.append(by_bytes[t] & own | other & ~own & 0xFFFFFFFF)
    return made


def test_four_threads_exchange_their_places() -> None:
    def places(t: int, half: int) -> list[int]:
        return [(4 * t + i) ^ (9 * half) for i in range(4)]

    def word(t: int) -> int:
        return sum(one << 16 * half + 4 * i for half in range(2) for i, one in enumerate(places(t, half)))

    for t, made in enumerate(transposed([word(t) for t in range(4)])):
        for half in range(2):
            found = [made >> 16 * half + 4 * i & 15 for i in range(4)]
            assert found == [places(i, half)[t] for i in range(4)]


def sparse_product(a: torch.Tensor, b: torch.Tensor, words: list[int], selector: int) -> torch.Tensor:
    """``mma.sp.m16n8k32`` of values, 16 by 16, and 32 by 8, as PTX says that it reads metadata: two threads
    of four have it, each for four groups of both rows."""
    selected = torch.zeros(16, 8, dtype=torch.int64)
    for lane, word in enumerate(words):
        g, t = divmod(lane, 4)
        if t // 2 == selector:
            for half in range(2):
                for place in range(4):
                    selected[g + 8 * half, 4 * (t % 2) + place] = word >> 16 * half + 4 * place & 15
    spread = torch.zeros(16, 8, 4, dtype=torch.float64)
    spread.scatter_(2, torch.stack([selected & 3, selected >> 2], dim=2), a.view(16, 8, 2))
    return spread.view(16, 32) @ b


def multiplied(values: torch.Tensor, metadata: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """16 rows of w times 8 of x, as the CUDA kernel gives a warp's registers to two ``mma.sp.m16n8k32``:
    64 columns."""
    words = [int(word) & 0xFFFFFFFF for word in metadata]
    words = [word for g in range(8) for word in transposed(words[4 * g : 4 * g + 4])]
    total = torch.zeros(16, 8, dtype=torch.float64)
    for instruction in range(2):
        a = torch.zeros(16, 16, dtype=torch.float64)
        b = torch.zeros(32, 8, dtype=torch.float64)
        for lane in range(32):
            g, t = divmod(lane, 4)
            for half in range(2):
                pairs = values[g + 8 * half, 8 * t : 8 * t + 8].view(4, 2)[2 * instruction :][:2]
                a[g + 8 * half, 2 * t : 2 * t + 2] = pairs[0]
                a[g + 8 * half, 2 * t + 8 : 2 * t + 10] = pairs[1]
            for quarter in range(4):
                column = 32 * (quarter % 2) + 4 * (quarter // 2) + 8 * instruction
                column += 16 * (t // 2) + 2 * (t % 2)
                b[8 * quarter + 2 * t : 8 * quarter + 2 * t + 2, g] = x[g, column : column + 2]
        total += sparse_product(a, b, words, instruction)
    return total


def in_order(values: torch.Tensor, metadata: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """The same as Hopper's kernel gives them to two sparse wgmmas: both operands as they lie."""
    words = [int(word) & 0xFFFFFFFF for word in metadata]
    return sum(
        sparse_product(
            values[:, 16 * i : 16 * i + 16].contiguous(), x[:, 32 * i : 32 * i + 32].t(), words, selector=i
        )
        for i in range(2)
    )


@pytest.mark.parametrize("way", [multiplied, in_order])
def test_the_tensor_cores_get_what_belongs_together(way: Any) -> None:
    problem = Problem(m=8, n=16, k=64)
    x, values, metadata = SPARSE.inputs(problem, CPU, 0)
    (exact,) = SPARSE.expected(problem, (x, values, metadata))
    torch.testing.assert_close(way(values.double(), metadata[0, 0], x.double()).t(), exact)


Made = tuple[Problem, tuple[torch.Tensor, ...], torch.Tensor]


def made(**dimensions: Any) -> Made:
    problem = Problem(**{"m": 24, "n": 64, "k": 2048} | dimensions)
    inputs = SPARSE.inputs(problem, CPU, 0)
    (exact,) = SPARSE.expected(problem, inputs)
    return problem, inputs, exact


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
class TestTolerance:
    def test_allows_parts_rounded_to_the_outputs_dtype(self, dtype: str) -> None:
        problem, (x, values, metadata), exact = made(dtype=dtype)
        w = dense(values, metadata).double()
        total = torch.zeros(exact.shape, dtype=x.dtype)
        for p, q in zip(x.double().chunk(8, dim=1), w.chunk(8, dim=1), strict=True):
            total = (total.double() + (p @ q.t()).to(x.dtype).double()).to(x.dtype)
        agree(total, exact, tolerance(problem))

    def test_refuses_other_metadata(self, dtype: str) -> None:
        problem, (x, values, metadata), exact = made(dtype=dtype)
        for other in (metadata.roll(1, dims=2), metadata.roll(1, dims=1)):
            (out,) = SPARSE.expected(problem, (x, values, other))
            assert wrong(out, exact, tolerance(problem)).double().mean() > 0.5

    def test_refuses_a_step_left_out(self, dtype: str) -> None:
        problem, (x, values, metadata), exact = made(dtype=dtype)
        x = x.clone()
        x[:, 128:256] = 0
        (out,) = SPARSE.expected(problem, (x, values, metadata))
        assert wrong(out, exact, tolerance(problem)).double().mean() > 0.5


BASE = Problem(m=16, n=8192, k=8192)
H200 = Gpu(capability=(9, 0), multiprocessors=132, shared_memory=232448, l2_cache=60 << 20)


def test_work_counts_what_is_kept() -> None:
    work = SPARSE.kernel.work(BASE)
    assert work.operations == {"bfloat16": 16 * 8192 * 8192}
    assert work.bytes == 8192 * 8192 * 2 * 9 // 16 + 2 * 16 * 8192 * 2
