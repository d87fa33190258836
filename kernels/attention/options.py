"""Attention with all its options: which calls a kernel may compute, and what torch computes instead.

No kernel has a window or a scale of its own, so torch does: its FlashAttention-2 where it takes the tensors,
otherwise ``scaled_dot_product_attention`` with a mask.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention

from kernel_pipeline.ops.declaration import NotServedError

from .torch import aligned_rows

Window = tuple[int, int]
"""How many keys a query sees to the left and to the right of its position; -1 for all."""

EVERY: Window = (-1, -1)

FLASH_DTYPES = (torch.bfloat16, torch.float16)

FLASH_HEAD_DIM = 256
"""The largest head dimension of torch's FlashAttention-2."""

LARGE_GPUS = ((8, 0), (9, 0), (10, 0))

FLASH_HEAD_DIM_ELSEWHERE = 192
"""Its largest with a gradient where a multiprocessor has less shared memory."""

SCALE_ERROR = 1e-15
"""How far, relatively, a scale may be from the default and still be it: ``d**-0.5`` rounds otherwise than
``1 / sqrt(d)``."""

REFUSED = {
    "softcap": "attention has no softcap: call torch.nn.attention.flex_attention.flex_attention with a "
    "score_mod, compiled.",
    "attn_mask": "attention takes no mask: call torch.nn.functional.scaled_dot_product_attention.",
    "dropout_p": "attention has no dropout: call torch.nn.functional.scaled_dot_product_attention.",
    "block_table": "attention has no block tables: call flash_attn_with_kvcache of flash-attn, or "
    "torch.nn.attention.varlen.varlen_attn of a torch whose function takes them.",
}


def attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    causal: bool = False,
    *,
    scale: float | None = None,
    window: Window = EVERY,
    cu_seqlens: tuple[torch.Tensor, torch.Tensor] | None = None,
    max_seqlen: tuple[int, int] | None = None,
    **refused: Any,
) -> torch.Tensor:
    """Return ``softmax(scale * q @ k.T) @ v`` in q's shape and dtype, as ``scaled_dot_product_attention`` and
    FlashAttention do.

    q: (batch, heads, seq_q, head_dim); k, v: (batch, kv_heads, seq_k, head_dim), kv_heads dividing heads.
    With ``causal`` the last query and the last key have the same position (torch's own is_causal aligns the
    first query and key). Providers take bfloat16 and float16 and head dimensions of 64 and 128, one on Hopper
    also 96; torch computes everything else.

    scale:
        The factor of the scores; None for 1 / sqrt(head_dim). Torch computes any other.
    window:
        How many keys a query sees to the left and to the right of its position; -1 for all. Torch computes a
        window that hides a key, unless it is the causal mask.
    cu_seqlens, max_seqlen:
        A ragged batch, which torch computes: q is (tokens, heads, head_dim), and k and v alike. Sequence i of
        the queries has the rows from cu_seqlens[0][i] to cu_seqlens[0][i + 1], and of the keys as
        cu_seqlens[1] says. max_seqlen has the lengths of the longest. Values are not checked on a GPU.
    softcap, attn_mask, dropout_p, block_table:
        Refused: ValueError says what to call.
    """
    del refused
    window = (window[0], 0 if causal else window[1])
    if cu_seqlens is None or max_seqlen is None:
        return dense(q, k, v, window, scale)
    rows = [x.transpose(0, 1).unsqueeze(0) for x in (q, k, v)]
    if takes_flash(*rows):
        return flash(q, k, v, window, scale, cu_seqlens, max_seqlen)
    lengths_q, lengths_k = (one.diff().tolist() for one in cu_seqlens)
    split = (torch.split(x, one, 2) for x, one in zip(rows, (lengths_q, lengths_k, lengths_k), strict=True))
    made = [dense(of_q, of_k, of_v, window, scale) for of_q, of_k, of_v in zip(*split, strict=True)]
    return torch.cat(made, 2)[0].transpose(0, 1)


