// The product of float32 matrices by Hopper's tensor cores, in tf32. It is built as wgmma_kernel.cuh is, with less: a
// block stays on its multiprocessor and takes tile after tile; one warp copies by TMA, two warpgroups multiply 64 rows
// each and store their sums.
//
// wgmma takes elements of 4 bytes only where they lie along k: a by rows and b by columns. A matrix that lies otherwise is
// first transposed in device memory by transpose_rows, as is one whose rows do not begin at multiples of 16 bytes copied.
#pragma once

#include <cstdint>

#include "../include/common.cuh"
#include "../include/tma.cuh"
#include "../include/wgmma.cuh"
#include "wgmma_layout.h"
#include "wgmma_tf32.cuh"

namespace matmul::tf32 {

using namespace kernels;

constexpr int kWarpgroup = 128;
constexpr int kConsumers = 2;  // warpgroups that multiply
constexpr int kBlockM = kConsumers * kWarpgroupRows;
constexpr int kColumns = 128;  // of an instruction
constexpr int kDepth = kSwizzle / 4;  // elements of k in a buffer
constexpr int kSteps = 4;             // instructions of 32 bytes of k
constexpr int kThreads = (1 + kConsumers) * kWarpgroup;
constexpr int kGroup = 8;  // rows of tiles that are taken together, for L2

// What is in flight: 192 KiB.
template <int kBlockN>
constexpr int kStages = 192 * 1024 / ((kBlockM + kBlockN) * kSwizzle);
template <int kBlockN>
constexpr int kSharedBytes = kStages<kBlockN> * ((kBlockM + kBlockN) * kSwizzle + 16) + kSwizzleTile;

struct Arguments {
  float* out;
  int m;
  int n;
  int k;
};

constexpr int kSide = 32;  // of the squares that are transposed

// Copies a matrix, or transposes it, to rows that begin at multiples of 16 bytes: `to` has rows of `to_row` elements. A
// block takes a square of kSide x kSide.
template <bool kTransposes>
__global__ void transpose_rows(const float* from, int64_t from_row, float* to, int64_t to_row, int rows, int columns) {
  __shared__ float square[kSide][kSide + 1];
  const int x = static_cast<int>(threadIdx.x) % kSide;
  const int y = static_cast<int>(threadIdx.x) / kSide;
  const int left = static_cast<int>(blockIdx.y) * kSide;
  const int top = static_cast<int>(blockIdx.x) * kSide;
  constexpr int kAtOnce = 256 / kSide;
  for (int i = y; i < kSide; i += kAtOnce) {
    if (top + i < rows && left + x < columns) {
      square[i][x] = from[(top + i) * from_row + left + x];
    }
  }
  __syncthreads();
  for (int i = y; i < kSide; i += kAtOnce) {
    if constexpr (kTransposes) {
      if (left + i < columns && top + x < rows) {
        to[(left + i) * to_row + top + x] = square[x][i];
      }
    } else if (top + i < rows && left + x < columns) {
      to[(top + i) * to_row + left + x] = square[i][x];
    }
  }
}

template <int kBlockN>
__global__ void __launch_bounds__(kThreads, 1)
    tf32_persistent(const __grid_constant__ CUtensorMap map_a, const __grid_constant__ CUtensorMap map_b,
                    const __grid_constant__ Arguments of) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  constexpr int kParts = kBlockN / kColumns;
  constexpr int kABytes = kBlockM * kSwizzle;
  constexpr int kStageBytes = (kBlockM + kBlockN) * kSwizzle;
  constexpr int kCount = kStages<kBlockN>;
  unsigned char* const shared = dynamic_shared_memory<kSwizzleTile>();
  auto* const full = reinterpret_cast<uint64_t*>(shared + kCount * kStageBytes);
  uint64_t* const empty = full + kCount;
  if (threadIdx.x == 0) {
    prefetch_tensor_map(&map_a);
    prefetch_tensor_map(&map_b);
    for (int stage = 0; stage < kCount; ++stage) {
      mbarrier_init(&full[stage], 1);
      mbarrier_init(&empty[stage], kConsumers * kWarpgroup / 32);
    }
    fence_mbarrier_init();
  }
  __syncthreads();

