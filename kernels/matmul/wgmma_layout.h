// What cuda_wgmma works out before it computes: which tile comes when, and what lies where in shared memory. Plain C++, so
// that a test compiles it without CUDA.
#pragma once

#include <cstdint>

#include "../include/wgmma_descriptors.h"

namespace matmul {

using namespace kernels;  // instructions' names, and where they find a tile

constexpr int kBlockM = 128;  // rows of a block's tile: 64 for each of two warpgroups

// A tile's row and column in the grid of tiles.
struct TileIndex {
  int64_t m;
  int64_t n;
};

// The tile that comes at a place of the order: column by column within `group` rows of tiles, then the next rows. Tiles
// that are computed at the same time then need few rows of a and few columns of b, which L2 holds.
KERNELS_HOST_DEVICE inline TileIndex grouped_tile(int64_t place, int64_t tiles_m, int64_t tiles_n, int64_t group) {
  const int64_t tiles_of_group = group * tiles_n;
  const int64_t first = place / tiles_of_group * group;
  const int64_t rows = tiles_m - first < group ? tiles_m - first : group;  // the last group may be of fewer
  const int64_t within = place % tiles_of_group;
  return {first + within % rows, within / rows};
}

// A block's shared memory, from a multiple of 1024 bytes on: `stages` buffers of a's tile and b's, then what the two
// warpgroups store, 64 rows of 128 columns of 2 bytes each, then two barriers a stage.
struct SharedLayout {
  int a_bytes;
  int b_bytes;
  int stages;

  KERNELS_HOST_DEVICE constexpr SharedLayout(int block_n, int stages_)
      : a_bytes(kBlockM * kSwizzle), b_bytes(block_n * kSwizzle), stages(stages_) {}
  KERNELS_HOST_DEVICE constexpr int stage_bytes() const { return a_bytes + b_bytes; }
  KERNELS_HOST_DEVICE constexpr int output() const { return stages * stage_bytes(); }
  KERNELS_HOST_DEVICE static constexpr int output_bytes_of_warpgroup() { return 64 * 128 * 2; }
  KERNELS_HOST_DEVICE constexpr int barriers() const { return output() + 2 * output_bytes_of_warpgroup(); }
  // With what aligns the begin to 1024 bytes.
  KERNELS_HOST_DEVICE constexpr int bytes() const { return barriers() + stages * 2 * 8 + kSwizzleTile; }
};

}  // namespace matmul
