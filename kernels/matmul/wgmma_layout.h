// What cuda_wgmma works out before it computes: which tile comes when, and how the tensor cores are told where a tile
// lies in shared memory. Plain C++, so that a test compiles it without CUDA.
#pragma once

#include <cstdint>

#ifdef __CUDACC__
#define MATMUL_HOST_DEVICE __host__ __device__
#else
#define MATMUL_HOST_DEVICE
#endif

namespace matmul {

constexpr int kBlockM = 128;    // rows of a block's tile: 64 for each of two warpgroups
constexpr int kSwizzle = 128;   // bytes: of a row of every tile in shared memory, and of the swizzle's period
constexpr int kSwizzleRows = 8;  // after so many rows the swizzle begins again
constexpr int kSwizzleTile = kSwizzle * kSwizzleRows;

// A tile's row and column in the grid of tiles.
struct TileIndex {
  int64_t m;
  int64_t n;
};

// The tile that comes at a place of the order: column by column within `group` rows of tiles, then the next rows. Tiles
// that are computed at the same time then need few rows of a and few columns of b, which L2 holds.
MATMUL_HOST_DEVICE inline TileIndex grouped_tile(int64_t place, int64_t tiles_m, int64_t tiles_n, int64_t group) {
  const int64_t tiles_of_group = group * tiles_n;
  const int64_t first = place / tiles_of_group * group;
  const int64_t rows = tiles_m - first < group ? tiles_m - first : group;  // the last group may be of fewer
  const int64_t within = place % tiles_of_group;
  return {first + within % rows, within / rows};
}

// Where TMA puts byte `byte` of row `row` of a tile whose rows are 128 bytes, with the 128-byte swizzle: within each 8
// rows, row r's pieces of 16 bytes change places with those r further by exclusive or. The tile begins at a multiple of
// 1024 bytes.
MATMUL_HOST_DEVICE inline int swizzled(int row, int byte) {
  return row * kSwizzle + (byte ^ (row % kSwizzleRows * 16));
}

// A matrix descriptor of wgmma. PTX ISA, "Asynchronous warpgroup level matrix shared memory layout", "Matrix descriptor
// format": addresses and offsets in units of 16 bytes, 14 bits each.
//   bits  0-13  the address where the operand begins
//   bits 16-29  the leading dimension byte offset
//   bits 32-45  the stride dimension byte offset
//   bits 49-51  the base offset: 0, since every tile begins at a multiple of 1024 bytes
//   bits 62-63  the swizzle: 1 for 128 bytes
MATMUL_HOST_DEVICE constexpr uint64_t matrix_descriptor(uint32_t address, uint32_t leading_bytes,
                                                         uint32_t stride_bytes) {
  return (uint64_t{address & 0x3FFFF} >> 4) | (uint64_t{leading_bytes >> 4} << 16) |
         (uint64_t{stride_bytes >> 4} << 32) | (uint64_t{1} << 62);
}

// An operand whose rows in shared memory go along k (K-major): 128 bytes of k a row, 8 rows of the swizzle's period
// after each other, so that 8 rows further is 1024 bytes further. The leading offset is not used. The instruction's 32
// bytes of k begin 32 bytes further in the row with each step: the hardware swizzles the address that results, whose
// bits for the row are the same.
MATMUL_HOST_DEVICE constexpr uint64_t k_major_descriptor(uint32_t tile, int step) {
  return matrix_descriptor(tile + static_cast<uint32_t>(step) * 32, 16, kSwizzleTile);
}

// An operand whose rows in shared memory go along m or n (MN-major), 64 elements of 2 bytes a row, a row for each k:
// `rows` of them are a slab. The leading offset goes to the next 64 elements of m or n, which is the next slab; the
// stride offset to the next 8 of k. An instruction takes 16 of k, so that each step begins 16 rows further.
MATMUL_HOST_DEVICE constexpr uint64_t mn_major_descriptor(uint32_t tile, int step, int rows) {
  return matrix_descriptor(tile + static_cast<uint32_t>(step) * 16 * kSwizzle, static_cast<uint32_t>(rows) * kSwizzle,
                           kSwizzleTile);
}

// A block's shared memory, from a multiple of 1024 bytes on: `stages` buffers of a's tile and b's, then what the two
// warpgroups store, 64 rows of 128 columns of 2 bytes each, then two barriers a stage.
struct SharedLayout {
  int a_bytes;
  int b_bytes;
  int stages;

  MATMUL_HOST_DEVICE constexpr SharedLayout(int block_n, int stages_)
      : a_bytes(kBlockM * kSwizzle), b_bytes(block_n * kSwizzle), stages(stages_) {}
  MATMUL_HOST_DEVICE constexpr int stage_bytes() const { return a_bytes + b_bytes; }
  MATMUL_HOST_DEVICE constexpr int output() const { return stages * stage_bytes(); }
  MATMUL_HOST_DEVICE static constexpr int output_bytes_of_warpgroup() { return 64 * 128 * 2; }
  MATMUL_HOST_DEVICE constexpr int barriers() const { return output() + 2 * output_bytes_of_warpgroup(); }
  // With what aligns the begin to 1024 bytes.
  MATMUL_HOST_DEVICE constexpr int bytes() const { return barriers() + stages * 2 * 8 + kSwizzleTile; }
};

}  // namespace matmul
