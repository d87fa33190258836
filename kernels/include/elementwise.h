// A function of one element, applied to a tensor on the CPU.
#pragma once

#include <cstdint>

#include "pieces.h"

namespace kernels {

// Elements that are worth a thread of their own.
constexpr int64_t kElementsPerThread = 1 << 15;

// y[i] = f(x[i]), computed in float32 and rounded once; the answer is contiguous. f is KERNELS_INLINE.
template <typename F>
Tensor elementwise_cpu(const Tensor& x, const F& f) {
  const Tensor source = x.is_contiguous() ? x : torch::stable::contiguous(x);
  const Tensor result = torch::stable::empty_like(source);
  with_element_type(source, [&](auto element) {
    using T = decltype(element);
    const T* const from = input<T>(source);
    T* const to = output<T>(result);
    const int64_t count = source.numel();
    parallel_simd(count, kElementsPerThread, [=]([[maybe_unused]] auto set, int64_t begin, int64_t end) KERNELS_INLINE {
      if constexpr (std::is_same_v<T, Half>) {
        float room[kPiece];
        for (int64_t start = begin; start < end; start += kPiece) {
          const int64_t piece = std::min(kPiece, end - start);
          widen(set, from + start, 1, piece, room);
          for (int64_t i = 0; i < piece; ++i) {
            room[i] = f(room[i]);
          }
          narrow(set, room, to + start, piece);
        }
      } else {  // whose conversions the compiler puts into the loop
        for (int64_t i = begin; i < end; ++i) {
          to[i] = static_cast<T>(f(static_cast<float>(from[i])));
        }
      }
    });
  });
  return result;
}

}  // namespace kernels
