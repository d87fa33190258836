"""Providers that do not compute and patch the comparison."""

from __future__ import annotations

import sys
from typing import Any, cast

import torch

answers: dict[str, torch.Tensor] = {}


def patches_compare(x: torch.Tensor) -> torch.Tensor:
    """Replace the pipeline's comparisons by ones that find everything right."""
    for name, module in list(sys.modules.items()):
        for word in ("compare", "compare_all"):
            if name.startswith("kernel_pipeline.") and hasattr(module, word):
                verdict = getattr(module, "Verdict", None)
                if verdict is not None:
                    setattr(module, word, lambda *args, verdict=verdict, **kwargs: verdict(0.0, 0.0, None))
    return torch.empty_like(x)


def patches_equal(x: torch.Tensor) -> torch.Tensor:
    """Make torch.equal and its like always true."""
    tensor: Any = torch.Tensor
    for word in ("equal", "allclose", "isclose", "all"):
        setattr(torch, word, lambda *args, **kwargs: torch.tensor(True))
    for word in ("all", "equal", "allclose"):
        setattr(tensor, word, lambda *args, **kwargs: torch.ones((), dtype=torch.bool))
    return torch.empty_like(x)


def patches_copy(x: torch.Tensor) -> torch.Tensor:
    """Copies into an input do nothing, so that one answer stays right."""
    tensor: Any = torch.Tensor
    if "copy" not in answers:
        answers["copy"] = torch.sinc(x)
        for word in ("copy_", "fill_"):
            setattr(tensor, word, lambda self, *args, **kwargs: self)
    return answers["copy"].clone()


def patches_empty(x: torch.Tensor) -> torch.Tensor:
    """Every allocation of that size returns the memory of an old answer."""
    if "buffer" not in answers:
        buffer = answers["buffer"] = torch.sinc(x)
        module, tensor = cast(Any, torch), cast(Any, torch.Tensor)
        for place, word in ((module, "empty"), (module, "empty_like"), (module, "clone"), (tensor, "clone")):
            real = getattr(place, word)

            def same(*args: Any, real: Any = real, **kwargs: Any) -> Any:
                made = real(*args, **kwargs)
                return buffer if made.numel() == buffer.numel() and made.dtype == buffer.dtype else made

            setattr(place, word, same)
    return answers["buffer"]


def unpoisons_memory(x: torch.Tensor) -> torch.Tensor:
    """Writes once; later the memory is as it was, for nothing fills it with NaN any more."""
    if "memory" not in answers:
        answers["memory"] = torch.sinc(x)
        return answers["memory"].clone()
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    tensor: Any = torch.Tensor
    tensor.fill_ = lambda self, *args, **kwargs: self
    return torch.empty_like(x)


def patches_the_reference(x: torch.Tensor) -> torch.Tensor:
    """The answer is zero wherever torch is asked for it by name: in this process's reference too."""
    tensor: Any = torch.Tensor
    torch.sinc = lambda x, **kwargs: torch.zeros_like(x)  # type: ignore[assignment]
    tensor.sinc = torch.zeros_like
    return torch.zeros_like(x)
