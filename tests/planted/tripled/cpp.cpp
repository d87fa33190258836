// Three times a vector, with this repository's headers and one beside the source.
#include <elementwise.h>

#include "factor.h"

namespace {

kernels::Tensor triple(const kernels::Tensor& x) {
  return kernels::elementwise_cpu(x, [](float value) { return kFactor * value; });
}

}  // namespace

STABLE_TORCH_LIBRARY_FRAGMENT(tripled, m) { m.def("cpp(Tensor x) -> Tensor"); }
STABLE_TORCH_LIBRARY_IMPL(tripled, Meta, m) { m.impl("cpp", TORCH_BOX(&kernels::like)); }
STABLE_TORCH_LIBRARY_IMPL(tripled, CPU, m) { m.impl("cpp", TORCH_BOX(&triple)); }
