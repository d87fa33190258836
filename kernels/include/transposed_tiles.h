// Where kernels that compute tiles of a product's transpose keep what in shared memory: see transposed_tiles.cuh. Plain
// C++, so that a test compiles it without CUDA.
#pragma once

#include "wgmma_descriptors.h"

namespace kernels {

constexpr int kStepK = 128;  // columns of x and w a step
constexpr int kSlabK = 64;   // of x in a row of 128 bytes
constexpr int kPadding = 4;  // float32 numbers between the rows of staged sums, so that a warp's stores meet no bank twice
constexpr int kGroupM = 8;   // tiles of x that are gone over together, so that L2 holds what is used again

// A tile's row and column in the grid of tiles.
struct PlaceOfTile {
  int64_t m;
  int64_t n;
};

// The tile that comes at a place of the order: column by column within kGroupM rows of tiles, then the next rows.
KERNELS_HOST_DEVICE inline PlaceOfTile place_of_tile(int64_t place, int64_t tiles_m, int64_t tiles_n) {
  const int64_t first = place / (kGroupM * tiles_n) * kGroupM;
  const int64_t rows = tiles_m - first < kGroupM ? tiles_m - first : kGroupM;  // the last group may be of fewer
  const int64_t within = place - first * tiles_n;
  return {first + within % rows, within / rows};
}

// From a multiple of 1024 bytes on: `stages` buffers, then two barriers a stage. A buffer has two slabs of x, `block_m`
// rows of 64 columns each, and behind them the bytes of `block_n` rows of w. Once all buffers are used the sums are
// staged in their place.
struct TileLayout {
  int block_m;
  int block_n;
  int stages;
  int bytes_of_w;  // a step

  KERNELS_HOST_DEVICE constexpr int slab_bytes() const { return block_m * kSwizzle; }
  KERNELS_HOST_DEVICE constexpr int w() const { return 2 * slab_bytes(); }
  // What the copies of a step bring.
  KERNELS_HOST_DEVICE constexpr int step_bytes() const { return w() + bytes_of_w; }
  KERNELS_HOST_DEVICE constexpr int stage_bytes() const {
    return (step_bytes() + kSwizzleTile - 1) / kSwizzleTile * kSwizzleTile;
  }
  KERNELS_HOST_DEVICE constexpr int barriers() const { return stages * stage_bytes(); }
  // With what aligns the begin to 1024 bytes.
  KERNELS_HOST_DEVICE constexpr int bytes() const { return barriers() + stages * 2 * 8 + kSwizzleTile; }
  KERNELS_HOST_DEVICE constexpr int row_of_sums() const { return block_n + kPadding; }
  KERNELS_HOST_DEVICE constexpr int bytes_of_sums() const { return block_m * row_of_sums() * 4; }
};

}  // namespace kernels
