"""Attention by torch: with the full matrix, and by each backend of ``scaled_dot_product_attention``.

The backend is fixed, because torch's own choice is not always the fastest and differs between versions.
"""

from __future__ import annotations

import math

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn.attention import SDPBackend, sdpa_kernel


def visible(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    """Return the mask of the keys that each query sees. The last query and the last key have the same
    position: a lower triangle, aligned at the bottom right."""
    every = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool, device=q.device)
    return every.tril(k.shape[2] - q.shape[2])


def manual(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool) -> torch.Tensor:
    """Return attention by separate operators: the full matrix of scores is written to memory and read back
    several times."""
    group = q.shape[1] // k.shape[1]
    if group > 1:
        k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    # Scaled before the product, so that a score is rounded once.
    scores = (q * (1 / math.sqrt(q.shape[3]))) @ k.mT
    if causal:
        scores = scores.masked_fill(~visible(q, k), -math.inf)
    return torch.softmax(scores, -1) @ v


def aligned_rows(*tensors: torch.Tensor) -> list[torch.Tensor]:
    """Return the tensors, copied if the fused backends can't read them. All refuse rows whose elements are
    not contiguous. Rows that do not begin at multiples of 16 bytes give a misaligned address in the flash
    attention of torch 2.11 on a GPU, and NaN in cuDNN."""
    return [x if _is_aligned(x) else x.clone(memory_format=torch.contiguous_format) for x in tensors]


def _is_aligned(x: torch.Tensor) -> bool:
    if not x.is_cuda or x.stride(-1) != 1:
        return x.stride(-1) == 1
    # A fake tensor, which torch.compile uses to infer shapes, has no address.
    address = 0 if isinstance(x, FakeTensor) else x.data_ptr()
    steps = [step for step, size in zip(x.stride()[:-1], x.shape, strict=False) if size > 1]
    return all(place % 16 == 0 for place in (address, *(step * x.element_size() for step in steps)))


def _sdpa(
    backend: SDPBackend, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool
) -> torch.Tensor:
    grouped = q.shape[1] != k.shape[1]
    attend = torch.nn.functional.scaled_dot_product_attention
    with sdpa_kernel(backend):
        return attend(q, k, v, is_causal=causal, enable_gqa=grouped)


def sdpa_flash(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool) -> torch.Tensor:
    """Return attention by FlashAttention-2, as built into torch."""
    q, k, v = aligned_rows(q, k, v)
    if causal and q.is_cuda and q.shape[2] != k.shape[2]:
        # scaled_dot_product_attention refuses this shape, because its causal mask is aligned at the top left.
        out: torch.Tensor = torch.ops.aten._scaled_dot_product_flash_attention(q, k, v, is_causal=True)[0]
        return out
    return _sdpa(SDPBackend.FLASH_ATTENTION, q, k, v, causal)


def sdpa_cudnn(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool) -> torch.Tensor:
    """Return attention by cuDNN's fused kernel."""
    q, k, v = aligned_rows(q, k, v)
    return _sdpa(SDPBackend.CUDNN_ATTENTION, q, k, v, causal)


def sdpa_math(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool) -> torch.Tensor:
    """Return attention by torch's unfused form, which computes in float32."""
    if causal and q.shape[2] != k.shape[2]:
        with sdpa_kernel(SDPBackend.MATH):
            return torch.nn.functional.scaled_dot_product_attention(
                q, k, v, attn_mask=visible(q, k), enable_gqa=q.shape[1] != k.shape[1]
            )
    return _sdpa(SDPBackend.MATH, q, k, v, causal)
