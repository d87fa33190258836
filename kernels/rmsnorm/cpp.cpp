// rmsnorm over the last dimension of a 2-D tensor on the CPU: every thread takes a run of rows and reads each twice,
// for the squares and the answer; the second time from the caches. Rows are not split over threads. Memory is the
// limit as long as a row fits in a core's caches.
#include <algorithm>
#include <cmath>

#include "../include/rows.h"

namespace {

constexpr double kEps = 1e-6;

// The sum in float64, so that a long row loses nothing.
template <typename T>
void rmsnorm_row(const T* x, int64_t stride, int64_t columns, const T* weight, T* y) {
  double squares = 0.0;
  for (int64_t column = 0; column < columns; ++column) {
    const double value = static_cast<float>(x[column * stride]);
    squares += value * value;
  }
  const double scale = 1.0 / std::sqrt(squares / static_cast<double>(columns) + kEps);
  for (int64_t column = 0; column < columns; ++column) {
    const auto normal = static_cast<float>(static_cast<float>(x[column * stride]) * scale);
    y[column] = static_cast<T>(normal * static_cast<float>(weight[column]));
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
    const int64_t rows_per_thread = std::max<int64_t>(1, (int64_t{1} << 14) / columns);
    torch::stable::parallel_for(0, x.size(0), rows_per_thread, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        rmsnorm_row(kernels::input<T>(x) + row * x.stride(0), x.stride(1), columns, kernels::input<T>(factor),
                    kernels::output<T>(result) + row * columns);
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
