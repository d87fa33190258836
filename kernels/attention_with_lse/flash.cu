// The operator cuda_flash with the rows' logarithms: attention's kernel, which has the tiles of CUDA_TILES.
#include <tuple>

#include "../attention/flash_launch.cuh"

namespace attention_with_lse {

using attention::launch;
using attention::width_of;
using kernels::Element;
using kernels::Tensor;
using Outputs = std::tuple<Tensor, Tensor>;

template <Element kElement, bool kCausal>
void with_tiles(const Tensor& q, const Tensor& k, const Tensor& v, int64_t block_m, int64_t block_n,
                const attention::Arguments& of) {
  const auto is = [&](int64_t head_dim, int64_t m, int64_t n) {
    return width_of(q) == head_dim && block_m == m && block_n == n;
  };
  if (is(128, 128, 128)) {
    launch<kElement, 128, 128, 128, kCausal>(q, k, v, of);
  } else if (is(128, 128, 176)) {
    launch<kElement, 128, 128, 176, kCausal>(q, k, v, of);
  } else if (is(64, 128, 192)) {
    launch<kElement, 64, 128, 192, kCausal>(q, k, v, of);
  } else {
    kernels::require(is(64, 192, 128), "cuda_flash has no tiles of " + std::to_string(block_m) + " queries and " +
                                           std::to_string(block_n) + " keys for a head_dim of " +
                                           std::to_string(q.size(3)));
    launch<kElement, 64, 192, 128, kCausal>(q, k, v, of);
  }
}

Outputs empty_outputs(const Tensor& q) {
  return {torch::stable::new_empty(q, {q.size(0), q.size(1), q.size(2), q.size(3)}),
          torch::stable::new_empty(q, {q.size(0), q.size(1), q.size(2)}, attention::Scalar::Float)};
}

Outputs cuda_flash(const Tensor& q, const Tensor& k, const Tensor& v, bool causal, int64_t block_m, int64_t block_n,
                   int64_t stages) {
  attention::check_together(q, k, v, causal, stages);
  const torch::stable::accelerator::DeviceGuard guard(q.get_device_index());
  const Outputs result = empty_outputs(q);
  const auto& [out, lse] = result;
  if (out.numel() == 0) {
    return result;
  }
  attention::check(q);
  attention::check(k);
  attention::check(v);
  const attention::Arguments of =
      attention::arguments_of(q, k, stages, out.mutable_data_ptr(), lse.mutable_data_ptr());
  const bool is_bfloat16 = q.scalar_type() == attention::Scalar::BFloat16;
  const auto run = is_bfloat16 ? (causal ? with_tiles<Element::kBFloat16, true> : with_tiles<Element::kBFloat16, false>)
                               : (causal ? with_tiles<Element::kFloat16, true> : with_tiles<Element::kFloat16, false>);
  run(q, k, v, block_m, block_n, of);
  kernels::check_launched("cuda_flash");
  return result;
}

Outputs meta_flash(const Tensor& q, const Tensor&, const Tensor&, bool, int64_t, int64_t, int64_t) {
  return empty_outputs(q);
}

}  // namespace attention_with_lse

STABLE_TORCH_LIBRARY(attention_with_lse, m) {
  m.def(
      "cuda_flash(Tensor q, Tensor k, Tensor v, bool causal, int block_m, int block_n, int stages) -> (Tensor, Tensor)");
}

STABLE_TORCH_LIBRARY_IMPL(attention_with_lse, Meta, m) { m.impl("cuda_flash", TORCH_BOX(&attention_with_lse::meta_flash)); }

STABLE_TORCH_LIBRARY_IMPL(attention_with_lse, CUDA, m) { m.impl("cuda_flash", TORCH_BOX(&attention_with_lse::cuda_flash)); }
