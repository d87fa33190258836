// What comes before and after the products of attention's backward pass: the rows' logarithms and deltas, the sums of
// dq, rounded to elements, and the sums of the parts of dk and dv.
#pragma once

#include <cmath>
#include <cstdint>

#include "../include/common.cuh"
#include "../include/tma.cuh"
#include "../matmul/widened.cuh"
#include "flash_layout.h"

namespace attention_backward {

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

// Rounds and stores the first `columns` of a thread's two rows of wgmma's sums, times a factor, if they are before the
// end. `out` is where its first row begins, and `stride` the elements of a row. A lane of a quad has a pair of each 8
// columns. From the other lanes it gets 8 neighbours, 16 bytes, of each 32 columns.
template <Element kElement, int kColumns>
__device__ __forceinline__ void store_rows(const float (&sums)[kColumns / 2], float factor, uint16_t* out, int columns,
                                           int stride, int row, int rows, int lane) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
#pragma unroll
    for (int column = 0; column < kColumns; column += 32) {
      uint32_t pairs[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float* const pair = sums + (column / 8 + i) * 4 + half * 2;
        pairs[i] = rounded_pair<kElement>(pair[0] * factor, pair[1] * factor);
      }
      transpose_quad(pairs, lane);
      if (row + half * 8 < rows && column + lane % 4 * 8 < columns) {
        *reinterpret_cast<uint4*>(out + static_cast<int64_t>(half) * 8 * stride + column + lane % 4 * 8) =
            make_uint4(pairs[0], pairs[1], pairs[2], pairs[3]);
      }
    }
  }
}

constexpr int kThreadsOfRows = 256;

// A batch of heads whose rows are read one by one; strides in elements.
struct Batch {
  const uint16_t* data;
  int64_t entry_stride;
  int64_t head_stride;
  int64_t row_stride;

  __device__ const uint4* at(int entry, int head, int row, int column) const {
    return reinterpret_cast<const uint4*>(data + entry * entry_stride + head * head_stride + row * row_stride + column);
  }
};

struct RowArguments {
  Batch out;
  Batch d_out;
  const float* lse;   // (batch, heads, seq_q)
  float* statistics;  // of each tile: logarithms, then deltas
  float* sums;        // of dq
  int* turns;         // of each tile's parts, or null
  int* taken;         // places of the schedule
  int heads;          // of one batch entry
  int seq_q;
  int columns;  // head_dim, which may be less than the tiles'
};

// A block writes the statistics of a tile: lse times log2(e), and the row sums of out * d_out. Rows past the end get an
// infinite logarithm, which makes their probabilities 0; so do rows whose scores are all -inf. It also zeroes the sums
// of the tile's dq, their turns, and the number of places that were taken.
template <Element kElement, int kHeadDim, int kBlockM>
__global__ void __launch_bounds__(kThreadsOfRows) flash_statistics(const __grid_constant__ RowArguments of) {
  constexpr float kLog2E = 1.4426950408889634f;
  constexpr int kLanes = kHeadDim / 8;  // of a row
  constexpr int kRows = kThreadsOfRows / kLanes;
  launch_dependent_grids();
  const int thread = static_cast<int>(threadIdx.x);
  const int tiles = (of.seq_q + kBlockM - 1) / kBlockM;
  const int place = static_cast<int>(blockIdx.x);
  const int head = place / tiles;
  float* const statistics = of.statistics + static_cast<int64_t>(place) * 2 * kBlockM;
#pragma unroll
  for (int pass = 0; pass < kBlockM / kRows; ++pass) {
    const int at = pass * kRows + thread / kLanes;
    const int row = place % tiles * kBlockM + at;
    float sum = 0.0f;
    const int column = thread % kLanes * 8;
    if (row < of.seq_q && column < of.columns) {
      const uint4 out = *of.out.at(head / of.heads, head % of.heads, row, column);
      const uint4 given = *of.d_out.at(head / of.heads, head % of.heads, row, column);
      const uint32_t outs[] = {out.x, out.y, out.z, out.w};
      const uint32_t givens[] = {given.x, given.y, given.z, given.w};
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        sum = fmaf(widened<kElement>(static_cast<uint16_t>(outs[i])),
                   widened<kElement>(static_cast<uint16_t>(givens[i])), sum);
        sum = fmaf(widened<kElement>(static_cast<uint16_t>(outs[i] >> 16)),
                   widened<kElement>(static_cast<uint16_t>(givens[i] >> 16)), sum);
      }
    }
#pragma unroll
    for (int other = kLanes / 2; other > 0; other /= 2) {
      sum += __shfl_xor_sync(0xffffffff, sum, other);
    }
    if (thread % kLanes == 0) {
      const float lse = row < of.seq_q ? of.lse[static_cast<int64_t>(head) * of.seq_q + row] : INFINITY;
      statistics[at] = lse == -INFINITY ? INFINITY : lse * kLog2E;
      statistics[kBlockM + at] = sum;
    }
  }
  if (of.turns != nullptr && thread < kWarpgroups) {
    of.turns[static_cast<int64_t>(place) * kWarpgroups + thread] = 0;
  }
  if (place == 0 && thread == 0) {
    *of.taken = 0;
  }
  auto* const sums = reinterpret_cast<float4*>(of.sums) + static_cast<int64_t>(place) * kBlockM * kHeadDim / 4;
