"""Which functions of a CUDA library its providers' calls launch: told by them, named in full by the profiler.

A provider's report names a template, its block and its shared memory; of a template that was compiled for
several arguments, the profiler's own name of the launch says for which.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import prod

from pipeline.inspection import launches
from pipeline.inspection.library import CudaNumbers, known_name
from pipeline.points.point import Point
from pipeline.store.record import Launch


@dataclass(frozen=True)
class Launched:
    """One launch of a call: its function, None for one that is none of the library's; the name that it was
    launched by; threads of a block, bytes of dynamic shared memory, and how it goes about the problem."""

    function: CudaNumbers | None
    name: str
    threads: int
    dynamic: int
    strategy: str | None = None


def reported(where: str, points: Iterable[tuple[str, Point]], seed: int) -> dict[str, tuple[Launch, ...]]:
    """What one call of each point of the kernel that ``where`` names launches on the current GPU, as its
    provider reports it, by the key that comes with the point. A point that fails or does not tell is left
    out."""
    import torch

    from pipeline.execution import instance
    from pipeline.execution.launch_recorder import recorded

    found: dict[str, tuple[Launch, ...]] = {}
    for key, point in points:
        with suppress(RuntimeError, ValueError):
            made = instance.standalone(where, point)
            inputs = made.inputs(torch.device("cuda"), seed)
            with recorded(made) as told:
                made.call(*inputs)
                torch.cuda.synchronize()
            if launched := told():
                found[key] = launched
    return found


def joined(
    told: Sequence[Launch], seen: Sequence[launches.DeviceLaunch], functions: Sequence[CudaNumbers]
) -> list[Launched]:
    """The launches of one call with their functions, among those of one library for one architecture.

    ``told`` is the provider's report, ``seen`` what the profiler saw of such a call. The n-th launch of a
    template in the one is the n-th in the other. A provider that reports nothing leaves it to the profiler.
    """
    by_name = {one.name: one for one in functions}
    names = [known_name(one.name) for one in seen]
    if not told:
        return [
            Launched(function, one.name, one.threads, _dynamic(one.shared, function))
            for name, one in zip(names, seen, strict=True)
            for function in [by_name.get(name)]
        ]
    found = []
    left = list(names)
    for launch in told:
        template = known_name(launch.function).partition("<")[0]
        name = next((name for name in left if name.partition("<")[0] == template), None)
        if name is not None:
            left.remove(name)
        candidates = [one for one in functions if one.template == template]
        only = candidates[0] if len(candidates) == 1 else None
        function = by_name.get(name or "", only)
        found.append(
            Launched(
                function, name or launch.function, prod(launch.block), launch.shared_bytes, launch.strategy
            )
        )
    return found


def _dynamic(shared: int, function: CudaNumbers | None) -> int:
    """What a launch asks for on top of the function's static shared memory."""
    return 0 if function is None else max(0, shared - function.resources.shared)
