// softmax over the last dimension of a 2-D tensor on CUDA, as an operation of the row kernels in ../include/rows.cuh.
//
// A warp takes the maximum of its elements and, where they lie in registers, replaces them by exp(x - maximum), so that
// an element costs one exponential. The partial results of the warps, (maximum, sum), merge as in the online softmax of
// Milakov and Gimelshein, 2018, and each warp scales its elements by exp(own maximum - row's maximum) / sum. Elements
// in shared memory stay as they are, two bytes of a 16-bit one, and cost two exponentials. The limit is DRAM bandwidth:
// a row is read once and written once, or read twice in the multi-pass strategies.
#include <cmath>

#include "../include/rows.h"
#include "../include/rows_launch.cuh"

namespace softmax {

constexpr float kInfinity = INFINITY;

// What to subtract before exp: the maximum, but 0 instead of the -infinity of no elements or of nothing but -infinity,
// for which x - maximum would be NaN. fmaxf skips NaN, but exp(NaN - shift) makes the sum NaN. +infinity gives exp(inf
// - inf) = NaN, as torch does.
__device__ float shift(float maximum) { return maximum == -kInfinity ? 0.0f : maximum; }

// exp of a number that is not positive. To exp2's own error comes half an ulp of x * log2(e), a relative 0.7e-7 |x|.
__device__ float exp_(float x) { return kernels::exp2_(x * 1.4426950408889634f); }

// The same from elements that stay as they are, at a second exponential each.
struct SoftmaxRecompute;

struct Softmax {
  using Recompute = SoftmaxRecompute;

  // The maximum of some elements, and the sum of exp(x - shift(maximum)) over them.
  struct Partial {
    float maximum;
    float sum;
  };
  // The factor of a warp's elements, which reduce() has replaced.
  struct Statistics {
    float scale;
  };

  static constexpr bool kPadLowest = true;
  static constexpr bool kHasWeight = false;
  static constexpr bool kHasBias = false;

  bool parameters_aligned() const { return true; }

  __device__ static Partial empty() { return {-kInfinity, 0.0f}; }

  __device__ static Partial merge(const Partial& a, const Partial& b) {
    const float maximum = fmaxf(a.maximum, b.maximum);
    const float subtract = shift(maximum);
    return {maximum, a.sum * exp_(a.maximum - subtract) + b.sum * exp_(b.maximum - subtract)};
  }

  __device__ static Partial warp_merge(const Partial& mine) {
    const float maximum = kernels::warp_reduce_max(mine.maximum, kernels::kThreadsPerWarp);
    const float scaled = mine.sum * exp_(mine.maximum - shift(maximum));
    return {maximum, kernels::warp_reduce_sum(scaled, kernels::kThreadsPerWarp)};
  }

  template <typename Fragment>
  __device__ Partial reduce(Fragment& fragment, int lanes) const {
    const float maximum = kernels::warp_reduce_max(fragment.maximum(), lanes);
    const float subtract = shift(maximum);
    kernels::Accumulators sum;
    fragment.for_each([&](float& value, int i) {
      value = exp_(value - subtract);
      sum.add(i, value);
    });
    return {maximum, kernels::warp_reduce_sum(sum.total(), lanes)};
  }

  __device__ Statistics finalize(const Partial& own, const Partial& whole, int64_t) const {
    return {__fdividef(exp_(own.maximum - shift(whole.maximum)), whole.sum)};
  }

  __device__ float apply(float value, float, float, const Statistics& row) const { return value * row.scale; }
};

struct SoftmaxRecompute : Softmax {
  struct Statistics {
    float subtract;
    float scale;
  };

  SoftmaxRecompute(const Softmax&) {}

  __device__ Statistics finalize(const Partial&, const Partial& whole, int64_t) const {
    return {shift(whole.maximum), __fdividef(1.0f, whole.sum)};
  }

  __device__ float apply(float value, float, float, const Statistics& row) const {
    return exp_(value - row.subtract) * row.scale;
  }
};

kernels::Tensor cuda(const kernels::Tensor& x, int64_t block_size, int64_t num_warps, std::string strategy,
                     int64_t cluster_size, int64_t stages) {
  const auto options = kernels::rows_options(block_size, num_warps, strategy, cluster_size, stages);
  kernels::check_matrix("softmax", x);
  const torch::stable::accelerator::DeviceGuard guard(x.get_device_index());
  const kernels::Tensor source = x.stride(1) == 1 ? x : torch::stable::contiguous(x);
  const kernels::Tensor result = torch::stable::new_empty(source, source.sizes());
  kernels::with_element_type(source, [&](auto element) {
    kernels::launch_rows<decltype(element)>("softmax::cuda", source, result, Softmax{}, options);
  });
  return result;
}

kernels::Tensor meta(const kernels::Tensor& x, int64_t, int64_t, std::string, int64_t, int64_t) {
  return kernels::like(x);
}

}  // namespace softmax

STABLE_TORCH_LIBRARY_FRAGMENT(softmax, m) {
  m.def(
      "cuda(Tensor x, int block_size, int num_warps, str strategy=\"auto\", int cluster_size=0, int stages=0) "
      "-> Tensor");
}
STABLE_TORCH_LIBRARY_IMPL(softmax, Meta, m) { m.impl("cuda", TORCH_BOX(&softmax::meta)); }
STABLE_TORCH_LIBRARY_IMPL(softmax, CUDA, m) { m.impl("cuda", TORCH_BOX(&softmax::cuda)); }