#pragma unroll
  for (int i = 0; i < kBlockM * kHeadDim / 4 / kThreadsOfRows; ++i) {
    sums[i * kThreadsOfRows + thread] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
  }
}

// dk and dv of the parts of each key head, one after the other, and the sums of a key head's parts. Vectors are 16 bytes.
// Only parts that have steps are written.
struct KeyParts {
  const uint4* dk;
  const uint4* dv;
  uint4* dk_sum;
  uint4* dv_sum;
  int64_t vectors;  // of all key heads
  int64_t of_head;  // vectors of a key head, or of one part
  int split;        // parts of a key head
  int group;        // query heads that share it
  int seq_q;
  int seq_k;
  bool causal;
};

// A thread adds the parts of a vector of dk or dv in float32.
template <Element kElement, int kBlockM>
__device__ __forceinline__ void add_key_parts(const KeyParts& of, int64_t vector) {
  if (vector >= 2 * of.vectors) {
    return;
  }
  const bool is_dk = vector < of.vectors;
  const int64_t to = is_dk ? vector : vector - of.vectors;
  const int64_t within = to % of.of_head;
  const int block = static_cast<int>(within / (of.of_head / of.seq_k) / kBlockN);
  const QueryTiles tiles = query_tiles(block * kBlockN, kBlockM, of.seq_q, of.seq_k, of.causal);
  const int parts = parts_of(of.group * (tiles.end - tiles.first), of.split);
  const uint4* from = (is_dk ? of.dk : of.dv) + (to - within) * of.split + within;
  float sums[8] = {};
#pragma unroll 4
  for (int part = 0; part < parts; ++part, from += of.of_head) {
    const uint4 eight = *from;
    const uint32_t pairs[] = {eight.x, eight.y, eight.z, eight.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      sums[i * 2] += widened<kElement>(static_cast<uint16_t>(pairs[i]));
      sums[i * 2 + 1] += widened<kElement>(static_cast<uint16_t>(pairs[i] >> 16));
    }
  }
  (is_dk ? of.dk_sum : of.dv_sum)[to] =
      make_uint4(rounded_pair<kElement>(sums[0], sums[1]), rounded_pair<kElement>(sums[2], sums[3]),
                 rounded_pair<kElement>(sums[4], sums[5]), rounded_pair<kElement>(sums[6], sums[7]));
}

