"""In this benchmark the kernel is twice as fast as in the application.

It launches the kernel over the same buffer again and again. From the second launch on the buffer is in the L2
cache, which holds 4 of the 16 buffers. The application passes a new buffer to each call. Return the time of a
call whose buffer is not in the cache, within 5 %: gpu.launch(kernel, buffer) takes a buffer from 0 to 15.
"""

from __future__ import annotations

from docs.exercises._virtual_gpu import VirtualGpu


def yours(gpu: VirtualGpu, kernel: str) -> float:
    """Time a kernel over memory that is not in the cache."""
    gpu.launch(kernel)
    gpu.synchronize()
    begin = gpu.clock()
    # YOURS: launch 160 times, and wait.
    for call in range(160):
        gpu.launch(kernel, call % 16)
    gpu.synchronize()
    # END
    return (gpu.clock() - begin) / 160


def expected(gpu: VirtualGpu, kernel: str) -> float:
    """The time that the kernel takes when it reads memory."""
    return gpu.true_us[kernel]


def cases():
    """Two kernels, each on a fresh GPU."""
    for us in (40.0, 200.0):
        yield VirtualGpu({"kernel": us}, cached=4), "kernel"


TOLERANCE = 0.05

TOPIC, STEP = "Measuring", 2

MISTAKE = """
for call in range(160):
    gpu.launch(kernel, call % 4)
gpu.synchronize()
"""

HINTS = (
    "A buffer is cold if more than 4 other buffers were used since it was used last.",
    "Go round a ring of buffers that does not fit the cache.",
    "gpu.launch(kernel, call % 16): when buffer 0 comes again, the cache holds 12 to 15.",
)
