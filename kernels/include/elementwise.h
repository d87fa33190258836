// A function of one element, applied to a tensor on the CPU.
#pragma once

#include <cstdint>

#include "common.h"

namespace kernels {

// Elements that are worth a thread of their own.
constexpr int64_t kElementsPerThread = 1 << 15;

// y[i] = f(x[i]), computed in float32 and rounded once; the answer is contiguous.
template <typename F>
Tensor elementwise_cpu(const Tensor& x, const F& f) {
  const Tensor source = torch::stable::contiguous(x);
  const Tensor result = torch::stable::empty_like(source);
  with_element_type(source, [&](auto element) {
    using T = decltype(element);
    const T* from = input<T>(source);
    T* to = output<T>(result);
    torch::stable::parallel_for(0, source.numel(), kElementsPerThread, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        to[i] = static_cast<T>(f(static_cast<float>(from[i])));
      }
    });
  });
  return result;
}

}  // namespace kernels
