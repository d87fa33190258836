// Which leftover rows and columns cuda_wgmma computes apart from its tiles (loop peeling). A row more than whole tiles is
// a row more of tiles, and may be a wave more of them: each multiprocessor then waits for tiles that are nearly empty.
// Plain C++, so that a test compiles it without CUDA.
#pragma once

#include <cstdint>
#include <initializer_list>

#include "../include/gpu_limits.h"

namespace matmul {

// Most leftover rows, or columns, that are computed apart. Up to here reading the other matrix, 2 bytes per element, takes
// longer than multiplying it, without tensor cores, by so many.
constexpr int kMostPeeled = 8;

// What a multiprocessor of an H100 does in a cycle at best: products of 2-byte elements by its tensor cores (NVIDIA's
// white paper "H100 Tensor Core GPU Architecture": 4096 operations), and bytes of its share of device memory, about 3 TB/s.
constexpr int64_t kProductsPerCycle = 2048;
constexpr int64_t kBytesPerCycle = 14;
// A launch more, whose end the tiles wait for: about 2 us.
constexpr int64_t kLaunchCycles = 4000;

// A problem, its tiles, and how many clusters take one at the same time.
struct Tiling {
  int64_t m;
  int64_t n;
  int64_t k;
  int block_m;
  int block_n;
  int cluster_size;  // tiles one above the other that a cluster takes at once
  int64_t clusters;
  int64_t multiprocessors;
  bool skips_half;   // a tile of few rows takes half of the time: one of two warpgroups has nothing to multiply
  bool copies;       // there is a launch before the tiles' anyway
};

struct Peeled {
  int rows;
  int columns;
};

namespace peeling {

using kernels::ceil_div;

// Rows of a cluster's tiles.
inline int64_t tile_rows(const Tiling& of, int64_t m) { return ceil_div(m, int64_t{of.block_m} * of.cluster_size); }

inline int leftover(int64_t size, int block) {
  const auto found = static_cast<int>(size % block);
  return size > block && found <= kMostPeeled ? found : 0;
}

// Halves of the time of a whole tile until all are done. Tiles of few rows come last; where they take half of the time,
// clusters that have nothing else to do in the last wave take two of them (wgmma_layout.h, place_of).
inline int64_t half_waves(int64_t whole, int64_t shorter, bool skips_half, int64_t clusters) {
  const int64_t waves = ceil_div(whole, clusters);
  const int64_t room = (waves * clusters - whole) * (skips_half ? 2 : 1);
  const int64_t more = shorter > room ? ceil_div(shorter - room, clusters) : 0;
  return waves * 2 + more * (skips_half ? 1 : 2);
}

// Cycles that the reading for leftover rows or columns takes: all of the other matrix.
inline int64_t edge_cycles(int few, int64_t many, const Tiling& of) {
  return few == 0 ? 0 : many * of.k * 2 / (kBytesPerCycle * of.multiprocessors);
}

// About how many cycles it takes where so much is peeled.
inline int64_t cycles(const Tiling& of, const Peeled& peeled) {
  const int64_t m = of.m - peeled.rows;
  const int64_t columns = ceil_div(of.n - peeled.columns, of.block_n);
  const int64_t rows = tile_rows(of, m);
  const int64_t whole_rows = tile_rows(of, m - leftover(m, of.block_m));
  const int64_t halves =
      half_waves(whole_rows * columns, (rows - whole_rows) * columns, of.skips_half, of.clusters);
  const bool launches = !of.copies && (peeled.rows > 0 || peeled.columns > 0);
  return halves * (int64_t{of.block_m} * of.block_n / 2 * of.k / kProductsPerCycle) +
         edge_cycles(peeled.rows, of.n, of) + edge_cycles(peeled.columns, m, of) + (launches ? kLaunchCycles : 0);
}

}  // namespace peeling

// The leftover rows and columns whose peeling saves more than it costs.
inline Peeled peel(const Tiling& of) {
  const int rows = peeling::leftover(of.m, of.block_m);
  const int columns = peeling::leftover(of.n, of.block_n);
  Peeled best{0, 0};
  for (const Peeled& one : {Peeled{rows, 0}, Peeled{0, columns}, Peeled{rows, columns}}) {
    if (peeling::cycles(of, one) < peeling::cycles(of, best)) {
      best = one;
    }
  }
  return best;
}

}  // namespace matmul