  const int rows_of_tiles = (of.m + kBlockM - 1) / kBlockM;
  const int columns_of_tiles = (of.n + kBlockN - 1) / kBlockN;
  const int tiles = rows_of_tiles * columns_of_tiles;
  const int buffers = (of.k + kDepth - 1) / kDepth;
  // The same in all lanes of a warp, which the compiler is not to find out.
  const int warpgroup = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / kWarpgroup, 0);
  int stage = 0;
  int parity = 0;
  const auto advance = [&] {
    if (++stage == kCount) {
      stage = 0;
      parity ^= 1;
    }
  };
  if (warpgroup == 0) {
    setmaxnreg_dec<40>();
    if (threadIdx.x == 0) {
      for (int at = static_cast<int>(blockIdx.x); at < tiles; at += static_cast<int>(gridDim.x)) {
        const TileIndex tile = grouped_tile(at, rows_of_tiles, columns_of_tiles, kGroup);
        for (int buffer = 0; buffer < buffers; ++buffer) {
          unsigned char* const to = shared + stage * kStageBytes;
          // A barrier that no phase has completed yet lets the parity 1 pass: the buffers begin empty.
          mbarrier_wait_parity(&empty[stage], parity ^ 1);
          mbarrier_arrive_expect_tx(&full[stage], kStageBytes);
          tma_load(to, &map_a, buffer * kDepth, tile.m * kBlockM, &full[stage]);
          tma_load(to + kABytes, &map_b, buffer * kDepth, tile.n * kBlockN, &full[stage]);
          advance();
        }
      }
    }
    return;
  }
  setmaxnreg_inc<232>();
  const int which = warpgroup - 1;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) % kWarpgroup / 32;
  const uint64_t of_a = k_major_descriptor(shared_address(shared) + which * kWarpgroupRows * kSwizzle, 0);
  const uint64_t of_b = k_major_descriptor(shared_address(shared) + kABytes, 0);
  const auto release = [&](int which_stage) {
    if (lane == 0) {
      mbarrier_arrive(&empty[which_stage]);
    }
  };
  const bool in_pairs = of.n % 2 == 0;
  for (int at = static_cast<int>(blockIdx.x); at < tiles; at += static_cast<int>(gridDim.x)) {
    const TileIndex tile = grouped_tile(at, rows_of_tiles, columns_of_tiles, kGroup);
    float sums[kParts][kColumns / 2];
    int before = 0;
    for (int buffer = 0; buffer < buffers; ++buffer) {
      mbarrier_wait_parity(&full[stage], parity);
      wgmma_fence();
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
#pragma unroll
        for (int part = 0; part < kParts; ++part) {
          wgmma_tf32(sums[part], further(of_a, stage * kStageBytes + step * 32),
                     further(of_b, stage * kStageBytes + part * kColumns * kSwizzle + step * 32), buffer > 0 || step > 0);
        }
      }
      wgmma_commit_group();
      wgmma_wait_group<1>();  // the buffer before is done
      if (buffer > 0) {
        release(before);
      }
      before = stage;
      advance();
    }
    wgmma_wait_group<0>();
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      fence_registers(sums[part]);
    }
    release(before);
    const int row = tile.m * kBlockM + which * kWarpgroupRows + warp * 16 + lane / 4;
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
#pragma unroll
      for (int i = 0; i < kColumns / 2; i += 2) {  // two neighbours, in the order in which wgmma has its sums
        const int here = row + i / 2 % 2 * 8;
        const int column = tile.n * kBlockN + part * kColumns + i / 4 * 8 + lane % 4 * 2;
        if (here >= of.m || column >= of.n) {
          continue;
        }
        float* const to = of.out + int64_t{here} * of.n + column;
        if (in_pairs) {
          *reinterpret_cast<float2*>(to) = make_float2(sums[part][i], sums[part][i + 1]);
        } else {
          to[0] = sums[part][i];
          if (column + 1 < of.n) {
            to[1] = sums[part][i + 1];
          }
        }
      }
    }
  }
#endif
}

}  // namespace matmul::tf32
