// What cuda_wgmma keeps of w in shared memory. Plain C++, so that a test compiles it without CUDA.
#pragma once

#include "../include/transposed_tiles.h"

namespace matmul_sparse {

constexpr int kWordsOfRows = kernels::kStepK / 2;  // of metadata, for 16 rows of a step

// A step's bytes of w: values, a slab with 64 kept values of each row, and behind them the metadata.
KERNELS_HOST_DEVICE constexpr int bytes_of_values(int block_n) { return block_n * kernels::kSwizzle; }
KERNELS_HOST_DEVICE constexpr int bytes_of_w(int block_n) {
  return bytes_of_values(block_n) + block_n / 16 * kWordsOfRows * 4;
}

}  // namespace matmul_sparse
