"""The steps of providers that only the four-bit product has; ``product_steps`` has the others."""

from __future__ import annotations

from kernel_pipeline.contract import Gpu

from ..product_steps import dense_steps
from ..waves import START, up_to, waves
from .parameters import Rows, Threads
from .problem import Problem

A_LAUNCH = 16_000_000
"""Bytes that an H200 moves in the time of an additional launch, 4 us."""


def dequantise_steps(problem: Problem, parameters: Threads, gpu: Gpu) -> float:
    """Return the time to write the weights in 16 bits and then to multiply, in the time of a byte."""
    del parameters
    moved = (2 + 1 / 2) * problem.n * problem.k
    return moved + A_LAUNCH + dense_steps(problem, None, gpu)


def rows_steps(problem: Problem, rows: Rows, gpu: Gpu) -> float:
    """Return the steps of programs that each take one row of x."""
    programs = problem.m * up_to(problem.n, rows.block_n)
    return waves(programs, gpu) * up_to(problem.k, rows.block_k) + START
