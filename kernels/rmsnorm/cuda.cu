// rmsnorm over the last dimension of a 2-D tensor on CUDA, as an operation of the row kernels in ../include/rows.cuh.
//
// A warp computes the sum of its elements' squares, and the sums of a row's warps are added; the elements stay
// unchanged. The weight is read again for each row, from L1 or L2, 8 or 16 registers of it ahead of its use; a
// persistent kernel keeps it in registers. The limit is DRAM bandwidth: a row is read once from device memory and
// written once. Where rows don't begin at multiples of 16 bytes, 16 bytes of weight are two loads and a shift, unless
// realigned copies are made first or a persistent kernel takes rows in the order of their alignment.
#include "../include/rows.h"
#include "../include/rows_launch.cuh"

namespace rmsnorm {

constexpr float kEps = 1e-6f;

template <typename T>
struct RmsNorm {
  using Recompute = RmsNorm;
  // The sum of some elements' squares.
  struct Partial {
    float squares;
  };
  struct Statistics {
    float scale;
  };

  static constexpr bool kPadLowest = false;
  static constexpr bool kHasWeight = true;
  static constexpr bool kHasBias = false;

  const T* weight;

  bool parameters_aligned() const { return kernels::aligned_to_16(weight); }

  __device__ static Partial empty() { return {0.0f}; }

  __device__ static Partial merge(const Partial& a, const Partial& b) { return {a.squares + b.squares}; }

  __device__ static Partial warp_merge(const Partial& mine) {
    return {kernels::warp_reduce_sum(mine.squares, kernels::kThreadsPerWarp)};
  }

  template <typename Fragment>
  __device__ Partial reduce(Fragment& fragment, int lanes) const {
    kernels::Accumulators squares;
    fragment.for_each([&](float& value, int i) { squares.add_square(i, value); });
    return {kernels::warp_reduce_sum(squares.total(), lanes)};
  }

  __device__ Statistics finalize(const Partial&, const Partial& whole, int64_t columns) const {
    return {rsqrtf(whole.squares * kernels::reciprocal(static_cast<float>(columns)) + kEps)};
  }

  __device__ float apply(float value, float w, float, const Statistics& row) const { return value * row.scale * w; }
};

kernels::Tensor cuda(const kernels::Tensor& x, const kernels::Tensor& weight, int64_t block_size, int64_t num_warps,
                     std::string strategy, int64_t cluster_size, int64_t stages) {
  const auto options = kernels::rows_options(block_size, num_warps, strategy, cluster_size, stages);
  kernels::check_matrix("rmsnorm", x);
  kernels::check_parameter("rmsnorm", "weight", weight, x);
  const torch::stable::accelerator::DeviceGuard guard(x.get_device_index());
  const kernels::Tensor source = x.stride(1) == 1 ? x : torch::stable::contiguous(x);
  const kernels::Tensor weights = torch::stable::contiguous(weight);
  const kernels::Tensor result = torch::stable::new_empty(source, source.sizes());
  kernels::with_element_type(source, [&](auto element) {
    using T = decltype(element);
    const RmsNorm<T> op{kernels::input<T>(weights)};
    kernels::launch_rows<T>("rmsnorm::cuda", source, result, op, options);
  });
  return result;
}

kernels::Tensor meta(const kernels::Tensor& x, const kernels::Tensor&, int64_t, int64_t, std::string, int64_t,
                     int64_t) {
  return kernels::like(x);
}

}  // namespace rmsnorm

STABLE_TORCH_LIBRARY_FRAGMENT(rmsnorm, m) {
  m.def(
      "cuda(Tensor x, Tensor weight, int block_size, int num_warps, str strategy=\"auto\", int cluster_size=0, "
      "int stages=0) -> Tensor");
}
STABLE_TORCH_LIBRARY_IMPL(rmsnorm, Meta, m) { m.impl("cuda", TORCH_BOX(&rmsnorm::meta)); }
STABLE_TORCH_LIBRARY_IMPL(rmsnorm, CUDA, m) { m.impl("cuda", TORCH_BOX(&rmsnorm::cuda)); }
