// An element of 2 bytes as a number.
#pragma once

#include <cstdint>

#include "../include/wgmma.cuh"

namespace kernels {

template <Element kElement>
__device__ inline float widened(uint16_t bits) {
  static_assert(kElement != Element::kFloat8, "elements of 2 bytes");
  if constexpr (kElement == Element::kFloat16) {
    float x;
    asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(bits));
    return x;
  } else {
    return __uint_as_float(uint32_t{bits} << 16);
  }
}

}  // namespace kernels
