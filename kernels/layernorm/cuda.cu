// layernorm over the last dimension of a 2-D tensor on CUDA: the rows of ../include/rows.cuh, held in registers,
// staged in shared memory, taken by blocks that stay, or streamed.
//
// A warp takes the mean of its elements and the sum of their squared distances to it, in one pass over them; those of
// all warps of a row merge as in Chan, Golub and LeVeque, "Algorithms for Computing the Sample Variance", 1983. The
// elements stay where they are; weight and bias are read for each row, from L1 or L2, 8 or 16 registers of them ahead of
// their use, or once by blocks that stay, which hold them in registers. A row is read once from device memory and written
// once. DRAM bandwidth limits float32, beside the weights' way from L2 for rows too long for L1; of 16-bit elements there
// are twice as many for the same bytes, and instructions limit it: an element is converted twice, and so are weight and
// bias for each row. Where rows don't start at multiples of 16 bytes, 16 bytes of weight or bias take two loads, or are
// copied once beforehand, or are read by blocks that stay, which take rows in such an order that they do so seldom.
#include "../include/rows.h"
#include "../include/rows_launch.cuh"

namespace layernorm {

constexpr float kEps = 1e-5f;

template <typename T>
struct LayerNorm {
  using Unchanged = LayerNorm;
  // Of some elements: how many, a number near them, the sum of their distances to that number, and the sum of their
  // squared distances to their mean. The mean, near + sum / count, is rounded only once, in the end.
  struct Partial {
    float count;
    float near;
    float sum;
    float squares;

    // From near to the mean.
    __device__ float offset() const { return count > 0.0f ? sum * kernels::reciprocal(count) : 0.0f; }
  };
  struct Row {
    float mean;
    float scale;
  };

  static constexpr bool kFillLowest = false;
  static constexpr bool kWeight = true;
  static constexpr bool kBias = true;

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
  __device__ static Partial merge_lanes(const Partial& mine) {
    constexpr int kLanes = kernels::kThreadsPerWarp;
    const float near = kernels::of_first_lane(mine.near, kLanes);
    const float offset = mine.count > 0.0f ? mine.near - near + mine.offset() : 0.0f;
    Partial all{kernels::sum_of_lanes(mine.count, kLanes), near,
                kernels::sum_of_lanes(mine.count * offset, kLanes), 0.0f};
    const float delta = mine.count > 0.0f ? offset - all.offset() : 0.0f;
    all.squares = kernels::sum_of_lanes(mine.squares + mine.count * delta * delta, kLanes);
    return all;
  }

  template <typename Elements>
  __device__ Partial observe(Elements& elements, int lanes) const {
    // Distances to a number near the elements, not elements: neither the sum of large numbers close to each other nor
    // that of their squares is rounded then, and equal numbers are their own mean. Of n elements, the variance may lose
    // log2(n / m) bits where that number is the mean of m of them: for 16-bit elements it is the first of the warp's,
    // for others the mean of each lane's first pack.
    float near = kernels::of_first_lane(elements.first(), lanes);
    if constexpr (sizeof(T) > 2) {
      kernels::Sum sample;
      const int sampled =
          kernels::sum_of_lanes(elements.some([&](float value, int i) { sample.add(i, value - near); }), lanes);
      if (sampled > 0) {
        near += kernels::sum_of_lanes(sample.total(), lanes) * kernels::reciprocal(static_cast<float>(sampled));
      }
    }
    kernels::Sum sum;
    kernels::Sum squares;
    elements.each_in_row([&](float value, int i) {
      const float distance = value - near;
      sum.add(i, distance);
      squares.add_square(i, distance);
    });
    const auto count = static_cast<float>(kernels::sum_of_lanes(elements.count(), lanes));
    const float distance = kernels::sum_of_lanes(sum.total(), lanes);
    const float of_near = kernels::sum_of_lanes(squares.total(), lanes);
    if (count == 0.0f) {
      return empty();
    }
    // Not below zero by rounding; and not NaN where the squares are too large for a float. Divided first: the sum of many
    // large numbers, squared, is larger than their squares.
    const float squared = distance * (distance * kernels::reciprocal(count));
    return {count, near, distance, of_near < INFINITY ? fmaxf(of_near - squared, 0.0f) : of_near};
  }

  __device__ Row finish(const Partial&, const Partial& whole, int64_t columns) const {
    const float scale = rsqrtf(whole.squares * kernels::reciprocal(static_cast<float>(columns)) + kEps);
    return {whole.near + whole.offset(), scale};
  }

  __device__ float result(float value, float w, float b, const Row& row) const {
    return (value - row.mean) * row.scale * w + b;
  }
};

kernels::Tensor cuda(const kernels::Tensor& x, const kernels::Tensor& weight, const kernels::Tensor& bias,
                     int64_t block_size, int64_t num_warps) {
  kernels::check_launch_parameters(block_size, num_warps);
  kernels::check_matrix("layernorm", x);
  kernels::check_parameter("layernorm", "weight", weight, x);
  kernels::check_parameter("layernorm", "bias", bias, x);
  const torch::stable::accelerator::DeviceGuard guard(x.get_device_index());
  const kernels::Tensor source = x.stride(1) == 1 ? x : torch::stable::contiguous(x);
  const kernels::Tensor factor = torch::stable::contiguous(weight);
  const kernels::Tensor shift = torch::stable::contiguous(bias);
  const kernels::Tensor result = torch::stable::new_empty(source, source.sizes());
  kernels::with_element_type(source, [&](auto element) {
    using T = decltype(element);
    const LayerNorm<T> op{kernels::input<T>(factor), kernels::input<T>(shift)};
    kernels::launch_rows<T>("layernorm::cuda", source, result, op, block_size, num_warps);
  });
  return result;
}

kernels::Tensor meta(const kernels::Tensor& x, const kernels::Tensor&, const kernels::Tensor&, int64_t, int64_t) {
  return kernels::like(x);
}

}  // namespace layernorm

STABLE_TORCH_LIBRARY_FRAGMENT(layernorm, m) {
  m.def("cuda(Tensor x, Tensor weight, Tensor bias, int block_size, int num_warps) -> Tensor");
}
STABLE_TORCH_LIBRARY_IMPL(layernorm, Meta, m) { m.impl("cuda", TORCH_BOX(&layernorm::meta)); }
STABLE_TORCH_LIBRARY_IMPL(layernorm, CUDA, m) { m.impl("cuda", TORCH_BOX(&layernorm::cuda)); }
