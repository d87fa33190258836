// Step 2: a thread computes a square of the output.
//
// A column of 8 reads 9 elements of shared memory for 8 multiply-adds. A square of 8 x 8 reads 8 of a and 8 of b for
// 64: a quarter of a read each.
//
// A block has a tile of 128 x 128 and 16 x 16 threads. A thread's rows and columns are 16 apart, so that the threads of
// a warp read neighbouring elements: none waits for another's bank of shared memory.
#include "step.cuh"

namespace matmul {

constexpr int kBlock = 128;  // rows and columns of the output
constexpr int kDepth = 8;    // of k in shared memory at once
constexpr int kSide = 8;     // of a thread's square
constexpr int kApart = kBlock / kSide;
constexpr int kThreads = kApart * kApart;

// Two blocks on a multiprocessor: one computes while the other loads.
template <typename T>
__global__ void __launch_bounds__(kThreads, 2) block_2d(const Product<T> of) {
  __shared__ float tile_of_a[kBlock][kDepth];
  __shared__ float tile_of_b[kDepth][kBlock];
  const int thread = static_cast<int>(threadIdx.x);
  const int first_row = static_cast<int>(blockIdx.y) * kBlock;
  const int first_column = static_cast<int>(blockIdx.x) * kBlock;
  const int y = thread / kApart, x = thread % kApart;
  float sums[kSide][kSide] = {};

  for (int start = 0; start < of.k; start += kDepth) {
    // Four elements of each tile a thread. Neighbouring threads load neighbouring elements.
#pragma unroll
    for (int i = 0; i < kBlock * kDepth; i += kThreads) {
      const int at = i + thread;
      const int row = first_row + at / kDepth, k = start + at % kDepth;
      tile_of_a[at / kDepth][at % kDepth] =
          row < of.m && k < of.k ? static_cast<float>(of.a[int64_t{row} * of.k + k]) : 0.0f;
      const int below = start + at / kBlock, right = first_column + at % kBlock;
      tile_of_b[at / kBlock][at % kBlock] =
          below < of.k && right < of.n ? static_cast<float>(of.b[int64_t{below} * of.n + right]) : 0.0f;
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kDepth; ++i) {
      float a[kSide], b[kSide];
#pragma unroll
      for (int j = 0; j < kSide; ++j) {
        a[j] = tile_of_a[y + j * kApart][i];
        b[j] = tile_of_b[i][x + j * kApart];
      }
#pragma unroll
      for (int r = 0; r < kSide; ++r) {
#pragma unroll
        for (int c = 0; c < kSide; ++c) {
          sums[r][c] += a[r] * b[c];
        }
      }
    }
    __syncthreads();  // before the next step overwrites what others may still read
  }

#pragma unroll
  for (int r = 0; r < kSide; ++r) {
#pragma unroll
    for (int c = 0; c < kSide; ++c) {
      const int row = first_row + y + r * kApart, column = first_column + x + c * kApart;
      if (row < of.m && column < of.n) {
        of.out[int64_t{row} * of.n + column] = static_cast<T>(sums[r][c]);
      }
    }
  }
}

template <typename T>
void launch(const Product<T>& of, cudaStream_t stream) {
  const dim3 grid = grid_of(of.m, of.n, kBlock, kBlock);
  block_2d<T><<<grid, kThreads, 0, stream>>>(of);
  kernels::record_launch("block_2d", "a tile a block", grid, dim3(kThreads));
}

}  // namespace matmul

MATMUL_STEP(step_block_2d, 1, float, BFloat16, Half)
