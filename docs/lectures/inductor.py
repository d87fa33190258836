"""x * x by torch.compile. TORCH_LOGS=output_code shows the code that Inductor generates."""

from __future__ import annotations

import torch


@torch.compile
def square(x: torch.Tensor) -> torch.Tensor:
    """The product as Python writes it."""
    return x * x


x = torch.randn(4096, 4096, device="cuda" if torch.cuda.is_available() else "cpu")
torch.testing.assert_close(square(x), torch.square(x))
