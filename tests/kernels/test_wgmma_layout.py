"""What cuda_wgmma works out before it computes, compiled without CUDA: tiles, descriptors, shared memory."""

from __future__ import annotations

import ctypes
import subprocess
from collections.abc import Iterator

import pytest

import kernels
from kernels.matmul.parameters import Wgmma, wgmma_shared_memory
from pipeline.machine.compilers import find_cxx

SOURCE = """
#include "wgmma_layout.h"
#define SHOWN extern "C" __attribute__((visibility("default")))
SHOWN long long tile(long long place, long long tiles_m, long long tiles_n, long long group) {
  const matmul::TileIndex at = matmul::grouped_tile(place, tiles_m, tiles_n, group);
  return at.m * 1000 + at.n;
}
SHOWN int swizzled(int row, int byte) { return kernels::swizzled(row, byte); }
SHOWN unsigned long long k_major(unsigned tile, int step) { return kernels::k_major_descriptor(tile, step); }
SHOWN unsigned long long mn_major(unsigned tile, int step, int rows) {
  return kernels::mn_major_descriptor(tile, step, rows);
}
SHOWN int shared_bytes(int block_n, int stages) { return matmul::SharedLayout(block_n, stages).bytes(); }
SHOWN int stage_bytes(int block_n) { return matmul::SharedLayout(block_n, 4).stage_bytes(); }
"""


@pytest.fixture(scope="module")
def layout(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ctypes.CDLL]:
    folder = tmp_path_factory.mktemp("layout")
    (folder / "layout.cpp").write_text(SOURCE)
    flags = ["-std=c++17", "-fPIC", "-fvisibility=hidden", "-shared", "-Wall", "-Wextra", "-Werror"]
    include = f"-I{kernels.ROOT / 'matmul'}"
    command = [str(find_cxx().path), *flags, include, "layout.cpp", "-o", "layout.so"]
    subprocess.run(command, cwd=folder, check=True)
    library = ctypes.CDLL(str(folder / "layout.so"))
    library.tile.restype = ctypes.c_longlong
    library.tile.argtypes = [ctypes.c_longlong] * 4
    library.k_major.restype = library.mn_major.restype = ctypes.c_ulonglong
    yield library


@pytest.mark.parametrize("group", [1, 2, 4, 8])
@pytest.mark.parametrize("tiles", [(1, 1), (1, 7), (7, 1), (8, 8), (13, 5), (16, 2)])
def test_every_tile_comes_once_and_down_a_group_first(
    layout: ctypes.CDLL, tiles: tuple[int, int], group: int
) -> None:
    order = [divmod(layout.tile(place, *tiles, group), 1000) for place in range(tiles[0] * tiles[1])]
    assert sorted(order) == [(row, column) for row in range(tiles[0]) for column in range(tiles[1])]
    height = min(group, tiles[0])
    assert order[:height] == [(row, 0) for row in range(height)]


def fields(descriptor: int) -> tuple[int, int, int, int, int]:
    """Address, leading and stride offset in bytes, base offset, swizzle: as the PTX ISA numbers the bits."""
    address, leading, stride = (((descriptor >> at) & 0x3FFF) << 4 for at in (0, 16, 32))
    return address, leading, stride, (descriptor >> 49) & 7, descriptor >> 62


def swizzle(address: int) -> int:
    """Where the hardware looks for an address of a tile with the 128-byte swizzle: bits 4 to 6 by exclusive
    or with bits 7 to 9 (CuTe's ``Swizzle<3, 4, 3>``)."""
    return address ^ ((address >> 7 & 7) << 4)


TILE = 3 << 14


@pytest.mark.parametrize("step", range(4))
def test_tensor_cores_find_a_k_major_operand_where_tma_put_it(layout: ctypes.CDLL, step: int) -> None:
    """Element (row, byte of k) of an instruction: rows of 8 in a stride offset, as ``((8, m), (T, 2k)) :
    ((8T, SBO), (1, T))`` says."""
    address, _, stride, base_offset, mode = fields(layout.k_major(TILE, step))
    assert (base_offset, mode) == (0, 1)
    for row in range(64):
        for byte in range(32):
            found = swizzle(address + row // 8 * stride + row % 8 * 128 + byte)
            assert found == TILE + layout.swizzled(row, step * 32 + byte)


@pytest.mark.parametrize("step", range(4))
def test_tensor_cores_find_an_mn_major_operand_where_tma_put_it(layout: ctypes.CDLL, step: int) -> None:
    """Element (mn, k) of an instruction of 256 by 16, as ``((T, 8, m), (8, k)) : ((1, T, LBO), (8T, SBO))``
    says. TMA put slabs of 64 of mn behind each other, each with a row of 128 bytes for each of 64 of k."""
    rows = 64
    address, leading, stride, base_offset, mode = fields(layout.mn_major(TILE, step, rows))
    assert (base_offset, mode) == (0, 1)
    for mn in range(256):
        for k in range(16):
            found = swizzle(address + mn % 64 * 2 + mn // 64 * leading + k % 8 * 128 + k // 8 * stride)
            slab = TILE + mn // 64 * rows * 128
            assert found == slab + layout.swizzled(step * 16 + k, mn % 64 * 2)


def test_a_swizzled_tile_has_every_byte_once_and_no_bank_twice(layout: ctypes.CDLL) -> None:
    places = {layout.swizzled(row, byte) for row in range(64) for byte in range(128)}
    assert places == set(range(64 * 128))
    for piece in range(8):  # what eight lanes of stmatrix write: a piece of 16 bytes in each of 8 rows
        banks = {layout.swizzled(row, piece * 16) % 128 for row in range(8)}
        assert len(banks) == 8


@pytest.mark.parametrize("stages", [3, 4, 6])
@pytest.mark.parametrize("block_n", [128, 256])
def test_the_declaration_asks_for_enough_shared_memory(
    layout: ctypes.CDLL, block_n: int, stages: int
) -> None:
    needed = layout.shared_bytes(block_n, stages)
    declared = wgmma_shared_memory(Wgmma(block_n=block_n, stages=stages))
    assert needed <= declared <= needed + 1024
    assert layout.stage_bytes(block_n) % 1024 == 0, "tiles begin where the swizzle does"
