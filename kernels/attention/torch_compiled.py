"""Attention by torch.compile: flex attention, for which Inductor generates a Triton kernel.

A block mask says which blocks of keys each block of queries sees. It is made once for each shape, outside of
the compiled and timed code, as users of flex attention do. This module is separate because flex attention
takes long to import.
"""

from __future__ import annotations

from functools import cache

import torch
from torch._dynamo.decorators import skip
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention


@torch.compiler.disable  # type: ignore[untyped-decorator]
@cache
def _block_mask(seq_q: int, seq_k: int, device: torch.device) -> BlockMask:
    offset = seq_k - seq_q

    def sees(entry: torch.Tensor, head: torch.Tensor, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        del entry, head
        return query + offset >= key

    return create_block_mask(sees, None, None, seq_q, seq_k, device=device)


@skip
def flex(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool) -> torch.Tensor:
    """Return flex attention. Call it only through torch.compile."""
    mask = _block_mask(q.shape[2], k.shape[2], q.device) if causal else None
    return _flex(q, k, v, mask, q.shape[1] != k.shape[1])


def _flex(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: BlockMask | None, grouped: bool
) -> torch.Tensor:
    out: torch.Tensor = flex_attention(q, k, v, block_mask=mask, enable_gqa=grouped)
    return out
