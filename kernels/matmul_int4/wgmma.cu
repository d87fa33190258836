// The operator cuda_wgmma: tells TMA where x and the weights lie, and launches the kernel of wgmma_kernel.cuh.
#include "../include/transposed_tiles_launch.cuh"
#include "wgmma_kernel.cuh"

namespace matmul_int4 {

using kernels::Tensor;

constexpr int kChannel = 0;  // as a group: one scale for a row

struct Given {
  const Tensor& x;
  const Tensor& packed;
  const Tensor& scales;
  Arguments of;
};

template <typename T, int kBlockM, int kTiles, bool kOneGroup>
void launch(const Given& given, cudaStream_t stream) {
  constexpr int kBlockN = kConsumers * kTiles * kRowsOfWgmma;
  const kernels::TiledProduct& of = given.of.product;
  const CUtensorMap map_x = kernels::map_of_slabs<T>(given.x.const_data_ptr(), of.m, of.k, kBlockM);
  // Tiles of 8 rows of w and 128 columns: a row of them is a row of the matrix.
  const CUtensorMap map_words = kernels::map_of_words(given.packed.const_data_ptr(), of.n / 8, of.k, kBlockN / 8, kStepK);
  const CUtensorMap map_scales =
      kernels::map_of_words(given.scales.const_data_ptr(), given.scales.size(0), of.n, given.of.groups, kBlockN);
  const kernels::TileLayout layout{kBlockM, kBlockN, of.stages, bytes_of_w(kBlockN, given.of.groups)};
  const void* arguments[] = {&map_x, &map_words, &map_scales, &given.of};
  kernels::launch_tiles("product_wgmma", reinterpret_cast<const void*>(product_wgmma<T, kBlockM, kTiles, kOneGroup>),
                        layout, of, const_cast<void**>(arguments), stream);
}

template <typename T, int kBlockM, int kTiles>
void with_groups(const Given& given, cudaStream_t stream) {
  given.of.groups == 1 ? launch<T, kBlockM, kTiles, true>(given, stream)
                       : launch<T, kBlockM, kTiles, false>(given, stream);
}

Tensor empty_product(const Tensor& x, const Tensor& scales) {
  return torch::stable::new_empty(x, {x.size(0), scales.size(1)});
}

// x: m x k and scales: groups x n x 2, of one 16-bit dtype; packed: words as the kernel's declaration says.
Tensor cuda_wgmma(const Tensor& x, const Tensor& packed, const Tensor& scales, int64_t group, int64_t block_m,
                  int64_t block_n, int64_t split_k, int64_t stages) {
  const int64_t m = x.size(0);
  const int64_t n = scales.size(1);
  const int64_t k = x.size(1);
  kernels::check_tiles("matmul_int4::cuda_wgmma", block_m, block_n, split_k, stages, m, n, k);
  kernels::require(kernels::aligned_to_16(packed.const_data_ptr()) && kernels::aligned_to_16(x.const_data_ptr()) &&
                       kernels::aligned_to_16(scales.const_data_ptr()),
                   "matmul_int4::cuda_wgmma takes tensors that begin at a multiple of 16 bytes");
  const torch::stable::accelerator::DeviceGuard guard(x.get_device_index());
  const Tensor out = empty_product(x, scales);
  if (out.numel() == 0) {
    return out;
  }
  const bool channel = group == kChannel;
  const Given given{x, packed, scales,
                    Arguments{{m, n, k, static_cast<int>(stages), static_cast<int>(split_k), out.mutable_data_ptr()},
                              channel ? 1 : static_cast<int>(kStepK / group),
                              channel}};
  const cudaStream_t stream = kernels::current_stream(x);
  kernels::with_tile(block_m, block_n, [&](auto rows, auto tiles) {
    constexpr int kRows = rows;
    constexpr int kTiles = tiles;
    if (x.scalar_type() == torch::headeronly::ScalarType::BFloat16) {
      with_groups<torch::headeronly::BFloat16, kRows, kTiles>(given, stream);
    } else {
      with_groups<torch::headeronly::Half, kRows, kTiles>(given, stream);
    }
  });
  kernels::check_launched("matmul_int4::cuda_wgmma");
  return out;
}

Tensor meta_wgmma(const Tensor& x, const Tensor&, const Tensor& scales, int64_t, int64_t, int64_t, int64_t, int64_t) {
  return empty_product(x, scales);
}

}  // namespace matmul_int4

STABLE_TORCH_LIBRARY_FRAGMENT(matmul_int4, m) {
  m.def(
      "cuda_wgmma(Tensor x, Tensor packed, Tensor scales, int group, int block_m, int block_n, int split_k, "
      "int stages) -> Tensor");
}

STABLE_TORCH_LIBRARY_IMPL(matmul_int4, Meta, m) { m.impl("cuda_wgmma", TORCH_BOX(&matmul_int4::meta_wgmma)); }

STABLE_TORCH_LIBRARY_IMPL(matmul_int4, CUDA, m) { m.impl("cuda_wgmma", TORCH_BOX(&matmul_int4::cuda_wgmma)); }
