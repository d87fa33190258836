"""What a choice may know of a tensor's device, and its name in the files of what was measured."""

from __future__ import annotations

import functools
import re
from typing import Any

import torch

from ..contract import Gpu


@functools.cache
def gpu(device: torch.device) -> Gpu | None:
    """What a provider may ask of a GPU; None for a CPU."""
    if device.type != "cuda":
        return None
    told: Any = torch.cuda.get_device_properties(device)  # its stub lacks a field
    return Gpu(
        capability=(told.major, told.minor),
        multiprocessors=told.multi_processor_count,
        shared_memory=told.shared_memory_per_block_optin,
        l2_cache=told.L2_cache_size,
    )


@functools.cache
def slug(device: torch.device) -> str | None:
    """A GPU's name in file names, ``nvidia-h200``; None for a CPU, for which nothing is tuned."""
    return named(torch.cuda.get_device_name(device)) if device.type == "cuda" else None


def named(name: str) -> str:
    """The slug of a GPU of that name: the pipeline's files are named so too, which a test looks after."""
    plain = re.sub(r"\((r|tm|c)\)|@.*|\bcpu\b|\bprocessor\b", " ", name.lower())
    return re.sub(r"[^a-z0-9]+", "-", plain).strip("-")


def one_gpu() -> bool:
    """Whether no tensor can be on another GPU than the current one."""
    return torch.cuda.device_count() <= 1
