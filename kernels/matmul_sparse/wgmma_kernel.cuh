// The 2:4 sparse product for Hopper alone, from one row of x to thousands: see include/transposed_tiles.cuh for its frame.
// wgmma's sparse form takes the values that are kept from shared memory and multiplies at twice the dense rate.
//
// One thread copies by TMA, step by step along k: two slabs of x, one of values, and the metadata. The warps that multiply
// have nothing to do but to load a word of metadata for each 64 columns and to start four wgmmas of 32 columns.
#pragma once

#include <cstdint>

#include "../include/transposed_tiles.cuh"
#include "wgmma_layout.h"
#include "wgmma_sparse.cuh"

namespace matmul_sparse {

using kernels::kConsumers;
using kernels::kRowsOfWgmma;
using kernels::kStepK;

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

// A warpgroup multiplies its rows of w, of the block's part of k.
template <typename T, int kBlockM, int kTiles>
__device__ void multiply(float (&sums)[kTiles][kBlockM / 2], const unsigned char* shared,
                         const kernels::TileLayout& layout, const kernels::Barriers& barriers,
                         const kernels::Range& range) {
  constexpr int kBlockN = kConsumers * kTiles * kRowsOfWgmma;
  constexpr int kWordsOfTile = kRowsOfWgmma / 16 * kWordsOfRows;
  const int thread = static_cast<int>(threadIdx.x) - kernels::kWarpgroup;
  const int lane = thread % 32;
  const int first_tile = thread / kernels::kWarpgroup * kTiles;
  const int own_words = first_tile * kWordsOfTile + thread / 32 % 4 * kWordsOfRows + lane;
  kernels::Buffers buffers;
  int last = 0;
  uint32_t before[kTiles][2] = {};  // the metadata of the step before
#pragma unroll 2                    // so that it takes turns with this step's, and is not copied
  for (int step = range.first; step < range.last; ++step) {
    kernels::mbarrier_wait_parity(&barriers.full[buffers.stage], buffers.parity);
    const unsigned char* const buffer = shared + buffers.stage * layout.stage_bytes();
    const uint32_t slabs = kernels::shared_address(buffer);
    const uint32_t values = slabs + static_cast<uint32_t>(layout.w() + first_tile * kRowsOfWgmma * kernels::kSwizzle);
    const auto* const words =
        reinterpret_cast<const uint32_t*>(buffer + layout.w() + bytes_of_values(kBlockN)) + own_words;
    uint32_t metadata[kTiles][2];
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      metadata[tile][0] = words[tile * kWordsOfTile];
      metadata[tile][1] = words[tile * kWordsOfTile + 32];
    }
    kernels::wgmma_fence();
#pragma unroll
    for (int half = 0; half < 2; ++half) {  // a slab of x each
      const uint32_t slab = slabs + static_cast<uint32_t>(half * layout.slab_bytes());
      const bool add = step > range.first || half > 0;
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
        const uint32_t of_tile = values + static_cast<uint32_t>(tile * kRowsOfWgmma * kernels::kSwizzle);
        // 32 columns of x are 64 bytes, the 16 values that are kept of them 32: two units of a descriptor's steps, and one.
        wgmma_sparse<T, kBlockM, 0>(sums[tile], kernels::k_major_descriptor(of_tile, 2 * half),
                                    kernels::k_major_descriptor(slab, 0), metadata[tile][half], add);
        wgmma_sparse<T, kBlockM, 1>(sums[tile], kernels::k_major_descriptor(of_tile, 2 * half + 1),
                                    kernels::k_major_descriptor(slab, 2), metadata[tile][half], true);
      }
    }
    kernels::wgmma_commit_group();
    // One group stays in flight: the previous buffer's group is done.
    kernels::wgmma_wait_group<1>();
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      // Until here wgmmas may have read these registers: no other value is to be in them earlier.
      kernels::fence_registers(before[tile]);
      before[tile][0] = metadata[tile][0];
      before[tile][1] = metadata[tile][1];
    }
    if (step > range.first && lane == 0) {
      kernels::mbarrier_arrive(&barriers.empty[last]);
    }
    last = buffers.stage;
    buffers.advance(layout.stages);
  }
  kernels::wgmma_wait_group<0>();
}

#endif

// kTiles: times 64 rows of w for each warpgroup.
template <typename T, int kBlockM, int kTiles>
__global__ void __launch_bounds__(kernels::kThreadsOfTile, 1)
    product_wgmma(const __grid_constant__ CUtensorMap map_x, const __grid_constant__ CUtensorMap map_values,
                  const __grid_constant__ CUtensorMap map_metadata, const __grid_constant__ kernels::TiledProduct of) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  constexpr int kBlockN = kConsumers * kTiles * kRowsOfWgmma;
  // All blocks of a cluster have the same addresses, so that rounding up leaves them the same.
  unsigned char* const shared = kernels::dynamic_shared_memory<kernels::kSwizzleTile>();
  const kernels::TileLayout layout{kBlockM, kBlockN, of.stages, bytes_of_w(kBlockN)};
  const kernels::Barriers barriers = kernels::init_barriers(shared, layout);
  const kernels::Block block = kernels::block_of<kBlockM, kBlockN>(of);

  if (threadIdx.x < kernels::kWarpgroup) {
    kernels::setmaxnreg_dec<40>();
    if (threadIdx.x == 0) {
      const int row = static_cast<int>(block.row_of_w);
      kernels::copy_steps(&map_x, block, shared, layout, barriers, [&](unsigned char* to, int step, uint64_t* full) {
        kernels::tma_load(to, &map_values, step * kStepK / 2, row, full);
        kernels::tma_load(to + bytes_of_values(kBlockN), &map_metadata, step * kWordsOfRows, row / 16, full);
      });
    }
    kernels::finish_copying(of);
  } else {
    kernels::setmaxnreg_inc<232>();
    float sums[kTiles][kBlockM / 2];
    multiply<T, kBlockM, kTiles>(sums, shared, layout, barriers, block.range);
    kernels::finish<T, kBlockM, kTiles>(sums, shared, layout, of, block);
  }
#endif
}

}  // namespace matmul_sparse
