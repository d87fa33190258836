// How cuda_wgmma's blocks multiply: what a kernel is compiled for, what one thread copies to a buffer, and what a warpgroup
// does with it. wgmma_kernel.cuh says how they work together.
#pragma once

#include <cstdint>

#include "../include/common.cuh"
#include "../include/tma.cuh"
#include "../include/wgmma.cuh"
#include "wgmma_layout.h"

namespace matmul {

struct Arguments {
  int m;  // rows and columns that are computed by tiles
  int n;
  int k;
  int out_row;  // elements from row to row of the output
  int group;  // rows of a cluster's tiles
  int stages;
  int cluster_size;
  int split_k;
  bool store_by_tma;  // the output's rows are multiples of 16 bytes
  const float* scale_a;
  const float* scale_b;
  void* out;
};

template <Element kElement>
constexpr int kItemBytes = kElement == Element::kFloat8 ? 1 : 2;

// What a kernel is compiled for. kATransposed: a lies in memory column by column, so that its tiles' rows go along m.
// kBTransposed: b lies column by column, so that its tiles' rows go along k. kPromoted: the sum of a buffer's products is
// taken out of the tensor cores, whose sums of float8 have 14 bits, and added in float32.
template <Element kElement_, int kBlockM_, int kBlockN_, bool kATransposed_, bool kBTransposed_, bool kPromoted_>
struct Tile {
  static constexpr Element kElement = kElement_;
  static constexpr int kBlockM = kBlockM_;
  static constexpr int kBlockN = kBlockN_;
  static constexpr bool kATransposed = kATransposed_;
  static constexpr bool kBTransposed = kBTransposed_;
  static constexpr bool kPromoted = kPromoted_;
  static constexpr Element kOutput = kElement == Element::kFloat8 ? Element::kBFloat16 : kElement;
  static constexpr int kConsumers = kBlockM / kWarpgroupRows;    // warpgroups that multiply
  static constexpr int kThreads = 128 * (1 + kConsumers);        // and the one that copies
  static constexpr int kSums = kBlockN / 2 * (kPromoted ? 2 : 1);  // that a thread keeps
  // Two such warpgroups need more registers than an equal share: 168 of 384 threads.
  static constexpr bool kMovesRegisters = kConsumers == 2 && kSums >= 128;
  // Blocks whose registers fit on a multiprocessor, so that one stores its tile while another multiplies.
  static constexpr int kBlocks = kConsumers == 1 && kSums <= 64 ? 2 : 1;
};

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

constexpr int kWarpgroup = 128;
constexpr int kSteps = 4;  // instructions of 32 bytes of k to a buffer's 128

// Which buffer is next, and the parity of its use: it changes each time round.
struct Pipeline {
  int stage = 0;
  int parity = 0;

  __device__ void advance(int stages) {
    if (++stage == stages) {
      stage = 0;
      parity ^= 1;
    }
  }
};

// A block's place: among the blocks of its cluster that share columns of b, and among those that share a tile.
struct Place {
  int above;  // blocks of the first kind before it
  int part;

