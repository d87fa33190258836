"""This benchmark calls b 10 % slower than a, even with both kernels exchanged.

It times the kernel a fifty times, then the kernel b fifty times. Meanwhile the GPU becomes warm and lowers
its clock, so later launches take longer. Return the time of b divided by the time of a, within 1 %.
"""

from __future__ import annotations

from statistics import median

from docs.exercises._virtual_gpu import VirtualGpu


def timed(gpu: VirtualGpu, kernel: str) -> float:
    """Return the time of a kernel in microseconds, from ten launches."""
    begin = gpu.clock()
    for _ in range(10):
        gpu.launch(kernel)
    gpu.synchronize()
    return (gpu.clock() - begin) / 10


def yours(gpu: VirtualGpu) -> float:
    """Compare the kernels "a" and "b"."""
    # YOURS: return the ratio b / a.  It was: median of 50 times of b / median of 50 times of a
    ratios = []
    for turn in range(50):
        first, second = ("a", "b") if turn % 2 else ("b", "a")
        times = {first: timed(gpu, first), second: timed(gpu, second)}
        ratios.append(times["b"] / times["a"])
    return median(ratios)
    # END


def expected(gpu: VirtualGpu) -> float:
    """The ratio at the same clock."""
    return gpu.true_us["b"] / gpu.true_us["a"]


def cases():
    """Equal kernels, and one that is a little slower; each on a cold GPU."""
    for a, b in ((100.0, 100.0), (100.0, 103.0), (110.0, 100.0)):
        yield (VirtualGpu({"a": a, "b": b}, warming=0.25, noise=0.01),)


TOLERANCE = 0.01

TOPIC, STEP = "Measuring", 3

MISTAKE = """
times = {kernel: median(timed(gpu, kernel) for _ in range(50)) for kernel in ("a", "b")}
return times["b"] / times["a"]
"""

HINTS = (
    "Two times can be compared if they were taken under the same conditions: one right after the other.",
    "Fifty rounds: a and b in each. The warming hardly changes the ratio within a round.",
    "The second of a round is a little warmer: change the order from round to round. Take the median ratio.",
)
