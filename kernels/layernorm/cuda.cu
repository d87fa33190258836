// layernorm over the last dimension of a 2-D tensor on CUDA: the rows of ../include/rows.cuh, held in registers,
// staged in shared memory, or streamed.
//
// A warp takes the mean of its elements and the sum of their squared distances to it; those of all warps of a row
// merge as in Chan, Golub and LeVeque, "Algorithms for Computing the Sample Variance", 1983. The elements stay
// where they are; weight and bias are read for each row, from L1 or L2. A row is read once from device memory and
// written once. DRAM bandwidth limits float32; of 16-bit elements there are twice as many for the same bytes, and
// instructions limit it: an element is converted, added, subtracted, squared and scaled, and so are weight and bias
// converted for each row. Where rows don't start at multiples of 16 bytes, 16 bytes of weight or bias take two loads.
#include "../include/rows.h"
#include "../include/rows_launch.cuh"

namespace layernorm {

constexpr float kEps = 1e-5f;

template <typename T>
struct LayerNorm {
  using Unchanged = LayerNorm;
  // Of some elements: how many, their mean, and the sum of their squared distances to it.
  struct Partial {
    float count;
    float mean;
    float squares;
  };
  struct Row {
    float mean;
    float scale;
  };

  static constexpr float kFill = 0.0f;
  static constexpr bool kWeight = true;
  static constexpr bool kBias = true;

  const T* weight;
  const T* bias;

  bool parameters_aligned() const { return kernels::aligned_to_16(weight) && kernels::aligned_to_16(bias); }

  __device__ static Partial empty() { return {0.0f, 0.0f, 0.0f}; }

  __device__ static Partial merge(const Partial& a, const Partial& b) {
    const float count = a.count + b.count;
    const float share = count > 0.0f ? __fdividef(b.count, count) : 0.0f;
    const float delta = b.mean - a.mean;
    return {count, a.mean + delta * share, a.squares + b.squares + delta * delta * a.count * share};
  }

  template <typename Chunk>
  __device__ Partial observe(Chunk& chunk, int lanes) const {
    // Distances to an element, not elements: the mean of large numbers close to each other is not rounded as their
    // sum would be, and that of equal numbers is their own.
    const float near = kernels::of_first_lane(chunk.first(), lanes);
    float sum = 0.0f;
    chunk.each_in_row([&](float& value) { sum += value - near; });
    const float count = kernels::sum_of_lanes(static_cast<float>(chunk.count()), lanes);
    sum = kernels::sum_of_lanes(sum, lanes);
    const float mean = near + (count > 0.0f ? __fdividef(sum, count) : 0.0f);
    float squares = 0.0f;
    chunk.each_in_row([&](float& value) { squares += (value - mean) * (value - mean); });
    return {count, mean, kernels::sum_of_lanes(squares, lanes)};
  }

  __device__ Row finish(const Partial&, const Partial& whole, int64_t columns) const {
    return {whole.mean, rsqrtf(whole.squares / static_cast<float>(columns) + kEps)};
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
