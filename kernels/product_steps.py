"""The steps of products of x, m by k, and packed weights, n by k: what the times of a provider grow with."""

from __future__ import annotations

from math import prod
from typing import Protocol

from kernel_pipeline.contract import Gpu

from .transposed_tiles import STEP_K, Wgmma
from .waves import START, up_to, waves

BALANCE = 170
"""Operations of tensor cores in 16 bits that an H200 computes while it moves a byte."""

ROWS_OF_X, ROWS_OF_W = 8, 16
"""Rows of x and of w that a warp multiplies by one instruction, in the kernels for few rows of x."""


class _Product(Protocol):
    """A product's dimensions."""

    @property
    def m(self) -> int: ...
    @property
    def n(self) -> int: ...
    @property
    def k(self) -> int: ...


class _Tiles(Protocol):
    """A Triton program's tile, and the products of its step."""

    @property
    def block_m(self) -> int: ...
    @property
    def block_n(self) -> int: ...
    @property
    def block_k(self) -> int: ...


class _Warps(Protocol):
    """The division of w among the warps of a kernel for few rows of x."""

    @property
    def tiles_n(self) -> int: ...
    @property
    def warps_k(self) -> int: ...
    @property
    def split_k(self) -> int: ...


def dense_steps(problem: _Product, parameters: None, gpu: Gpu) -> float:
    """Return the time of a library's product in 16 bits, in the time of a byte: it is limited by the bytes of
    its inputs and output, or by the operations."""
    del parameters, gpu
    m, n, k = problem.m, problem.n, problem.k
    return max(2 * sum(map(prod, ((m, k), (n, k), (m, n)))), 2 * m * n * k / BALANCE)


def wgmma_steps(problem: _Product, tiles: Wgmma, gpu: Gpu) -> float:
    """Return the steps of 128 columns of a block for each tile and each part of k."""
    blocks = up_to(problem.m, tiles.block_m) * up_to(problem.n, tiles.block_n) * tiles.split_k
    return waves(blocks, gpu) * up_to(problem.k, STEP_K * tiles.split_k) + START


def tiles_steps(problem: _Product, tiles: _Tiles, gpu: Gpu) -> float:
    """Return the steps of a Triton program for each tile, and for each part of k if the parameters have
    ``split_k``."""
    split_k = getattr(tiles, "split_k", 1)
    programs = up_to(problem.m, tiles.block_m) * up_to(problem.n, tiles.block_n) * split_k
    return waves(programs, gpu) * up_to(problem.k, tiles.block_k * split_k) + START


def warps_steps(problem: _Product, warps: _Warps, gpu: Gpu) -> float:
    """Return the steps of a kernel for few rows of x, whose warps share k."""
    blocks = up_to(problem.n, ROWS_OF_W * warps.tiles_n) * warps.split_k
    of_x = 1 << (up_to(problem.m, ROWS_OF_X) - 1).bit_length()
    return of_x * waves(blocks, gpu) * up_to(problem.k, STEP_K * warps.warps_k * warps.split_k) + START
