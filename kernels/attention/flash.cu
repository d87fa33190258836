// The operator cuda_flash, with its tiles. flash_launch.cuh does the rest.
#include "flash_launch.cuh"

namespace attention {

Tensor cuda_flash(const Tensor& q, const Tensor& k, const Tensor& v, bool causal, int64_t queries, int64_t block_m,
                  int64_t block_n, int64_t stages) {
  check_together(q, k, v, causal, queries, stages);
  const torch::stable::accelerator::DeviceGuard guard(q.get_device_index());
  const Tensor out = empty_output(q);
  if (out.numel() > 0) {
    attend<Tiles<128, 64, 128>, Tiles<128, 128, 128>, Tiles<128, 128, 160>, Tiles<128, 128, 176>, Tiles<96, 64, 128>, Tiles<96, 128, 128>, Tiles<96, 128, 192>,
           Tiles<96, 192, 112>, Tiles<64, 64, 128>, Tiles<64, 128, 128>, Tiles<64, 128, 192>, Tiles<64, 192, 128>>(
        q, k, v, causal, block_m, block_n,
        arguments_of(q, k, queries, stages, out, nullptr));
  }
  return out;
}

Tensor meta_flash(const Tensor& q, const Tensor&, const Tensor&, bool, int64_t, int64_t, int64_t, int64_t) {
  return empty_output(q);
}

}  // namespace attention

STABLE_TORCH_LIBRARY(attention, m) {
  m.def(
      "cuda_flash(Tensor q, Tensor k, Tensor v, bool causal, int queries, int block_m, int block_n, int stages) -> "
      "Tensor");
}

STABLE_TORCH_LIBRARY_IMPL(attention, Meta, m) { m.impl("cuda_flash", TORCH_BOX(&attention::meta_flash)); }

STABLE_TORCH_LIBRARY_IMPL(attention, CUDA, m) { m.impl("cuda_flash", TORCH_BOX(&attention::cuda_flash)); }
