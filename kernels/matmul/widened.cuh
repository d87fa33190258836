// An element of 2 bytes: how it is loaded where neighbours follow, and as a number.
#pragma once

#include <cstdint>

#include "../include/wgmma.cuh"

namespace kernels {

// Has L2 fetch all 128 bytes of the line from device memory, whose other elements are read next by others.
__device__ inline uint16_t load_of_line(const uint16_t* from) {
  uint16_t bits;
  asm("ld.global.nc.L2::128B.u16 %0, [%1];" : "=h"(bits) : "l"(from));
  return bits;
}

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
