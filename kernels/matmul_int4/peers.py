"""The four-bit product of other projects, where they are installed."""

from __future__ import annotations

from functools import cache

import torch

from .problem import GROUPS


def gemlite(
    x: torch.Tensor, words: torch.Tensor, scales: torch.Tensor, zeros: torch.Tensor, granularity: str
) -> torch.Tensor:
    """Return the product by gemlite, which chooses a Triton kernel by the rows of x and tunes it once."""
    from gemlite import forward_functional

    meta = _meta(x.dtype, x.shape[1], words.shape[1], GROUPS[granularity])
    out: torch.Tensor = forward_functional(x.contiguous(), None, [words, scales, zeros], meta)
    return out


@cache
def _meta(dtype: torch.dtype, k: int, n: int, group: int) -> list[int]:
    """Return gemlite's description of the weights: a layer packed by gemlite, eight weights per word, with
    ``q * scale + zero``."""
    from gemlite import DType, GemLiteLinear

    name = DType.BF16 if dtype == torch.bfloat16 else DType.FP16
    layer = GemLiteLinear(4, group, k, n, input_dtype=name, output_dtype=name)
    layer.elements_per_sample = 8
    layer.W_group_mode = 4
    layer.channel_scale_mode = 0
    layer.data_contiguous = True
    meta: list[int] = layer.get_meta_args()
    return meta
