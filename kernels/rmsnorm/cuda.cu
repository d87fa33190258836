// rmsnorm over the last dimension of a 2-D tensor on CUDA: the rows of ../include/rows.cuh, held in registers,
// staged in shared memory, taken by blocks that stay, or streamed.
//
// A warp takes the sum of its elements' squares, and those of all warps of a row add up; the elements stay where they
// are. The weight is read for each row, from L1 or L2, 8 or 16 registers of it ahead of its use, or once by blocks that
// stay, which hold it in registers. DRAM bandwidth is the limit: a row is read once from device memory and written once.
// Where rows don't start at multiples of 16 bytes, 16 bytes of weight take two loads, or are copied once beforehand, or
// are read by blocks that stay, which take rows in such an order that they do so seldom.
#include "../include/rows.h"
#include "../include/rows_launch.cuh"

namespace rmsnorm {

constexpr float kEps = 1e-6f;

template <typename T>
struct RmsNorm {
  using Unchanged = RmsNorm;
  // The sum of some elements' squares.
  struct Partial {
    float squares;
  };
  struct Row {
    float scale;
  };

  static constexpr bool kFillLowest = false;
  static constexpr bool kWeight = true;
  static constexpr bool kBias = false;

  const T* weight;

  bool parameters_aligned() const { return kernels::aligned_to_16(weight); }

  __device__ static Partial empty() { return {0.0f}; }

  __device__ static Partial merge(const Partial& a, const Partial& b) { return {a.squares + b.squares}; }

  __device__ static Partial merge_lanes(const Partial& mine) {
    return {kernels::sum_of_lanes(mine.squares, kernels::kThreadsPerWarp)};
  }

  template <typename Elements>
  __device__ Partial observe(Elements& elements, int lanes) const {
    kernels::Sum squares;
    elements.each([&](float& value, int i) { squares.add_square(i, value); });
    return {kernels::sum_of_lanes(squares.total(), lanes)};
  }

  __device__ Row finish(const Partial&, const Partial& whole, int64_t columns) const {
    return {rsqrtf(whole.squares * kernels::reciprocal(static_cast<float>(columns)) + kEps)};
  }

  __device__ float result(float value, float w, float, const Row& row) const { return value * row.scale * w; }
};

kernels::Tensor cuda(const kernels::Tensor& x, const kernels::Tensor& weight, int64_t block_size, int64_t num_warps) {
  kernels::check_launch_parameters(block_size, num_warps);
  kernels::check_matrix("rmsnorm", x);
  kernels::check_parameter("rmsnorm", "weight", weight, x);
  const torch::stable::accelerator::DeviceGuard guard(x.get_device_index());
  const kernels::Tensor source = x.stride(1) == 1 ? x : torch::stable::contiguous(x);
  const kernels::Tensor factor = torch::stable::contiguous(weight);
  const kernels::Tensor result = torch::stable::new_empty(source, source.sizes());
  kernels::with_element_type(source, [&](auto element) {
    using T = decltype(element);
    const RmsNorm<T> op{kernels::input<T>(factor)};
    kernels::launch_rows<T>("rmsnorm::cuda", source, result, op, block_size, num_warps);
  });
  return result;
}

kernels::Tensor meta(const kernels::Tensor& x, const kernels::Tensor&, int64_t, int64_t) {
  return kernels::like(x);
}

}  // namespace rmsnorm

STABLE_TORCH_LIBRARY_FRAGMENT(rmsnorm, m) {
  m.def("cuda(Tensor x, Tensor weight, int block_size, int num_warps) -> Tensor");
}
STABLE_TORCH_LIBRARY_IMPL(rmsnorm, Meta, m) { m.impl("cuda", TORCH_BOX(&rmsnorm::meta)); }
STABLE_TORCH_LIBRARY_IMPL(rmsnorm, CUDA, m) { m.impl("cuda", TORCH_BOX(&rmsnorm::cuda)); }
