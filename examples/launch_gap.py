"""Show the two modes of the launch gap: python examples/launch_gap.py (an NVIDIA GPU, torch)."""

import ctypes
from itertools import pairwise
from statistics import median

import torch

if not torch.cuda.is_available():
    raise SystemExit("launch_gap.py needs an NVIDIA GPU, and this machine has none.")

tensors = [torch.randn(256, 256, device="cuda") for _ in range(128)]


def capture() -> torch.cuda.CUDAGraph:
    """Return a graph of 128 launches."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        graph.outputs = [torch.square(x) for x in tensors]
    return graph


def show(when: str, graph: torch.cuda.CUDAGraph) -> None:
    """Print the time of a replay per launch."""
    events = [torch.cuda.Event(enable_timing=True) for _ in range(500)]
    for event in events:
        graph.replay()
        event.record()
    torch.cuda.synchronize()
    times = [start.elapsed_time(end) for start, end in pairwise(events)]
    print(f"{when}: {median(times[100:]) * 1e3 / len(tensors):.2f} us per launch")


cuda, context, memory = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p(), ctypes.c_uint64()
graphs = [capture()]
show("one graph", graphs[0])
graphs += [capture() for _ in range(5)]
show("after five more captures", graphs[0])
cuda.cuCtxCreate_v2(ctypes.byref(context), 0, 0)
cuda.cuMemAlloc_v2(ctypes.byref(memory), ctypes.c_size_t(4))
cuda.cuMemsetD32_v2(memory, 0, ctypes.c_size_t(1))
cuda.cuCtxSynchronize()
cuda.cuCtxPopCurrent_v2(ctypes.byref(ctypes.c_void_p()))
show("after a memset of another context", graphs[0])
