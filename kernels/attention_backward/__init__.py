"""Attention, backward: the gradients of q, k and v, given the gradient of the output.

With ``s = q @ k.T / sqrt(head_dim)``, ``p = exp(s - lse)``, ``delta`` the row sums of ``out * d_out`` and
``ds = p * (d_out @ v.T - delta)``:

    dv = p.T @ d_out,   dq = ds @ k / sqrt(head_dim),   dk = ds.T @ q / sqrt(head_dim)

The problem and the layout are the same as for ``attention``. The inputs are q, k, v, the forward pass's
output ``out`` and its ``lse``, the logarithm of the sum of each row's exponentials, in float32, and
``d_out``. The outputs are dq, dk and dv. With fewer ``kv_heads`` than ``heads``, dk and dv are sums over the
heads that share a key head.

out and lse are random: the formulas hold for any values. lse is as large as in a forward pass without a mask.
With the lse of a real forward pass each row of a causal mask would have its own size.

The work is counted as in the FlashAttention papers: five matrix products, ``10 batch heads seq_q seq_k
head_dim`` operations, half of that with ``causal``. Each input is read once, each output is written once.

``triton_flash`` recomputes p in two kernels, which makes seven products. In one kernel a program keeps a
block of keys and their sums, in the other a block of queries. Without atomics the outputs are the same at
every call. The algorithm is FlashAttention-2's (Dao, 2023, arXiv:2307.08691). It needs Hopper, because TMA
copies the blocks: without TMA, the operands of the second product would leave too few registers.

``cuda_flash`` is FlashAttention-3's backward pass (Shah and others, 2024, arXiv:2407.08608) in CUDA C++ for
Hopper alone. One kernel does the five products. It sums dq in float32 in device memory, by additions whose
order differs from call to call unless it is ``deterministic``, and a second kernel rounds the sums.
"""

from __future__ import annotations

import math

from kernel_pipeline.contract import EPSILON, Kernel, Provider, Tolerance, Work, bytes_of

from ..attention import (
    FLASH_ATTN_4,
    any_fits,
    interpreted,
    operations,
    sdpa_cudnn_fits,
    sdpa_flash_fits,
)
from ..attention.parameters import Problem
from .parameters import Flash, WarpSpecialized, flash_fits, warp_specialized_fits
from .steps import cuda_steps, library_steps, triton_steps


def work(problem: Problem) -> Work:
    """Return the least work: q, k, v, out, d_out and lse read once, dq, dk and dv written once, and five
    products of ``2 seq_q seq_k head_dim`` operations per head, half of them with ``causal``."""
    q, k, v = problem.shapes
    moved = bytes_of(problem.dtype, *(q, k, v) * 2, q, q) + bytes_of("float32", problem.shape[:3])
    return Work(moved, {problem.dtype: operations(problem, products=5)})


def tolerance(problem: Problem) -> tuple[Tolerance, ...]:
    """Return how far dq, dk and dv may be from the reference.

    A probability is ``exp(s - 0.5) / seq_k``. The squares of a row's probabilities sum up to ``e / seq_k`` on
    average, the squares of a column to ``e seq_q / seq_k**2``, once for each of the ``group`` heads that
    share it. An element of ``(d_out @ v.T - delta) / sqrt(head_dim)`` has a size of about sqrt(2). The roots
    of these products are the sizes of dq, dk and dv. A causal mask leaves a part of each sum.

    p and ds are rounded to the dtype one by one before they are multiplied, and the outputs are rounded once:
    up to 2 eps of the size. ``manual`` rounds the scores too, as any implementation by separate operators
    does, and a large probability is then wrong by 2 eps, relative to it: the worst of 1e5 outputs was wrong
    by 8 eps of the size, and 16 allow for the worst of 1e8. 4 eps are relative to the output, for a single
    probability that outweighs the others. ``manual`` also rounds ``d_out @ v.T`` before it subtracts delta,
    and the two may cancel: in sums of few terms the largest probability counts. The largest of N normal
    scores is about ``sqrt(2 log(N))``, and the gradient of its probability is wrong by up to 2 eps.
    """
    eps = EPSILON[problem.dtype]
    row = math.sqrt(math.e / problem.seq_k)
    column = math.sqrt(math.e * problem.seq_q * problem.group) / problem.seq_k
    scores = problem.batch * problem.heads * problem.seq_q * problem.seq_k
    largest = math.exp(math.sqrt(2 * math.log(scores)) - 0.5) / problem.seq_k
    sizes = math.sqrt(2) * row, math.sqrt(2) * column, column
    return tuple(Tolerance(rtol=4 * eps, atol=eps * (16 * size + 2 * largest)) for size in sizes)


def compile_weight(tiles: Flash) -> float:
    """Return a weight of the compile time: a thread's products per step."""
    return tiles.block * tiles.block_step / tiles.num_warps


kernel = Kernel(
    problem=Problem,
    size=("seq_q",),
    work=work,
    tolerance=tolerance,
    headline="tflops",
    arguments=("causal",),
    interpreted=interpreted,
    as_made=True,
    baseline="sdpa_flash",
    any_order=True,
    providers=(
        Provider("manual", "torch.py:manual", fits=any_fits),
        Provider("sdpa_flash", "torch.py:sdpa_flash", fits=sdpa_flash_fits, steps=library_steps),
        Provider("sdpa_cudnn", "torch.py:sdpa_cudnn", fits=sdpa_cudnn_fits, devices=("cuda",)),
        Provider(
            "triton_flash",
            "triton.py:flash",
            Flash,
            flash_fits,
            needs="sm_90",
            compile_weight=compile_weight,
            steps=triton_steps,
        ),
        Provider(
            "cuda_flash",
            "cuda.py:cuda_flash",
            WarpSpecialized,
            warp_specialized_fits,
            extension="flash.cu",
            needs="sm_90a",
            steps=cuda_steps,
        ),
        FLASH_ATTN_4,
    ),
)
