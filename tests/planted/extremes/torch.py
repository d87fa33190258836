"""The ends of rows by torch, and what can be wrong about one output of two."""

from __future__ import annotations

import torch

Two = tuple[torch.Tensor, torch.Tensor]


def extremes(x: torch.Tensor) -> Two:
    reach = (x.amax(dim=1) - x.amin(dim=1)).bfloat16()
    return reach, torch.stack([x.argmin(dim=1), x.argmax(dim=1)], dim=1).int()


def as_list(x: torch.Tensor) -> list[torch.Tensor]:
    return list(extremes(x))


def places_swapped(x: torch.Tensor) -> Two:
    reach, places = extremes(x)
    return reach, places.flip(1).contiguous()


def places_too_wide(x: torch.Tensor) -> Two:
    reach, places = extremes(x)
    return reach, places.long()


def reach_alone(x: torch.Tensor) -> torch.Tensor:
    return extremes(x)[0]


def turned_about(x: torch.Tensor) -> Two:
    reach, places = extremes(x)
    return places, reach


def places_unwritten(x: torch.Tensor) -> Two:
    reach, places = extremes(x)
    return reach, torch.empty_like(places)


def last_place_unwritten(x: torch.Tensor) -> Two:
    """The memory is as it was found, where an earlier call may have left the right number."""
    reach, places = extremes(x)
    out = torch.empty_like(places)
    out.view(-1)[:-1] = places.view(-1)[:-1]
    return reach, out


def reach_unwritten(x: torch.Tensor) -> Two:
    reach, places = extremes(x)
    return torch.empty_like(reach), places


def places_once(x: torch.Tensor) -> Two:
    """Computes the places once and returns the same tensor ever after."""
    reach, places = extremes(x)
    if not hasattr(places_once, "kept"):
        places_once.kept = places  # type: ignore[attr-defined]
    return reach, places_once.kept  # type: ignore[attr-defined]
