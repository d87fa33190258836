// What cuda_wgmma works out before it computes: which tile comes when, which part of k a block takes, and what lies where
// in shared memory. Plain C++, so that a test compiles it without CUDA.
#pragma once

#include <cstdint>

#include "../include/wgmma_descriptors.h"

namespace matmul {

using namespace kernels;  // instructions' names, and where they find a tile

constexpr int kWarpgroupRows = 64;  // that a warpgroup's instruction multiplies

// A tile's row and column in the grid of tiles.
struct TileIndex {
  int m;
  int n;
};

// The tile that comes at a place of the order: column by column within `group` rows of tiles, then the next rows. Tiles
// that are computed at the same time then need few rows of a and few columns of b, which L2 holds.
KERNELS_HOST_DEVICE inline TileIndex grouped_tile(int place, int tiles_m, int tiles_n, int group) {
  const int tiles_of_group = group * tiles_n;
  const int first = place / tiles_of_group * group;
  const int rows = tiles_m - first < group ? tiles_m - first : group;  // the last group may be of fewer
  const int within = place % tiles_of_group;
  return {first + within % rows, within / rows};
}

// The place of the tile that a cluster takes as its `wave`-th, or one past the last. Tiles of the last row may be of few
// rows, and come last: a cluster that had one of them in the wave before is done sooner. So the clusters at the end, which
// had them, take what is left for a last wave.
KERNELS_HOST_DEVICE inline int place_of(int wave, int cluster, int clusters, int tiles) {
  const int first = wave * clusters;
  return tiles - first < clusters ? first + (clusters - 1 - cluster) : first + cluster;
}

// The first of the `steps` steps along k that part `part` of `parts` takes. Each has one at least where there are as many.
KERNELS_HOST_DEVICE inline int first_step(int part, int parts, int steps) { return steps * part / parts; }

// Where an output's rows are no multiples of 16 bytes, a row begins at the same place between two of them as every eighth
// row before and after it does. These have a residue modulo 8 in common.
constexpr int kResidues = 8;

// The first column that lies at a multiple of 16 bytes, in rows of a residue. Elements have 2 bytes, and the output begins
// at such a multiple.
KERNELS_HOST_DEVICE constexpr int first_aligned_column(int residue, int out_row) {
  return (kResidues - residue * (out_row % kResidues) % kResidues) % kResidues;
}

// The columns of a row from the first such multiple to the last.
KERNELS_HOST_DEVICE constexpr int columns_of_residue(int first, int columns) {
  return columns < first ? 0 : (columns - first) / 8 * 8;
}

// What a warpgroup stages of 64 columns of such rows: a tile of the swizzle for each residue, of 8 rows of 128 bytes. The
// swizzle goes by the address: 128 bytes after every second tile move it on, so that rows of different residues come to
// lie in different banks, but for two.
KERNELS_HOST_DEVICE constexpr int residue_begin(int residue) { return residue * kSwizzleTile + residue / 2 * kSwizzle; }
constexpr int kResidueBoxBytes = kResidues * kSwizzleTile + (kResidues / 2 - 1) * kSwizzle;

// A block's shared memory, from a multiple of 1024 bytes on: `stages` buffers of a's tile and b's; then what each
// warpgroup stores, 64 rows of 2 bytes a column, or boxes of residues; then two barriers a stage, and one for what other
// blocks send.
//
// Where blocks share a tile (parts > 1), each of them first has all of its sums, float32, where the buffers were: `sums`.
// Each sends the others their rows of it, `rows_of_part`, which arrive at `received`, a slot a sender. A row has 8 columns
// more than the tile: a thread's pairs of sums then come to lie in banks of their own.
struct SharedLayout {
  int block_m;
  int block_n;
  int stages;
  int parts;

  KERNELS_HOST_DEVICE constexpr SharedLayout(int block_m_, int block_n_, int stages_, int parts_)
      : block_m(block_m_), block_n(block_n_), stages(stages_), parts(parts_) {}
  KERNELS_HOST_DEVICE constexpr int a_bytes() const { return block_m * kSwizzle; }
  KERNELS_HOST_DEVICE constexpr int stage_bytes() const { return (block_m + block_n) * kSwizzle; }
  KERNELS_HOST_DEVICE constexpr int buffers_bytes() const { return stages * stage_bytes(); }

  KERNELS_HOST_DEVICE constexpr int columns_of_sums() const { return block_n + 8; }
  KERNELS_HOST_DEVICE constexpr int rows_of_part() const { return block_m / parts; }
  KERNELS_HOST_DEVICE constexpr int part_bytes() const { return rows_of_part() * columns_of_sums() * 4; }
  KERNELS_HOST_DEVICE constexpr int received() const { return block_m * columns_of_sums() * 4; }
  KERNELS_HOST_DEVICE constexpr int reduction_bytes() const { return received() + (parts - 1) * part_bytes(); }
  // Where what block `from` sends to block `to` arrives. Nothing goes from a block to itself.
  KERNELS_HOST_DEVICE constexpr int slot(int from, int to) const {
    return received() + (from < to ? from : from - 1) * part_bytes();
  }

  KERNELS_HOST_DEVICE constexpr int stored_columns() const { return block_n < 128 ? block_n : 128; }
  KERNELS_HOST_DEVICE constexpr int output_bytes_of_warpgroup() const { return kWarpgroupRows * stored_columns() * 2; }
  KERNELS_HOST_DEVICE constexpr int residues_bytes_of_warpgroup() const {
    return stored_columns() == 128 ? 2 * kResidueBoxBytes : 0;
  }
  KERNELS_HOST_DEVICE constexpr int output() const { return buffers_bytes(); }
  KERNELS_HOST_DEVICE constexpr int barriers() const {
    if (parts == 1) {
      const int bytes = residues_bytes_of_warpgroup() > output_bytes_of_warpgroup() ? residues_bytes_of_warpgroup()
                                                                                    : output_bytes_of_warpgroup();
      return output() + block_m / kWarpgroupRows * bytes;
    }
    return buffers_bytes() > reduction_bytes() ? buffers_bytes() : reduction_bytes();
  }
  // With what aligns the begin to 1024 bytes.
  KERNELS_HOST_DEVICE constexpr int bytes() const { return barriers() + (stages * 2 + 1) * 8 + kSwizzleTile; }
};

}  // namespace matmul
