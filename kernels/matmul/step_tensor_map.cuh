// How a matrix is described to TMA, for step_wgmma.cu.
#pragma once

#include "../include/tma.cuh"
#include "step.cuh"

namespace matmul {

template <typename T>
constexpr bool kIsBFloat16 = std::is_same_v<T, BFloat16>;

constexpr int kBoxColumns = 64;  // 128 bytes: as far as the swizzle goes

// A matrix of which TMA copies boxes of kBoxColumns columns and box_rows rows. What is outside of it arrives as zeros.
template <typename T>
CUtensorMap tensor_map(const T* data, int rows, int columns, int box_rows) {
  CUtensorMap map{};
  const cuuint64_t sizes[] = {static_cast<cuuint64_t>(columns), static_cast<cuuint64_t>(rows)};
  const cuuint64_t row_bytes[] = {sizes[0] * 2};
  const cuuint32_t box[] = {kBoxColumns, static_cast<cuuint32_t>(box_rows)}, steps[] = {1, 1};
  const CUresult result = kernels::tensor_map_encoder()(
      &map, kIsBFloat16<T> ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_FLOAT16, 2,
      const_cast<T*>(data), sizes, row_bytes, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
      CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  kernels::require(result == CUDA_SUCCESS, "TMA takes no matrix of " + std::to_string(rows) + " rows of " +
                                               std::to_string(columns) + " elements");
  return map;
}

}  // namespace matmul
