"""What torch.compile makes of a provider: the source that Inductor generated."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

import torch

from pipeline.execution import instance
from pipeline.points.point import Point
from pipeline.toolchain.inductor import variables


def generated(where: str, point: Point, device: torch.device, seed: int) -> str:
    """The Python module that Inductor generated for a compiled provider at a point of the kernel that
    ``where`` names; it holds the kernels as Triton source on a GPU and as C++ on a CPU. Compiles and runs the
    provider once.

    Raises whatever the provider or Inductor raises.
    """
    os.environ |= variables()
    from torch._inductor.utils import run_and_get_code

    found = instance.standalone(where, point)
    _, sources = run_and_get_code(found.call, *found.inputs(device, seed))
    return "\n\n".join(sources)


def kernel_names(source: str) -> Sequence[str]:
    """The names of the kernels that an Inductor module defines, in their order."""
    found = re.findall(r"^(\w+) = async_compile\.\w+\(", source, re.MULTILINE)
    return list(dict.fromkeys(found))
