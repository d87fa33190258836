// Step 4: a warp computes a square of the output.
//
// A warp reads shared memory as a whole: an element that several of its threads ask for is read once. In step 3 a warp
// has 16 rows of 128 columns, and reads 144 elements for 2048 multiply-adds. A square of 64 x 64 reads 128 for 4096.
//
// A block of 128 x 128 is four warps. A warp's threads are 8 x 4, and each has two groups of four rows and four groups
// of four columns: 128 sums, for which a thread reads 24 elements.
#include "step_vectors.cuh"

namespace matmul {

constexpr int kBlock = 128;  // rows and columns of the output
constexpr int kDepth = 16;   // of k in shared memory at once
constexpr int kWarp = 64;    // rows and columns of a warp
constexpr int kLanesAcross = 4, kLanesDown = 8;
constexpr int kDown = kWarp / kLanesDown / kVector;      // groups of four rows in a thread
constexpr int kAcross = kWarp / kLanesAcross / kVector;  // groups of four columns in a thread
constexpr int kThreads = 32 * (kBlock / kWarp) * (kBlock / kWarp);
constexpr int kPitch = kBlock + 4;  // as in step 3

template <typename T>
__global__ void __launch_bounds__(kThreads) warp_tile(const Product<T> of) {
  alignas(16) __shared__ float tile_of_a[kDepth][kPitch];
  alignas(16) __shared__ float tile_of_b[kDepth][kBlock];
  const int thread = static_cast<int>(threadIdx.x);
  const int warp = thread / 32, lane = thread % 32;
  const int first_row = static_cast<int>(blockIdx.y) * kBlock, first_column = static_cast<int>(blockIdx.x) * kBlock;
  const int y = warp / (kBlock / kWarp) * kWarp + lane / kLanesAcross * kVector;
  const int x = warp % (kBlock / kWarp) * kWarp + lane % kLanesAcross * kVector;
  float sums[kDown * kVector][kAcross * kVector] = {};

  for (int start = 0; start < of.k; start += kDepth) {
    // Four vectors of each tile a thread.
#pragma unroll
    for (int i = 0; i < kBlock * kDepth / kVector; i += kThreads) {
      const int at = i + thread;
      const int row = at / (kDepth / kVector), k = at % (kDepth / kVector) * kVector;
      write_column<kPitch>(&tile_of_a[k][row], load_four(of.a + int64_t{first_row + row} * of.k + start + k,
                                                         first_row + row < of.m && start + k < of.k));
      const int below = at / (kBlock / kVector), column = at % (kBlock / kVector) * kVector;
      write_row(&tile_of_b[below][column], load_four(of.b + int64_t{start + below} * of.n + first_column + column,
                                                     start + below < of.k && first_column + column < of.n));
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kDepth; ++i) {
      float a[kDown * kVector], b[kAcross * kVector];
#pragma unroll
      for (int group = 0; group < kDown; ++group) {
        read_row(a + group * kVector, &tile_of_a[i][y + group * kLanesDown * kVector]);
      }
#pragma unroll
      for (int group = 0; group < kAcross; ++group) {
        read_row(b + group * kVector, &tile_of_b[i][x + group * kLanesAcross * kVector]);
      }
#pragma unroll
      for (int r = 0; r < kDown * kVector; ++r) {
#pragma unroll
        for (int c = 0; c < kAcross * kVector; ++c) {
          sums[r][c] += a[r] * b[c];
        }
      }
    }
    __syncthreads();  // before the next step overwrites what others may still read
  }

#pragma unroll
  for (int r = 0; r < kDown * kVector; ++r) {
#pragma unroll
    for (int group = 0; group < kAcross; ++group) {
      const int row = first_row + y + r / kVector * kLanesDown * kVector + r % kVector;
      const int column = first_column + x + group * kLanesAcross * kVector;
      if (row < of.m && column < of.n) {
        store_four(of.out + int64_t{row} * of.n + column, &sums[r][group * kVector]);
      }
    }
  }
}

template <typename T>
void launch(const Product<T>& of, cudaStream_t stream) {
  const dim3 grid = grid_of(of.m, of.n, kBlock, kBlock);
  warp_tile<T><<<grid, kThreads, 0, stream>>>(of);
  kernels::record_launch("warp_tile", "a tile a block", grid, dim3(kThreads));
}

}  // namespace matmul

MATMUL_STEP(step_warp_tile, 4, float, BFloat16, Half)
