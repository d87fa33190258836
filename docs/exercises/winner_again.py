"""This search reports a time that is 10 % too short.

A kernel has forty configurations. Each is timed once, and the fastest time is reported. A time deviates by
5 % from one launch to the next, so the fastest of forty times is the luckiest. Return the time of the
configuration that was found, within 2.5 %.
"""

from __future__ import annotations

from statistics import median

from docs.exercises._virtual_gpu import VirtualGpu


def timed(gpu: VirtualGpu, kernel: str) -> float:
    """Return the time of one launch in microseconds."""
    begin = gpu.clock()
    gpu.launch(kernel)
    gpu.synchronize()
    return gpu.clock() - begin - gpu.launch_us - gpu.wait_us


def yours(gpu: VirtualGpu) -> float:
    """Search the fastest configuration."""
    times = {kernel: timed(gpu, kernel) for kernel in gpu.kernels}
    # YOURS: return the time of the fastest.  It was: min(times.values())
    best = min(times, key=lambda kernel: times[kernel])
    return median(timed(gpu, best) for _ in range(51))
    # END


def expected(gpu: VirtualGpu) -> float:
    """All configurations take equally long."""
    return min(gpu.true_us.values())


def cases():
    """Two kernels with forty equal configurations."""
    for us in (100.0, 700.0):
        yield (VirtualGpu({f"configuration {i}": us for i in range(40)}, noise=0.05),)


TOLERANCE = 0.025

TOPIC, STEP = "Measuring", 4

MISTAKE = """
best = min(times, key=lambda kernel: times[kernel])
return min(timed(gpu, best) for _ in range(51))
"""

HINTS = (
    "The time by which something was chosen is not a measurement of it: it is the smallest of forty.",
    "Choose by the first times, and measure the chosen configuration again.",
    "Again the smallest would be luck. Take the median of about fifty new times.",
)
