// Step 6, for Hopper: wgmma and TMA.
//
// Four warps, a warpgroup, multiply together: wgmma takes both operands from shared memory, 64 x 16 by 16 x 128, and no
// register holds an element of a or b. It runs while the warps go on. TMA copies: one thread asks for a whole tile, and
// an mbarrier tells when its bytes are there. TMA leaves tiles in the swizzled order that wgmma reads without conflicts
// of banks, and fills up with zeros what is outside of a matrix.
//
// A block of 128 x 128 is one warpgroup, which multiplies the upper and the lower 64 rows. TMA takes rows of multiples of
// 16 bytes: n and k are multiples of eight.
#include "../include/wgmma.cuh"
#include "../include/wgmma_descriptors.h"
#include "step_tensor_map.cuh"

namespace matmul {

constexpr int kBlock = 128;  // rows and columns of the output
constexpr int kDepth = 64;   // of k in a buffer
constexpr int kStages = 3;   // buffers, of which two blocks fit on a multiprocessor
constexpr int kThreads = 128;

struct Buffer {
  unsigned char a[kBlock * kDepth * 2];
  unsigned char b[kBlock * kDepth * 2];
};
struct Shared {
  Buffer buffers[kStages];
  uint64_t full[kStages];  // mbarriers: the buffer's tiles are there
};
constexpr int kSharedBytes = static_cast<int>(sizeof(Shared)) + 1024;  // tiles begin at multiples of 1024 bytes

template <typename T>
__global__ void __launch_bounds__(kThreads, 2)
    wgmma_ring(const __grid_constant__ CUtensorMap map_a, const __grid_constant__ CUtensorMap map_b, Product<T> of) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  constexpr int kRows = 64, kHalves = kBlock / kRows;  // rows of a wgmma, and how often they fit
  constexpr auto kElement = kIsBFloat16<T> ? kernels::Element::kBFloat16 : kernels::Element::kFloat16;
  auto& shared = *reinterpret_cast<Shared*>(kernels::dynamic_shared_memory<1024>());
  const int first_row = static_cast<int>(blockIdx.y) * kBlock, first_column = static_cast<int>(blockIdx.x) * kBlock;
  const int steps = (of.k + kDepth - 1) / kDepth;
  const bool copies = threadIdx.x == 0;
  const auto copy_tiles = [&](int step) {
    Buffer& to = shared.buffers[step % kStages];
    uint64_t* const full = &shared.full[step % kStages];
    kernels::mbarrier_arrive_expect_tx(full, sizeof(Buffer));
    kernels::tma_load(to.a, &map_a, step * kDepth, first_row, full);
    for (int x = 0; x < kBlock; x += kBoxColumns) {
      kernels::tma_load(to.b + x * kDepth * 2, &map_b, first_column + x, step * kDepth, full);
    }
  };
  if (copies) {
    for (uint64_t& full : shared.full) {
      kernels::mbarrier_init(&full, 1);
    }
    kernels::fence_mbarrier_init();
    for (int step = 0; step < kStages && step < steps; ++step) {
      copy_tiles(step);
    }
  }
  __syncthreads();  // the mbarriers can be waited for

  float sums[kHalves][kBlock / 2] = {};
  for (int step = 0; step < steps; ++step) {
    const Buffer& tiles = shared.buffers[step % kStages];
    kernels::mbarrier_wait_parity(&shared.full[step % kStages], step / kStages % 2);
    kernels::wgmma_fence();
#pragma unroll
    for (int i = 0; i < kDepth / 16; ++i) {
#pragma unroll
      for (int half = 0; half < kHalves; ++half) {
        const uint32_t rows = kernels::shared_address(tiles.a) + half * kRows * kernels::kSwizzle;
        kernels::wgmma<kElement, kBlock, false, true>(
            sums[half], kernels::k_major_descriptor(rows, i),
            kernels::mn_major_descriptor(kernels::shared_address(tiles.b), i, kDepth), true);
      }
    }
    kernels::wgmma_commit_group();
    kernels::wgmma_wait_group<1>();  // this step's products are under way, those of the step before are done,
    __syncthreads();                 // in all warps: its buffer is free
    if (copies && step > 0 && step - 1 + kStages < steps) {
      copy_tiles(step - 1 + kStages);
    }
  }
  kernels::wgmma_wait_group<0>();

#pragma unroll
  for (int half = 0; half < kHalves; ++half) {
    kernels::fence_registers(sums[half]);
#pragma unroll
    for (int i = 0; i < kBlock / 2; i += 2) {  // two neighbours at once, in the order in which wgmma has its sums
      const int thread = static_cast<int>(threadIdx.x), lane = thread % 32;
      const int row = first_row + half * kRows + thread / 32 * 16 + i / 2 % 2 * 8 + lane / 4;
      const int column = first_column + i / 4 * 8 + lane % 4 * 2;
      if (row < of.m && column < of.n) {
        *reinterpret_cast<kernels::Vector<T, 2>*>(of.out + int64_t{row} * of.n + column) = {
            {static_cast<T>(sums[half][i]), static_cast<T>(sums[half][i + 1])}};
      }
    }
  }
#endif
}

template <typename T>
void launch(const Product<T>& of, cudaStream_t stream) {
  const dim3 grid = grid_of(of.m, of.n, kBlock, kBlock);
  kernels::require(cudaFuncSetAttribute(wgmma_ring<T>, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes) ==
                       cudaSuccess,
                   "matmul::step_wgmma needs " + std::to_string(kSharedBytes) + " bytes of shared memory");
  wgmma_ring<T><<<grid, kThreads, kSharedBytes, stream>>>(tensor_map(of.a, of.m, of.k, kBlock),
                                                          tensor_map(of.b, of.k, of.n, kDepth), of);
  kernels::record_launch("wgmma_ring", "a tile a block", grid, dim3(kThreads), 1, kSharedBytes, kStages);
}

}  // namespace matmul

MATMUL_STEP(step_wgmma, 8, BFloat16, Half)
