// The four-bit product for Hopper alone, from one row of x to thousands: see include/transposed_tiles.cuh for its frame.
// Weights are the first operand of wgmma, which takes that one from registers.
//
// - One thread copies by TMA, step by step along k: two slabs of x, and the words and scales of w as they lie.
// - A thread's 16 bytes of the packing are what it holds of wgmma's first operand for 8 instructions of 16 columns. So it
//   needs nothing from its neighbours, and a weight is dequantised once in a block.
// - wgmma is asynchronous: while the tensor cores multiply 32 columns, the warps dequantise the next 32.
#pragma once

#include <cstdint>

#include "../include/transposed_tiles.cuh"
#include "weights.cuh"
#include "wgmma_layout.h"
#include "wgmma_registers.cuh"

namespace matmul_int4 {

using kernels::kConsumers;
using kernels::kRowsOfWgmma;
using kernels::kStepK;

static_assert(kStepK == kTileK);

struct Arguments {
  kernels::TiledProduct product;
  int groups;  // scales of a row of w in a step
  bool channel;
};

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

constexpr int kBatchK = 32;  // columns that are dequantised and multiplied at a time: a word of each row

__device__ inline uint32_t word_of(const uint4& words, int p) {
  return p == 0 ? words.x : p == 1 ? words.y : p == 2 ? words.z : words.w;
}

// A word of a row and one of the row 8 below as the first operand of two wgmmas, of 16 columns each.
template <typename T>
__device__ void dequantise(uint32_t (&a)[2][4], uint32_t upper, uint32_t lower, const ScaleAndZero& of_upper,
                           const ScaleAndZero& of_lower) {
  a[0][0] = dequantised<T, 0>(upper, of_upper);
  a[0][1] = dequantised<T, 0>(lower, of_lower);
  a[0][2] = dequantised<T, 1>(upper, of_upper);
  a[0][3] = dequantised<T, 1>(lower, of_lower);
  a[1][0] = dequantised<T, 2>(upper, of_upper);
  a[1][1] = dequantised<T, 2>(lower, of_lower);
  a[1][2] = dequantised<T, 3>(upper, of_upper);
  a[1][3] = dequantised<T, 3>(lower, of_lower);
}

// A warpgroup multiplies its rows of w, of the block's part of k.
template <typename T, int kBlockM, int kTiles, bool kOneGroup>
__device__ void multiply(float (&sums)[kTiles][kBlockM / 2], const unsigned char* shared,
                         const kernels::TileLayout& layout, const kernels::Barriers& barriers,
                         const kernels::Range& range, int groups) {
  constexpr int kBlockN = kConsumers * kTiles * kRowsOfWgmma;
  const int thread = static_cast<int>(threadIdx.x) - kernels::kWarpgroup;
  const int lane = thread % 32;
  // The warp's first row of w in the block, of its first tile.
  const int own_row = thread / kernels::kWarpgroup * kTiles * kRowsOfWgmma + thread / 32 % 4 * 16;
  kernels::Buffers buffers;
  int last = 0;
  for (int step = range.first; step < range.last; ++step) {
    kernels::mbarrier_wait_parity(&barriers.full[buffers.stage], buffers.parity);
    const unsigned char* const buffer = shared + buffers.stage * layout.stage_bytes();
    const uint32_t slabs = kernels::shared_address(buffer);
    const auto* const words = reinterpret_cast<const uint4*>(buffer + layout.w()) + own_row * 4 + lane;
    const auto* const pairs =
        reinterpret_cast<const uint32_t*>(buffer + layout.w() + bytes_of_words(kBlockN)) + own_row + lane / 4;
    uint4 upper[kTiles];
    uint4 lower[kTiles];
    ScaleAndZero of_upper[kTiles];
    ScaleAndZero of_lower[kTiles];
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      upper[tile] = words[tile * kRowsOfWgmma * 4];
      lower[tile] = words[tile * kRowsOfWgmma * 4 + 32];
    }
#pragma unroll
    for (int p = 0; p < kStepK / kBatchK; ++p) {
      uint32_t a[kTiles][2][4];
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
        if (p == 0 || !kOneGroup) {
          const int group = kOneGroup ? 0 : p * groups / 4;
          const uint32_t* const from = pairs + group * kBlockN + tile * kRowsOfWgmma;
          of_upper[tile] = spread(from[0]);
          of_lower[tile] = spread(from[8]);
        }
        dequantise<T>(a[tile], word_of(upper[tile], p), word_of(lower[tile], p), of_upper[tile], of_lower[tile]);
      }
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
        // So that the compiler moves no write of them behind the fence.
        kernels::fence_registers(a[tile][0]);
        kernels::fence_registers(a[tile][1]);
      }
      kernels::wgmma_fence();
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int instruction = 2 * p + half;  // of 16 columns, four of them in a slab
        const uint64_t of_x = kernels::k_major_descriptor(
            slabs + static_cast<uint32_t>(instruction / 4 * layout.slab_bytes()), instruction % 4);
#pragma unroll
        for (int tile = 0; tile < kTiles; ++tile) {
          wgmma_registers<T, kBlockM>(sums[tile], a[tile][half], of_x, step > range.first || instruction > 0);
        }
      }
      kernels::wgmma_commit_group();
      // This batch stays under way, the one before is done.
      kernels::wgmma_wait_group<1>();
      if (p == 0 && step > range.first && lane == 0) {
        kernels::mbarrier_arrive(&barriers.empty[last]);
      }
    }
    last = buffers.stage;
    buffers.advance(layout.stages);
  }
  kernels::wgmma_wait_group<0>();
}

#endif

// kTiles: times 64 rows of w for each warpgroup. kOneGroup: a row of w has one scale in a step.
template <typename T, int kBlockM, int kTiles, bool kOneGroup>
__global__ void __launch_bounds__(kernels::kThreadsOfTile, 1)
    product_wgmma(const __grid_constant__ CUtensorMap map_x, const __grid_constant__ CUtensorMap map_words,
                  const __grid_constant__ CUtensorMap map_scales, const __grid_constant__ Arguments of) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  constexpr int kBlockN = kConsumers * kTiles * kRowsOfWgmma;
  // All blocks of a cluster have the same addresses, so that rounding up leaves them the same.
  unsigned char* const shared = kernels::dynamic_shared_memory<kernels::kSwizzleTile>();
  const kernels::TileLayout layout{kBlockM, kBlockN, of.product.stages, bytes_of_w(kBlockN, kOneGroup ? 1 : of.groups)};
  const kernels::Barriers barriers = kernels::init_barriers(shared, layout);
  const kernels::Block block = kernels::block_of<kBlockM, kBlockN>(of.product);

  if (threadIdx.x < kernels::kWarpgroup) {
    kernels::setmaxnreg_dec<40>();
    if (threadIdx.x == 0) {
      const int row = static_cast<int>(block.row_of_w);
      kernels::copy_steps(&map_x, block, shared, layout, barriers, [&](unsigned char* to, int step, uint64_t* full) {
        kernels::tma_load(to, &map_words, step * kStepK, row / 8, full);
        kernels::tma_load(to + bytes_of_words(kBlockN), &map_scales, row, of.channel ? 0 : step * of.groups, full);
      });
    }
    kernels::finish_copying(of.product);
  } else {
    kernels::setmaxnreg_inc<232>();
    float sums[kTiles][kBlockM / 2];
    multiply<T, kBlockM, kTiles, kOneGroup>(sums, shared, layout, barriers, block.range, of.groups);
    kernels::finish<T, kBlockM, kTiles>(sums, shared, layout, of.product, block);
  }
#endif
}

}  // namespace matmul_int4
