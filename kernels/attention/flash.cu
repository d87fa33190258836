// The operator cuda_flash, which has the tiles of CUDA_TILES.
#include "flash_launch.cuh"

namespace attention {

template <Element kElement, bool kCausal>
void with_tiles(const kernels::Tensor& q, const kernels::Tensor& k, const kernels::Tensor& v, int64_t block_m,
                int64_t block_n, const Arguments& of) {
  const auto is = [&](int64_t head_dim, int64_t m, int64_t n) {
    return width_of(q) == head_dim && block_m == m && block_n == n;
  };
  if (is(128, 128, 128)) {
    launch<kElement, 128, 128, 128, kCausal>(q, k, v, of);
  } else if (is(128, 128, 160)) {
    launch<kElement, 128, 128, 160, kCausal>(q, k, v, of);
  } else if (is(128, 128, 176)) {
    launch<kElement, 128, 128, 176, kCausal>(q, k, v, of);
  } else if (is(64, 128, 128)) {
    launch<kElement, 64, 128, 128, kCausal>(q, k, v, of);
  } else if (is(64, 128, 192)) {
    launch<kElement, 64, 128, 192, kCausal>(q, k, v, of);
  } else {
    kernels::require(is(64, 192, 128), "cuda_flash has no tiles of " + std::to_string(block_m) +
                                           " queries and " + std::to_string(block_n) + " keys for a head_dim of " +
                                           std::to_string(q.size(3)));
    launch<kElement, 64, 192, 128, kCausal>(q, k, v, of);
  }
}

kernels::Tensor cuda_flash(const kernels::Tensor& q, const kernels::Tensor& k, const kernels::Tensor& v, bool causal,
                           int64_t block_m, int64_t block_n, int64_t stages) {
  check_together(q, k, v, causal, stages);
  const torch::stable::accelerator::DeviceGuard guard(q.get_device_index());
  const kernels::Tensor result = torch::stable::new_empty(q, {q.size(0), q.size(1), q.size(2), q.size(3)});
  if (result.numel() == 0) {
    return result;
  }
  check(q);
  check(k);
  check(v);
  const Arguments of = arguments_of(q, k, stages, result.mutable_data_ptr(), nullptr);
  const bool is_bfloat16 = q.scalar_type() == Scalar::BFloat16;
  const auto run = is_bfloat16 ? (causal ? with_tiles<Element::kBFloat16, true> : with_tiles<Element::kBFloat16, false>)
                               : (causal ? with_tiles<Element::kFloat16, true> : with_tiles<Element::kFloat16, false>);
  run(q, k, v, block_m, block_n, of);
  kernels::check_launched("cuda_flash");
  return result;
}

kernels::Tensor meta_flash(const kernels::Tensor& q, const kernels::Tensor&, const kernels::Tensor&, bool, int64_t,
                           int64_t, int64_t) {
  return torch::stable::new_empty(q, {q.size(0), q.size(1), q.size(2), q.size(3)});
}

}  // namespace attention

STABLE_TORCH_LIBRARY(attention, m) {
  m.def(
      "cuda_flash(Tensor q, Tensor k, Tensor v, bool causal, int block_m, int block_n, int stages) -> Tensor");
}

STABLE_TORCH_LIBRARY_IMPL(attention, Meta, m) { m.impl("cuda_flash", TORCH_BOX(&attention::meta_flash)); }

STABLE_TORCH_LIBRARY_IMPL(attention, CUDA, m) { m.impl("cuda_flash", TORCH_BOX(&attention::cuda_flash)); }
