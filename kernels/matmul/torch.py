"""The matrix product by torch: cuBLAS on a GPU."""

from __future__ import annotations

from collections.abc import Callable

import torch

from kernel_pipeline.tensors import without_padding


def by_flag(
    multiply: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
    a: torch.Tensor,
    b: torch.Tensor,
    arithmetic: str,
) -> torch.Tensor:
    """Return ``multiply(a, b)``, for float32 by ``arithmetic``: a flag of torch that is set for this call
    only. cuBLAS reads it on the host when it is called, so that a CUDA graph keeps the value at its
    capture.

    Set by ``allow_tf32``, which keeps torch's older and newer flag the same. The newer one alone,
    ``fp32_precision``, leaves them different, and what reads the older one then raises; torch.compile on a
    GPU did in 2.10. Both are restored, because ``allow_tf32 = False`` writes "ieee" where "none" may have
    been.
    """
    flags = torch.backends.cuda.matmul
    allowed, precision = flags.allow_tf32, flags.fp32_precision
    flags.allow_tf32 = arithmetic == "tf32"
    try:
        return multiply(a, b)
    finally:
        flags.allow_tf32 = allowed
        flags.fp32_precision = precision


def matmul(
    a: torch.Tensor,
    b: torch.Tensor,
    scale_a: torch.Tensor | None = None,
    scale_b: torch.Tensor | None = None,
    *,
    arithmetic: str,
) -> torch.Tensor:
    """torch's own product; for float8 that of two scaled matrices."""
    if scale_a is None or scale_b is None:
        return by_flag(torch.mm, without_padding(a), without_padding(b), arithmetic)
    return torch._scaled_mm(
        a,
        b,
        scale_a=scale_a,
        scale_b=scale_b,
        out_dtype=torch.bfloat16,
        use_fast_accum=arithmetic == "fast_accum",
    )
