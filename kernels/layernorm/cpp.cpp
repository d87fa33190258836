// layernorm over the last dimension of a 2-D tensor on the CPU: every thread takes a run of rows and reads each three
// times, for the mean, the variance and the answer; the second and third time from the caches. Rows are not split
// over threads. Memory is the limit as long as a row fits in a core's caches.
#include <algorithm>
#include <cmath>

#include "../include/rows.h"

namespace {

constexpr double kEps = 1e-5;

// Sums in float64, so that a long row or one of large numbers loses nothing.
template <typename T>
void layernorm_row(const T* x, int64_t stride, int64_t columns, const T* weight, const T* bias, T* y) {
  double sum = 0.0;
  for (int64_t column = 0; column < columns; ++column) {
    sum += static_cast<float>(x[column * stride]);
  }
  const double mean = sum / static_cast<double>(columns);
  double squares = 0.0;
  for (int64_t column = 0; column < columns; ++column) {
    const double distance = static_cast<float>(x[column * stride]) - mean;
    squares += distance * distance;
  }
  const double scale = 1.0 / std::sqrt(squares / static_cast<double>(columns) + kEps);
  for (int64_t column = 0; column < columns; ++column) {
    const auto normal = static_cast<float>((static_cast<float>(x[column * stride]) - mean) * scale);
    y[column] = static_cast<T>(normal * static_cast<float>(weight[column]) + static_cast<float>(bias[column]));
  }
}

kernels::Tensor layernorm_cpu(const kernels::Tensor& x, const kernels::Tensor& weight, const kernels::Tensor& bias) {
  kernels::check_matrix("layernorm", x);
  kernels::check_parameter("layernorm", "weight", weight, x);
  kernels::check_parameter("layernorm", "bias", bias, x);
  const int64_t columns = x.size(1);
  const kernels::Tensor factor = torch::stable::contiguous(weight);
  const kernels::Tensor shift = torch::stable::contiguous(bias);
  const kernels::Tensor result = torch::stable::new_empty(x, x.sizes());
  kernels::with_element_type(x, [&](auto element) {
    using T = decltype(element);
    const int64_t rows_per_thread = std::max<int64_t>(1, (int64_t{1} << 14) / columns);
    torch::stable::parallel_for(0, x.size(0), rows_per_thread, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        layernorm_row(kernels::input<T>(x) + row * x.stride(0), x.stride(1), columns, kernels::input<T>(factor),
                      kernels::input<T>(shift), kernels::output<T>(result) + row * columns);
      }
    });
  });
  return result;
}

kernels::Tensor meta(const kernels::Tensor& x, const kernels::Tensor&, const kernels::Tensor&) {
  return kernels::like(x);
}

}  // namespace

STABLE_TORCH_LIBRARY_FRAGMENT(layernorm, m) { m.def("cpp(Tensor x, Tensor weight, Tensor bias) -> Tensor"); }
STABLE_TORCH_LIBRARY_IMPL(layernorm, Meta, m) { m.impl("cpp", TORCH_BOX(&meta)); }
STABLE_TORCH_LIBRARY_IMPL(layernorm, CPU, m) { m.impl("cpp", TORCH_BOX(&layernorm_cpu)); }
