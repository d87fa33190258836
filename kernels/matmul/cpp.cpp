// The matrix product on the CPU: every thread takes a run of rows of the output. It goes over them in blocks that
// caches hold: a panel of b, made float32 once for all rows of a block, stays in L2, and the block's float32 sums in
// L1. The innermost loop runs along a row of the panel, which the compiler turns into SIMD; its loads and stores of
// sums are the limit. k is not split over threads, so that a single row is one thread's.
#include <algorithm>
#include <vector>

#include "../include/common.h"

namespace {

constexpr int64_t kRows = 32;
constexpr int64_t kColumns = 256;
constexpr int64_t kDepth = 128;

template <typename T>
struct Matrix {
  const T* elements;
  int64_t row_stride;
  int64_t column_stride;

  float at(int64_t row, int64_t column) const {
    return static_cast<float>(elements[row * row_stride + column * column_stride]);
  }
};

// Rows `top` to `bottom`, at most kRows, and columns `left` to `right`, at most kColumns, of the output.
template <typename T>
void block(const Matrix<T>& a, const Matrix<T>& b, T* out, int64_t n, int64_t k, int64_t top, int64_t bottom,
           int64_t left, int64_t right, std::vector<float>& panel, std::vector<float>& sums) {
  const int64_t width = right - left;
  std::fill(sums.begin(), sums.end(), 0.0f);
  for (int64_t start = 0; start < k; start += kDepth) {
    const int64_t end = std::min(start + kDepth, k);
    for (int64_t i = start; i < end; ++i) {
      for (int64_t column = 0; column < width; ++column) {
        panel[(i - start) * kColumns + column] = b.at(i, left + column);
      }
    }
    for (int64_t row = top; row < bottom; ++row) {
      float* const sum = &sums[(row - top) * kColumns];
      for (int64_t i = start; i < end; ++i) {
        const float factor = a.at(row, i);
        const float* const of_b = &panel[(i - start) * kColumns];
        for (int64_t column = 0; column < width; ++column) {
          sum[column] += factor * of_b[column];
        }
      }
    }
  }
  for (int64_t row = top; row < bottom; ++row) {
    for (int64_t column = 0; column < width; ++column) {
      out[row * n + left + column] = static_cast<T>(sums[(row - top) * kColumns + column]);
    }
  }
}

kernels::Tensor empty_product(const kernels::Tensor& a, const kernels::Tensor& b) {
  return torch::stable::new_empty(a, {a.size(0), b.size(1)});
}

kernels::Tensor matmul(const kernels::Tensor& a, const kernels::Tensor& b) {
  kernels::require(a.dim() == 2 && b.dim() == 2 && a.size(1) == b.size(0) && a.scalar_type() == b.scalar_type(),
                   "matmul::cpp takes an m x k and a k x n tensor of one dtype");
  const kernels::Tensor result = empty_product(a, b);
  const int64_t m = a.size(0);
  const int64_t n = b.size(1);
  const int64_t k = a.size(1);
  kernels::with_element_type(a, [&](auto element) {
    using T = decltype(element);
    const Matrix<T> from_a{kernels::input<T>(a), a.stride(0), a.stride(1)};
    const Matrix<T> from_b{kernels::input<T>(b), b.stride(0), b.stride(1)};
    T* const to = kernels::output<T>(result);
    torch::stable::parallel_for(0, m, kRows, [&](int64_t begin, int64_t end) {
      std::vector<float> panel(kDepth * kColumns);
      std::vector<float> sums(kRows * kColumns);
      for (int64_t top = begin; top < end; top += kRows) {
        for (int64_t left = 0; left < n; left += kColumns) {
          block(from_a, from_b, to, n, k, top, std::min(top + kRows, end), left, std::min(left + kColumns, n), panel,
                sums);
        }
      }
    });
  });
  return result;
}

}  // namespace

STABLE_TORCH_LIBRARY_FRAGMENT(matmul, m) { m.def("cpp(Tensor a, Tensor b) -> Tensor"); }
STABLE_TORCH_LIBRARY_IMPL(matmul, Meta, m) { m.impl("cpp", TORCH_BOX(&empty_product)); }
STABLE_TORCH_LIBRARY_IMPL(matmul, CPU, m) { m.impl("cpp", TORCH_BOX(&matmul)); }