def plain(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    causal: bool = False,
    *,
    scale: float | None = None,
    window: Window = EVERY,
    cu_seqlens: tuple[torch.Tensor, torch.Tensor] | None = None,
    max_seqlen: tuple[int, int] | None = None,
    **refused: Any,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, bool]:
    """Return the arguments of an equal call without options. Raises NotServedError for a call that only torch
    computes, and ValueError for options that are refused or do not fit the tensors."""
    for name, value in refused.items():
        if name not in REFUSED:
            raise TypeError(f"attention() got an unexpected keyword argument {name!r}")
        if value is not None and not (isinstance(value, (int, float)) and value == 0):
            raise ValueError(REFUSED[name])
    if not isinstance(scale, (int, float, torch.SymFloat, type(None))):
        raise ValueError(f"scale must be a number or None, not {scale!r}.")
    if not is_pair(window) or not all(isinstance(one, (int, torch.SymInt)) and one >= -1 for one in window):
        raise ValueError(f"window must be the numbers of keys to the left and right, or -1, not {window!r}.")
    ragged = cu_seqlens is not None or max_seqlen is not None
    if ragged and not (is_pair(cu_seqlens) and is_pair(max_seqlen)):
        raise ValueError("a ragged batch needs cu_seqlens and max_seqlen, each a pair for queries and keys.")
    if {q.dim(), k.dim(), v.dim()} != {3 if ragged else 4}:
        wanted = "(tokens, heads, head_dim) in a ragged batch" if ragged else "(batch, heads, seq, head_dim)"
        raise ValueError(f"q, k and v with options must be {wanted}.")
    if ragged:
        raise NotServedError("no kernel takes a ragged batch.")
    default = 1 / math.sqrt(max(1, q.shape[3]))
    if scale is not None and not abs(scale - default) <= SCALE_ERROR * default:  # NaN is another scale
        raise NotServedError("no kernel takes a scale other than 1 / sqrt(head_dim).")
    left, right = reach(q, k, (window[0], 0 if causal else window[1]))
    if left >= 0 or right > 0:
        raise NotServedError("no kernel has a window.")
    return q, k, v, right == 0


def is_pair(value: object) -> bool:
    """Whether an option's value has two items."""
    return isinstance(value, (tuple, list)) and len(value) == 2


def reach(q: torch.Tensor, k: torch.Tensor, window: Window) -> Window:
    """Return a window with -1 for a side that hides no key from any query."""
    left, right = window
    return -1 if left >= k.shape[2] - 1 else left, -1 if right >= q.shape[2] - 1 else right


def dense(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, window: Window, scale: float | None
) -> torch.Tensor:
    """Return attention within a window by torch."""
    left, right = window = reach(q, k, window)
    mask = None
    if left >= 0 or right > 0 or (right == 0 and q.shape[2] != k.shape[2]):
        if takes_flash(q, k, v):
            q, k, v = (x.transpose(1, 2) for x in (q, k, v))
            return flash(q, k, v, window, scale, None, (q.shape[1], k.shape[1])).transpose(1, 2)
        mask = within(q, k, window)
    # Without a mask of its own torch chooses a backend, which may be faster than flash attention.
    grouped = bool(q.shape[1] != k.shape[1])
    causal = mask is None and right == 0
    return scaled_dot_product_attention(q, k, v, mask, 0.0, causal, scale=scale, enable_gqa=grouped)


def within(q: torch.Tensor, k: torch.Tensor, window: Window) -> torch.Tensor:
    """Return the mask of the keys that each query sees."""
    left, right = window
    ahead = k.shape[2] - q.shape[2]
    mask = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool, device=q.device)
    mask = mask.tril(ahead + right) if right >= 0 else mask
    return mask.triu(ahead - left) if left >= 0 else mask


def takes_flash(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> bool:
    """Whether torch's flash attention takes tensors of four dimensions. Under ``torch.func``, for which its
    operator has no rules, it does not."""
    head_dim = q.shape[3]
    if not q.is_cuda or q.dtype not in FLASH_DTYPES or head_dim % 8 or head_dim > FLASH_HEAD_DIM:
        return False
    if not q.dtype == k.dtype == v.dtype or v.shape[3] != head_dim or q.numel() == 0 or k.numel() == 0:
        return False
    if not torch.compiler.is_compiling() and torch._C._functorch.peek_interpreter_stack() is not None:
        return False
    return bool(has_flash(q.device.index, head_dim))


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def has_flash(index: int, head_dim: int) -> bool:
    """Whether a GPU has torch's flash attention with its backward pass, and its user wants it."""
    backends = torch.backends.cuda
    capability = torch.cuda.get_device_capability(index)
    is_large = capability in LARGE_GPUS or head_dim <= FLASH_HEAD_DIM_ELSEWHERE
    is_wanted: bool = backends.flash_sdp_enabled()  # type: ignore[no-untyped-call]
    is_there = backends.is_flash_attention_available() and capability >= (8, 0)
    return is_wanted and is_there and is_large


def flash(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    window: Window,
    scale: float | None,
    cu_seqlens: tuple[torch.Tensor, torch.Tensor] | None,
    max_seqlen: tuple[int, int],
) -> torch.Tensor:
    """Return attention by torch's FlashAttention-2. Tensors are (batch, sequence, heads, head_dim), or
    (tokens, heads, head_dim) in a ragged batch."""
    if not torch.compiler.is_compiling():  # a tensor that is traced has no address
        q, k, v = aligned_rows(q, k, v)
    no_dropout, no_mask_besides_the_window, no_debugging = 0.0, False, False
    out: torch.Tensor = torch.ops.aten._flash_attention_forward(
        *(q, k, v, *(cu_seqlens or (None, None)), *max_seqlen),
        *(no_dropout, no_mask_besides_the_window, no_debugging),
        scale=scale,
        window_size_left=window[0],
        window_size_right=window[1],
    )[0]
    return out
