"""What is particular to the four-bit product: the packing, the tolerance, what fits, what is refused."""

from __future__ import annotations

import ctypes
import dataclasses
import enum
import itertools
import sys
from typing import Any

import pytest
import torch

from kernel_pipeline import loading
from kernel_pipeline.contract import Gpu
from kernels.matmul_int4.parameters import (
    Rows,
    Split,
    Tiles,
    Warps,
    gemlite_fits,
    int4pack_fits,
    rows_fit,
    split_fits,
    tiles_fit,
    warps_fit,
    wgmma_bytes,
    wgmma_fits,
)
from kernels.matmul_int4.problem import Problem, tolerance
from kernels.matmul_int4.reference import MIDDLE, dequantised, pack, unpack
from kernels.transposed_tiles import Wgmma, shared_memory
from tests.kernels import compiled
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
    # Of the eight values that a lane holds of two steps of 16 columns, even ones come first.
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


@pytest.mark.parametrize(
    ("dimensions", "fits", "parameters", "sentence"),
    [
        ({}, tiles_fit, Tiles(), None),
        ({}, tiles_fit, Tiles(block_m=64), "a smaller block does: block_m 64 > 16 for m = 16"),
        (
            {"m": 4096},
            tiles_fit,
            Tiles(block_m=256, block_n=128, num_warps=4),
            "too much for the registers: 256 sums a thread > 128",
        ),
        (
            {"m": 4096},
            tiles_fit,
            Tiles(block_m=256, block_n=64, block_k=256, num_warps=8),
            "too much for the shared memory: 442368 bytes > 232448",
        ),
        ({"m": 64}, tiles_fit, Tiles(num_warps=8), "too many warps: 8 for a tile of 16 x 64"),
        ({"k": 256}, split_fits, Split(split_k=4), "fewer parts do: split_k 4 > 2 steps"),
        ({"m": 1}, rows_fit, Rows(), None),
        ({}, rows_fit, Rows(), "reads all weights for each row of x: m 16 > 4"),
        ({}, warps_fit, Warps(), None),
        ({"k": 8193}, warps_fit, Warps(), "k must be a multiple of 128: 8193 is none"),
        ({"n": 8200}, warps_fit, Warps(), "n must be a multiple of 16: 8200 is none"),
        ({"n": 8208}, warps_fit, Warps(tiles_n=2), "n must be a multiple of 32: 8208 is none"),
        ({"m": 33}, warps_fit, Warps(), "keeps the sums of all rows of x in registers: m 33 > 32"),
        (
            {"m": 17},
            warps_fit,
            Warps(tiles_n=2),
            "too much for the registers: tiles_n 2 x warps_k 8 at m 17",
        ),
        (
            {"k": 512},
            warps_fit,
            Warps(tiles_n=1, warps_k=8),
            "fewer warps do: warps_k 8 x split_k 1 > 4 steps",
        ),
        ({}, wgmma_fits, Wgmma(block_m=16), None),
        ({}, wgmma_fits, Wgmma(), "a smaller block does: block_m 64 > 16 for m = 16"),
        ({"k": 8193}, wgmma_fits, Wgmma(), "k must be a multiple of 128: 8193 is none"),
        ({"m": 512}, wgmma_fits, Wgmma(), "reads all weights 8 times: block_m 64 for m = 512"),
        (
            {"m": 512},
            wgmma_fits,
            Wgmma(block_m=256, block_n=256),
            "too much for the registers: 256 sums a thread > 128",
        ),
        ({"k": 256}, wgmma_fits, Wgmma(block_m=16, split_k=4), "fewer parts do: split_k 4 > 2 steps"),
        (
            {"m": 512},
            wgmma_fits,
            Wgmma(block_m=128, split_k=2),
            "half as many parts fill the GPU: split_k 2 with 256 blocks",
        ),
        (
            {"m": 4096},
            wgmma_fits,
            Wgmma(block_m=256, split_k=1),
            "too much for the shared memory: 300096 bytes > 232448",
        ),
        ({}, gemlite_fits, None, None),
        ({"k": 8256}, gemlite_fits, None, "k must be a multiple of 128: 8256 is none"),
        (
            {"granularity": "channel"},
            gemlite_fits,
            None,
            "gemlite is asked for groups of weights, not a channel",
        ),
        ({}, int4pack_fits, None, None),
        ({"dtype": "float16"}, int4pack_fits, None, "_weight_int4pack_mm knows bfloat16 alone, not float16"),
        (
            {"granularity": "channel"},
            int4pack_fits,
            None,
            "_weight_int4pack_mm knows groups of 32 to 256 weights, not a channel",
        ),
    ],
)
def test_what_fits(dimensions: dict[str, Any], fits: Any, parameters: Any, sentence: str | None) -> None:
    assert fits(dataclasses.replace(BASE, **dimensions), parameters, H200) == sentence


