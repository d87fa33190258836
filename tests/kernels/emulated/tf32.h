// What matmul's tf32 kernel needs of the emulated multiprocessor beside hopper.h: wgmma of elements of 4 bytes, and
// copies of them. It stands in for wgmma_tf32.cuh.
#pragma once

#include "hopper.h"

#undef __shared__
#define __shared__ static

namespace kernels {

// Element k of row `mn` of an operand whose rows go along k, as the tensor cores read it.
inline float tf32_operand(uint64_t descriptor, int mn, int k) {
  uint32_t address = field(descriptor, 0);
  address += static_cast<uint32_t>(mn % 8 * 128 + k * 4) + static_cast<uint32_t>(mn / 8) * field(descriptor, 32);
  address ^= (address >> 7 & 7) << 4;
  uint32_t bits;
  std::memcpy(&bits, shared_pointer(address), 4);
  bits &= 0xFFFFE000;
  float x;
  std::memcpy(&x, &bits, 4);
  return x;
}

inline void wgmma_tf32(float (&d)[64], uint64_t of_a, uint64_t of_b, bool add) {
  float* const sums = d;
  const int warp_of_group = emulated::thread() / 32 % 4;
  start_wgmma([=](int lane) {
    for (int i = 0; i < 64; ++i) {
      float sum = add ? sums[i] : 0.0f;
      for (int k = 0; k < 8; ++k) {
        sum += tf32_operand(of_a, row_of(warp_of_group, lane, i), k) * tf32_operand(of_b, column_of(lane, i), k);
      }
      sums[i] = sum;
    }
  });
}

}  // namespace kernels

namespace matmul::tf32 {

// A map counts 2 bytes: an element of 4 is two of them.
inline void tma_load(void* to, const CUtensorMap* map, int x, int y, uint64_t* barrier) {
  kernels::tma_load(to, map, x * 2, y, barrier);
}

}  // namespace matmul::tf32
