// layernorm over the last dimension of a 2-D tensor on CUDA, as an operation of the row kernels in ../include/rows.cuh.
//
// A warp takes the mean of its elements and the sum of their squared distances to it, in one pass over them. The
// partial results of all warps of a row merge as in Chan, Golub and LeVeque, "Algorithms for Computing the Sample
// Variance", 1983. The elements stay as they are. Weight and bias are read again for each row, from L1 or L2, 8 or 16
// registers of them ahead of their use; a persistent kernel keeps them in registers. A row is read once from device
// memory and written once. The limit of float32 is DRAM bandwidth, beside the parameters' way from L2 in rows too long
// for L1. 16-bit elements are twice as many for the same bytes, and the limit is instructions: an element is converted
// twice, and so are weight and bias for each row. Where rows don't begin at multiples of 16 bytes, 16 bytes of weight
// or bias are two loads and a shift, unless realigned copies are made first or a persistent kernel takes rows in the
// order of their alignment.
#include "../include/rows.h"
#include "../include/rows_launch.cuh"

namespace layernorm {

constexpr float kEps = 1e-5f;

template <typename T>
struct LayerNorm {
  using Recompute = LayerNorm;
  // The partial result of some elements: their number, a number near them, the sum of their distances to that number,
  // and the sum of their squared distances to their mean. The mean, near + sum / count, is rounded only once, at the
  // end.
  struct Partial {
    float count;
    float near;
    float sum;
    float squares;

    // From near to the mean.
    __device__ float offset() const { return count > 0.0f ? sum * kernels::reciprocal(count) : 0.0f; }
  };
  struct Statistics {
    float mean;
    float scale;
  };

  static constexpr bool kPadLowest = false;
  static constexpr bool kHasWeight = true;
  static constexpr bool kHasBias = true;

  const T* weight;
  const T* bias;

  bool parameters_aligned() const { return kernels::aligned_to_16(weight) && kernels::aligned_to_16(bias); }

  __device__ static Partial empty() { return {0.0f, 0.0f, 0.0f, 0.0f}; }

  __device__ static Partial merge(const Partial& a, const Partial& b) {
    if (a.count == 0.0f || b.count == 0.0f) {
      return a.count == 0.0f ? b : a;
    }
    const float count = a.count + b.count;
    const float between = b.near - a.near;
    const float delta = between + b.offset() - a.offset();
    return {count, a.near, a.sum + b.sum + b.count * between,
            a.squares + b.squares + delta * delta * a.count * (b.count * kernels::reciprocal(count))};
  }

  // All at once: the mean of the means, and their distances to it. The first lane has elements if any has.
  __device__ static Partial warp_merge(const Partial& mine) {
    constexpr int kLanes = kernels::kThreadsPerWarp;
    const float near = kernels::broadcast_first_lane(mine.near, kLanes);
    const float offset = mine.count > 0.0f ? mine.near - near + mine.offset() : 0.0f;
    Partial all{kernels::warp_reduce_sum(mine.count, kLanes), near,
                kernels::warp_reduce_sum(mine.count * offset, kLanes), 0.0f};
    const float delta = mine.count > 0.0f ? offset - all.offset() : 0.0f;
    all.squares = kernels::warp_reduce_sum(mine.squares + mine.count * delta * delta, kLanes);
    return all;
  }

  template <typename Fragment>
  __device__ Partial reduce(Fragment& fragment, int lanes) const {
    // Distances to a number near the elements, not elements: then neither the sum of large, nearly equal numbers nor
    // the sum of their squares is rounded, and equal numbers are their own mean. If that number is the mean of m of n
    // elements, the variance may lose log2(n / m) bits: for 16-bit elements it is the warp's first element, for others
    // the mean of each lane's first vector.
    float near = kernels::broadcast_first_lane(fragment.first(), lanes);
    if constexpr (sizeof(T) > 2) {
      kernels::Accumulators sample;
      const int values = fragment.sample_vector([&](float value, int i) { sample.add(i, value - near); });
      const int sampled = kernels::warp_reduce_sum(values, lanes);
      if (sampled > 0) {
        near += kernels::warp_reduce_sum(sample.total(), lanes) * kernels::reciprocal(static_cast<float>(sampled));
      }
    }
    kernels::Accumulators sum;
    kernels::Accumulators squares;
    fragment.for_each_in_row([&](float value, int i) {
      const float distance = value - near;
      sum.add(i, distance);
      squares.add_square(i, distance);
    });
    const auto count = static_cast<float>(kernels::warp_reduce_sum(fragment.count(), lanes));
    const float distance = kernels::warp_reduce_sum(sum.total(), lanes);
    const float of_near = kernels::warp_reduce_sum(squares.total(), lanes);
    if (count == 0.0f) {
      return empty();
    }
    // Not below zero by rounding; and not NaN where the squares are too large for a float. Divided first: the sum of
    // many large numbers, squared, is larger than their squares.
    const float squared = distance * (distance * kernels::reciprocal(count));
    return {count, near, distance, of_near < INFINITY ? fmaxf(of_near - squared, 0.0f) : of_near};
  }

  __device__ Statistics finalize(const Partial&, const Partial& whole, int64_t columns) const {
    const float scale = rsqrtf(whole.squares * kernels::reciprocal(static_cast<float>(columns)) + kEps);
    return {whole.near + whole.offset(), scale};
  }

  __device__ float apply(float value, float w, float b, const Statistics& row) const {
    return (value - row.mean) * row.scale * w + b;
  }
};

kernels::Tensor cuda(const kernels::Tensor& x, const kernels::Tensor& weight, const kernels::Tensor& bias,
                     int64_t block_size, int64_t num_warps, std::string strategy, int64_t cluster_size,
                     int64_t stages) {
  const auto options = kernels::rows_options(block_size, num_warps, strategy, cluster_size, stages);
  kernels::check_matrix("layernorm", x);
  kernels::check_parameter("layernorm", "weight", weight, x);
  kernels::check_parameter("layernorm", "bias", bias, x);
  const torch::stable::accelerator::DeviceGuard guard(x.get_device_index());
  const kernels::Tensor source = x.stride(1) == 1 ? x : torch::stable::contiguous(x);
  const kernels::Tensor weights = torch::stable::contiguous(weight);
  const kernels::Tensor biases = torch::stable::contiguous(bias);
  const kernels::Tensor result = torch::stable::new_empty(source, source.sizes());
  kernels::with_element_type(source, [&](auto element) {
    using T = decltype(element);
    const LayerNorm<T> op{kernels::input<T>(weights), kernels::input<T>(biases)};
    kernels::launch_rows<T>("layernorm::cuda", source, result, op, options);
  });
  return result;
}

kernels::Tensor meta(const kernels::Tensor& x, const kernels::Tensor&, const kernels::Tensor&, int64_t, int64_t,
                     std::string, int64_t, int64_t) {
  return kernels::like(x);
}

}  // namespace layernorm

STABLE_TORCH_LIBRARY_FRAGMENT(layernorm, m) {
  m.def(
      "cuda(Tensor x, Tensor weight, Tensor bias, int block_size, int num_warps, str strategy=\"auto\", "
      "int cluster_size=0, int stages=0) -> Tensor");
}
STABLE_TORCH_LIBRARY_IMPL(layernorm, Meta, m) { m.impl("cuda", TORCH_BOX(&layernorm::meta)); }
STABLE_TORCH_LIBRARY_IMPL(layernorm, CUDA, m) { m.impl("cuda", TORCH_BOX(&layernorm::cuda)); }
