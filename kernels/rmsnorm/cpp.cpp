// rmsnorm over the last dimension of a 2-D tensor on the CPU: every thread takes a run of rows and reads each twice,
// for the squares and the answer; the second time from the caches. Rows are not split over threads. Memory is the
// limit as long as a row fits in a core's caches.
#include <cmath>

#include "../include/pieces.h"
#include "../include/rows.h"

namespace {

using kernels::kPiece;

constexpr double kEps = 1e-6;

// The sum in float64, so that a long row or one of large numbers loses nothing.
template <typename Set, typename T>
KERNELS_INLINE inline void rmsnorm_row(Set set, const T* x, int64_t stride, int64_t columns, const T* weight, T* y) {
  float room[kPiece];
  double squares = 0.0;
  for (int64_t start = 0; start < columns; start += kPiece) {
    const int64_t count = std::min(kPiece, columns - start);
    const float* const in = kernels::widen(set, x + start * stride, stride, count, room);
#pragma omp simd reduction(+ : squares)
    for (int64_t i = 0; i < count; ++i) {
      const double value = in[i];
      squares += value * value;
    }
  }
  const double scale = 1.0 / std::sqrt(squares / static_cast<double>(columns) + kEps);
  float room_of_weight[kPiece];
  for (int64_t start = 0; start < columns; start += kPiece) {
    const int64_t count = std::min(kPiece, columns - start);
    const float* const in = kernels::widen(set, x + start * stride, stride, count, room);
    const float* const factor = kernels::widen(set, weight + start, 1, count, room_of_weight);
    float* const out = kernels::place(y + start, room);
#pragma omp simd
    for (int64_t i = 0; i < count; ++i) {
      out[i] = static_cast<float>(in[i] * scale) * factor[i];
    }
    kernels::narrow(set, out, y + start, count);
  }
}

kernels::Tensor rmsnorm_cpu(const kernels::Tensor& x, const kernels::Tensor& weight) {
  kernels::check_matrix("rmsnorm", x);
  kernels::check_parameter("rmsnorm", "weight", weight, x);
  const int64_t columns = x.size(1);
  const kernels::Tensor factor = torch::stable::contiguous(weight);
  const kernels::Tensor result = torch::stable::new_empty(x, x.sizes());
  kernels::with_element_type(x, [&](auto element) {
    using T = decltype(element);
    const T* const from = kernels::input<T>(x);
    const T* const weights = kernels::input<T>(factor);
    T* const to = kernels::output<T>(result);
    const int64_t row_stride = x.stride(0);
    const int64_t stride = x.stride(1);
    const int64_t grain = kernels::rows_per_thread(columns);
    kernels::parallel_simd(x.size(0), grain, [=](auto set, int64_t begin, int64_t end) KERNELS_INLINE {
      for (int64_t row = begin; row < end; ++row) {
        rmsnorm_row(set, from + row * row_stride, stride, columns, weights, to + row * columns);
      }
    });
  });
  return result;
}

kernels::Tensor meta(const kernels::Tensor& x, const kernels::Tensor&) {
  return kernels::like(x);
}

}  // namespace

STABLE_TORCH_LIBRARY_FRAGMENT(rmsnorm, m) { m.def("cpp(Tensor x, Tensor weight) -> Tensor"); }
STABLE_TORCH_LIBRARY_IMPL(rmsnorm, Meta, m) { m.impl("cpp", TORCH_BOX(&meta)); }
STABLE_TORCH_LIBRARY_IMPL(rmsnorm, CPU, m) { m.impl("cpp", TORCH_BOX(&rmsnorm_cpu)); }
