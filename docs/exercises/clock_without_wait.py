"""This benchmark prints 5 us for every kernel.

It stops the clock when the launches are made, not when the kernels are done, and the first launch loads the
kernel's code as well. Return the time of one launch within 5 %. `gpu` is a virtual GPU: gpu.launch(kernel)
takes the host 5 us, gpu.synchronize() waits for the GPU and takes 10 us more, gpu.clock() is the host's
time in microseconds.
"""

from __future__ import annotations

from docs.exercises._virtual_gpu import VirtualGpu


def yours(gpu: VirtualGpu, kernel: str) -> float:
    """Time a kernel that takes longer than its launch."""
    # YOURS: mend the benchmark.  begin = clock; launch 10 times; return (clock - begin) / 10
    gpu.launch(kernel)
    gpu.synchronize()
    begin = gpu.clock()
    for _ in range(100):
        gpu.launch(kernel)
    gpu.synchronize()
    return (gpu.clock() - begin) / 100
    # END


def expected(gpu: VirtualGpu, kernel: str) -> float:
    """The time that the kernel takes."""
    return gpu.true_us[kernel]


def cases():
    """A short kernel and a long one, each on a fresh GPU."""
    for us in (12.0, 300.0):
        yield VirtualGpu({"kernel": us}, first_us=3000), "kernel"


TOLERANCE = 0.05

TOPIC, STEP = "Measuring", 1

MISTAKE = """
gpu.launch(kernel)
gpu.synchronize()
begin = gpu.clock()
gpu.launch(kernel)
gpu.synchronize()
return gpu.clock() - begin
"""

HINTS = (
    "Launch once and wait before the clock starts, so that the first launch's cost is not in it.",
    "Wait before the clock stops. Launch and wait then add 15 us to the kernel's time.",
    "While the GPU works, the host launches on: with 100 launches and one wait, 15 us are shared by 100.",
)
