"""Matrix product with 2:4 sparse weights: ``out = x @ w.T`` of x, m by k, and w, n by k, which keeps two of
every four neighbours in a row.

``values`` are the kept weights, n by k / 2, in the order of their rows. ``metadata`` says which weights are
kept, by 4 bits for four neighbours: the place of the first kept weight in the lower two bits, of the second
in the upper two. Metadata has the layout of the sparse forms of ``mma`` and ``wgmma``, with one word per lane
for 16 rows and 64 columns: ``metadata[row // 16, column // 64, 4 * (row % 8) + f]`` with
``f = column % 64 // 16``. The word's lower half is for the first eight rows, its upper half for the others,
at bits ``4 * (column % 16 // 4)`` of the half. k is padded to a multiple of 64.

The least work counts the sparse product: half of the multiplications; four weights take 4 bytes of values and
half a byte of metadata, 9/16 of the dense weights. These bytes limit a product of few rows. The tensor cores,
which skip the other weights, limit a large product.

``torch`` is the dense product of the same weights. ``torch_cusparselt`` is torch's semi-structured product,
with ``alg_id`` to choose cuSPARSELt's kernel. Both take weights in their own form, made before any call, as
for inference. ``cuda`` uses ``mma.sp``, for few rows, and ``cuda_wgmma`` Hopper's ``wgmma``, for any number.
``triton_gemm`` reads the sparse weights and multiplies dense weights.

The pattern and its instructions: Mishra et al., "Accelerating Sparse Deep Neural Networks", 2021; PTX ISA,
"mma.sp" and "wgmma.mma_async.sp".
"""

from __future__ import annotations

from kernel_pipeline.contract import Kernel, Provider

from ..product_steps import dense_steps, tiles_steps, warps_steps, wgmma_steps
from ..transposed_tiles import Wgmma
from .parameters import (
    Algorithm,
    Tiles,
    Warps,
    cusparselt_fits,
    tiles_fit,
    warps_fit,
    wgmma_fits,
)
from .problem import Problem, interpreted, tolerance, work

kernel = Kernel(
    problem=Problem,
    size=("m", "n", "k"),
    work=work,
    tolerance=tolerance,
    headline="tflops",
    interpreted=interpreted,
    largest=1.0,
    providers=(
        Provider("torch", "torch.py:dense", reference="dense.py", steps=dense_steps),
        Provider(
            "torch_cusparselt",
            "torch.py:cusparselt",
            Algorithm,
            cusparselt_fits,
            devices=("cuda",),
            needs="sm_80",
            reference="cusparselt.py",
        ),
        Provider("triton_gemm", "triton.py:gemm", Tiles, tiles_fit, steps=tiles_steps),
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
    ),
)
