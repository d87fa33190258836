// square on the CPU: every thread takes a run of neighbouring elements, in a loop that becomes SIMD (simd.h). One
// multiplication for two memory accesses: memory bandwidth is the limit.
#include "../include/elementwise.h"

namespace {

kernels::Tensor square(const kernels::Tensor& x) {
  return kernels::elementwise_cpu(x, [](float value) KERNELS_INLINE { return value * value; });
}

}  // namespace

STABLE_TORCH_LIBRARY_FRAGMENT(square, m) { m.def("cpp(Tensor x) -> Tensor"); }
STABLE_TORCH_LIBRARY_IMPL(square, Meta, m) { m.impl("cpp", TORCH_BOX(&kernels::like)); }
STABLE_TORCH_LIBRARY_IMPL(square, CPU, m) { m.impl("cpp", TORCH_BOX(&square)); }