@pytest.mark.parametrize(
    "name", ["triton_gemm", "triton_split_k", "triton_gemv", "triton_dequantise", "cuda", "cuda_wgmma"]
)
@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        (lambda x, packed, scales: (x[0], packed, scales), r"needs x \(m, k\)"),
        (lambda x, packed, scales: (x, packed.long(), scales), "int32 weights"),
        (lambda x, packed, scales: (x, packed[:1], scales), r"needs weights \(2, 1, 32, 4\)"),
        (lambda x, packed, scales: (x, packed, scales[:, :, :1]), r"and scales \(1, 16, 2\)"),
        (lambda x, packed, scales: (x.half(), packed, scales), "got float16 and bfloat16"),
    ],
)
def test_refuses(name: str, changed: Any, sentence: str) -> None:
    problem = Problem(m=2, n=16, k=128)
    provider = INT4.kernel.provider(name)
    assert provider.parameters is not None
    inputs = changed(*INT4.inputs(problem, CPU, 0))
    entry = getattr(INT4.module(provider.file), provider.function)
    with pytest.raises(ValueError, match=sentence):
        entry(*inputs, granularity=problem.granularity, **dataclasses.asdict(provider.parameters()))


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


LAYOUT = """
#include "wgmma_layout.h"
extern "C" void layout(int m, int n, int groups, int stages, int* found) {
  const kernels::TileLayout of{m, n, stages, matmul_int4::bytes_of_w(n, groups)};
  found[0] = of.bytes_of_w;
  found[1] = of.bytes();
  found[2] = of.slab_bytes();
  found[3] = of.w() + matmul_int4::bytes_of_words(n);
  found[4] = of.stage_bytes();
  found[5] = of.bytes_of_sums();
}
"""


@pytest.fixture(scope="module")
def layout(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    return compiled.library(LAYOUT, loading.ROOT / "matmul_int4", tmp_path_factory.mktemp("layout"))


@pytest.mark.parametrize("granularity", ["group_128", "group_64", "group_32", "channel"])
def test_the_declaration_asks_for_what_hoppers_kernel_keeps_in_shared_memory(
    layout: ctypes.CDLL, granularity: str
) -> None:
    problem = dataclasses.replace(BASE, m=4096, granularity=granularity)
    groups = {"group_64": 2, "group_32": 4}.get(granularity, 1)
    seen = 0
    for m, n, stages in itertools.product((16, 32, 64, 128, 256), (128, 256), (2, 3, 4, 6, 8)):
        tiles = Wgmma(block_m=m, block_n=n, split_k=1, stages=stages)
        found = (ctypes.c_int * 6)()
        layout.layout(m, n, groups, stages, found)
        of_w, total, slab, scales, stage, sums = found
        assert of_w == wgmma_bytes(problem, tiles)
        assert total == shared_memory(tiles, of_w)
        # TMA's swizzle begins at multiples of 1024 bytes, its other copies at multiples of 128.
        assert slab % 1024 == stage % 1024 == scales % 128 == 0
        if wgmma_fits(problem, tiles, H200) is None:
            assert sums <= stages * stage
            seen += 1
    assert seen >= 4


def test_work_counts_the_weights_in_four_bits() -> None:
    work = INT4.kernel.work(BASE)
    assert work.operations == {"bfloat16": 2 * 16 * 8192 * 8192}
    assert work.bytes == 8192 * 8192 // 2 + 64 * 8192 * 2 * 2 + 2 * 16 * 8192 * 2
