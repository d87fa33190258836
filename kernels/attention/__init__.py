"""Attention, forward: ``out = softmax(q @ k.T / sqrt(head_dim)) @ v`` for each batch entry and head.

q is (batch, heads, seq_q, head_dim); k and v are (batch, kv_heads, seq_k, head_dim). With fewer ``kv_heads``
than ``heads``, neighbouring query heads share a key head (grouped-query attention). With ``causal`` a query
sees the keys up to its own position. The last query and the last key have the same position, so the mask is
aligned at the bottom right, as in FlashAttention. A query that would see no key is refused. q is normal with
a standard deviation of 2, k and v are standard normal: attention is then as peaked as in a real model, and a
block of keys that a kernel leaves out shows.

The work is counted as in the FlashAttention papers: two matrix products with two operations for each
multiplication, ``4 batch heads seq_q seq_k head_dim``, half of that with ``causal``. Softmax is not counted.
q, k and v are read once and out is written once. Arithmetic limits long sequences. Memory limits a decoding
step (``seq_q=1``), which reads all keys and values for one row.

``triton_flash`` is FlashAttention-2 (Dao, 2023, arXiv:2307.08691) over the online softmax of Milakov and
Gimelshein (2018, arXiv:1805.02867). ``triton_flash_hopper`` is the same algorithm in a persistent kernel with
TMA. ``triton_split_k`` is Flash-Decoding (Dao, Haziza, Massa and Sizov, 2023): programs attend to parts of
the keys in parallel, and a second kernel merges the parts. ``cuda_flash`` is FlashAttention-3 (Shah and
others, 2024, arXiv:2407.08608) in CUDA C++ for Hopper alone; ``cuda_flash_packed`` calls it with the queries
of all heads that share a key head as those of one head. Training has kernels of its own:
``attention_with_lse``, which shares the CUDA C++ kernel, and ``attention_backward``.
"""

from __future__ import annotations

import dataclasses
import math

from kernel_pipeline.contract import EPSILON, Gpu, Kernel, Provider, Tolerance, Work, bytes_of

from .parameters import (
    Flash,
    Hopper,
    Problem,
    Split,
    WarpSpecialized,
    compile_weight,
    hopper_fits,
    packed_fits,
    refused,
    split_fits,
    tiles_fit,
    warp_specialized_fits,
)
from .steps import library_steps, packed_steps, split_steps, tile_steps

MOST_INTERPRETED = 160
"""The longest sequence for Triton's interpreter, with one batch entry: several blocks, the last partly
full."""


def work(problem: Problem) -> Work:
    """Return the least work: q, k and v read once, out written once, and two products of ``2 seq_q seq_k
    head_dim`` operations per head, half of them with ``causal``."""
    moved = bytes_of(problem.dtype, *problem.shapes, problem.shape)
    return Work(moved, {problem.dtype: operations(problem, products=2)})


def operations(problem: Problem, products: int) -> int:
    """Return the operations of ``products`` products of queries and keys, half of them with ``causal``."""
    every = 2 * products * problem.batch * problem.heads * problem.seq_q * problem.seq_k * problem.head_dim
    return every // 2 if problem.causal else every


def tolerance(problem: Problem) -> Tolerance:
    """Return how far an output may be from the reference, for the inputs of ``reference.py``: q is normal
    with a standard deviation of 2, k and v are standard normal.

    Scores are then normal with a standard deviation of 2, and the few largest make up most of a row's sum. So
    an output depends on few keys, however many keys its row sees, and one bound holds for the first and the
    last row of a causal mask. The squares of a row's n probabilities sum up to ``exp(4) / n`` on average, or
    to less than 1; an output is about as large as the root of that sum. eps is the epsilon of the dtype.

    - *Probabilities* are rounded to the dtype one by one before they are multiplied by v: up to 2 eps.
    - *Scores* are rounded to the dtype by ``manual``, as in any attention that is written as separate
      operators. A score between 4 and 8 is wrong by up to 2 eps, so its probability has a relative error of
      up to 2 eps. If two keys share a row's weight, this changes the output by a quarter of the error times
      the difference of their values. Among 2e6 outputs the largest error was 5 eps, and in rows that see many
      keys 40 eps of an output's size. The limits have 10 and 80, for the largest error among 1e8 outputs.
    - *The output* is rounded once, by half an eps relative to it. The limit has 4 eps, for a single
      probability that outweighs the others.

    If a kernel leaves out a block of 32 keys of 4096, one output in 500 exceeds this limit.
    """
    eps = EPSILON[problem.dtype]
    worst = 10.0 if problem.causal else min(10.0, 80 * math.sqrt(math.exp(4) / problem.seq_k))
    return Tolerance(rtol=4 * eps, atol=worst * eps)


def interpreted(problem: Problem) -> Problem:
    """Return a small problem for Triton's slow interpreter: one batch entry, one key head with up to two
    query heads, few queries and keys. Odd dimensions stay odd."""
    group = min(problem.group, 2)
    seq_q, seq_k = (min(length, MOST_INTERPRETED + length % 2) for length in (problem.seq_q, problem.seq_k))
    return dataclasses.replace(
        problem,
        batch=1,
        heads=group,
        kv_heads=1,
        seq_q=min(seq_q, seq_k) if problem.causal else seq_q,
        seq_k=seq_k,
    )


def any_fits(problem: Problem, parameters: object, gpu: Gpu | None) -> str | None:
    """Return the reason why the problem is invalid, or None."""
    del parameters, gpu
    return refused(problem)


def square_fits(problem: Problem, parameters: object, gpu: Gpu | None) -> str | None:
    """Return the reason why a provider with a causal mask aligned at the top left can't compute the problem,
    or None."""
    del parameters, gpu
    if problem.causal and problem.seq_q != problem.seq_k:
        return refused(problem) or "its causal mask is for as many queries as keys"
    return refused(problem)


def sdpa_cudnn_fits(problem: Problem, parameters: object, gpu: Gpu | None) -> str | None:
    """Return the reason why SDPA's cuDNN backend can't compute the problem, or None. It refuses a single
    query with a single key."""
    if problem.seq_q == problem.seq_k == 1:
        return refused(problem) or "cuDNN takes no single query with a single key"
    return square_fits(problem, parameters, gpu)


def sdpa_flash_fits(problem: Problem, parameters: object, gpu: Gpu | None) -> str | None:
    """Return the reason why SDPA's flash backend can't compute the problem, or None. On a CPU its causal mask
    is aligned at the top left."""
    return square_fits(problem, parameters, gpu) if gpu is None else refused(problem)


FLASH_ATTN_4 = Provider(
    "flash_attn_4",
    "peers.py:flash_attn_4",
    None,
    any_fits,
    language="torch",
    devices=("cuda",),
    package="flash-attn-4",
)
"""FlashAttention-4, for which each of attention's kernels has an entry of its own."""


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
        Provider("sdpa_math", "torch.py:sdpa_math", fits=any_fits),
        Provider("torch_compile", "torch_compiled.py:flex", fits=any_fits, devices=("cuda",), compiled=True),
        Provider(
            "triton_flash",
            "triton.py:flash",
            Flash,
            tiles_fit,
            compile_weight=compile_weight,
            steps=tile_steps,
        ),
        Provider("triton_split_k", "triton_split_k.py:split_k", Split, split_fits, steps=split_steps),
        Provider(
            "triton_flash_hopper",
            "triton_hopper.py:flash_hopper",
            Hopper,
            hopper_fits,
            needs="sm_90",
            compile_weight=compile_weight,
            steps=tile_steps,
        ),
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
