"""Layer normalization's backward pass of other projects, where they are installed.

They take each row's mean and factor from their forward pass, so torch's forward pass is run here before.
"""

from __future__ import annotations

import torch

from ..layernorm import EPS

Gradients = tuple[torch.Tensor, ...]


def quack(d_out: torch.Tensor, x: torch.Tensor, weight: torch.Tensor) -> Gradients:
    """Return the gradients by quack's CuTe DSL kernel, which leaves sums over the rows to torch."""
    from quack.rmsnorm import layernorm_bwd

    mean, scale = _statistics(x, weight)
    made: Gradients = layernorm_bwd(x.contiguous(), weight.contiguous(), d_out.contiguous(), scale, mean)
    return made


def liger(d_out: torch.Tensor, x: torch.Tensor, weight: torch.Tensor) -> Gradients:
    """Return the gradients by Liger's Triton kernel, which leaves sums over the rows to torch."""
    from liger_kernel.ops.layer_norm import layer_norm_backward

    weight = weight.contiguous()
    given = d_out.contiguous(), x.contiguous(), weight, weight  # of the bias only the dtype matters
    made: Gradients = layer_norm_backward(*given, *_statistics(x, weight))
    return made


def _statistics(x: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return each row's mean and factor in float32."""
    _, mean, scale = torch.native_layer_norm(x, weight.shape, weight, weight, EPS)
    return mean.view(-1), scale.view(-1)
