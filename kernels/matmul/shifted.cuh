// Sixteen bytes that lie across two aligned pieces of as many: what rows that begin anywhere are read and stored by.
#pragma once

#include <cstdint>

#include "../include/common.cuh"

namespace matmul {

// The 16 bytes from byte `shift` on, less than 16, of two pieces.
__device__ inline uint4 shifted(const uint4& first, const uint4& second, int shift) {
  uint32_t words[8] = {first.x, first.y, first.z, first.w, second.x, second.y, second.z, second.w};
#pragma unroll
  for (int i = 0; i < 7; ++i) {
    words[i] = shift & 4 ? words[i + 1] : words[i];
  }
#pragma unroll
  for (int i = 0; i < 5; ++i) {
    words[i] = shift & 8 ? words[i + 2] : words[i];
  }
  uint32_t found[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    found[i] = __funnelshift_r(words[i], words[i + 1], static_cast<unsigned>(shift % 4 * 8));
  }
  return make_uint4(found[0], found[1], found[2], found[3]);
}

}  // namespace matmul
