"""Inputs with weights that cuSPARSELt compressed, which needs a GPU.

The layout of cuSPARSELt's metadata is unknown. The reference therefore recovers the weights by a product with
the identity, which rounds nothing. ``inputs`` checks that they equal the kernel's weights.
"""

from __future__ import annotations

import torch

from .dense import inputs as dense_inputs
from .problem import Problem


def inputs(problem: Problem, device: torch.device, seed: int) -> tuple[torch.Tensor, ...]:
    """Return x, and the compressed weights as int16, since one tensor holds values and metadata.

    Raises RuntimeError on a CPU, and if compressing changed the weights.
    """
    x, w = dense_inputs(problem, device, seed)
    if device.type == "meta":
        return x, torch.empty(problem.n * problem.k // 16 * 9, dtype=torch.int16, device=device)
    compressed = torch._cslt_compress(w)
    found = compressed.view(torch.int16)
    if not torch.equal(_dense(found, x.dtype, problem.k), w):
        raise RuntimeError("cuSPARSELt's compressed weights differ from the given weights")
    return x, found


def reference(x: torch.Tensor, compressed: torch.Tensor) -> torch.Tensor:
    """Return the product in float64."""
    return x.double() @ _dense(compressed, x.dtype, x.shape[1]).double().t()


def _dense(compressed: torch.Tensor, dtype: torch.dtype, k: int) -> torch.Tensor:
    identity = torch.eye(k, dtype=dtype, device=compressed.device)
    w: torch.Tensor = torch._cslt_sparse_mm(compressed.view(dtype), identity)
    return w
