// Copies matrices whose rows begin anywhere to rows that begin at multiples of 128 bytes, as TMA and lines of L2 want them:
// both inputs of a product by one launch.
//
// A warp copies a piece of a row. It loads the aligned 16 bytes that hold it, a lane each; what a lane stores lies in its
// own and in the next lane's, and is shifted out of both. So loads and stores are of 16 bytes, wherever rows begin.
//
// The matrix as it is given is not read again: its lines are marked evict_first, so that they leave L2 to the copies, which
// are read next, and to outputs that are still to be written to device memory.
#pragma once

#include <cstdint>

#include "../include/async.cuh"
#include "../include/common.cuh"
#include "shifted.cuh"

namespace matmul {

// A matrix whose rows have neighbouring elements, and the memory to which it is copied. Strides are bytes from row to
// row; the strides of `to` are multiples of 16.
struct RowsCopy {
  const unsigned char* from;
  unsigned char* to;
  int64_t rows;
  int64_t row_bytes;
  int64_t from_stride;
  int64_t to_stride;
};

constexpr int kCopyWarps = 8;   // of a block
constexpr int kCopyChunks = 4;  // of 16 bytes per lane, all of which are loaded before the first is stored
constexpr int kPieceBytes = 32 * 16 * kCopyChunks;

// Aligned 16 bytes, of which those from `begin` to `end` are read: at the first and the last byte of a matrix.
__device__ inline uint4 chunk_within(const unsigned char* at, const unsigned char* begin, const unsigned char* end) {
  uint64_t low = 0;
  uint64_t high = 0;
#pragma unroll 1
  for (int i = 0; i < 8; ++i) {
    if (at + i >= begin && at + i < end) {
      low |= uint64_t{at[i]} << (8 * i);
    }
    if (at + 8 + i >= begin && at + 8 + i < end) {
      high |= uint64_t{at[8 + i]} << (8 * i);
    }
  }
  return make_uint4(static_cast<uint32_t>(low), static_cast<uint32_t>(low >> 32), static_cast<uint32_t>(high),
                    static_cast<uint32_t>(high >> 32));
}

__device__ inline uint4 of_lane(const uint4& chunk, int lane) {
  return make_uint4(__shfl_sync(0xffffffffu, chunk.x, lane), __shfl_sync(0xffffffffu, chunk.y, lane),
                    __shfl_sync(0xffffffffu, chunk.z, lane), __shfl_sync(0xffffffffu, chunk.w, lane));
}

// Two of them, by so many blocks, the first by the first of these. Rows are of so many pieces each.
struct RowsCopies {
  RowsCopy first;
  RowsCopy second;
  int blocks_of_first;
  int blocks;
  int pieces_of_first;
  int pieces_of_second;
};

// Block `block` copies its pieces, a warp each. What is past a row's end, up to a multiple of 16 bytes, gets any bytes.
__device__ inline void copy_pieces(const RowsCopies& both, int block) {
  const bool is_first = block < both.blocks_of_first;
  const RowsCopy of = is_first ? both.first : both.second;
  const int pieces = is_first ? both.pieces_of_first : both.pieces_of_second;
  const int warp = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / 32, 0);
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int which = (block - (is_first ? 0 : both.blocks_of_first)) * kCopyWarps + warp;
  const int64_t row = which / pieces;
  if (row >= of.rows) {
    return;  // a whole warp
  }
  const unsigned char* const from = of.from + row * of.from_stride;
  const int shift = static_cast<int>(reinterpret_cast<std::uintptr_t>(from) % 16);
  const int64_t begin = int64_t{which % pieces} * kPieceBytes;  // of the piece in the row
  const int bytes = static_cast<int>(min(of.row_bytes - begin, int64_t{kPieceBytes}));
  const unsigned char* const aligned = from - shift + begin + lane * 16;
  // The last chunk, of lane 0, is what lane 31 needs beside its own.
  const auto is_needed = [&](int i) { return i * 512 + lane * 16 < bytes + shift && (i < kCopyChunks || lane == 0); };
  using Sixteen = kernels::Vector<uint32_t, 4>;
  const uint64_t policy = kernels::create_policy<kernels::EvictionPriority::kEvictFirst>();
  const auto load_whole = [&](int i) {
    const Sixteen found = kernels::load(reinterpret_cast<const Sixteen*>(aligned + i * 512), policy);
    return make_uint4(found.values[0], found.values[1], found.values[2], found.values[3]);
  };
  uint4 loaded[kCopyChunks + 1];
#pragma unroll
  for (int i = 0; i <= kCopyChunks; ++i) {
    loaded[i] = make_uint4(0, 0, 0, 0);
  }
  // For nearly all rows, the same for the whole warp, every chunk lies in the matrix.
  const unsigned char* const end = of.from + (of.rows - 1) * of.from_stride + of.row_bytes;
  if (from - 15 >= of.from && from + of.row_bytes + 15 <= end) {
#pragma unroll
    for (int i = 0; i <= kCopyChunks; ++i) {
      if (is_needed(i)) {
        loaded[i] = load_whole(i);
      }
    }
  } else {
#pragma unroll
    for (int i = 0; i <= kCopyChunks; ++i) {
      if (is_needed(i)) {
        const unsigned char* const at = aligned + i * 512;
        loaded[i] = at >= of.from && at + 16 <= end ? load_whole(i) : chunk_within(at, of.from, end);
      }
    }
  }
  __syncwarp();
  unsigned char* const to = of.to + row * of.to_stride + begin + lane * 16;
#pragma unroll
  for (int i = 0; i < kCopyChunks; ++i) {
    // Lane 31's next chunk is lane 0's next but one.
    const bool ahead = lane == 0;
    const uint4& one = loaded[i];
    const uint4& next = loaded[i + 1];
    const uint4 given = make_uint4(ahead ? next.x : one.x, ahead ? next.y : one.y, ahead ? next.z : one.z,
                                   ahead ? next.w : one.w);
    const uint4 found = shifted(loaded[i], of_lane(given, (lane + 1) % 32), shift);
    if (i * 512 + lane * 16 < bytes) {
      *reinterpret_cast<uint4*>(to + i * 512) = found;
    }
  }
}

__global__ void __launch_bounds__(kCopyWarps * 32, 6) copy_to_aligned_rows(const __grid_constant__ RowsCopies both) {
  kernels::launch_dependent_grids();
  copy_pieces(both, static_cast<int>(blockIdx.x));
}

}  // namespace matmul
