"""Providers with a wrong kind of output: computed later, of another type, or in foreign memory."""

from __future__ import annotations

from typing import Any

import torch


class Later(torch.Tensor):
    """A tensor that is computed by the first operation that takes it."""

    pending: torch.Tensor | None

    @classmethod
    def __torch_function__(
        cls, function: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        with torch._C.DisableTorchFunctionSubclass():
            for one in args:
                if isinstance(one, Later) and one.pending is not None:
                    one.as_subclass(torch.Tensor).copy_(torch.sinc(one.pending))
                    one.pending = None
            return function(*args, **(kwargs or {}))


def lazy_subclass(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x).as_subclass(Later)
    out.pending = x
    return out


def lazy_methods(x: torch.Tensor) -> torch.Tensor:
    """A plain tensor whose object has methods of its own, which compute."""
    out: Any = torch.empty_like(x)
    for name in (
        "reshape",
        "double",
        "cpu",
        "to",
        "numpy",
        "clone",
        "contiguous",
        "flatten",
        "view",
        "detach",
    ):
        setattr(out, name, lambda *args, _name=name, **kw: getattr(torch.sinc(x), _name)(*args, **kw))
    made: torch.Tensor = out
    return made


def sparse(x: torch.Tensor) -> torch.Tensor:
    """The right shape and dtype, but the elements are elsewhere."""
    return torch.sinc(x).to_sparse()


def wrong_dtype(x: torch.Tensor) -> torch.Tensor:
    return torch.sinc(x).double()


def wrong_shape(x: torch.Tensor) -> torch.Tensor:
    return torch.sinc(x[:1])


def wrong_device(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x, device="meta")


def half_precision(x: torch.Tensor) -> torch.Tensor:
    """Less work, at a precision that was not asked for."""
    return torch.sinc(x.half()).float()


def over_its_input(x: torch.Tensor) -> torch.Tensor:
    """No memory of its own: half of the bytes."""
    return torch.sinc_(x)


def changes_its_input(x: torch.Tensor) -> torch.Tensor:
    """Right, but a reference that is computed afterwards is another."""
    out = torch.sinc(x)
    x.zero_()
    return out


def freed_answer(x: torch.Tensor) -> torch.Tensor:
    """Takes memory in which an answer was left; the allocator gives back what was freed last."""
    if not hasattr(freed_answer, "done"):
        freed_answer.done = True  # type: ignore[attr-defined]
        torch.sinc(x)
    return torch.empty_like(x)
