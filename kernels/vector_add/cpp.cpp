// vector_add on the CPU: every thread takes a run of neighbouring elements, in a loop that becomes SIMD (simd.h).
#include "../include/common.h"
#include "../include/simd.h"

namespace {

using kernels::Tensor;

// Elements that are worth a thread of their own.
constexpr int64_t kElementsPerThread = 1 << 15;

Tensor add(const Tensor& left, const Tensor& right) {
  const Tensor x = torch::stable::contiguous(left);
  const Tensor y = torch::stable::contiguous(right);
  const Tensor result = torch::stable::empty_like(x);
  kernels::with_element_type(x, [&](auto element) {
    using T = decltype(element);
    const T* const from_x = kernels::input<T>(x);
    const T* const from_y = kernels::input<T>(y);
    T* const to = kernels::output<T>(result);
    kernels::parallel_simd(x.numel(), kElementsPerThread, [=](auto, int64_t begin, int64_t end) KERNELS_INLINE {
      for (int64_t i = begin; i < end; ++i) {
        to[i] = static_cast<T>(static_cast<float>(from_x[i]) + static_cast<float>(from_y[i]));
      }
    });
  });
  return result;
}

Tensor meta(const Tensor& x, const Tensor&) { return kernels::like(x); }

}  // namespace

STABLE_TORCH_LIBRARY_FRAGMENT(vector_add, m) { m.def("cpp(Tensor x, Tensor y) -> Tensor"); }
STABLE_TORCH_LIBRARY_IMPL(vector_add, Meta, m) { m.impl("cpp", TORCH_BOX(&meta)); }
STABLE_TORCH_LIBRARY_IMPL(vector_add, CPU, m) { m.impl("cpp", TORCH_BOX(&add)); }
