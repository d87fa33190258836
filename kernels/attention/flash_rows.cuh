// What a thread of attention's kernel does with its rows between the products: it masks scores, turns them into
// probabilities by the online softmax, and rounds and stores the output.
#pragma once

#include <cmath>
#include <cstdint>

#include "../include/common.cuh"
#include "../include/wgmma.cuh"
#include "flash_layout.h"

namespace attention {

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

// In each 8 columns of wgmma's sums a thread has two neighbours in row lane / 4 of its warp's 16 rows, and two in the
// row 8 below. The four lanes of a row are neighbours (a quad).
__device__ __forceinline__ float largest_of_quad(float x) {
  x = fmaxf(x, __shfl_xor_sync(0xffffffff, x, 1));
  return fmaxf(x, __shfl_xor_sync(0xffffffff, x, 2));
}
__device__ __forceinline__ float sum_of_quad(float x) {
  x += __shfl_xor_sync(0xffffffff, x, 1);
  return x + __shfl_xor_sync(0xffffffff, x, 2);
}

// Scores of keys from `sees` on become -inf; a thread's two rows see different numbers of keys. `key` is that of the
// thread's first column.
template <int kBlockN>
__device__ __forceinline__ void mask(float (&scores)[kBlockN / 2], int key, const int (&sees)[2]) {
#pragma unroll
  for (int i = 0; i < kBlockN / 2; ++i) {
    if (i / 4 * 8 + i % 2 >= sees[i / 2 % 2] - key) {
      scores[i] = -INFINITY;
    }
  }
}

// A thread's two rows of the online softmax.
struct Rows {
  float largest[2] = {-INFINITY, -INFINITY};  // score so far, times the scale
  float total[2] = {};                        // of this thread's columns: exponentials so far
  float shrink[2];                            // what they and the sums of values were too large by
};

// Turns scores into exp2(score * scale - largest), and takes them into the rows. Even and odd columns of both rows are
// four chains of instructions, so that one need not wait for the one before.
template <int kBlockN>
__device__ __forceinline__ void soften(float (&scores)[kBlockN / 2], Rows& rows, float scale) {
  float largest[4] = {scores[0], scores[1], scores[2], scores[3]};
#pragma unroll
  for (int i = 4; i < kBlockN / 2; ++i) {
    largest[i % 4] = fmaxf(largest[i % 4], scores[i]);
  }
  float subtracted[2];
#pragma unroll
  for (int row = 0; row < 2; ++row) {
    const float of_block = largest_of_quad(fmaxf(largest[row * 2], largest[row * 2 + 1])) * scale;
    const float of_all = fmaxf(rows.largest[row], of_block);
    // A row that has seen no key yet: exp2(-inf - 0) is 0, where exp2(-inf + inf) were NaN.
    subtracted[row] = of_all == -INFINITY ? 0.0f : of_all;
    rows.shrink[row] = exp2_(rows.largest[row] - subtracted[row]);
    rows.largest[row] = of_all;
  }
  float total[4] = {};
#pragma unroll
  for (int i = 0; i < kBlockN / 2; ++i) {
    scores[i] = exp2_(fmaf(scores[i], scale, -subtracted[i / 2 % 2]));
    total[i % 4] += scores[i];
  }
#pragma unroll
  for (int row = 0; row < 2; ++row) {
    rows.total[row] = fmaf(rows.total[row], rows.shrink[row], total[row * 2] + total[row * 2 + 1]);
  }
}

// Rounds exponentials to elements, as the registers of wgmma's first operand: 16 columns are four registers, whose
// order is that of the sums.
template <Element kElement, int kBlockN>
__device__ __forceinline__ void pack(uint32_t (&probabilities)[kBlockN / 4], const float (&scores)[kBlockN / 2]) {
#pragma unroll
  for (int i = 0; i < kBlockN / 4; ++i) {
    probabilities[i] = rounded_pair<kElement>(scores[i * 2], scores[i * 2 + 1]);
  }
}

// Transposes four numbers of each of the four lanes of a quad: lane t then has number t of lanes 0 to 3.
__device__ __forceinline__ void transpose_quad(uint32_t (&x)[4], int lane) {
  const bool is_odd = lane & 1;
  const bool is_high = lane & 2;
#pragma unroll
  for (int i = 0; i < 4; i += 2) {
    const uint32_t other = __shfl_xor_sync(0xffffffff, is_odd ? x[i] : x[i + 1], 1);
    (is_odd ? x[i] : x[i + 1]) = other;
  }
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const uint32_t other = __shfl_xor_sync(0xffffffff, is_high ? x[i] : x[i + 2], 2);
    (is_high ? x[i] : x[i + 2]) = other;
  }
}

// Rounds and stores a thread's two rows of the output, whose rows are `stride` elements apart. A lane of a quad has a
// pair of each 8 columns. From the other lanes it gets 8 neighbours, 16 bytes, of each 32 columns.
template <Element kElement, int kHeadDim>
__device__ __forceinline__ void store_rows(const float (&sums)[kHeadDim / 2], const float (&factors)[2], uint16_t* out,
                                           int64_t stride, int row, int rows, int lane) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
#pragma unroll
    for (int column = 0; column < kHeadDim; column += 32) {
      uint32_t pairs[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float* const pair = sums + (column / 8 + i) * 4 + half * 2;
        pairs[i] = rounded_pair<kElement>(pair[0] * factors[half], pair[1] * factors[half]);
      }
      transpose_quad(pairs, lane);
      if (row + half * 8 < rows) {
        *reinterpret_cast<uint4*>(out + half * 8 * stride + column + lane % 4 * 8) =
            make_uint4(pairs[0], pairs[1], pairs[2], pairs[3]);
      }
    }
  }
}

#endif

}  // namespace attention
