// How the kernels of transposed_tiles.cuh are launched: what they can be given, tensor maps, and clusters.
#pragma once

#include <cstdint>
#include <string>
#include <type_traits>

#include "transposed_tiles.cuh"

namespace kernels {

// What a launch of such a kernel can be given, whatever its weights are. Raises with the operator's name.
inline void check_tiles(const std::string& name, int64_t block_m, int64_t block_n, int64_t split_k, int64_t stages,
                        int64_t m, int64_t n, int64_t k) {
  require((block_m == 16 || block_m == 32 || block_m == 64 || block_m == 128 || block_m == 256) &&
              (block_n == 128 || block_n == 256) && block_m * block_n <= 128 * 256,
          "block_m must be 16, 32, 64, 128 or 256 and block_n 128 or 256, not both 256");
  require(split_k == 1 || split_k == 2 || split_k == 4 || split_k == 8, "split_k must be 1, 2, 4 or 8");
  require(stages >= 2 && stages <= 16, "stages must be from 2 to 16, not " + std::to_string(stages));
  require(k % kStepK == 0 && n % 16 == 0 && k / kStepK >= split_k,
          name + " takes whole tiles of 128 columns and 16 rows of w, and a step for each block that shares k");
  require(m <= INT32_MAX / 2 && n <= INT32_MAX / 2 && k <= INT32_MAX / 2, name + " takes fewer than 2**30 rows");
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

// A matrix of rows without gaps between them, of which boxes of `box_rows` x `box_columns` elements are copied. What is
// outside of the matrix is zeros. The matrix and its rows begin at multiples of 16 bytes.
inline CUtensorMap map_of_rows(CUtensorMapDataType type, int item_bytes, CUtensorMapSwizzle swizzle, const void* data,
                               int64_t rows, int64_t columns, int box_rows, int box_columns) {
  CUtensorMap map{};
  const cuuint64_t sizes[] = {static_cast<cuuint64_t>(columns), static_cast<cuuint64_t>(rows)};
  const cuuint64_t strides[] = {static_cast<cuuint64_t>(columns * item_bytes)};
  const cuuint32_t box[] = {static_cast<cuuint32_t>(box_columns), static_cast<cuuint32_t>(box_rows)};
  const cuuint32_t steps[] = {1, 1};
  const CUresult result = tensor_map_encoder()(&map, type, 2, const_cast<void*>(data), sizes, strides, box, steps,
                                               CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle,
                                               CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  require(result == CUDA_SUCCESS, "TMA takes no matrix of " + std::to_string(rows) + " rows of " +
                                      std::to_string(columns) + " elements of " + std::to_string(item_bytes) + " bytes");
  return map;
}

// A matrix of 16-bit elements as wgmma reads it: slabs of 64 columns, with the 128-byte swizzle.
template <typename T>
CUtensorMap map_of_slabs(const void* data, int64_t rows, int64_t columns, int box_rows) {
  constexpr auto kType = std::is_same_v<T, torch::headeronly::BFloat16> ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16
                                                                       : CU_TENSOR_MAP_DATA_TYPE_FLOAT16;
  return map_of_rows(kType, 2, CU_TENSOR_MAP_SWIZZLE_128B, data, rows, columns, box_rows, kSlabK);
}

// A matrix of 32-bit words as it is.
inline CUtensorMap map_of_words(const void* data, int64_t rows, int64_t columns, int box_rows, int box_columns) {
  return map_of_rows(CU_TENSOR_MAP_DATA_TYPE_INT32, 4, CU_TENSOR_MAP_SWIZZLE_NONE, data, rows, columns, box_rows,
                     box_columns);
}

// Launches a block for each tile, or a cluster where blocks share k.
inline void launch_tiles(const char* name, const void* function, const TileLayout& layout, const TiledProduct& of,
                         void** arguments, cudaStream_t stream) {
  require(layout.bytes_of_sums() <= layout.barriers(),
          std::string(name) + " needs more stages: the sums are staged in their place");
  require(cudaFuncSetAttribute(function, cudaFuncAttributeMaxDynamicSharedMemorySize, layout.bytes()) == cudaSuccess,
          std::string(name) + " needs " + std::to_string(layout.bytes()) + " bytes of shared memory");
  const int64_t tiles = ceil_div(of.m, int64_t{layout.block_m}) * ceil_div(of.n, int64_t{layout.block_n});
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim.x = static_cast<unsigned>(of.split_k);
  attribute.val.clusterDim.y = attribute.val.clusterDim.z = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(tiles * of.split_k));
  config.blockDim = dim3(kThreadsOfTile);
  config.dynamicSmemBytes = static_cast<size_t>(layout.bytes());
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = 1;
  // What it returns, check_launched() asks for.
  cudaLaunchKernelExC(&config, function, arguments);
  record_launch(name, of.split_k > 1 ? "split_k" : "warp-specialized", config.gridDim, config.blockDim, of.split_k,
                layout.bytes(), of.stages);
}

}  // namespace kernels
