// The operator cuda_wgmma: tells TMA where x and the weights lie, and launches the kernel of wgmma_kernel.cuh.
#include "../include/transposed_tiles_launch.cuh"
#include "wgmma_kernel.cuh"

namespace matmul_sparse {

using kernels::Tensor;

template <typename T, int kBlockM, int kTiles>
void launch(const Tensor& x, const Tensor& values, const Tensor& metadata, const kernels::TiledProduct& of,
            cudaStream_t stream) {
  constexpr int kBlockN = kConsumers * kTiles * kRowsOfWgmma;
  const CUtensorMap map_x = kernels::map_of_slabs<T>(x.const_data_ptr(), of.m, of.k, kBlockM);
  const CUtensorMap map_values = kernels::map_of_slabs<T>(values.const_data_ptr(), of.n, of.k / 2, kBlockN);
  const CUtensorMap map_metadata =
      kernels::map_of_words(metadata.const_data_ptr(), of.n / 16, of.k / 2, kBlockN / 16, kWordsOfRows);
  const kernels::TileLayout layout{kBlockM, kBlockN, of.stages, bytes_of_w(kBlockN)};
  const void* arguments[] = {&map_x, &map_values, &map_metadata, &of};
  kernels::launch_tiles("product_wgmma", reinterpret_cast<const void*>(product_wgmma<T, kBlockM, kTiles>), layout, of,
                        const_cast<void**>(arguments), stream);
}

Tensor empty_product(const Tensor& x, const Tensor& values) {
  return torch::stable::new_empty(x, {x.size(0), values.size(0)});
}

// x: m x k and values: n x k / 2, of one 16-bit dtype; metadata: words as the kernel's declaration says.
Tensor cuda_wgmma(const Tensor& x, const Tensor& values, const Tensor& metadata, int64_t block_m, int64_t block_n,
                  int64_t split_k, int64_t stages) {
  const int64_t m = x.size(0);
  const int64_t n = values.size(0);
  const int64_t k = x.size(1);
  kernels::check_tiles("matmul_sparse::cuda_wgmma", block_m, block_n, split_k, stages, m, n, k);
  kernels::require(kernels::aligned_to_16(x.const_data_ptr()) && kernels::aligned_to_16(values.const_data_ptr()) &&
                       kernels::aligned_to_16(metadata.const_data_ptr()),
                   "matmul_sparse::cuda_wgmma takes tensors that begin at a multiple of 16 bytes");
  const torch::stable::accelerator::DeviceGuard guard(x.get_device_index());
  const Tensor out = empty_product(x, values);
  if (out.numel() == 0) {
    return out;
  }
  const kernels::TiledProduct of{m, n, k, static_cast<int>(stages), static_cast<int>(split_k), out.mutable_data_ptr()};
  const cudaStream_t stream = kernels::current_stream(x);
  kernels::with_tile(block_m, block_n, [&](auto rows, auto tiles) {
    constexpr int kRows = rows;
    constexpr int kTiles = tiles;
    if (x.scalar_type() == torch::headeronly::ScalarType::BFloat16) {
      launch<torch::headeronly::BFloat16, kRows, kTiles>(x, values, metadata, of, stream);
    } else {
      launch<torch::headeronly::Half, kRows, kTiles>(x, values, metadata, of, stream);
    }
  });
  kernels::check_launched("matmul_sparse::cuda_wgmma");
  return out;
}

Tensor meta_wgmma(const Tensor& x, const Tensor& values, const Tensor&, int64_t, int64_t, int64_t, int64_t) {
  return empty_product(x, values);
}

}  // namespace matmul_sparse

STABLE_TORCH_LIBRARY_FRAGMENT(matmul_sparse, m) {
  m.def(
      "cuda_wgmma(Tensor x, Tensor values, Tensor metadata, int block_m, int block_n, int split_k, int stages) -> "
      "Tensor");
}

STABLE_TORCH_LIBRARY_IMPL(matmul_sparse, Meta, m) { m.impl("cuda_wgmma", TORCH_BOX(&matmul_sparse::meta_wgmma)); }

STABLE_TORCH_LIBRARY_IMPL(matmul_sparse, CUDA, m) { m.impl("cuda_wgmma", TORCH_BOX(&matmul_sparse::cuda_wgmma)); }
