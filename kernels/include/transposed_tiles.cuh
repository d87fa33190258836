// What the products with packed weights for Hopper share. They compute tiles of the output's transpose, for the weights
// are the operand of wgmma that may come from registers, or be sparse: `block_n` rows of w by `block_m` rows of x.
//
// One warpgroup copies, two multiply, each `kTiles` times 64 rows of w. Where tiles are too few for the GPU, the blocks
// of a cluster share k. Their sums meet in shared memory, which each block reads of the others, always in the same order.
#pragma once

#include <cstdint>
#include <type_traits>

#include "distributed_load.cuh"
#include "tma.cuh"
#include "transposed_tiles.h"
#include "wgmma.cuh"

namespace kernels {

constexpr int kWarpgroup = 128;  // threads
constexpr int kConsumers = 2;    // warpgroups that multiply
constexpr int kThreadsOfTile = (1 + kConsumers) * kWarpgroup;
constexpr int kConsumerWarps = kConsumers * kWarpgroup / 32;
constexpr int kRowsOfWgmma = 64;  // of w

template <typename T>
constexpr Element kElementOf = std::is_same_v<T, torch::headeronly::BFloat16> ? Element::kBFloat16 : Element::kFloat16;

// A product of m rows of x and n of w, and how its blocks share it.
struct TiledProduct {
  int64_t m;
  int64_t n;
  int64_t k;
  int stages;
  int split_k;  // blocks of a cluster
  void* out;
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// A block's part of k, in steps.
struct Range {
  int first;
  int last;
};

__device__ inline Range part_of(const TiledProduct& of, int rank) {
  const int64_t steps = of.k / kStepK;
  return {static_cast<int>(steps * rank / of.split_k), static_cast<int>(steps * (rank + 1) / of.split_k)};
}

// Which buffer is next, and the parity of its use: it changes each time round.
struct Buffers {
  int stage = 0;
  int parity = 0;

  __device__ void advance(int stages) {
    if (++stage == stages) {
      stage = 0;
      parity ^= 1;
    }
  }
};

// A barrier of the threads that multiply; 0 is __syncthreads()'s.
__device__ inline void consumers_barrier() { named_barrier_sync(1, kConsumers * kWarpgroup); }

// What every thread of a block works out first: where its tile is, and which part of k it multiplies.
struct Block {
  int rank;
  int64_t row_of_x;
  int64_t row_of_w;
  Range range;
};

template <int kBlockM, int kBlockN>
__device__ Block block_of(const TiledProduct& of) {
  const int rank = of.split_k > 1 ? cluster_rank() : 0;
  const PlaceOfTile at =
      place_of_tile(blockIdx.x / of.split_k, (of.m + kBlockM - 1) / kBlockM, (of.n + kBlockN - 1) / kBlockN);
  return {rank, at.m * kBlockM, at.n * kBlockN, part_of(of, rank)};
}

// The barriers of the buffers: `full` completes when a step's bytes are there, `empty` when every warp that multiplies is
// done with them.
struct Barriers {
  uint64_t* full;
  uint64_t* empty;
};

__device__ inline Barriers init_barriers(unsigned char* shared, const TileLayout& layout) {
  auto* const full = reinterpret_cast<uint64_t*>(shared + layout.barriers());
  uint64_t* const empty = full + layout.stages;
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < layout.stages; ++stage) {
      mbarrier_init(&full[stage], 1);
      mbarrier_init(&empty[stage], kConsumerWarps);
    }
    fence_mbarrier_init();
  }
  __syncthreads();
  return {full, empty};
}

// The one thread that copies: the slabs of x itself, what belongs to w by `copy_w(to, step, barrier)`.
template <typename CopyW>
__device__ void copy_steps(const CUtensorMap* map_x, const Block& block, unsigned char* shared, const TileLayout& layout,
                           const Barriers& barriers, const CopyW& copy_w) {
  Buffers buffers;
  for (int step = block.range.first; step < block.range.last; ++step) {
    // A barrier that no phase has completed yet lets the parity 1 pass: the buffers begin empty.
    mbarrier_wait_parity(&barriers.empty[buffers.stage], buffers.parity ^ 1);
    uint64_t* const full = &barriers.full[buffers.stage];
    mbarrier_arrive_expect_tx(full, layout.step_bytes());
    unsigned char* const to = shared + buffers.stage * layout.stage_bytes();
    copy_w(to + layout.w(), step, full);
    tma_load(to, map_x, step * kStepK, static_cast<int>(block.row_of_x), full);
    tma_load(to + layout.slab_bytes(), map_x, step * kStepK + kSlabK, static_cast<int>(block.row_of_x), full);
    buffers.advance(layout.stages);
  }
}

