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
    """Return ``multiply(a, b)``, with torch's flag for the arithmetic of float32 set for this call only.
    cuBLAS reads the flag on the host when it is called, so a CUDA graph keeps the value at its capture.

    ``allow_tf32`` sets torch's older and newer flag alike. Setting only the newer flag, ``fp32_precision``,
    leaves them different, and code that reads the older flag then raises, as torch.compile did on a GPU in
    torch 2.10. Both flags are restored, because ``allow_tf32 = False`` writes "ieee" where the newer one may
    have been "none".
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
    """Return torch's own product; for float8 the product of two scaled matrices."""
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
