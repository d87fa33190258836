// softmax over the last dimension of a 2-D tensor on the CPU: every thread takes a run of rows and
// keeps one row of exponentials in float32, so that each element is read once, exponentiated once and
// rounded once. The C library's scalar expf is the limit, not memory. Rows are not split over threads.
#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "../include/common.h"
#include "../include/rows.h"

namespace {

// NaN passes every step: the maximum skips it, but exp(NaN) makes the sum NaN. A row of -infinity, or
// one that holds +infinity, gives exp(inf - inf) = NaN, as torch does.
template <typename T>
void softmax_row(const T* x, int64_t stride, std::vector<float>& row, T* y) {
  const int64_t columns = static_cast<int64_t>(row.size());
  float maximum = -std::numeric_limits<float>::infinity();
  for (int64_t column = 0; column < columns; ++column) {
    row[column] = static_cast<float>(x[column * stride]);
    maximum = std::max(maximum, row[column]);
  }
  double sum = 0.0;  // float64: a long row would lose the small terms
  for (float& value : row) {
    value = std::exp(value - maximum);
    sum += value;
  }
  const float scale = static_cast<float>(1.0 / sum);
  for (int64_t column = 0; column < columns; ++column) {
    y[column] = static_cast<T>(row[column] * scale);
  }
}

kernels::Tensor softmax_cpu(const kernels::Tensor& x) {
  kernels::check_matrix("softmax", x);
  const int64_t rows = x.size(0);
  const int64_t columns = x.size(1);
  const kernels::Tensor result = torch::stable::new_empty(x, x.sizes());
  kernels::with_element_type(x, [&](auto element) {
    using T = decltype(element);
    const T* from = kernels::input<T>(x);
    T* to = kernels::output<T>(result);
    const int64_t row_stride = x.stride(0);
    const int64_t column_stride = x.stride(1);
    const int64_t rows_per_thread = std::max<int64_t>(1, (int64_t{1} << 12) / columns);
    torch::stable::parallel_for(0, rows, rows_per_thread, [&](int64_t begin, int64_t end) {
      std::vector<float> row(columns);
      for (int64_t i = begin; i < end; ++i) {
        softmax_row(from + i * row_stride, column_stride, row, to + i * columns);
      }
    });
  });
  return result;
}

}  // namespace

STABLE_TORCH_LIBRARY_FRAGMENT(softmax, m) { m.def("cpp(Tensor x) -> Tensor"); }
STABLE_TORCH_LIBRARY_IMPL(softmax, Meta, m) { m.impl("cpp", TORCH_BOX(&kernels::like)); }
STABLE_TORCH_LIBRARY_IMPL(softmax, CPU, m) { m.impl("cpp", TORCH_BOX(&softmax_cpu)); }
