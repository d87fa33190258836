// The operator cuda_flash with the rows' logarithms, and its tiles. ../attention/flash_launch.cuh does the rest.
#include <tuple>

#include "../attention/flash_launch.cuh"

namespace attention_with_lse {

using kernels::Tensor;
using Outputs = std::tuple<Tensor, Tensor>;

template <int kHeadDim, int kBlockM, int kBlockN>
using Tiles = attention::Tiles<kHeadDim, kBlockM, kBlockN>;

Outputs empty_outputs(const Tensor& q) {
  return {attention::empty_output(q),
          torch::stable::new_empty(q, {q.size(0), q.size(1), q.size(2)}, attention::Scalar::Float)};
}

Outputs cuda_flash(const Tensor& q, const Tensor& k, const Tensor& v, bool causal, int64_t queries, int64_t block_m,
                   int64_t block_n, int64_t stages) {
  attention::check_together(q, k, v, causal, queries, stages);
  const torch::stable::accelerator::DeviceGuard guard(q.get_device_index());
  const Outputs result = empty_outputs(q);
  const auto& [out, lse] = result;
  if (out.numel() > 0) {
    attention::attend<Tiles<128, 64, 128>, Tiles<128, 128, 128>, Tiles<128, 128, 176>, Tiles<96, 64, 128>, Tiles<96, 128, 128>, Tiles<96, 192, 112>,
                      Tiles<64, 64, 128>, Tiles<64, 128, 192>, Tiles<64, 192, 128>>(
        q, k, v, causal, block_m, block_n,
        attention::arguments_of(q, k, queries, stages, out, lse.mutable_data_ptr()));
  }
  return result;
}

Outputs meta_flash(const Tensor& q, const Tensor&, const Tensor&, bool, int64_t, int64_t, int64_t, int64_t) {
  return empty_outputs(q);
}

}  // namespace attention_with_lse

STABLE_TORCH_LIBRARY(attention_with_lse, m) {
  m.def(
      "cuda_flash(Tensor q, Tensor k, Tensor v, bool causal, int queries, int block_m, int block_n, int stages) -> "
      "(Tensor, Tensor)");
}

STABLE_TORCH_LIBRARY_IMPL(attention_with_lse, Meta, m) {
  m.impl("cuda_flash", TORCH_BOX(&attention_with_lse::meta_flash));
}

STABLE_TORCH_LIBRARY_IMPL(attention_with_lse, CUDA, m) {
  m.impl("cuda_flash", TORCH_BOX(&attention_with_lse::cuda_flash));
}
