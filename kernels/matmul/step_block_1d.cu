// Step 1 after the tiled product: a thread computes several elements of a column of the output.
//
// In cuda_tiled a multiply-add reads two elements from shared memory. Here a thread has kRows elements below each
// other. For each k it reads one element of b, keeps it in a register, and multiplies it with kRows elements of a:
// kRows + 1 reads for kRows multiply-adds.
//
// A block has a tile of 64 x 64 of the output. Its 512 threads are 8 rows of 64, and load one element of each input.
#include "step.cuh"

namespace matmul {

constexpr int kBlock = 64;  // rows and columns of the output
constexpr int kDepth = 8;   // of k in shared memory at once
constexpr int kRows = 8;    // of the output in a thread
constexpr int kThreads = kBlock * kBlock / kRows;
static_assert(kThreads == kBlock * kDepth, "each thread loads one element of each input");

template <typename T>
__global__ void __launch_bounds__(kThreads) block_1d(const Product<T> of) {
  __shared__ float tile_of_a[kBlock][kDepth];
  __shared__ float tile_of_b[kDepth][kBlock];
  const int thread = static_cast<int>(threadIdx.x);
  const int first_row = static_cast<int>(blockIdx.y) * kBlock;
  const int first_column = static_cast<int>(blockIdx.x) * kBlock;

  // The element of each tile that this thread loads: neighbouring threads load neighbouring elements.
  const int row_of_a = thread / kDepth, k_of_a = thread % kDepth;
  const int k_of_b = thread / kBlock, column_of_b = thread % kBlock;

  // The elements that it computes. A warp's 32 threads have one `top`: they read the same element of a.
  const int top = thread / kBlock * kRows;
  const int column = thread % kBlock;
  float sums[kRows] = {};

  for (int start = 0; start < of.k; start += kDepth) {
    const int row = first_row + row_of_a, k = start + k_of_a;
    tile_of_a[row_of_a][k_of_a] = row < of.m && k < of.k ? static_cast<float>(of.a[int64_t{row} * of.k + k]) : 0.0f;
    const int below = start + k_of_b, right = first_column + column_of_b;
    tile_of_b[k_of_b][column_of_b] =
        below < of.k && right < of.n ? static_cast<float>(of.b[int64_t{below} * of.n + right]) : 0.0f;
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kDepth; ++i) {
      const float b = tile_of_b[i][column];
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        sums[r] += tile_of_a[top + r][i] * b;
      }
    }
    __syncthreads();  // before the next step overwrites what others may still read
  }

  for (int r = 0; r < kRows; ++r) {
    const int row = first_row + top + r;
    if (row < of.m && first_column + column < of.n) {
      of.out[int64_t{row} * of.n + first_column + column] = static_cast<T>(sums[r]);
    }
  }
}

template <typename T>
void launch(const Product<T>& of, cudaStream_t stream) {
  const dim3 grid = grid_of(of.m, of.n, kBlock, kBlock);
  block_1d<T><<<grid, kThreads, 0, stream>>>(of);
  kernels::record_launch("block_1d", "a tile a block", grid, dim3(kThreads));
}

}  // namespace matmul

MATMUL_STEP(step_block_1d, 1, float, BFloat16, Half)
