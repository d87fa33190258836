// softmax over the last dimension of a 2-D tensor on CUDA: the rows of ../include/rows.cuh, held in registers,
// staged in shared memory, or streamed.
//
// A warp takes its elements' maximum and, where registers hold them, replaces them by exp(x - maximum), so that an
// element costs one exponential. The warps' maxima and sums merge as in the online normaliser of Milakov and
// Gimelshein, 2018, and each warp scales what it holds by exp(own maximum - row's maximum) / sum. An element in shared
// memory stays as it is, two bytes of a 16-bit one, and costs two exponentials. DRAM bandwidth is the limit: a row is
// read once and written once. A row streamed is read twice.
#include <cmath>

#include "../include/rows.h"
#include "../include/rows_launch.cuh"

namespace softmax {

constexpr float kInfinity = INFINITY;

// What to subtract before exp: the maximum, but not the -infinity of no elements or of -infinity only, for
// which x - maximum would be NaN. NaN is skipped by fmaxf, yet not lost: exp(NaN - shift) makes the sum NaN.
// +infinity gives exp(inf - inf) = NaN, as torch does.
__device__ float shift(float maximum) { return maximum == -kInfinity ? 0.0f : maximum; }

// exp of a number that is not positive. Beside exp2's own error, the product is wrong by half an ulp of x * log2(e),
// which makes another 0.7e-7 |x|.
__device__ float exp_(float x) { return kernels::exp2_(x * 1.4426950408889634f); }

// By elements that stay as they are: each costs a second exponential.
struct SoftmaxUnchanged;

struct Softmax {
  using Unchanged = SoftmaxUnchanged;

  // The maximum of some elements, and the sum of exp(x - shift(maximum)) over them.
  struct Partial {
    float maximum;
    float sum;
  };
  // The factor that is left to apply.
  struct Row {
    float scale;
  };

  static constexpr bool kFillLowest = true;
  static constexpr bool kWeight = false;
  static constexpr bool kBias = false;

  bool parameters_aligned() const { return true; }

  __device__ static Partial empty() { return {-kInfinity, 0.0f}; }

  __device__ static Partial merge(const Partial& a, const Partial& b) {
    const float maximum = fmaxf(a.maximum, b.maximum);
    const float subtract = shift(maximum);
    return {maximum, a.sum * exp_(a.maximum - subtract) + b.sum * exp_(b.maximum - subtract)};
  }

  __device__ static Partial merge_lanes(const Partial& mine) {
    const float maximum = kernels::maximum_of_lanes(mine.maximum, kernels::kThreadsPerWarp);
    const float scaled = mine.sum * exp_(mine.maximum - shift(maximum));
    return {maximum, kernels::sum_of_lanes(scaled, kernels::kThreadsPerWarp)};
  }

  template <typename Elements>
  __device__ Partial observe(Elements& elements, int lanes) const {
    const float maximum = kernels::maximum_of_lanes(elements.maximum(), lanes);
    const float subtract = shift(maximum);
    kernels::Sum sum;
    elements.each([&](float& value, int i) {
      value = exp_(value - subtract);
      sum.add(i, value);
    });
    return {maximum, kernels::sum_of_lanes(sum.total(), lanes)};
  }

  __device__ Row finish(const Partial& own, const Partial& whole, int64_t) const {
    return {__fdividef(exp_(own.maximum - shift(whole.maximum)), whole.sum)};
  }

  __device__ float result(float value, float, float, const Row& row) const { return value * row.scale; }
};

struct SoftmaxUnchanged : Softmax {
  struct Row {
    float subtract;
    float scale;
  };

  SoftmaxUnchanged(const Softmax&) {}

  __device__ Row finish(const Partial&, const Partial& whole, int64_t) const {
    return {shift(whole.maximum), __fdividef(1.0f, whole.sum)};
  }

  __device__ float result(float value, float, float, const Row& row) const {
    return exp_(value - row.subtract) * row.scale;
  }
};

kernels::Tensor cuda(const kernels::Tensor& x, int64_t block_size, int64_t num_warps) {
  kernels::check_launch_parameters(block_size, num_warps);
  kernels::check_matrix("softmax", x);
  const torch::stable::accelerator::DeviceGuard guard(x.get_device_index());
  const kernels::Tensor source = x.stride(1) == 1 ? x : torch::stable::contiguous(x);
  const kernels::Tensor result = torch::stable::new_empty(source, source.sizes());
  kernels::with_element_type(source, [&](auto element) {
    kernels::launch_rows<decltype(element)>("softmax::cuda", source, result, Softmax{}, block_size, num_warps);
  });
  return result;
}

kernels::Tensor meta(const kernels::Tensor& x, int64_t, int64_t) { return kernels::like(x); }

}  // namespace softmax

STABLE_TORCH_LIBRARY_FRAGMENT(softmax, m) { m.def("cuda(Tensor x, int block_size, int num_warps) -> Tensor"); }
STABLE_TORCH_LIBRARY_IMPL(softmax, Meta, m) { m.impl("cuda", TORCH_BOX(&softmax::meta)); }
STABLE_TORCH_LIBRARY_IMPL(softmax, CUDA, m) { m.impl("cuda", TORCH_BOX(&softmax::cuda)); }
