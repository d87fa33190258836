// Step 5: tensor cores. One instruction of a warp, mma, multiplies 16 x 16 elements by 16 x 8: 2048 multiply-adds.
//
// bfloat16 or float16 stay as they are in shared memory, and ldmatrix brings them to the registers in mma's order. The
// tensor cores are so fast that a block must not wait for memory: cp.async copies to shared memory while the block
// multiplies, and a ring of kStages buffers holds the tiles of the next steps.
//
// A block of 128 x 128 is eight warps of 64 x 32. A copy is 16 bytes: n and k are multiples of eight.
#include "../include/mma.cuh"
#include "step.cuh"

namespace matmul {

constexpr int kBlock = 128;  // rows and columns of the output
constexpr int kDepth = 32;   // of k in a buffer
constexpr int kStages = 4;
constexpr int kRows = 64, kColumns = 32;  // of a warp
constexpr int kDown = kRows / 16, kAcross = kColumns / 8;  // products of a warp by mma
constexpr int kThreads = 32 * (kBlock / kRows) * (kBlock / kColumns);
constexpr int kCopied = 8;  // elements a copy
// 16 bytes between rows: the eight rows that ldmatrix reads at once are in different banks.
constexpr int kPitchOfA = kDepth + 8, kPitchOfB = kBlock + 8;

template <typename T>
struct Buffer {
  alignas(16) T a[kBlock][kPitchOfA];
  alignas(16) T b[kDepth][kPitchOfB];
};

// Starts the copies of one step's tiles, as one group. Past the end of k zeros are written.
template <typename T>
__device__ void copy_tiles(Buffer<T>& to, const Product<T>& of, int first_row, int first_column, int start) {
#pragma unroll
  for (int i = 0; i < kBlock * kDepth; i += kThreads * kCopied) {
    const int at = i + static_cast<int>(threadIdx.x) * kCopied;
    const int row = first_row + at / kDepth, k = start + at % kDepth;
    const bool in_a = row < of.m && k < of.k;
    kernels::cp_async_or_zeros(&to.a[at / kDepth][at % kDepth], in_a ? of.a + int64_t{row} * of.k + k : of.a, in_a);
    const int below = start + at / kBlock, column = first_column + at % kBlock;
    const bool in_b = below < of.k && column < of.n;
    kernels::cp_async_or_zeros(&to.b[at / kBlock][at % kBlock], in_b ? of.b + int64_t{below} * of.n + column : of.b,
                               in_b);
  }
  kernels::cp_async_commit_group();
}

template <typename T>
__global__ void __launch_bounds__(kThreads) mma(const Product<T> of) {
  auto* const buffers = reinterpret_cast<Buffer<T>*>(block_memory());
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int first_row = static_cast<int>(blockIdx.y) * kBlock, first_column = static_cast<int>(blockIdx.x) * kBlock;
  const int y = warp / (kBlock / kColumns) * kRows, x = warp % (kBlock / kColumns) * kColumns;
  float sums[kDown][kAcross][4] = {};

  for (int stage = 0; stage < kStages - 1; ++stage) {
    copy_tiles(buffers[stage], of, first_row, first_column, stage * kDepth);
  }
  int stage = 0;
  for (int start = 0; start < of.k; start += kDepth) {
    kernels::cp_async_wait_group<kStages - 2>();  // this thread's copies of this step have arrived,
    __syncthreads();  // and all others'; and all are done with the buffer of the step before, which is filled next
    copy_tiles(buffers[(stage + kStages - 1) % kStages], of, first_row, first_column, start + (kStages - 1) * kDepth);
    const Buffer<T>& tiles = buffers[stage];
#pragma unroll
    for (int k = 0; k < kDepth; k += 16) {
      uint32_t a[kDown][4], b[kAcross / 2][4];  // of b two products' elements at once
#pragma unroll
      for (int i = 0; i < kDown; ++i) {
        kernels::ldmatrix_x4(a[i], &tiles.a[y + i * 16 + lane % 16][k + lane / 16 * 8]);
      }
#pragma unroll
      for (int i = 0; i < kAcross / 2; ++i) {
        kernels::ldmatrix_x4_trans(b[i], &tiles.b[k + lane % 16][x + i * 16 + lane / 16 * 8]);
      }
#pragma unroll
      for (int r = 0; r < kDown; ++r) {
#pragma unroll
        for (int c = 0; c < kAcross; ++c) {
          kernels::mma_m16n8k16<T>(sums[r][c], a[r], b[c / 2][c % 2 * 2], b[c / 2][c % 2 * 2 + 1]);
        }
      }
    }
    stage = (stage + 1) % kStages;
  }

#pragma unroll
  for (int r = 0; r < kDown; ++r) {
#pragma unroll
    for (int i = 0; i < kAcross * 4; i += 2) {  // two neighbours at once
      const int row = first_row + y + r * 16 + i % 4 / 2 * 8 + lane / 4;
      const int column = first_column + x + i / 4 * 8 + lane % 4 * 2;
      if (row < of.m && column < of.n) {
        *reinterpret_cast<kernels::Vector<T, 2>*>(of.out + int64_t{row} * of.n + column) = {
            {static_cast<T>(sums[r][i / 4][i % 4]), static_cast<T>(sums[r][i / 4][i % 4 + 1])}};
      }
    }
  }
}

template <typename T>
void launch(const Product<T>& of, cudaStream_t stream) {
  const dim3 grid = grid_of(of.m, of.n, kBlock, kBlock);
  constexpr int kBytes = kStages * static_cast<int>(sizeof(Buffer<T>));
  kernels::require(cudaFuncSetAttribute(mma<T>, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes) == cudaSuccess,
                   "matmul::step_mma needs " + std::to_string(kBytes) + " bytes of shared memory");
  mma<T><<<grid, kThreads, kBytes, stream>>>(of);
  kernels::record_launch("mma", "a tile a block", grid, dim3(kThreads), 1, kBytes, kStages);
}

}  // namespace matmul

MATMUL_STEP(step_mma, 8, BFloat16, Half)
