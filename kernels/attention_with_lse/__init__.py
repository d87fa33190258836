"""Attention's forward pass for training: the output, and the logarithm of each row's sum of exponentials.

The problem, the inputs and the output are those of ``attention``. ``lse`` is (batch, heads, seq_q) in
float32: the natural logarithm of the sum of a row's ``exp(q @ k.T / sqrt(head_dim))``. The backward pass
recomputes the probabilities from it, without the row's maximum and sum (FlashAttention, Dao and others, 2022,
arXiv:2205.14135).

The work is that of ``attention``, with lse written once. ``cuda_flash`` and ``cuda_flash_packed`` are the
same kernel as in ``attention``, which writes lse here alone. Providers of ``attention`` that return no
logarithms are not here.
"""

from __future__ import annotations

from kernel_pipeline.contract import Gpu, Kernel, Provider, Tolerance, Work, bytes_of

from .. import attention
from ..attention import FLASH_ATTN_4, any_fits, parameters, sdpa_cudnn_fits, sdpa_flash_fits
from ..attention.parameters import Problem, WarpSpecialized
from ..attention.steps import library_steps, packed_steps, tile_steps

CUDA_TILES = {
    64: ((64, 128), (128, 192), (192, 128)),
    96: ((64, 128), (128, 128), (192, 112)),
    128: ((64, 128), (128, 128), (128, 176)),
}
"""The tiles that ``flash.cu`` has, as (block_m, block_n), by head_dim: the fastest ones of ``attention``."""


def work(problem: Problem) -> Work:
    """Return the least work: that of ``attention``, and lse written once."""
    found = attention.work(problem)
    return Work(found.bytes + bytes_of("float32", problem.shape[:3]), found.operations)


def tolerance(problem: Problem) -> tuple[Tolerance, Tolerance]:
    """Return how far the output, as in ``attention``, and lse may be from the reference.

    Scores are sums of products in float32, which tensor cores add with errors of about 1e-5 of the largest
    score, and exponentials are summed in float32. If a kernel leaves out a block of 32 keys of 4096, lse
    changes by 0.008 on average.
    """
    return attention.tolerance(problem), Tolerance(rtol=1e-4, atol=1e-3)


def warp_specialized_fits(problem: Problem, tiles: WarpSpecialized, gpu: Gpu | None) -> str | None:
    """Return the reason why the CUDA C++ kernel does not have these tiles, or None."""
    return parameters.warp_specialized_fits(problem, tiles, gpu, CUDA_TILES)


def packed_fits(problem: Problem, tiles: WarpSpecialized, gpu: Gpu | None) -> str | None:
    """Return the reason why the queries of the heads that share a key head can't be those of one head in
    these tiles, or that they need not, or None."""
    return parameters.packed_fits(problem, tiles, gpu, CUDA_TILES)


kernel = Kernel(
    problem=Problem,
    size=("seq_q",),
    work=work,
    tolerance=tolerance,
    headline="tflops",
    arguments=("causal",),
    as_made=True,
    baseline="sdpa_flash",
    any_order=True,
    providers=(
        Provider("manual", "torch.py:manual", fits=any_fits),
        Provider("sdpa_flash", "torch.py:sdpa_flash", fits=sdpa_flash_fits, steps=library_steps),
        Provider("sdpa_cudnn", "torch.py:sdpa_cudnn", fits=sdpa_cudnn_fits, devices=("cuda",)),
        Provider(
            "cuda_flash",
            "cuda.py:cuda_flash",
            WarpSpecialized,
            warp_specialized_fits,
            extension="flash.cu",
            needs="sm_90a",
            steps=tile_steps,
        ),
        Provider(
            "cuda_flash_packed",
            "cuda_packed.py:cuda_flash_packed",
            WarpSpecialized,
            packed_fits,
            extension="flash.cu",
            needs="sm_90a",
            steps=packed_steps,
        ),
        FLASH_ATTN_4,
    ),
)
