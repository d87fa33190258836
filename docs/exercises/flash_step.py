"""Flash attention: the step for one block of keys.

A program computes the outputs of QUERIES queries. It sees the keys and values in blocks, as the online
softmax sees a row: `maximum` and `total` belong to the scores so far, and `sums` is the sum of exp(score
- maximum) times the values, a row for each query. A block with a larger score makes all three too large. At
the end the output is sums / total.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl


@triton.jit
def _attention(out, q, k, v, keys, scale, QUERIES: tl.constexpr, KEYS: tl.constexpr, DIM: tl.constexpr):
    query = tl.program_id(0) * QUERIES + tl.arange(0, QUERIES)[:, None]
    dim = tl.arange(0, DIM)[None, :]
    q_tile = tl.load(q + query * DIM + dim) * scale
    maximum = tl.full((QUERIES,), -3.0e38, tl.float32)
    total = tl.zeros((QUERIES,), tl.float32)
    sums = tl.zeros((QUERIES, DIM), tl.float32)
    for start in range(0, keys, KEYS):
        key = start + tl.arange(0, KEYS)
        k_tile = tl.load(k + key[:, None] * DIM + dim, mask=key[:, None] < keys, other=0.0)
        v_tile = tl.load(v + key[:, None] * DIM + dim, mask=key[:, None] < keys, other=0.0)
        scores = tl.dot(q_tile, tl.trans(k_tile), input_precision="ieee")
        scores = tl.where(key[None, :] < keys, scores, float("-inf"))
        # YOURS: bring `maximum`, `total` and `sums` up to date. tl.dot(p, v_tile, input_precision="ieee")
        larger = tl.maximum(maximum, tl.max(scores, axis=1))
        correction = tl.exp(maximum - larger)
        p = tl.exp(scores - larger[:, None])
        total = total * correction + tl.sum(p, axis=1)
        sums = sums * correction[:, None] + tl.dot(p, v_tile, input_precision="ieee")
        maximum = larger
        # END
    tl.store(out + query * DIM + dim, sums / total[:, None])


def yours(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Launch a program for every 16 queries. The number of queries is a multiple of 16."""
    out = torch.empty_like(q)
    _attention[(q.shape[0] // 16,)](
        out, q, k, v, k.shape[0], q.shape[1] ** -0.5, QUERIES=16, KEYS=32, DIM=q.shape[1]
    )
    return out


def expected(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Attention in float64, with all scores at once."""
    scores = q.double() @ k.double().T * q.shape[1] ** -0.5
    return torch.softmax(scores, dim=1) @ v.double()


def cases():
    """One block of keys, several with a rest, and scores that grow from block to block."""
    yield torch.randn(16, 16), torch.randn(32, 16), torch.randn(32, 16)
    yield torch.randn(32, 16), torch.randn(100, 16), torch.randn(100, 16)
    growing = torch.linspace(0.1, 3, 100)[:, None]
    yield torch.rand(16, 16) + 0.5, torch.rand(100, 16) * growing, torch.randn(100, 16)


TOPIC, STEP = "Triton", 8

MISTAKE = """
larger = tl.maximum(maximum, tl.max(scores, axis=1))
p = tl.exp(scores - larger[:, None])
total = total * tl.exp(maximum - larger) + tl.sum(p, axis=1)
sums += tl.dot(p, v_tile, input_precision="ieee")
maximum = larger
"""

HINTS = (
    "Solve softmax_online first: the same three lines, for each query by itself, with axis=1.",
    "sums is a sum of exp(score - maximum) times values: a larger maximum needs the same factor as total.",
    "correction = tl.exp(maximum - larger); total and sums are both multiplied by it before they grow.",
)
