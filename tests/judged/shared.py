"""Functions that the tasks import under the name ``utils``."""

import torch


def close(received: torch.Tensor, expected: torch.Tensor, rtol: float) -> str:
    if torch.allclose(received.double(), expected.double(), rtol=rtol):
        return ""
    return "mismatch found"
