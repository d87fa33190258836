// layernorm over the last dimension of a 2-D tensor on the CPU: every thread takes a run of rows. A row is read once
// for its mean and variance, piece by piece, and again for the answer, then from the core's caches. Rows are not split
// over threads. Memory is the limit as long as a few rows fit in a core's caches.
#include <cmath>

#include "../include/pieces.h"
#include "../include/rows.h"

namespace {

using kernels::kPiece;

constexpr double kEps = 1e-5;
constexpr int64_t kRows = 4;  // that share a piece of weight and bias

struct Moments {
  double count;
  double mean;
  double squares;  // of the distances to the mean
};

// The moments of both samples together, after Chan, Golub and LeVeque, "Updating formulae and a pairwise algorithm for
// computing sample variances", 1979.
Moments merged(const Moments& a, const Moments& b) {
  const double count = a.count + b.count;
  const double apart = b.mean - a.mean;
  return {count, a.mean + apart * b.count / count, a.squares + b.squares + apart * apart * a.count * b.count / count};
}

// The moments of a piece, in two passes. The rounding error of its mean is the mean of the distances to it.
KERNELS_INLINE inline Moments moments_of_piece(const float* in, int64_t count) {
  const auto n = static_cast<double>(count);
  const float near = kernels::sum_of(in, count, [](auto value) KERNELS_INLINE { return value; }) / count;
  const double off = kernels::sum_of(in, count, [=](auto value) KERNELS_INLINE { return value - near; }) / n;
  const double squares = kernels::sum_of(
      in, count, [=](auto value) KERNELS_INLINE { return (value - near) * (value - near); });
  return {n, near + off, squares - off * off * n};
}

// The moments of a row, whose pieces are merged in float64, so that a long row loses nothing.
template <typename Set, typename T>
KERNELS_INLINE inline Moments moments_of_row(Set set, const T* x, int64_t stride, int64_t columns) {
  float room[kPiece];
  Moments all{};
  for (int64_t start = 0; start < columns; start += kPiece) {
    const int64_t count = std::min(kPiece, columns - start);
    all = merged(all, moments_of_piece(kernels::widen(set, x + start * stride, stride, count, room), count));
  }
  return all;
}

// The same in float64 throughout, for numbers whose squares or sums are beyond float32: it takes several times as long.
template <typename T>
Moments moments_of_large_numbers(const T* x, int64_t stride, int64_t columns) {
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
  return {static_cast<double>(columns), mean, squares};
}

// What a row's elements are turned into normal ones by. The mean is two float32: the distance to the first is nearly
// exact, where both are large.
struct Normal {
  float mean;
  float rest;
  float scale;
};

template <typename Set, typename T>
KERNELS_INLINE inline Normal normal(Set set, const T* x, int64_t stride, int64_t columns) {
  Moments moments = moments_of_row(set, x, stride, columns);
  if (!std::isfinite(moments.squares)) {
    moments = moments_of_large_numbers(x, stride, columns);
  }
  const auto mean = static_cast<float>(moments.mean);
  const auto rest = static_cast<float>(moments.mean - mean);
  return {mean, rest, static_cast<float>(1.0 / std::sqrt(moments.squares / moments.count + kEps))};
}

// At most kRows rows: a piece of weight and bias, once it is float32 and in L1, serves all of them.
template <typename Set, typename T>
KERNELS_INLINE inline void layernorm_rows(Set set, int64_t rows, const T* x, int64_t row_stride, int64_t stride,
                                          int64_t columns, const T* weight, const T* bias, T* y) {
  Normal normals[kRows];
  for (int64_t row = 0; row < rows; ++row) {
    normals[row] = normal(set, x + row * row_stride, stride, columns);
  }
  float room[kPiece];
  float room_of_weight[kPiece];
  float room_of_bias[kPiece];
  for (int64_t start = 0; start < columns; start += kPiece) {
    const int64_t count = std::min(kPiece, columns - start);
    const float* const factor = kernels::widen(set, weight + start, 1, count, room_of_weight);
    const float* const shift = kernels::widen(set, bias + start, 1, count, room_of_bias);
    for (int64_t row = 0; row < rows; ++row) {
      const auto [mean, rest, scale] = normals[row];
      const float* const in = kernels::widen(set, x + row * row_stride + start * stride, stride, count, room);
      T* const to = y + row * columns + start;
      float* const out = kernels::place(to, room);
#pragma omp simd
      for (int64_t i = 0; i < count; ++i) {
        out[i] = (in[i] - mean - rest) * scale * factor[i] + shift[i];
      }
      kernels::narrow(set, out, to, count);
    }
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
    const T* const from = kernels::input<T>(x);
    const T* const weights = kernels::input<T>(factor);
    const T* const biases = kernels::input<T>(shift);
    T* const to = kernels::output<T>(result);
    const int64_t row_stride = x.stride(0);
    const int64_t stride = x.stride(1);
    const int64_t grain = kernels::rows_per_thread(columns);
    kernels::parallel_simd(x.size(0), grain, [=](auto set, int64_t begin, int64_t end) KERNELS_INLINE {
      for (int64_t row = begin; row < end; row += kRows) {
        layernorm_rows(set, std::min(kRows, end - row), from + row * row_stride, row_stride, stride, columns, weights,
                       biases, to + row * columns);
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
