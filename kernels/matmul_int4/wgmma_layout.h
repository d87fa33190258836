// What cuda_wgmma keeps of w in shared memory. Plain C++, so that a test compiles it without CUDA.
#pragma once

#include "../include/transposed_tiles.h"

namespace matmul_int4 {

// A step's bytes of w: words and, behind them, scales with their zeros.
KERNELS_HOST_DEVICE constexpr int bytes_of_words(int block_n) { return block_n * kernels::kStepK / 2; }
KERNELS_HOST_DEVICE constexpr int bytes_of_w(int block_n, int groups) {
  return bytes_of_words(block_n) + groups * block_n * 4;
}

}  // namespace matmul_int4
