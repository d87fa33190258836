// gelu (tanh form) on the CPU: every thread takes a run of neighbouring elements. One exponential for two memory
// accesses, sixteen elements at a time (vector_math.h): arithmetic is the limit of what caches hold, memory of what
// they don't.
#include "../include/elementwise.h"
#include "../include/vector_math.h"

namespace {

// 0.5 x (1 + tanh(u)) with u = sqrt(2/pi) (x + 0.044715 x^3), written as x / (1 + exp(-2u)): the same
// function, without the cancellation in 1 + tanh(u) where u is negative. A large -x overflows exp to
// infinity and gives -0; -infinity gives NaN, as the formula does in float64.
KERNELS_INLINE inline float gelu(float x) {
  constexpr float kMinusTwoSqrtTwoOverPi = -1.5957691216057308f;
  const float minus_two_u = kMinusTwoSqrtTwoOverPi * x * (1.0f + 0.044715f * x * x);
  return x / (1.0f + kernels::exp(minus_two_u));
}

kernels::Tensor gelu_tanh(const kernels::Tensor& x) {
  return kernels::elementwise_cpu(x, [](float value) KERNELS_INLINE { return gelu(value); });
}

}  // namespace

STABLE_TORCH_LIBRARY_FRAGMENT(gelu, m) { m.def("cpp(Tensor x) -> Tensor"); }
STABLE_TORCH_LIBRARY_IMPL(gelu, Meta, m) { m.impl("cpp", TORCH_BOX(&kernels::like)); }
STABLE_TORCH_LIBRARY_IMPL(gelu, CPU, m) { m.impl("cpp", TORCH_BOX(&gelu_tanh)); }
