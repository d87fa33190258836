"""Chrome traces of a GPU, made by hand."""

from typing import Any


def kernel_event(name: str, correlation: int, at: float, us: float) -> list[dict[str, Any]]:
    """A launch as the profiler's trace of a GPU holds it: the host's call, and the kernel it led to."""
    call = {"cat": "cuda_runtime", "name": "cudaLaunchKernel", "tid": 1, "ts": at, "dur": 5.0}
    run = {"cat": "kernel", "name": name, "tid": 7, "ts": at + 100, "dur": us}
    shape = {"grid": [64, 2, 1], "block": [128, 1, 1], "registers per thread": 22, "shared memory": 48}
    return [
        call | {"ph": "X", "args": {"correlation": correlation}},
        run | {"ph": "X", "args": {"correlation": correlation, **shape}},
    ]


def trace_of_a_gpu() -> dict[str, Any]:
    """Made by hand: two ranges; kernels end after their range, as they do."""

    def host(cat: str, name: str, ts: float, dur: float) -> dict[str, Any]:
        return {"ph": "X", "cat": cat, "name": name, "tid": 1, "ts": ts, "dur": dur}

    return {
        "traceEvents": [
            host("user_annotation", "point:aa", 0.0, 50.0),
            host("cpu_op", "aten::square", 1.0, 20.0),
            host("cpu_op", "aten::pow", 2.0, 18.0),
            *kernel_event("void at::native::vectorized_elementwise_kernel<4, pow>(int, float)", 1, 10.0, 3.5),
            host("user_annotation", "point:bb", 60.0, 30.0),
            host("cpu_op", "aten::mul", 61.0, 5.0),
            *kernel_event("mul", 2, 62.0, 2.0),
            *kernel_event("tanh", 3, 70.0, 4.0),
            *kernel_event("mul", 4, 80.0, 2.0),
            *kernel_event("outside", 5, 95.0, 2.0),
        ]
    }
