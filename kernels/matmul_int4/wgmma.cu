// The operator cuda_wgmma: tells TMA where x and the weights lie, and launches the kernel of wgmma_kernel.cuh.
#include <string>
#include <type_traits>

#include "../include/tensor_map.cuh"
#include "wgmma_kernel.cuh"

namespace matmul_int4 {

using kernels::Tensor;

constexpr int kChannel = 0;  // as a group: one scale for a row
constexpr int64_t kGroupM = 8;

struct Given {
  const Tensor& x;
  const Tensor& packed;
  const Tensor& scales;
  Arguments of;
};

template <typename T, int kBlockM, int kTiles, bool kOneGroup>
void launch(const Given& given, cudaStream_t stream) {
  constexpr int kBlockN = kWarpgroups * kTiles * kRowsOfGroup;
  const Arguments& of = given.of;
  constexpr auto kType = std::is_same_v<T, torch::headeronly::BFloat16> ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16
                                                                       : CU_TENSOR_MAP_DATA_TYPE_FLOAT16;
  const CUtensorMap map_x = kernels::tensor_map(kType, 2, CU_TENSOR_MAP_SWIZZLE_128B, given.x.const_data_ptr(), of.m, of.k,
                                                kBlockM, kSlabK);
  // A row of tiles of the packing, 8 rows of w, is a row of the matrix.
  const CUtensorMap map_words =
      kernels::tensor_map(CU_TENSOR_MAP_DATA_TYPE_INT32, 4, CU_TENSOR_MAP_SWIZZLE_NONE, given.packed.const_data_ptr(),
                          of.n / 8, of.k, kBlockN / 8, kStepK);
  const CUtensorMap map_scales =
      kernels::tensor_map(CU_TENSOR_MAP_DATA_TYPE_INT32, 4, CU_TENSOR_MAP_SWIZZLE_NONE, given.scales.const_data_ptr(),
                          given.scales.size(0), of.n, of.groups, kBlockN);

  auto* const function = product_wgmma<T, kBlockM, kTiles, kOneGroup>;
  const SharedLayout layout{kBlockM, kBlockN, of.groups, of.stages};
  kernels::require(layout.bytes_of_sums() <= layout.barriers(),
                   "matmul_int4::cuda_wgmma needs more stages: the sums are staged in their place");
  kernels::require(
      cudaFuncSetAttribute(function, cudaFuncAttributeMaxDynamicSharedMemorySize, layout.bytes()) == cudaSuccess,
      "matmul_int4::cuda_wgmma needs " + std::to_string(layout.bytes()) + " bytes of shared memory");
  const int64_t tiles = kernels::ceil_div(of.m, int64_t{kBlockM}) * kernels::ceil_div(of.n, int64_t{kBlockN});

  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim.x = static_cast<unsigned>(of.split_k);
  attribute.val.clusterDim.y = attribute.val.clusterDim.z = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(tiles * of.split_k));
  config.blockDim = dim3(kThreads);
  config.dynamicSmemBytes = static_cast<size_t>(layout.bytes());
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = 1;
  const void* arguments[] = {&map_x, &map_words, &map_scales, &of};
  // What it returns, check_launched() asks for.
  cudaLaunchKernelExC(&config, reinterpret_cast<const void*>(function), const_cast<void**>(arguments));
  kernels::record_launch("product_wgmma", of.split_k > 1 ? "split_k" : "warp-specialized", config.gridDim,
                         config.blockDim, of.split_k, layout.bytes(), of.stages);
}

template <typename T, int kBlockM, int kTiles>
void with_groups(const Given& given, cudaStream_t stream) {
  given.of.groups == 1 ? launch<T, kBlockM, kTiles, true>(given, stream)
                       : launch<T, kBlockM, kTiles, false>(given, stream);
}

// Calls f with a tile's rows of x, and with how many times 64 rows of w a warpgroup has.
template <typename F>
void with_tile(int64_t block_m, int64_t block_n, const F& f) {
  const auto with_tiles = [&](auto rows) {
    constexpr int kRows = rows;
    if (block_n == 128) {
      return f(rows, std::integral_constant<int, 1>{});
    }
    if constexpr (kRows < 256) {
      f(rows, std::integral_constant<int, 2>{});
    }
  };
  switch (block_m) {
    case 16:
      return with_tiles(std::integral_constant<int, 16>{});
    case 32:
      return with_tiles(std::integral_constant<int, 32>{});
    case 64:
      return with_tiles(std::integral_constant<int, 64>{});
    case 128:
      return with_tiles(std::integral_constant<int, 128>{});
    default:
      return with_tiles(std::integral_constant<int, 256>{});
  }
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
  kernels::require((block_m == 16 || block_m == 32 || block_m == 64 || block_m == 128 || block_m == 256) &&
                       (block_n == 128 || block_n == 256) && block_m * block_n <= 128 * 256,
                   "block_m must be 16, 32, 64, 128 or 256 and block_n 128 or 256, not both 256");
  kernels::require(split_k == 1 || split_k == 2 || split_k == 4 || split_k == 8, "split_k must be 1, 2, 4 or 8");
  kernels::require(stages >= 2 && stages <= 16, "stages must be from 2 to 16, not " + std::to_string(stages));
  kernels::require(k % kStepK == 0 && n % 16 == 0 && k / kStepK >= split_k,
                   "matmul_int4::cuda_wgmma takes whole tiles of 128 columns and 16 rows of w, and a step for each block");
  kernels::require(m <= INT32_MAX / 2 && n <= INT32_MAX / 2 && k <= INT32_MAX / 2,
                   "matmul_int4::cuda_wgmma takes fewer than 2**30 rows");
  kernels::require(kernels::aligned_to_16(packed.const_data_ptr()) && kernels::aligned_to_16(x.const_data_ptr()) &&
                       kernels::aligned_to_16(scales.const_data_ptr()),
                   "matmul_int4::cuda_wgmma takes tensors that begin at a multiple of 16 bytes");
  const torch::stable::accelerator::DeviceGuard guard(x.get_device_index());
  const Tensor out = empty_product(x, scales);
  if (out.numel() == 0) {
    return out;
  }
  const int groups = group == kChannel ? 1 : static_cast<int>(kStepK / group);
  const Given given{x, packed, scales,
                    Arguments{m, n, k, kGroupM, static_cast<int>(stages), static_cast<int>(split_k), groups,
                              group == kChannel, out.mutable_data_ptr()}};
  const cudaStream_t stream = kernels::current_stream(x);
  with_tile(block_m, block_n, [&](auto rows, auto tiles) {
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
