"""Matrix product with four-bit weights: ``out = x @ w.T`` of x, m by k, in 16 bits, and w, n by k, in four.

``w[j, i] = (q[j, i] - 8) * scale + zero``. ``granularity`` says which weights share a scale and a zero: 32,
64 or 128 neighbours of a row (applied inside the sum over k), or the whole row (``channel``, applied after
it). ``scales_and_zeros`` is (groups, n, 2) in x's dtype.

The packing is the same as for torch's ``_weight_int4pack_mm``; ``torch`` and ``gemlite`` take forms of their
own. ``packed[j // 8, i // 128, 4 * (j % 8) + t, p]`` is a word of eight weights of row j, with
``p = i % 128 // 32`` and ``t = i % 8 // 2``. The weight with ``i % 32 = 16 h + 8 e + 2 t + b`` is at the four
bits from ``16 b + 8 h + 4 e`` on. So a lane of a warp that loads 16 bytes holds its part of the operand of
``mma.m16n8k16``, and one logical operation takes two neighbours out of a word, into the two halves of a
register for 16-bit arithmetic on pairs. k is padded to a multiple of 128 and n to a multiple of 8, by q = 8.

The work is two operations for each product, ``2 m n k``; each input is read once and the output is written
once. The weights' bytes, a quarter of the bytes of 16-bit weights, limit a product of one row. The tensor
cores limit a product of a thousand rows, because they multiply in 16 bits.

``torch`` multiplies with weights that were dequantised before the call; it is the baseline.
``triton_gemm`` has the form of CUTLASS's mixed-input products: weights are the first operand, from registers.
``cuda`` is after Frantar et al., "MARLIN: Mixed-Precision Auto-Regressive Parallel Inference on Large
Language Models", 2024: weights are loaded to registers in the order of the tensor cores' operand.
"""

from __future__ import annotations

from kernel_pipeline.contract import Kernel, Provider

from ..product_steps import dense_steps, tiles_steps, warps_steps, wgmma_steps
from ..transposed_tiles import Wgmma
from .parameters import (
    Rows,
    Split,
    StreamK,
    Threads,
    Tiles,
    Warps,
    gemlite_fits,
    int4pack_fits,
    rows_fit,
    split_fits,
    stream_k_fits,
    tiles_fit,
    warps_fit,
    wgmma_fits,
)
from .problem import Problem, interpreted, tolerance, work
from .steps import dequantise_steps, rows_steps, stream_k_steps

kernel = Kernel(
    problem=Problem,
    size=("m", "n", "k"),
    work=work,
    tolerance=tolerance,
    headline="gbps",
    arguments=("granularity",),
    interpreted=interpreted,
    largest=1.0,
    providers=(
        Provider("torch", "torch.py:dense", reference="dense.py", steps=dense_steps),
        Provider("torch_int4pack", "torch.py:int4pack", None, int4pack_fits, devices=("cuda",)),
        Provider("triton_gemm", "triton.py:gemm", Tiles, tiles_fit, steps=tiles_steps),
        Provider("triton_split_k", "triton.py:split", Split, split_fits, steps=tiles_steps),
        Provider("triton_gemv", "triton_gemv.py:gemv", Rows, rows_fit, steps=rows_steps),
        Provider("triton_dequantise", "triton_dequantise.py:dequantise", Threads, steps=dequantise_steps),
        Provider(
            "cuda", "cuda.py:cuda", Warps, warps_fit, extension="cuda.cu", needs="sm_80", steps=warps_steps
        ),
        Provider(
            "cuda_wgmma",
            "cuda.py:cuda_wgmma",
            Wgmma,
            wgmma_fits,
            extension="wgmma.cu",
            needs="sm_90a",
            steps=wgmma_steps,
        ),
        Provider(
            "cuda_stream_k",
            "cuda.py:cuda_stream_k",
            StreamK,
            stream_k_fits,
            extension="stream_k.cu",
            needs="sm_90a",
            steps=stream_k_steps,
        ),
        Provider(
            "gemlite",
            "peers.py:gemlite",
            fits=gemlite_fits,
            language="torch",
            devices=("cuda",),
            package="gemlite",
            reference="over_k.py",
        ),
    ),
)
