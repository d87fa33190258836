// gelu (tanh form) on the CPU: every thread takes a run of neighbouring elements. One exponential for
// two memory accesses, through the C library's scalar expf: arithmetic is the limit, not memory.
#include "../include/elementwise.h"
#include "formula.h"

namespace {

kernels::Tensor gelu_tanh(const kernels::Tensor& x) {
  return kernels::elementwise_cpu(x, [](float value) { return gelu::gelu(value); });
}

}  // namespace

STABLE_TORCH_LIBRARY_FRAGMENT(gelu, m) { m.def("cpp(Tensor x) -> Tensor"); }
STABLE_TORCH_LIBRARY_IMPL(gelu, Meta, m) { m.impl("cpp", TORCH_BOX(&kernels::like)); }
STABLE_TORCH_LIBRARY_IMPL(gelu, CPU, m) { m.impl("cpp", TORCH_BOX(&gelu_tanh)); }
