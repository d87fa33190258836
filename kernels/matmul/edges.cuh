// What cuda_wgmma does before its tiles, by one launch: the copies to aligned rows (aligned_rows.cuh), and the leftover rows
// and columns that are peeled off (peel.h). Both read the matrices as they are given.
//
// A block takes a strip of the other matrix's columns, or rows, and all of k. So all of that matrix is read once, and no
// other block has a part of the same sums.
#pragma once

#include <cstdint>

#include "../include/tma.cuh"
#include "aligned_rows.cuh"
#include "widened.cuh"

namespace matmul {

using namespace kernels;

// Leftover rows of a that are multiplied with b's columns, or leftover columns of b with a's rows. Steps are elements.
struct Edge {
  const uint16_t* few;
  const uint16_t* many;
  uint16_t* out;
  int count_of_few;
  int count_of_many;
  int k;
  int64_t few_step;  // from one of them to the next, and along k
  int64_t few_k_step;
  int64_t many_step;
  int64_t many_k_step;
  int64_t out_few_step;
  int64_t out_many_step;
};

constexpr int kStrip = 16;       // of many, that a block takes
constexpr int kEdgeThreads = kCopyWarps * 32;
constexpr int kDepths = kEdgeThreads / kStrip;  // threads that share one's products
constexpr int kEdgeLoads = 32;   // a thread, all of which are under way before the first is used
constexpr int kEdgeChunk = kDepths * kEdgeLoads;  // of k

// The elements of few at a place of k, as numbers.
template <int kFew>
struct alignas(kFew % 4 == 0 ? 16 : 4) AtOnce {
  float of[kFew];
};

// A block's shared memory: a chunk of few, then, in its place, sums.
template <int kFew>
constexpr int kEdgeBytes = kEdgeChunk * kFew * 4;

// 16 neighbouring threads have neighbours in memory: along k, or else along the strip. The 16 threads with the same one
// of `many` add up their sums in a fixed order, so that the bits are the same each time.
template <Element kElement, int kFew>
__device__ void multiply_strip(const Edge& of, int strip, unsigned char* shared) {
  auto* const chunk = reinterpret_cast<AtOnce<kFew>*>(shared);
  const int thread = static_cast<int>(threadIdx.x);
  const bool is_along_k = of.many_k_step == 1;
  const int depth = is_along_k ? thread % kDepths : thread / kStrip;
  const int own = is_along_k ? thread / kDepths : thread % kStrip;
  const int which = strip * kStrip + own;
  const uint16_t* next = of.many + which * of.many_step + depth * of.many_k_step;
  const int64_t step = kDepths * of.many_k_step;
  float sums[kFew] = {};
  for (int first = 0; first < of.k; first += kEdgeChunk) {
    const int left = which < of.count_of_many ? of.k - first - depth : 0;
    uint16_t loaded[kEdgeLoads];
#pragma unroll
    for (int i = 0; i < kEdgeLoads; ++i) {
      loaded[i] = i * kDepths < left ? load_of_line(next) : uint16_t{0};
      next += step;
    }
    __syncthreads();  // the last chunk is read
    for (int i = thread; i < kEdgeChunk * kFew; i += kEdgeThreads) {
      const int at = i % kEdgeChunk;
      const int one = i / kEdgeChunk;
      const bool is_there = one < of.count_of_few && first + at < of.k;
      chunk[at].of[one] =
          is_there ? widened<kElement>(of.few[one * of.few_step + (first + at) * of.few_k_step]) : 0.0f;
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kEdgeLoads; ++i) {
      const AtOnce<kFew> with = chunk[i * kDepths + depth];
      const float x = widened<kElement>(loaded[i]);
#pragma unroll
      for (int one = 0; one < kFew; ++one) {
        sums[one] += x * with.of[one];
      }
    }
  }
  __syncthreads();
  auto* const parts = reinterpret_cast<float*>(shared);  // [kDepths][kFew][kStrip]
#pragma unroll
  for (int one = 0; one < kFew; ++one) {
    parts[(depth * kFew + one) * kStrip + own] = sums[one];
  }
  __syncthreads();
  const int one = thread / kStrip;
  const int to = strip * kStrip + thread % kStrip;
  if (one < of.count_of_few && to < of.count_of_many) {
    float total = 0.0f;
#pragma unroll
    for (int i = 0; i < kDepths; ++i) {
      total += parts[i * kFew * kStrip + thread];
    }
    of.out[one * of.out_few_step + to * of.out_many_step] = static_cast<uint16_t>(rounded_pair<kElement>(total, 0.0f));
  }
}

// How the blocks of a launch before the tiles are shared out: strips of leftover rows, then of leftover columns, then the
// copies.
struct BeforeTiles {
  Edge rows;
  Edge columns;
  int strips_of_rows;
  int strips_of_columns;
  RowsCopies copies;
};

template <Element kElement, int kFew>
__global__ void __launch_bounds__(kEdgeThreads, kFew == 1 ? 4 : 3) before_tiles(const __grid_constant__ BeforeTiles of) {
  launch_dependent_grids();
  const int strip = static_cast<int>(blockIdx.x);
  const int strips = of.strips_of_rows + of.strips_of_columns;
  if (strip >= strips) {
    copy_pieces(of.copies, strip - strips);
  } else if (strip < of.strips_of_rows) {
    multiply_strip<kElement, kFew>(of.rows, strip, dynamic_shared_memory<16>());
  } else {
    multiply_strip<kElement, kFew>(of.columns, strip - of.strips_of_rows, dynamic_shared_memory<16>());
  }
}

}  // namespace matmul
