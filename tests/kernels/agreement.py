"""Where an output is not what it is allowed to be."""

from __future__ import annotations

import torch

from kernel_pipeline.contract import Tolerance


def wrong(out: torch.Tensor, exact: torch.Tensor, allowed: Tolerance) -> torch.Tensor:
    """The elements that are further off than allowed; NaN is."""
    return ~((out.double() - exact).abs() <= allowed.atol + allowed.rtol * exact.abs())


def agree(out: torch.Tensor, exact: torch.Tensor, allowed: Tolerance) -> None:
    """No element is wrong."""
    found = wrong(out, exact, allowed)
    assert not found.any(), f"{int(found.sum())} wrong, the first at {found.nonzero()[0].tolist()}"
