"""The product by torch: dense, and semi-structured by cuSPARSELt."""

from __future__ import annotations

import torch

from kernel_pipeline.tensors import without_padding


def dense(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """Return the dense product, by cuBLAS on a GPU."""
    return torch.mm(without_padding(x), without_padding(w).t())


def cusparselt(x: torch.Tensor, compressed: torch.Tensor, alg_id: int) -> torch.Tensor:
    """Return the product as the transpose of the sparse matrix times x's transpose."""
    out: torch.Tensor = torch._cslt_sparse_mm(
        compressed.view(x.dtype), x.t(), transpose_result=True, alg_id=alg_id
    )
    return out
