// The matrix product for Hopper alone, as CUTLASS's documentation describes its fastest kernels ("Efficient GEMM in
// CUDA", "Hopper Warp Specialization"):
//
// - A block stays on its multiprocessor and takes tile after tile of 128 x kBlockN (persistent).
// - One warp copies, two warpgroups multiply (warp specialization). The one thread that copies needs hardly a register,
//   so that its warpgroup gives up most of its own (setmaxnreg) to those that keep 64 x kBlockN sums each.
// - Copies are TMA's, whole tiles an instruction. They go round `stages` buffers in shared memory: a buffer's barrier
//   `full` says that its bytes are there, its barrier `empty` that every warp that multiplies is done with it.
// - Two blocks of a cluster take tiles one above the other. They need the same columns of b: each copies half of them,
//   to both (multicast), so that L2 is read half as often. So a buffer is empty once both blocks are done with it.
// - wgmma reads both operands from shared memory. It runs asynchronously: the next buffer's are started before the last
//   one's are waited for.
// - While a tile is rounded and stored, by stmatrix and TMA, the copies of the next one are under way.
//
// The bytes of a tile's row are 128 whatever the elements are: 64 of bfloat16 and float16, 128 of float8.
#pragma once

#include <cstdint>

#include "../include/common.cuh"
#include "../include/tma.cuh"
#include "../include/wgmma.cuh"
#include "wgmma_layout.h"

namespace matmul {

constexpr int kThreads = 384;  // the warpgroup that copies and the two that multiply

struct Arguments {
  int64_t m;
  int64_t n;
  int64_t k;
  int64_t group;  // rows of a cluster's tiles
  int stages;
  int cluster_size;
  bool store_by_tma;  // the output's rows are multiples of 16 bytes
  const float* scale_a;
  const float* scale_b;
  void* out;
};

template <Element kElement>
constexpr int kItemBytes = kElement == Element::kFloat8 ? 1 : 2;

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

constexpr int kWarpgroup = 128;
constexpr int kConsumerWarps = 8;
constexpr int kSteps = 4;            // instructions of 32 bytes of k to a buffer's 128
constexpr int kStoredColumns = 128;  // that a warpgroup rounds and stores at a time
constexpr int kBoxColumns = 64;      // 128 bytes of the output

// Rounds two sums to neighbouring elements of the output, the first in the lower half.
template <Element kElement>
__device__ uint32_t rounded_pair(float first, float second) {
  uint32_t pair;
  if constexpr (kElement == Element::kFloat16) {
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(second), "f"(first));
  } else {
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(second), "f"(first));
  }
  return pair;
}

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

// One thread copies the tiles of a buffer. Of the columns of b it copies its part, `columns`, for all blocks of the
// cluster.
template <int kElements, bool kATransposed, bool kBTransposed>
__device__ void copy_tiles(unsigned char* to, const CUtensorMap* map_a, const CUtensorMap* map_b, int row, int column,
                           int depth, int rank, int columns, bool is_cluster, uint64_t* full) {
  if constexpr (kATransposed) {  // rows of 64 of m, one for each of k
    tma_load(to, map_a, row, depth, full);
    tma_load(to + kElements * kSwizzle, map_a, row + kElements, depth, full);
  } else {
    tma_load(to, map_a, depth, row, full);
  }
  unsigned char* const to_b = to + kBlockM * kSwizzle;
  constexpr uint16_t kBoth = 0b11;
  if constexpr (kBTransposed) {  // rows along k, one for each of n: one box is the block's part
    unsigned char* const part = to_b + rank * columns * kSwizzle;
    if (is_cluster) {
      tma_load_multicast(part, map_b, depth, column + rank * columns, full, kBoth);
    } else {
      tma_load(part, map_b, depth, column, full);
    }
  } else {  // slabs of 64 of n, a row for each of k
    const int slabs = columns / kElements;
    for (int slab = rank * slabs; slab < (rank + 1) * slabs; ++slab) {
      unsigned char* const part = to_b + slab * kElements * kSwizzle;
      if (is_cluster) {
        tma_load_multicast(part, map_b, column + slab * kElements, depth, full, kBoth);
      } else {
        tma_load(part, map_b, column + slab * kElements, depth, full);
      }
    }
  }
}

