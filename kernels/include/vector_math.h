// exp in float32, of additions, multiplications and integer steps alone, so that a loop over it becomes SIMD, which
// one over the C library's expf does not.
#pragma once

#include <cstdint>
#include <cstring>

#include "simd.h"

namespace kernels {

template <typename To, typename From>
KERNELS_INLINE inline To bits_as(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  std::memcpy(&to, &from, sizeof(to));
  return to;
}

// exp(x) = 2^n exp(r) with n the whole number nearest to x / ln 2 and r = x - n ln 2, at most half of ln 2 either way.
// ln 2 is taken off in two parts, the first of which has so few bits that n times it is exact. exp(r) is a polynomial:
// both are expf's of the Cephes library (S. Moshier). At most 2 units of the last place are wrong. Above 88.37 the
// answer is infinity, below -87.69 it is 0, where float32 would be subnormal; NaN stays NaN.
KERNELS_INLINE inline float exp(float x) {
  x = x < -88.0f ? -88.0f : x;
  x = x > 89.0f ? 89.0f : x;
  // float32 as large as this have no bits behind the point: the sum is rounded to a whole number, which its last bits
  // hold.
  constexpr float kRounds = 12582912.0f;  // 1.5 * 2^23
  const float rounded = x * 1.44269504088896341f + kRounds;
  const float n = rounded - kRounds;
  const float r = (x - n * 0.693359375f) - n * -2.12194440e-4f;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  const float exp_r = p * r * r + r + 1.0f;
  // 2^n: n and the bias as the exponent of a float32; 255, an infinity, for n = 128, and 0, a zero, for n = -127.
  const float two_to_n = bits_as<float>((bits_as<uint32_t>(rounded) + 127u) << 23);
  return exp_r * two_to_n;
}

}  // namespace kernels
