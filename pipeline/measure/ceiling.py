"""Ceilings: what this device was measured to do at best, and where a kernel stands below them."""

from __future__ import annotations

from typing import Literal

from pipeline.measure.record import Rate, Record


class Ceilings(Record):
    """Rates measured on one device: a copy of a tensor far larger than any cache (GB/s, bytes read plus
    bytes written) and a large matrix product (TFLOP/s) for each dtype that the device has."""

    gpu: str
    environment: str
    copy_gbps: float
    matmul_tflops: dict[str, float]


def rate(time_us: float, bytes_: int, flops: int, dtype: str, ceilings: Ceilings | None) -> Rate:
    """What a time in microseconds means, against the ceilings of the device it was measured on.

    The bound is the ceiling that the operation would reach first at its arithmetic intensity
    (roofline: Williams, Waterman and Patterson, 2009).
    """
    gbps = bytes_ / time_us / 1e3
    tflops = flops / time_us / 1e6
    bound: Literal["memory", "compute"] | None = None
    fraction = None
    if ceilings is not None and dtype in ceilings.matmul_tflops:
        memory, compute = gbps / ceilings.copy_gbps, tflops / ceilings.matmul_tflops[dtype]
        bound, fraction = ("memory", memory) if memory >= compute else ("compute", compute)
    return Rate(bytes=bytes_, flops=flops, gbps=gbps, tflops=tflops, bound=bound, ceiling_fraction=fraction)
