// Where cuda_wgmma keeps what in shared memory. Plain C++, so that a test compiles it without CUDA.
#pragma once

#include "../matmul/wgmma_layout.h"

namespace matmul_int4 {

constexpr int kStepK = 128;  // columns of w a step: a tile of the packing
constexpr int kSlabK = 64;   // of x in a row of 128 bytes, the swizzle's period
constexpr int kPadding = 4;  // float32 numbers between the rows of staged sums, so that a warp's stores meet no bank twice

// From a multiple of 1024 bytes on: `stages` buffers, then two barriers a stage. A buffer has two slabs of x, `block_m`
// rows of 64 columns; the words of `block_n` rows of w; and their scales and zeros, of `groups` groups. Once all buffers
// are used the sums are staged in their place.
struct SharedLayout {
  int block_m;
  int block_n;
  int groups;
  int stages;

  MATMUL_HOST_DEVICE constexpr int slab_bytes() const { return block_m * matmul::kSwizzle; }
  MATMUL_HOST_DEVICE constexpr int words() const { return 2 * slab_bytes(); }
  MATMUL_HOST_DEVICE constexpr int scales() const { return words() + block_n * kStepK / 2; }
  // What the copies of a step bring.
  MATMUL_HOST_DEVICE constexpr int step_bytes() const { return scales() + groups * block_n * 4; }
  MATMUL_HOST_DEVICE constexpr int stage_bytes() const {
    return (step_bytes() + matmul::kSwizzleTile - 1) / matmul::kSwizzleTile * matmul::kSwizzleTile;
  }
  MATMUL_HOST_DEVICE constexpr int barriers() const { return stages * stage_bytes(); }
  // With what aligns the begin to 1024 bytes.
  MATMUL_HOST_DEVICE constexpr int bytes() const { return barriers() + stages * 2 * 8 + matmul::kSwizzleTile; }
  MATMUL_HOST_DEVICE constexpr int row_of_sums() const { return block_n + kPadding; }
  MATMUL_HOST_DEVICE constexpr int bytes_of_sums() const { return block_m * row_of_sums() * 4; }
};

}  // namespace matmul_int4