// A warpgroup rounds its 64 x kBlockN sums and stores them, 128 columns at a time, through `staged`.
//
// Of wgmma's sums a thread has, in each 8 columns, two neighbours in row lane / 4 of its warp's 16, and two in the row 8
// below: an 8 x 8 matrix as stmatrix takes it.
template <Element kElement, int kBlockN>
__device__ void store_by_tma(const float (&sums)[kBlockN / 2], float scale, unsigned char* staged,
                             const CUtensorMap* map_out, int row, int column, int which) {
  const int thread = static_cast<int>(threadIdx.x) % kWarpgroup;
  const int lane = thread % 32;
  // stmatrix: lane l has the address of row l % 8 of matrix l / 8. Matrices 0 and 1 are one above the other, 2 and 3 are
  // beside them.
  const int staged_row = thread / 32 * 16 + lane % 16;
  const uint32_t base = shared_address(staged);
#pragma unroll
  for (int part = 0; part < kBlockN / kStoredColumns; ++part) {
    if (thread == 0) {
      kernels::bulk_wait_group_read<0>();  // what was stored last is read
    }
    warpgroup_barrier(which);
#pragma unroll
    for (int j = 0; j < kStoredColumns / 8; j += 2) {
      const float* const d = sums + (part * kStoredColumns / 8 + j) * 4;
      const int piece = j + lane / 16;  // of 8 columns
      const uint32_t to =
          base + static_cast<uint32_t>(piece / 8 * 64 * kSwizzle + swizzled(staged_row, piece % 8 * 16));
      stmatrix_x4(to, rounded_pair<kElement>(d[0] * scale, d[1] * scale),
                  rounded_pair<kElement>(d[2] * scale, d[3] * scale),
                  rounded_pair<kElement>(d[4] * scale, d[5] * scale),
                  rounded_pair<kElement>(d[6] * scale, d[7] * scale));
    }
    kernels::fence_proxy_async();
    warpgroup_barrier(which);
    if (thread == 0) {
#pragma unroll
      for (int box = 0; box < kStoredColumns / kBoxColumns; ++box) {
        tma_store(map_out, staged + box * 64 * kSwizzle, column + part * kStoredColumns + box * kBoxColumns, row);
      }
      kernels::bulk_commit_group();
    }
  }
}

// The same by threads, where TMA can't store to such rows.
template <Element kElement, int kBlockN>
__device__ void store_by_threads(const float (&sums)[kBlockN / 2], float scale, uint16_t* out, int64_t row,
                                 int64_t column, int64_t m, int64_t n) {
  const int thread = static_cast<int>(threadIdx.x) % kWarpgroup;
  const int64_t first = row + thread / 32 * 16 + thread % 32 / 4;
  const int64_t left = column + thread % 4 * 2;
#pragma unroll
  for (int j = 0; j < kBlockN / 8; ++j) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const uint32_t pair =
          rounded_pair<kElement>(sums[j * 4 + half * 2] * scale, sums[j * 4 + half * 2 + 1] * scale);
      const int64_t to_row = first + half * 8;
      const int64_t to_column = left + j * 8;
      if (to_row < m && to_column < n) {
        out[to_row * n + to_column] = static_cast<uint16_t>(pair);
      }
      if (to_row < m && to_column + 1 < n) {
        out[to_row * n + to_column + 1] = static_cast<uint16_t>(pair >> 16);
      }
    }
  }
}

#endif

