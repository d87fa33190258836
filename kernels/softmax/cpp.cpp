// softmax over the last dimension of a 2-D tensor on the CPU: every thread takes a run of rows. A row is gone over
// three times: for its maximum, for the exponentials and their sum, and for the quotients. It comes from memory the
// first time, and from the core's caches after that, so that memory is the limit of long matrices and the exponential
// (vector_math.h) of those that caches hold. Rows are not split over threads.
#include <limits>
#include <vector>

#include "../include/pieces.h"
#include "../include/rows.h"
#include "../include/vector_math.h"

namespace {

using kernels::kPiece;

// NaN passes every step: the maximum skips it, but exp(NaN) makes the sum NaN. A row of -infinity, or
// one that holds +infinity, gives exp(inf - inf) = NaN, as torch does.
template <typename Set, typename T>
KERNELS_INLINE inline void softmax_row(Set set, const T* x, int64_t stride, int64_t columns, float* exponentials,
                                       T* y) {
  float room[kPiece];
  float maximum = -std::numeric_limits<float>::infinity();
  for (int64_t start = 0; start < columns; start += kPiece) {
    const int64_t count = std::min(kPiece, columns - start);
    const float* const in = kernels::widen(set, x + start * stride, stride, count, room);
#pragma omp simd reduction(max : maximum)
    for (int64_t i = 0; i < count; ++i) {
      maximum = maximum < in[i] ? in[i] : maximum;
    }
  }
  // A piece is summed in float32, by as many sums as a vector has lanes. Pieces are summed in float64: a long row
  // would lose the small terms.
  double sum = 0.0;
  float* const kept = kernels::place(y, exponentials);
  for (int64_t start = 0; start < columns; start += kPiece) {
    const int64_t count = std::min(kPiece, columns - start);
    const float* const in = kernels::widen(set, x + start * stride, stride, count, room);
    float* const out = kept + start;
    float sum_of_piece = 0.0f;
#pragma omp simd reduction(+ : sum_of_piece)
    for (int64_t i = 0; i < count; ++i) {
      out[i] = kernels::exp(in[i] - maximum);
      sum_of_piece += out[i];
    }
    sum += sum_of_piece;
  }
  const float scale = static_cast<float>(1.0 / sum);
  for (int64_t start = 0; start < columns; start += kPiece) {
    const int64_t count = std::min(kPiece, columns - start);
    float* const out = kept + start;
#pragma omp simd
    for (int64_t i = 0; i < count; ++i) {
      out[i] *= scale;
    }
    kernels::narrow(set, out, y + start, count);
  }
}

kernels::Tensor softmax_cpu(const kernels::Tensor& x) {
  kernels::check_matrix("softmax", x);
  const int64_t columns = x.size(1);
  const kernels::Tensor result = torch::stable::new_empty(x, x.sizes());
  kernels::with_element_type(x, [&](auto element) {
    using T = decltype(element);
    const T* const from = kernels::input<T>(x);
    T* const to = kernels::output<T>(result);
    const int64_t row_stride = x.stride(0);
    const int64_t column_stride = x.stride(1);
    const int64_t grain = kernels::rows_per_thread(columns);
    kernels::parallel_simd(x.size(0), grain, [=](auto set, int64_t begin, int64_t end) KERNELS_INLINE {
      std::vector<float> exponentials(std::is_same_v<T, float> ? 0 : columns);
      for (int64_t row = begin; row < end; ++row) {
        softmax_row(set, from + row * row_stride, column_stride, columns, exponentials.data(), to + row * columns);
      }
    });
  });
  return result;
}

}  // namespace

STABLE_TORCH_LIBRARY_FRAGMENT(softmax, m) { m.def("cpp(Tensor x) -> Tensor"); }
STABLE_TORCH_LIBRARY_IMPL(softmax, Meta, m) { m.impl("cpp", TORCH_BOX(&kernels::like)); }
STABLE_TORCH_LIBRARY_IMPL(softmax, CPU, m) { m.impl("cpp", TORCH_BOX(&softmax_cpu)); }
