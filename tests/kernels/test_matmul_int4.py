"""What is particular to the four-bit product: the packing, the tolerance, what fits, what is refused."""

import enum
import sys
from typing import Any

import pytest
import torch

from kernel_pipeline import loading
from kernel_pipeline.contract import Gpu
from kernels.matmul_int4.problem import Problem, tolerance
from kernels.matmul_int4.reference import MIDDLE, dequantised, pack, unpack
from tests.kernels.agreement import agree, wrong

INT4 = loading.load("matmul_int4")
CPU = torch.device("cpu")
H200 = Gpu(capability=(9, 0), multiprocessors=132, shared_memory=232448, l2_cache=60 << 20)


def drawn(n: int, k: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(5)
    return torch.randint(0, 16, (n, k), dtype=torch.int32, generator=generator)


@pytest.mark.parametrize(("n", "k"), [(8, 128), (16, 256), (19, 300), (1, 1)])
def test_what_is_packed_can_be_unpacked(n: int, k: int) -> None:
    q = drawn(n, k)
    assert torch.equal(unpack(pack(q), n, k), q)


def test_what_is_lacking_to_whole_tiles_stands_for_the_zero() -> None:
    whole = unpack(pack(drawn(19, 300)), 24, 384)
    assert (whole[19:] == MIDDLE).all()
    assert (whole[:, 300:] == MIDDLE).all()


@pytest.mark.parametrize("row", [0, 7, 8, 13])
@pytest.mark.parametrize("column", [0, 1, 2, 8, 9, 15, 16, 31, 32, 127, 128, 201])
def test_where_a_weight_lies(row: int, column: int) -> None:
    """As a lane of a warp holds it for mma.m16n8k16: by torch's matrix_to_m16n8k16_Bint4_layout."""
    q = torch.zeros(16, 256, dtype=torch.int32)
    q[row, column] = 15
    packed = pack(q)
    lane = row % 8 * 4 + column % 8 // 2
    # A lane holds eight values of two steps of 16 columns, the even ones first.
    value = column % 32 // 8 * 2 + column % 2
    place = (0, 2, 4, 6, 1, 3, 5, 7).index(value)
    word = int(packed[row // 8, column // 128, lane, column % 128 // 32]) & 0xFFFFFFFF
    assert word == 15 << 4 * place
    assert packed.count_nonzero() == 1


def test_a_tensor_core_gets_its_operand_as_the_cuda_kernel_takes_it_apart() -> None:
    """The registers of mma.m16n8k16's first operand, lane by lane as PTX defines them, out of two words."""
    q = drawn(16, 128)
    packed = pack(q)
    for lane in range(32):
        g, t = divmod(lane, 4)
        for p in range(4):
            upper, lower = (int(packed[half, 0, lane, p]) for half in range(2))
            for h in range(2):
                registers = [(upper, 2 * h), (lower, 2 * h), (upper, 2 * h + 1), (lower, 2 * h + 1)]
                corners = [(g, 0), (g + 8, 0), (g, 8), (g + 8, 8)]
                for (word, place), (row, column) in zip(registers, corners, strict=True):
                    pair = (word >> 4 * place) & 0x000F000F
                    first = 32 * p + 16 * h + column + 2 * t
                    assert [pair & 15, pair >> 16] == q[row, first : first + 2].tolist()


Made = tuple[Problem, tuple[torch.Tensor, ...], torch.Tensor]


def made(**dimensions: Any) -> Made:
    problem = Problem(**{"m": 24, "n": 64, "k": 2048} | dimensions)
    inputs = INT4.inputs(problem, CPU, 0)
    (exact,) = INT4.expected(problem, inputs)
    return problem, inputs, exact


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("granularity", ["group_128", "group_32", "channel"])
class TestTolerance:
    def test_allows_weights_rounded_twice(self, dtype: str, granularity: str) -> None:
        problem, (x, packed, scales), exact = made(dtype=dtype, granularity=granularity)
        q = unpack(packed, problem.n, problem.k)
        scaled = dequantised(q, scales * torch.tensor([1, 0], dtype=x.dtype), granularity).to(x.dtype)
        zeros = dequantised(q, scales * torch.tensor([0, 1], dtype=x.dtype), granularity)
        w = (scaled.double() + zeros).to(x.dtype)
        agree((x.double() @ w.double().t()).to(x.dtype), exact, tolerance(problem))

    def test_refuses_the_next_groups_scales(self, dtype: str, granularity: str) -> None:
        problem, (x, packed, scales), exact = made(dtype=dtype, granularity=granularity)
        rolled = scales.roll(1, dims=1 if granularity == "channel" else 0)
        (out,) = INT4.expected(problem, (x, packed, rolled))
        assert wrong(out, exact, tolerance(problem)).double().mean() > 0.5

    def test_refuses_weights_read_in_another_order(self, dtype: str, granularity: str) -> None:
        problem, (x, packed, scales), exact = made(dtype=dtype, granularity=granularity)
        for spoilt in (packed.flip(3), packed.roll(1, dims=2), packed << 4 | (packed >> 28 & 15)):
            (out,) = INT4.expected(problem, (x, spoilt, scales))
            assert wrong(out, exact, tolerance(problem)).double().mean() > 0.5

    def test_refuses_a_step_left_out(self, dtype: str, granularity: str) -> None:
        problem, (x, packed, scales), exact = made(dtype=dtype, granularity=granularity)
        x = x.clone()
        x[:, 128:256] = 0
        (out,) = INT4.expected(problem, (x, packed, scales))
        assert wrong(out, exact, tolerance(problem)).double().mean() > 0.5


def test_the_inputs_weights_have_a_variance_of_one() -> None:
    problem, (_, packed, scales), _ = made(n=512)
    w = dequantised(unpack(packed, problem.n, problem.k), scales, problem.granularity)
    assert w.var().item() == pytest.approx(1.0, abs=0.05)


BASE = Problem(m=16, n=8192, k=8192)


class StandIn:
    """gemlite as far as the provider calls it: a layer that tells its form, and the product of that form."""

    class DType(enum.Enum):
        FP16 = 1
        BF16 = 2

    class GemLiteLinear:
        def __init__(
            self, W_nbits: int, group_size: int, in_features: int, out_features: int, **dtypes: Any
        ) -> None:
            self.told = [W_nbits, group_size, in_features, out_features]
            self.dtypes = [dtypes["input_dtype"].value, dtypes["output_dtype"].value]
            self.elements_per_sample = self.W_group_mode = self.channel_scale_mode = -1
            self.data_contiguous = False

        def get_meta_args(self) -> list[int]:
            form = [self.elements_per_sample, self.W_group_mode, self.channel_scale_mode]
            return [*self.told, *self.dtypes, *form, int(self.data_contiguous)]

    @staticmethod
    def forward_functional(
        x: torch.Tensor, bias: None, tensors: list[torch.Tensor], meta: list[int]
    ) -> torch.Tensor:
        words, scales, zeros = tensors
        bits, group, k, n, of_input, of_output, per_word, group_mode, channel_mode, contiguous = meta
        assert (bits, k, n, per_word) == (4, x.shape[1], words.shape[1], 8)
        # 4 stands for q * scale + zero, a scale and a zero for each group of each column.
        assert (group_mode, channel_mode, contiguous) == (4, 0, 1)
        assert of_input == of_output == {torch.float16: 1, torch.bfloat16: 2}[x.dtype]
        w = torch.empty(k, n, dtype=torch.float64)
        for i in range(k):
            q = words[i // per_word] >> bits * (i % per_word) & 15
            w[i] = q * scales[i // group].double() + zeros[i // group].double()
        return (x.double() @ w).to(x.dtype)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("granularity", ["group_128", "group_32"])
def test_gemlite_gets_what_it_takes(monkeypatch: pytest.MonkeyPatch, dtype: str, granularity: str) -> None:
    monkeypatch.setitem(sys.modules, "gemlite", StandIn)
    problem = Problem(m=3, n=24, k=256, dtype=dtype, granularity=granularity)
    in_form = loading.load(INT4.address("gemlite"))
    inputs = in_form.inputs(problem, CPU, 0)
    out = in_form.entry(INT4.kernel.provider("gemlite"))(*inputs, granularity=granularity)
    (exact,) = in_form.expected(problem, inputs)
    agree(out, exact, tolerance(problem))


def test_work_counts_the_weights_in_four_bits() -> None:
    work = INT4.kernel.work(BASE)
    assert work.operations == {"bfloat16": 2 * 16 * 8192 * 8192}
    assert work.bytes == 8192 * 8192 // 2 + 64 * 8192 * 2 * 2 + 2 * 16 * 8192 * 2
