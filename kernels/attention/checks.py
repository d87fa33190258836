"""Check the inputs of this repository's providers."""

from __future__ import annotations

import torch

SERVED = ("bfloat16", "float16")


def check_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool) -> None:
    """Raises ValueError for queries, keys and values that don't fit together, for an unsupported dtype, and
    for a query that would see no key."""
    if (
        q.dim() != 4
        or k.dim() != 4
        or k.shape != v.shape
        or q.shape[0] != k.shape[0]
        or q.shape[3] != k.shape[3]
    ):
        raise ValueError(
            "attention needs q of (batch, heads, seq_q, head_dim) and k and v of (batch, kv_heads, seq_k, "
            f"head_dim), got shapes {tuple(q.shape)}, {tuple(k.shape)} and {tuple(v.shape)}"
        )
    if q.shape[3] not in (64, 128):
        raise ValueError(f"attention needs a head_dim of 64 or 128, got {q.shape[3]}")
    if k.shape[1] == 0 or q.shape[1] % k.shape[1]:
        raise ValueError(f"kv_heads must divide heads, got {k.shape[1]} and {q.shape[1]}")
    if k.shape[2] == 0 or (causal and q.shape[2] > k.shape[2]):
        raise ValueError(f"every query must see a key, got {q.shape[2]} queries and {k.shape[2]} keys")
    for x in (q, k, v):
        if str(x.dtype).removeprefix("torch.") not in SERVED:
            raise ValueError(f"needs {', '.join(SERVED)}, got {str(x.dtype).removeprefix('torch.')}")
        if x.dtype != q.dtype or x.device != q.device:
            raise ValueError(f"attention needs one dtype on one device, got {x.dtype} on {x.device} beside q")