// kATransposed: a lies in memory column by column, so that its tiles' rows go along m. kBTransposed: b lies column by
// column, so that its tiles' rows go along k.
template <Element kElement, int kBlockN, bool kATransposed, bool kBTransposed>
__global__ void __launch_bounds__(kThreads, 1)
    wgmma_persistent(const __grid_constant__ CUtensorMap map_a, const __grid_constant__ CUtensorMap map_b,
                     const __grid_constant__ CUtensorMap map_out, const __grid_constant__ Arguments of) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ unsigned char shared_memory[];
  constexpr int kElements = kSwizzle / kItemBytes<kElement>;  // of k to a buffer
  const SharedLayout layout(kBlockN, of.stages);
  // All blocks of a cluster have the same addresses, so that rounding up leaves them the same.
  unsigned char* const shared = shared_memory + (kSwizzleTile - shared_address(shared_memory) % kSwizzleTile) %
                                                    kSwizzleTile;
  auto* const full = reinterpret_cast<uint64_t*>(shared + layout.barriers());
  uint64_t* const empty = full + of.stages;
  const int rank = of.cluster_size > 1 ? cluster_rank() : 0;
  const int warpgroup = static_cast<int>(threadIdx.x) / kWarpgroup;

  if (threadIdx.x == 0) {
    prefetch_tensor_map(&map_a);
    prefetch_tensor_map(&map_b);
    if (of.store_by_tma) {
      prefetch_tensor_map(&map_out);
    }
    for (int stage = 0; stage < of.stages; ++stage) {
      mbarrier_init(&full[stage], 1);
      mbarrier_init(&empty[stage], kConsumerWarps * of.cluster_size);
    }
    kernels::fence_mbarrier_init();
  }
  // Nobody copies to a block whose barriers are not there yet.
  __syncthreads();
  if (of.cluster_size > 1) {
    kernels::cluster_arrive();
    kernels::cluster_wait();
  }

  const int64_t rows_of_tiles = (of.m + kBlockM * of.cluster_size - 1) / (kBlockM * of.cluster_size);
  const int64_t columns_of_tiles = (of.n + kBlockN - 1) / kBlockN;
  const int64_t tiles = rows_of_tiles * columns_of_tiles;
  const int64_t first = blockIdx.x / of.cluster_size;
  const int64_t clusters = gridDim.x / of.cluster_size;
  const int buffers = static_cast<int>((of.k + kElements - 1) / kElements);
  Pipeline pipeline;

  if (warpgroup == 0) {
    setmaxnreg_dec<40>();
    if (threadIdx.x == 0) {
      const int columns_of_b = kBlockN / of.cluster_size;
      for (int64_t tile = first; tile < tiles; tile += clusters) {
        const TileIndex at = grouped_tile(tile, rows_of_tiles, columns_of_tiles, of.group);
        const int row = static_cast<int>((at.m * of.cluster_size + rank) * kBlockM);
        const int column = static_cast<int>(at.n * kBlockN);
        for (int buffer = 0; buffer < buffers; ++buffer) {
          // A barrier that no phase has completed yet lets the parity 1 pass: the buffers begin empty.
          kernels::mbarrier_wait_parity(&empty[pipeline.stage], pipeline.parity ^ 1);
          kernels::mbarrier_arrive_expect_tx(&full[pipeline.stage], layout.stage_bytes());
          copy_tiles<kElements, kATransposed, kBTransposed>(
              shared + pipeline.stage * layout.stage_bytes(), &map_a, &map_b, row, column, buffer * kElements, rank,
              columns_of_b, of.cluster_size > 1, &full[pipeline.stage]);
          pipeline.advance(of.stages);
        }
      }
    }
    __syncwarp();
  } else {
    setmaxnreg_inc<232>();
    const int which = warpgroup - 1;
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const auto release = [&](int stage) {
      if (lane < of.cluster_size) {
        mbarrier_arrive_cluster(&empty[stage], of.cluster_size > 1 ? lane : rank);
      }
    };
    const float scale = of.scale_a == nullptr ? 1.0f : *of.scale_a * *of.scale_b;
    float sums[kBlockN / 2];
    for (int64_t tile = first; tile < tiles; tile += clusters) {
      const TileIndex at = grouped_tile(tile, rows_of_tiles, columns_of_tiles, of.group);
      int last = 0;
      for (int buffer = 0; buffer < buffers; ++buffer) {
        kernels::mbarrier_wait_parity(&full[pipeline.stage], pipeline.parity);
        const uint32_t tile_a = shared_address(shared + pipeline.stage * layout.stage_bytes());
        // Each warpgroup has 64 rows of a: of a transposed a that is one slab.
        const uint32_t own_a = tile_a + static_cast<uint32_t>(which * 64 * kSwizzle);
        const uint32_t tile_b = tile_a + kBlockM * kSwizzle;
        wgmma_fence();
#pragma unroll
        for (int step = 0; step < kSteps; ++step) {
          wgmma<kElement, kBlockN, kATransposed, !kBTransposed>(
              sums, kATransposed ? mn_major_descriptor(own_a, step, kElements) : k_major_descriptor(own_a, step),
              kBTransposed ? k_major_descriptor(tile_b, step) : mn_major_descriptor(tile_b, step, kElements),
              buffer > 0 || step > 0);
        }
        wgmma_commit_group();
        // One group stays under way: that of the buffer before is done.
        wgmma_wait_group<1>();
        if (buffer > 0) {
          release(last);
        }
        last = pipeline.stage;
        pipeline.advance(of.stages);
      }
      wgmma_wait_group<0>();
      release(last);

      const int64_t row = (at.m * of.cluster_size + rank) * kBlockM + which * 64;
      const int64_t column = at.n * kBlockN;
      if (of.store_by_tma) {
        store_by_tma<kElement, kBlockN>(
            sums, scale, shared + layout.output() + which * SharedLayout::output_bytes_of_warpgroup(), &map_out,
            static_cast<int>(row), static_cast<int>(column), which);
      } else {
        store_by_threads<kElement, kBlockN>(sums, scale, static_cast<uint16_t*>(of.out), row, column, of.m, of.n);
      }
    }
    if (threadIdx.x % kWarpgroup == 0) {
      bulk_wait_group_all();
    }
    __syncwarp();
  }
  // A block does not end while another one may copy or arrive here.
  if (of.cluster_size > 1) {
    kernels::cluster_arrive();
    kernels::cluster_wait();
  }
#endif
}

}  // namespace matmul
