"""Compare an output with the reference within a tolerance."""

import torch

from kernel_pipeline.contract import Tolerance


def wrong(out: torch.Tensor, exact: torch.Tensor, allowed: Tolerance) -> torch.Tensor:
    """Return the mask of elements outside of the tolerance; NaN is outside."""
    return ~((out.double() - exact).abs() <= allowed.atol + allowed.rtol * exact.abs())


def agree(out: torch.Tensor, exact: torch.Tensor, allowed: Tolerance) -> None:
    """Fail if an element is outside of the tolerance."""
    found = wrong(out, exact, allowed)
    assert not found.any(), f"{int(found.sum())} wrong, the first at {found.nonzero()[0].tolist()}"
