"""The properties of a tensor's device that a choice depends on, and the device's slug."""

from __future__ import annotations

import functools
import re
from typing import Any

import torch

from ..contract import Gpu


@functools.cache
def gpu(device: torch.device) -> Gpu | None:
    """Return the properties of a GPU; None for a CPU."""
    if device.type != "cuda":
        return None
    properties: Any = torch.cuda.get_device_properties(device)  # torch's stub lacks a field
    return Gpu(
        capability=(properties.major, properties.minor),
        multiprocessors=properties.multi_processor_count,
        shared_memory=properties.shared_memory_per_block_optin,
        l2_cache=properties.L2_cache_size,
    )


@functools.cache
def slug(device: torch.device) -> str | None:
    """Return a GPU's name in file names, such as ``nvidia-h200``; None for a CPU, which has no table."""
    return named(torch.cuda.get_device_name(device)) if device.type == "cuda" else None


def named(name: str) -> str:
    """Return the slug of a GPU's name. It equals the pipeline's slug, which a test checks."""
    plain = re.sub(r"\((r|tm|c)\)|@.*|\bcpu\b|\bprocessor\b", " ", name.lower())
    return re.sub(r"[^a-z0-9]+", "-", plain).strip("-")


def one_gpu() -> bool:
    """Whether this process sees at most one GPU."""
    return torch.cuda.device_count() <= 1
