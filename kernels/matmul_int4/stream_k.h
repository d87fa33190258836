// Which parts of a product the blocks of cuda_stream_k multiply: Stream-K beside whole tiles (Osama et al., "Stream-K:
// Work-Centric Parallel Decomposition for Dense Matrix-Matrix Multiplication on the GPU", 2023). Plain C++, so that a
// test compiles it without CUDA.
//
// There is a block for each multiprocessor. The tiles of the last wave, which would leave multiprocessors without work,
// are shared together with a tile for each block: their steps along k, tile after tile, are cut into equal ranges. The
// blocks take turns at the other tiles, which stay whole.
#pragma once

#include <cstdint>

#include "../include/transposed_tiles.h"

namespace matmul_int4 {

constexpr int kLeastSteps = 8;  // of a range: as long as adding its sums takes

// Steps of a tile that a block multiplies one after the other.
struct Segment {
  int tile;
  int first;
  int last;
};

struct StreamK {
  int tiles;
  int steps;   // of a tile
  int blocks;  // and ranges
  int shared;  // tiles, the first ones

  // The first of a range's steps, of all shared tiles'.
  KERNELS_HOST_DEVICE constexpr int begin(int range) const {
    return static_cast<int>(int64_t{shared} * steps * range / blocks);
  }

  // Blocks get their ranges in reverse. A range that begins a tile ends with the sums of the ranges that go on with it,
  // which belong to blocks of lower indices: these were launched before, so that nobody waits for a block that waits.
  KERNELS_HOST_DEVICE constexpr int range_of(int block) const { return blocks - 1 - block; }

  // Whether a range, one of those after the segment's, has steps of the tile that the segment begins.
  KERNELS_HOST_DEVICE constexpr bool goes_on(const Segment& segment, int range) const {
    return segment.first == 0 && segment.last < steps && range < blocks && begin(range) < (segment.tile + 1) * steps;
  }
};

KERNELS_HOST_DEVICE constexpr StreamK stream_k(int tiles, int steps, int multiprocessors) {
  const int rest = tiles % multiprocessors;
  // What is won by sharing: the time in which the multiprocessors without one of the rest would have nothing to do.
  const int64_t won = rest == 0 ? 0 : int64_t{multiprocessors - rest} * steps / multiprocessors;
  if (won < kLeastSteps) {
    return {tiles, steps, tiles < multiprocessors ? tiles : multiprocessors, 0};
  }
  if (tiles > multiprocessors) {
    return {tiles, steps, multiprocessors, rest + multiprocessors};
  }
  const int64_t most = int64_t{tiles} * steps / kLeastSteps;
  return {tiles, steps, most < multiprocessors ? static_cast<int>(most) : multiprocessors, tiles};
}

// A block's segments: first those of its range, then whole tiles.
struct Segments {
  const StreamK& of;
  int at;
  int end;
  int whole;

  KERNELS_HOST_DEVICE Segments(const StreamK& of, int block)
      : of(of), at(of.begin(of.range_of(block))), end(of.begin(of.range_of(block) + 1)), whole(of.shared + block) {}

  // False once there is none left.
  KERNELS_HOST_DEVICE bool next(Segment& segment) {
    if (at < end) {
      const int tile = at / of.steps;
      const int first = at - tile * of.steps;
      const int last = first + end - at < of.steps ? first + end - at : of.steps;
      segment = {tile, first, last};
      at += last - first;
      return true;
    }
    if (whole < of.tiles) {
      segment = {whole, 0, of.steps};
      whole += of.blocks;
      return true;
    }
    return false;
  }
};

// Where a block keeps what in shared memory: the frame's buffers and barriers, and behind them, for each warp that
// multiplies, two pieces of its output, of 16 rows of x and of w. The bytes between rows keep stmatrix from meeting a
// bank twice.
constexpr int kPieceRows = 16;
constexpr int kPieceRowBytes = 48;
constexpr int kPieceBytes = kPieceRows * kPieceRowBytes;
constexpr int kMostStages = 8;

struct StreamKLayout {
  kernels::TileLayout tile;
  int warps;

  KERNELS_HOST_DEVICE constexpr int pieces() const { return tile.barriers() + kMostStages * 2 * 8; }
  // With what aligns the begin to 1024 bytes.
  KERNELS_HOST_DEVICE constexpr int bytes() const { return pieces() + warps * 2 * kPieceBytes + kernels::kSwizzleTile; }
};

}  // namespace matmul_int4