  __device__ explicit Place(const Arguments& of) {
    const int rank = of.cluster_size * of.split_k > 1 ? cluster_rank() : 0;
    above = rank % of.cluster_size;
    part = rank / of.cluster_size;
  }
  __device__ int rank(int above_, int part_, int cluster_size) const { return part_ * cluster_size + above_; }
};

// One thread copies the tiles of a buffer. It copies its part of b's tile to all `cluster_size` blocks, the bits of
// `blocks`.
template <typename Tile>
__device__ void copy_tiles(unsigned char* to, const CUtensorMap* map_a, const CUtensorMap* map_b, int row, int column,
                           int depth, int above, int cluster_size, uint16_t blocks, uint64_t* full) {
  constexpr int kElements = kSwizzle / kItemBytes<Tile::kElement>;
  if constexpr (Tile::kATransposed) {  // slabs of 64 of m, a row for each of k
#pragma unroll
    for (int slab = 0; slab < Tile::kConsumers; ++slab) {
      tma_load(to + slab * kElements * kSwizzle, map_a, row + slab * kElements, depth, full);
    }
  } else {
    tma_load(to, map_a, depth, row, full);
  }
  unsigned char* const to_b = to + Tile::kBlockM * kSwizzle;
  const auto load = [&](unsigned char* part, int x, int y) {
    if (cluster_size > 1) {
      tma_load_multicast(part, map_b, x, y, full, blocks);
    } else {
      tma_load(part, map_b, x, y, full);
    }
  };
  if constexpr (Tile::kBTransposed) {  // rows along k, one for each of n: one box is the block's part
    const int columns = Tile::kBlockN / cluster_size;
    load(to_b + above * columns * kSwizzle, depth, column + above * columns);
  } else {  // slabs of 64 of n, a row for each of k: of each the block's part of the rows
    const int rows = kElements / cluster_size;
#pragma unroll
    for (int slab = 0; slab < Tile::kBlockN / kElements; ++slab) {
      load(to_b + (slab * kElements + above * rows) * kSwizzle, column + slab * kElements, depth + above * rows);
    }
  }
}

// A warpgroup multiplies the buffers from `first` to `last`, and gives each back once it is read. `which` are its 64 rows.
template <typename Tile, typename Release>
__device__ void multiply(float (&sums)[Tile::kBlockN / 2], unsigned char* shared, const SharedLayout& layout,
                         uint64_t* full, Pipeline& pipeline, int first, int last, int which, const Release& release) {
  constexpr int kElements = kSwizzle / kItemBytes<Tile::kElement>;
  constexpr int kStepA = Tile::kATransposed ? 16 * kSwizzle : 32;  // bytes from instruction to instruction
  constexpr int kStepB = Tile::kBTransposed ? 32 : 16 * kSwizzle;
  const uint32_t tile_a = shared_address(shared) + static_cast<uint32_t>(which * kWarpgroupRows * kSwizzle);
  const uint32_t tile_b = shared_address(shared) + Tile::kBlockM * kSwizzle;
  // The warpgroup's rows of a transposed a are one slab.
  const uint64_t of_a = Tile::kATransposed ? mn_major_descriptor(tile_a, 0, kElements) : k_major_descriptor(tile_a, 0);
  const uint64_t of_b = Tile::kBTransposed ? k_major_descriptor(tile_b, 0) : mn_major_descriptor(tile_b, 0, kElements);
  const auto start = [&](float (&to)[Tile::kBlockN / 2], bool adds) {
    mbarrier_wait_parity(&full[pipeline.stage], pipeline.parity);
    const uint64_t buffer_a = further(of_a, pipeline.stage * layout.stage_bytes());
    const uint64_t buffer_b = further(of_b, pipeline.stage * layout.stage_bytes());
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      wgmma<Tile::kElement, Tile::kBlockN, Tile::kATransposed, !Tile::kBTransposed>(
          to, further(buffer_a, step * kStepA), further(buffer_b, step * kStepB), adds || step > 0);
    }
    wgmma_commit_group();
  };
  if constexpr (Tile::kPromoted) {
#pragma unroll
    for (int i = 0; i < Tile::kBlockN / 2; ++i) {
      sums[i] = 0.0f;
    }
    for (int buffer = first; buffer < last; ++buffer) {
      float some[Tile::kBlockN / 2];
      start(some, false);
      wgmma_wait_group<0>();
      fence_registers(some);
      release(pipeline.stage);
      pipeline.advance(layout.stages);
#pragma unroll
      for (int i = 0; i < Tile::kBlockN / 2; ++i) {
        sums[i] += some[i];
      }
    }
  } else {
    int before = 0;
    for (int buffer = first; buffer < last; ++buffer) {
      start(sums, buffer > first);
      // One group stays in flight: the previous buffer's group is done.
      wgmma_wait_group<1>();
      if (buffer > first) {
        release(before);
      }
      before = pipeline.stage;
      pipeline.advance(layout.stages);
    }
    wgmma_wait_group<0>();
    fence_registers(sums);
    release(before);
  }
}

#endif

}  // namespace matmul
