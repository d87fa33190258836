// The tanh form of GELU for one element, the same on the CPU and on CUDA.
#pragma once

#include <cmath>

#ifdef __CUDACC__
#define GELU_HOST_DEVICE __host__ __device__
#else
#define GELU_HOST_DEVICE
#endif

namespace gelu {

// 0.5 x (1 + tanh(u)) with u = sqrt(2/pi) (x + 0.044715 x^3), written as x / (1 + exp(-2u)): the same
// function, without the cancellation in 1 + tanh(u) where u is negative. A large -x overflows exp to
// infinity and gives -0; -infinity gives NaN, as the formula does in float64.
GELU_HOST_DEVICE inline float gelu(float x) {
  constexpr float kMinusTwoSqrtTwoOverPi = -1.5957691216057308f;
  const float minus_two_u = kMinusTwoSqrtTwoOverPi * x * (1.0f + 0.044715f * x * x);
  return x / (1.0f + std::exp(minus_two_u));
}

}  // namespace gelu
