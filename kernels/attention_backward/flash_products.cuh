// The five products of attention's backward pass: how a warpgroup starts each of them, and rounds numbers to operands.
#pragma once

#include <cstdint>

#include "../include/wgmma.cuh"
#include "flash_layout.h"
#include "wgmma_80.cuh"

namespace attention_backward {

constexpr int kWarpgroup = 128;  // threads

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

// wgmma of two operands in shared memory, for all widths of tiles.
template <Element kElement, int kN, bool kATransposed, bool kBTransposed>
__device__ __forceinline__ void multiply(float (&sums)[kN / 2], uint64_t of_a, uint64_t of_b, bool add) {
  if constexpr (kN == 80) {
    wgmma_80<kElement, kATransposed, kBTransposed>(sums, of_a, of_b, add);
  } else {
    wgmma<kElement, kN, kATransposed, kBTransposed>(sums, of_a, of_b, add);
  }
}

// Starts a warpgroup's product of its 64 keys, or values, and a tile of queries, or d_out, all with rows along head_dim
// (K-major).
template <Element kElement, int kHeadDim, int kBlockM>
__device__ __forceinline__ void start_product(float (&sums)[kBlockM / 2], uint32_t keys, uint32_t queries) {
  const uint64_t of_keys = k_major_descriptor(keys, 0);
  const uint64_t of_queries = k_major_descriptor(queries, 0);
  fence_registers(sums);
  wgmma_fence();
#pragma unroll
  for (int step = 0; step < kHeadDim / 16; ++step) {
    const int slab = step / 4;  // a row of 128 bytes is four instructions' 32 bytes
    const int byte = step % 4 * 32;
    multiply<kElement, kBlockM, false, false>(sums, further(of_keys, slab * kBlockN * kSwizzle + byte),
                                              further(of_queries, slab * kBlockM * kSwizzle + byte), step > 0);
  }
  wgmma_commit_group();
  fence_registers(sums);
}

// Starts a warpgroup's product of its 64 rows in registers and a tile of d_out, or queries, whose rows go along
// head_dim, a row for each query (MN-major), and adds it to `sums`.
template <Element kElement, int kHeadDim, int kBlockM>
__device__ __forceinline__ void start_sums(float (&sums)[kHeadDim / 2], uint32_t (&rows)[kBlockM / 4],
                                           uint32_t queries) {
  const uint64_t of_queries = mn_major_descriptor(queries, 0, kBlockM);
  fence_registers(sums);
  fence_registers(rows);
  wgmma_fence();
#pragma unroll
  for (int step = 0; step < kBlockM / 16; ++step) {
    wgmma<kElement, kHeadDim, true>(sums, rows + step * 4, further(of_queries, step * 16 * kSwizzle), true);
  }
  wgmma_commit_group();
  fence_registers(sums);
  fence_registers(rows);
}

// Where a warpgroup's part of dq has all queries and 64 columns, it is computed transposed.
template <int kBlockM>
constexpr bool kIsTransposed = kBlockM % kRowsOfWarpgroup != 0;

// Numbers of a thread's part of dq.
template <int kHeadDim, int kBlockM>
constexpr int kOfPart = part_of(kHeadDim, kBlockM) / kWarpgroup;

// Starts a warpgroup's part of dq. `keys` are those of its 64 columns, a row for each key. The gradients of scores are
// those of its 64 queries, a row for each key; or all, a row for each query, if the part is transposed.
template <Element kElement, int kHeadDim, int kBlockM>
__device__ __forceinline__ void start_part(float (&sums)[kOfPart<kHeadDim, kBlockM>], uint32_t gradients,
                                           uint32_t keys) {
  const uint64_t of_keys = mn_major_descriptor(keys, 0, kBlockN);
  fence_registers(sums);
  wgmma_fence();
  if constexpr (kIsTransposed<kBlockM>) {
    const uint64_t of_gradients = k_major_descriptor(gradients, 0);
#pragma unroll
    for (int step = 0; step < kBlockN / 16; ++step) {
      multiply<kElement, kBlockM, true, false>(
          sums, further(of_keys, step * 16 * kSwizzle),
          further(of_gradients, step / 4 * kBlockM * kSwizzle + step % 4 * 32), step > 0);
    }
  } else {
    const uint64_t of_gradients = mn_major_descriptor(gradients, 0, kBlockN);
#pragma unroll
    for (int step = 0; step < kBlockN / 16; ++step) {
      multiply<kElement, kSlab, true, true>(sums, further(of_gradients, step * 16 * kSwizzle),
                                            further(of_keys, step * 16 * kSwizzle), step > 0);
    }
  }
  wgmma_commit_group();
  fence_registers(sums);
}

// Rounds a row's numbers to elements, as the registers of wgmma's first operand: 16 columns are four registers, whose
// order is that of the sums.
template <Element kElement, int kBlockM>
__device__ __forceinline__ void pack(uint32_t (&packed)[kBlockM / 4], const float (&numbers)[kBlockM / 2]) {
#pragma unroll
  for (int i = 0; i < kBlockM / 4; ++i) {
    packed[i] = rounded_pair<kElement>(numbers[i * 2], numbers[i * 2 + 1]);
  }
}

#endif

}  // namespace attention_backward
