"""Matrix product: ``out = a @ b`` of a, m by k, and b, k by n, standard normal.

``layout`` is the memory layout of each matrix. ``nn``: both are row-major. ``nt``: b is column-major, like a
linear layer's weight. ``tn`` and ``tt``: a is column-major.

``arithmetic`` sets how products are rounded and added. ``ieee`` multiplies every bit of the inputs, keeps
sums in float32, and rounds them once. ``tf32`` lets the tensor cores round each float32 input to 11 bits.
``fast_accum`` leaves the sums of float8 products in the tensor cores, which on Hopper keep 14 bits of a sum.
``float8_e4m3fn`` has one scale for each matrix, and its product is bfloat16.

The work is two operations for each product, ``2 m n k`` in all; each input is read once and the output is
written once. Arithmetic limits a large product. Memory limits a product of few rows (``decode``, a language
model's step), which reads all of b for a handful of rows.

The providers are the steps by which a product gets fast. ``cuda_naive`` and ``cuda_tiled`` are the two
kernels of a first lecture on CUDA (Kirk and Hwu, "Programming Massively Parallel Processors", chapters 3 and
5). The providers ``step_...`` each take one more idea, in a file of at most 120 lines: ``step_block_1d`` and
``step_block_2d`` compute several elements a thread, ``step_vector_loads`` reads four elements at once,
``step_warp_tile`` has squares for a warp, ``step_mma`` uses tensor cores, and ``step_wgmma`` Hopper's, with
TMA. ``triton_naive`` uses tensor cores. ``triton_tiled`` takes its tiles in groups of ``group_m`` rows, so
that neighbouring programs share tiles in L2, and prefetches, as in Triton's tutorial "Matrix
Multiplication". ``triton_split_k`` shares the products of a tile among programs. ``triton_persistent`` copies
tiles by TMA and keeps one program on each multiprocessor. ``cuda_wgmma`` is for Hopper alone, after the
CUTLASS documentation's "Efficient GEMM in CUDA": producer warps copy, consumer warps multiply, and clusters
share tiles; ``cuda_wgmma_tf32`` is built like it for float32. ``triton_gemv`` and ``cuda_gemv`` are for few
rows. cuBLAS's choice depends on the environment too: on the workspace that ``CUBLAS_WORKSPACE_CONFIG``
allows.
"""

from __future__ import annotations

from kernel_pipeline.contract import Kernel, Provider
from kernel_pipeline.threads import numba_fits

from .parameters import (
    Gemv,
    GemvTiles,
    NaiveTiles,
    PersistentTiles,
    SplitTiles,
    Square,
    Tiles,
    Wgmma,
    compile_weight,
    compiled_fits,
    gemv_fits,
    ieee_fits,
    naive_fits,
    peer_fits,
    persistent_fits,
    split_fits,
    step_mma_fits,
    tiles_fit,
    torch_fits,
    triton_gemv_fits,
    vectors_fit,
    wgmma_fits,
)
from .problem import Problem, interpreted, tolerance, work
from .tf32_tiles import Tf32Tiles, tf32_fits

STEPS = (
    Provider(
        "step_block_1d",
        "cuda_steps.py:step_block_1d",
        None,
        ieee_fits,
        extension="step_block_1d.cu",
        textbook=True,
    ),
    Provider(
        "step_block_2d",
        "cuda_steps.py:step_block_2d",
        None,
        ieee_fits,
        extension="step_block_2d.cu",
        textbook=True,
    ),
    Provider(
        "step_vector_loads",
        "cuda_steps.py:step_vector_loads",
        None,
        vectors_fit,
        extension="step_vector_loads.cu",
        textbook=True,
    ),
    Provider(
        "step_warp_tile",
        "cuda_steps.py:step_warp_tile",
        None,
        vectors_fit,
        extension="step_warp_tile.cu",
        textbook=True,
    ),
    Provider(
        "step_mma",
        "cuda_steps.py:step_mma",
        None,
        step_mma_fits,
        extension="step_mma.cu",
        textbook=True,
        needs="sm_80",
    ),
    Provider(
        "step_wgmma",
        "cuda_steps.py:step_wgmma",
        None,
        step_mma_fits,
        extension="step_wgmma.cu",
        textbook=True,
        needs="sm_90a",
    ),
)
"""The steps from ``cuda_tiled`` to ``cuda_wgmma``, for docs/lectures. Their tiles are fixed."""

kernel = Kernel(
    problem=Problem,
    size=("m", "n", "k"),
    work=work,
    tolerance=tolerance,
    headline="tflops",
    arguments=("arithmetic",),
    interpreted=interpreted,
    largest=1.0,
    any_order=True,
    providers=(
        Provider("torch", "torch.py:matmul", fits=torch_fits),
        Provider("torch_compile", "torch_compiled.py:matmul", fits=compiled_fits, compiled=True),
        Provider(
            "torch_compile_max_autotune",
            "torch_compiled.py:max_autotune",
            fits=compiled_fits,
            compiled=True,
            devices=("cuda",),
        ),
        Provider("cuda_naive", "cuda.py:cuda_naive", None, ieee_fits, extension="cuda.cu"),
        Provider("cuda_tiled", "cuda.py:cuda_tiled", Square, ieee_fits, extension="cuda.cu"),
        *STEPS,
        Provider("triton_naive", "triton.py:naive", NaiveTiles, naive_fits),
        Provider("triton_tiled", "triton.py:tiled", Tiles, tiles_fit, compile_weight=compile_weight),
        Provider(
            "triton_split_k",
            "triton_split_k.py:split_k",
            SplitTiles,
            split_fits,
            compile_weight=compile_weight,
        ),
        Provider(
            "triton_persistent",
            "triton_persistent.py:persistent",
            PersistentTiles,
            persistent_fits,
            needs="sm_90",
            compile_weight=compile_weight,
        ),
        Provider("cuda_wgmma", "cuda.py:cuda_wgmma", Wgmma, wgmma_fits, extension="wgmma.cu", needs="sm_90a"),
        Provider(
            "cuda_wgmma_tf32",
            "tf32.py:cuda_wgmma_tf32",
            Tf32Tiles,
            tf32_fits,
            extension="tf32.cu",
            needs="sm_90a",
        ),
        Provider("triton_gemv", "triton_gemv.py:gemv", GemvTiles, triton_gemv_fits),
        Provider("cuda_gemv", "cuda.py:cuda_gemv", Gemv, gemv_fits, extension="gemv.cu"),
        Provider("cpp", "cpp.py:cpp", None, ieee_fits, extension="cpp.cpp"),
        Provider("numba", "numba.py:tiled", Square, numba_fits),
        Provider(
            "quack",
            "peers.py:quack",
            fits=peer_fits,
            language="torch",
            devices=("cuda",),
            package="quack-kernels",
        ),
    ),
)