// A block rounds a tile's sums of dq, times the scale, to elements. In memory a part's sums lie as a warpgroup has
// them: four of each thread, then the next four. Each warpgroup has a part. Transposed parts go through shared memory,
// a row for each query. Blocks after those of the `all_tiles` add the parts of dk and dv.
template <Element kElement, int kHeadDim, int kBlockM>
__global__ void __launch_bounds__(kThreadsOfRows)
    flash_round(const float* all_sums, uint16_t* dq, int seq_q, int columns, float scale, int all_tiles,
                const __grid_constant__ KeyParts key_parts) {
  constexpr int kSlabs = kHeadDim / kSlab;
  constexpr int kPart = part_of(kHeadDim, kBlockM);
  wait_on_dependent_grids();
  if (static_cast<int>(blockIdx.x) >= all_tiles) {
    const int64_t block = static_cast<int>(blockIdx.x) - all_tiles;
    add_key_parts<kElement, kBlockM>(key_parts, block * kThreadsOfRows + static_cast<int>(threadIdx.x));
    return;
  }
  const int thread = static_cast<int>(threadIdx.x) % 128;
  const int part = static_cast<int>(threadIdx.x) / 128;
  const int lane = thread % 32;
  const int tiles = (seq_q + kBlockM - 1) / kBlockM;
  const int place = static_cast<int>(blockIdx.x);
  const int first = place % tiles * kBlockM;
  const auto* const from = reinterpret_cast<const float4*>(all_sums + (static_cast<int64_t>(place) * 2 + part) * kPart);
  uint16_t* const to = dq + (static_cast<int64_t>(place / tiles) * seq_q + first) * columns;
  if constexpr (kBlockM % kRowsOfWarpgroup != 0) {
    constexpr int kRow = kHeadDim + 4;  // numbers, so that lanes which write a column use many banks
    auto* const shared = reinterpret_cast<float*>(dynamic_shared_memory<16>());
#pragma unroll
    for (int i = 0; i < kPart / 4 / 128; ++i) {
      const float4 four = from[i * 128 + thread];
      float* const at = shared + (i * 8 + lane % 4 * 2) * kRow + part * kSlab + thread / 32 * 16 + lane / 4;
      at[0] = four.x;
      at[kRow] = four.y;
      at[8] = four.z;
      at[kRow + 8] = four.w;
    }
    __syncthreads();
    for (int i = static_cast<int>(threadIdx.x); i < kBlockM * kHeadDim / 8; i += kThreadsOfRows) {
      const int row = i / (kHeadDim / 8);
      const int column = i % (kHeadDim / 8) * 8;
      const float* const eight = shared + row * kRow + column;
      uint32_t pairs[4];
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        pairs[j] = rounded_pair<kElement>(eight[j * 2] * scale, eight[j * 2 + 1] * scale);
      }
      if (first + row < seq_q && column < columns) {
        *reinterpret_cast<uint4*>(to + row * columns + column) = make_uint4(pairs[0], pairs[1], pairs[2], pairs[3]);
      }
    }
  } else {
    float sums[kSlab / 2];
#pragma unroll
    for (int i = 0; i < kSlab / 8; ++i) {
      const float4 four = from[i * 128 + thread];
      sums[i * 4] = four.x;
      sums[i * 4 + 1] = four.y;
      sums[i * 4 + 2] = four.z;
      sums[i * 4 + 3] = four.w;
    }
    const int row = part / kSlabs * kRowsOfWarpgroup + thread / 32 * 16 + lane / 4;
    const int column = part % kSlabs * kSlab;
    store_rows<kElement, kSlab>(sums, scale, to + row * columns + column, columns - column, columns, first + row, seq_q,
                                lane);
  }
}

// Bytes of shared memory that flash_round takes.
KERNELS_HOST_DEVICE constexpr int bytes_to_round(int head_dim, int block_m) {
  return block_m % kRowsOfWarpgroup != 0 ? block_m * (head_dim + 4) * 4 + 16 : 0;
}

}  // namespace attention_backward