// Each thread that multiplies writes its sums to the memory of the buffers: one row for each row of x.
//
// In each 8 columns of wgmma's sums a thread has two neighbours in row lane / 4 of its warp's 16 rows, and two 8 rows
// below.
template <int kBlockM, int kTiles>
__device__ void stage_sums(const float (&sums)[kTiles][kBlockM / 2], float* staged, int row_of_sums, int warpgroup) {
  const int thread = static_cast<int>(threadIdx.x) % kWarpgroup;
  const int first_row = thread / 32 * 16 + thread % 32 / 4;
#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
    for (int i = 0; i < kBlockM / 2; ++i) {
      const int row = (warpgroup * kTiles + tile) * kRowsOfWgmma + first_row + i / 2 % 2 * 8;
      const int column = i / 4 * 8 + thread % 4 * 2 + i % 2;
      staged[column * row_of_sums + row] = sums[tile][i];
    }
  }
}

// Adds what the blocks of the cluster staged, and rounds it: a block its share of the rows of x.
template <typename T, int kBlockM, int kBlockN>
__device__ void write_out(const float* staged, int row_of_sums, const TiledProduct& of, const Block& block) {
  constexpr int kFours = kBlockN / 4;
  const int rows = kBlockM / of.split_k;
  T* const out = static_cast<T*>(of.out);
  for (int place = static_cast<int>(threadIdx.x) - kWarpgroup; place < rows * kFours; place += kConsumers * kWarpgroup) {
    const int row = block.rank * rows + place / kFours;
    const int column = place % kFours * 4;
    if (block.row_of_x + row < of.m && block.row_of_w + column < of.n) {
      const float* const from = staged + row * row_of_sums + column;
      float4 total = *reinterpret_cast<const float4*>(from);
      if (of.split_k > 1) {
        total = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        for (int part = 0; part < of.split_k; ++part) {
          const float4 added = load_of_block(shared_address(from), part);
          total.x += added.x;
          total.y += added.y;
          total.z += added.z;
          total.w += added.w;
        }
      }
      *reinterpret_cast<uint2*>(out + (block.row_of_x + row) * of.n + block.row_of_w + column) =
          make_uint2(rounded_pair<kElementOf<T>>(total.x, total.y), rounded_pair<kElementOf<T>>(total.z, total.w));
    }
  }
}

// The warpgroups that multiply store their sums to the output, once all their wgmmas are done.
template <typename T, int kBlockM, int kTiles>
__device__ void finish(float (&sums)[kTiles][kBlockM / 2], unsigned char* shared, const TileLayout& layout,
                       const TiledProduct& of, const Block& block) {
#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile) {
    fence_registers(sums[tile]);
  }
  // Nobody copies any more, and once both warpgroups are here nobody reads the buffers.
  consumers_barrier();
  auto* const staged = reinterpret_cast<float*>(shared);
  stage_sums<kBlockM, kTiles>(sums, staged, layout.row_of_sums(), static_cast<int>(threadIdx.x) / kWarpgroup - 1);
  __syncwarp();
  if (of.split_k > 1) {
    cluster_arrive();
    cluster_wait();
  } else {
    consumers_barrier();
  }
  write_out<T, kBlockM, kConsumers * kTiles * kRowsOfWgmma>(staged, layout.row_of_sums(), of, block);
  __syncwarp();
  if (of.split_k > 1) {  // a block does not end while another one may read its shared memory
    cluster_arrive();
    cluster_wait();
  }
}

// The same of the warpgroup that copies: it only waits for the others of the cluster.
__device__ inline void finish_copying(const TiledProduct& of) {
  __syncwarp();
  if (of.split_k > 1) {
    cluster_arrive();
    cluster_wait();
    cluster_arrive();
    cluster_wait();
  }
}

#endif

}  // namespace kernels
