// What products of few rows of x share: tensor-core instructions of 16 rows of w and 8 of x, warps of a block that take
// turns along k and whose sums meet in shared memory, and blocks that share k.
#pragma once

#include "common.cuh"

namespace kernels {

constexpr int kRowsOfTile = 16;  // of w, in an instruction of the tensor cores
constexpr int kRowsOfX = 8;      // the same of x

// Warps of a block at most: with more rows of x a thread has more sums, and needs more registers.
constexpr int most_warps(int blocks_of_x) { return blocks_of_x > 2 ? 8 : 16; }

// Bytes of shared memory in which the sums of a block's warps meet.
constexpr int bytes_of_sums(int warps, int tiles, int blocks_of_x) {
  return warps * tiles * blocks_of_x * 4 * 32 * static_cast<int>(sizeof(float));
}

// Writes the sums of all warps of a block, each thread's as mma.m16n8 leaves them: of kTiles times 16 rows of w, from
// `row` on, and kBlocksOfX times 8 rows of x, of which there are m. Blocks along y each have an m x n matrix of their own.
template <int kTiles, int kBlocksOfX, typename Out>
__device__ void write_sums(const float (&sums)[kTiles][kBlocksOfX][4], Out* out, int64_t m, int64_t n, int64_t row) {
  constexpr int kSums = kTiles * kBlocksOfX * 4;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int warps = static_cast<int>(blockDim.x) / 32;
  extern __shared__ float shared[];  // warps x kSums x 32
#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
    for (int block = 0; block < kBlocksOfX; ++block) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        shared[(warp * kSums + (tile * kBlocksOfX + block) * 4 + i) * 32 + lane] = sums[tile][block][i];
      }
    }
  }
  __syncthreads();
  out += static_cast<int64_t>(blockIdx.y) * m * n;
  for (int place = static_cast<int>(threadIdx.x); place < kSums * 32; place += static_cast<int>(blockDim.x)) {
    float total = 0.0f;
    for (int other = 0; other < warps; ++other) {
      total += shared[other * kSums * 32 + place];
    }
    const int i = place / 32 % 4;
    const int block = place / 128 % kBlocksOfX;
    const int tile = place / 128 / kBlocksOfX;
    const int of_lane = place % 32;
    const int64_t row_of_x = kRowsOfX * block + 2 * (of_lane % 4) + i % 2;
    if (row_of_x < m) {
      out[row_of_x * n + row + kRowsOfTile * tile + of_lane / 4 + 8 * (i / 2)] = static_cast<Out>(total);
    }
  }
}

// The sum of what the blocks that share k left, always in the same order.
template <typename T>
__global__ void add_parts(const float* parts, T* out, int64_t elements, int split_k) {
  const int64_t place = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (place < elements) {
    float total = 0.0f;
    for (int part = 0; part < split_k; ++part) {
      total += parts[part * elements + place];
    }
    out[place] = static_cast<T>(total);
  }
}

}  // namespace kernels
