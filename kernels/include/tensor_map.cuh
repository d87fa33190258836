// Tensor maps: how TMA is told where a matrix lies. The driver's function that encodes one is found at run time, so that
// no library is linked for it. See the CUDA driver API, "Tensor Map Object Management".
#pragma once

#include <cstdint>
#include <string>

#include <cudaTypedefs.h>

#include "common.cuh"

namespace kernels {

inline PFN_cuTensorMapEncodeTiled_v12000 tensor_map_encoder() {
  static const auto found = [] {
    void* function = nullptr;
    cudaDriverEntryPointQueryResult result{};
#if CUDART_VERSION >= 12050
    const cudaError_t error = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000,
                                                               cudaEnableDefault, &result);
#else
    const cudaError_t error = cudaGetDriverEntryPoint("cuTensorMapEncodeTiled", &function, cudaEnableDefault, &result);
#endif
    require(error == cudaSuccess && result == cudaDriverEntryPointSuccess,
            "tensor maps need a driver for CUDA 12 or newer");
    return reinterpret_cast<PFN_cuTensorMapEncodeTiled_v12000>(function);
  }();
  return found;
}

// A matrix of rows without gaps between them, of which boxes of `box_rows` x `box_columns` elements are copied. What is
// outside of the matrix is zeros. The matrix begins at a multiple of 16 bytes, and so does each row.
inline CUtensorMap tensor_map(CUtensorMapDataType type, int item_bytes, CUtensorMapSwizzle swizzle, const void* data,
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

}  // namespace kernels
