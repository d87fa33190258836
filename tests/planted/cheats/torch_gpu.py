"""What only a GPU's provider can do: work where the clock does not look, and change how it looks."""

from __future__ import annotations

import ctypes
from typing import Any

import torch

held: dict[str, Any] = {}


def on_a_side_stream(x: torch.Tensor) -> torch.Tensor:
    """The stream that is timed waits for nothing."""
    if "stream" not in held:
        held["stream"] = torch.cuda.Stream()
    out = torch.empty_like(x)
    with torch.cuda.stream(held["stream"]):
        torch.sinc(x, out=out)
    return out


def leaves_a_stream(x: torch.Tensor) -> torch.Tensor:
    """All that comes after is launched where no event is recorded."""
    out = torch.sinc(x)
    if not torch.cuda.is_current_stream_capturing():
        torch.cuda.set_stream(torch.cuda.Stream())
    return out


def nothing_in_a_graph(x: torch.Tensor) -> torch.Tensor:
    """Computes, but not where a graph would have it again and again."""
    if torch.cuda.is_current_stream_capturing():
        return held["graph"]  # type: ignore[no-any-return]
    held["graph"] = torch.sinc(x)
    return held["graph"]


def patches_elapsed_time(x: torch.Tensor) -> torch.Tensor:
    """Between two events there is a fiftieth of the time."""
    event: Any = torch.cuda.Event
    if "elapsed" not in held:
        held["elapsed"] = real = event.elapsed_time
        event.elapsed_time = lambda self, other: real(self, other) / 50
    return torch.sinc(x)


def patches_replay(x: torch.Tensor) -> torch.Tensor:
    """A graph is replayed once and then no more."""
    graph: Any = torch.cuda.CUDAGraph
    if "replay" not in held:
        held["replay"], seen = graph.replay, set()

        def replay(self: Any) -> None:
            if id(self) not in seen:
                seen.add(id(self))
                held["replay"](self)

        graph.replay = replay
    return torch.sinc(x)


def patches_synchronize(x: torch.Tensor) -> torch.Tensor:
    """Synchronizing does not wait. The work is long enough for this to show."""
    if "synchronize" not in held:
        held["synchronize"] = torch.cuda.synchronize
        torch.cuda.synchronize = lambda *args: None  # type: ignore[assignment]
    if "stream" not in held:
        held["stream"] = torch.cuda.Stream()
    out = torch.empty_like(x)
    with torch.cuda.stream(held["stream"]):
        torch.cuda._sleep(20_000_000)
        torch.sinc(x, out=out)
    return out


def keeps_the_cache(x: torch.Tensor) -> torch.Tensor:
    """Sets the second-level cache aside for data that nothing else may push out of it."""
    if "cache" not in held:
        persisting_l2 = 6
        runtime = ctypes.CDLL("libcudart.so", mode=ctypes.RTLD_GLOBAL)
        held["cache"] = runtime.cudaDeviceSetLimit(persisting_l2, ctypes.c_size_t(16 << 20))
    return torch.sinc(x)


def limits_the_allocator(x: torch.Tensor) -> torch.Tensor:
    """Leaves later providers a hundredth of the memory."""
    if "allocator" not in held:
        held["allocator"] = True
        torch.cuda.set_per_process_memory_fraction(0.01)
    return torch.sinc(x)
