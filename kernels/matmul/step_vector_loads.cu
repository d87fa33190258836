// Step 3: four neighbouring elements an instruction, from device memory and from shared memory.
//
// The same tiles as in step 2, but each load brings four elements: a quarter of the instructions. For that a thread's
// columns are two groups of four neighbours, and so are its rows. The tile of a is stored transposed, so that the rows
// of one k are neighbours.
//
// A vector begins at a multiple of its size and lies in one row: n and k are multiples of four.
#include "step_vectors.cuh"

namespace matmul {

constexpr int kBlock = 128;              // rows and columns of the output
constexpr int kDepth = 8;                // of k in shared memory at once
constexpr int kSide = 8;                 // of a thread's square
constexpr int kAcross = kBlock / kSide;  // threads side by side
constexpr int kThreads = kAcross * kAcross;
constexpr int kHalf = kBlock / 2;  // from a thread's first group of four to its second
// Neighbouring threads store k and k + 4 of a row of a. With 4 elements between the tile's rows these are two banks.
constexpr int kPitch = kBlock + 4;
static_assert(kBlock * kDepth == kVector * kThreads, "each thread loads one vector of each input");

template <typename T>
__global__ void __launch_bounds__(kThreads) vector_loads(const Product<T> of) {
  alignas(16) __shared__ float tile_of_a[kDepth][kPitch];
  alignas(16) __shared__ float tile_of_b[kDepth][kBlock];
  const int thread = static_cast<int>(threadIdx.x);
  const int first_row = static_cast<int>(blockIdx.y) * kBlock, first_column = static_cast<int>(blockIdx.x) * kBlock;
  const int row_of_a = thread / (kDepth / kVector), k_of_a = thread % (kDepth / kVector) * kVector;
  const int k_of_b = thread / (kBlock / kVector), column_of_b = thread % (kBlock / kVector) * kVector;
  const int y = thread / kAcross * kVector, x = thread % kAcross * kVector;
  float sums[kSide][kSide] = {};

  for (int start = 0; start < of.k; start += kDepth) {
    const int row = first_row + row_of_a, k = start + k_of_a;
    write_column<kPitch>(&tile_of_a[k_of_a][row_of_a],
                         load_four(of.a + int64_t{row} * of.k + k, row < of.m && k < of.k));
    const int below = start + k_of_b, right = first_column + column_of_b;
    write_row(&tile_of_b[k_of_b][column_of_b],
              load_four(of.b + int64_t{below} * of.n + right, below < of.k && right < of.n));
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kDepth; ++i) {
      float a[kSide], b[kSide];
      read_row(a, &tile_of_a[i][y]);
      read_row(a + kVector, &tile_of_a[i][y + kHalf]);
      read_row(b, &tile_of_b[i][x]);
      read_row(b + kVector, &tile_of_b[i][x + kHalf]);
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
    for (int group = 0; group < 2; ++group) {
      const int row = first_row + y + r / kVector * kHalf + r % kVector, column = first_column + x + group * kHalf;
      if (row < of.m && column < of.n) {
        store_four(of.out + int64_t{row} * of.n + column, &sums[r][group * kVector]);
      }
    }
  }
}

template <typename T>
void launch(const Product<T>& of, cudaStream_t stream) {
  const dim3 grid = grid_of(of.m, of.n, kBlock, kBlock);
  vector_loads<T><<<grid, kThreads, 0, stream>>>(of);
  kernels::record_launch("vector_loads", "a tile a block", grid, dim3(kThreads));
}

}  // namespace matmul

MATMUL_STEP(step_vector_loads, 4, float, BFloat16, Half)
