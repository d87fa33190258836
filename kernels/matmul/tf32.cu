// The operator cuda_wgmma_tf32: brings the matrices to rows along k, describes them to TMA, and launches the kernel of
// tf32_kernel.cuh.
#include <algorithm>
#include <string>

#include "tf32_kernel.cuh"

namespace matmul::tf32 {

// Rows along k, `row` elements apart, that begin at multiples of 16 bytes.
struct Rows {
  kernels::Tensor memory;
  int64_t rows;
  int64_t row;
};

template <bool kTransposes>
void transpose(const kernels::Tensor& x, const kernels::Tensor& to) {
  const dim3 grid(static_cast<unsigned>(kernels::ceil_div(x.size(0), int64_t{kSide})),
                  static_cast<unsigned>(kernels::ceil_div(x.size(1), int64_t{kSide})));
  kernels::require(grid.y <= 65535, "matmul::cuda_wgmma_tf32 transposes or copies at most " +
                                        std::to_string(65535 * kSide) + " columns, not " + std::to_string(x.size(1)));
  const dim3 block(256);
  transpose_rows<kTransposes><<<grid, block, 0, kernels::current_stream(x)>>>(
      static_cast<const float*>(x.const_data_ptr()), x.stride(0), static_cast<float*>(to.mutable_data_ptr()),
      to.stride(0), static_cast<int>(x.size(0)), static_cast<int>(x.size(1)));
  kernels::record_launch("transpose_rows", "tile", grid, block, 1, 0);
}

// x has rows of neighbouring elements, which go along k, or across it.
Rows along_k(const kernels::Tensor& x, bool is_along_k) {
  kernels::require(x.stride(1) == 1 || x.size(1) == 1, "matmul::cuda_wgmma_tf32 takes rows of neighbouring elements");
  const int64_t rows = x.size(is_along_k ? 0 : 1);
  const int64_t k = x.size(is_along_k ? 1 : 0);
  // The step of a single row says nothing.
  const int64_t step = x.size(0) == 1 ? kernels::ceil_div(k, int64_t{4}) * 4 : x.stride(0);
  if (is_along_k && step % 4 == 0 && kernels::aligned_to_16(x.const_data_ptr())) {
    return {x, rows, step};
  }
  const int64_t row = kernels::ceil_div(k, int64_t{4}) * 4;
  const kernels::Tensor memory = torch::stable::new_empty(x, {rows, row});
  is_along_k ? transpose<false>(x, memory) : transpose<true>(x, memory);
  return {memory, rows, row};
}

// Boxes of 128 bytes of each of `box_rows` rows. What is outside of the matrix is zeros.
CUtensorMap tensor_map(const Rows& of, int64_t k, int box_rows) {
  CUtensorMap map{};
  const cuuint64_t sizes[] = {static_cast<cuuint64_t>(k), static_cast<cuuint64_t>(of.rows)};
  const cuuint64_t strides[] = {static_cast<cuuint64_t>(of.row) * 4};
  const cuuint32_t box[] = {kDepth, static_cast<cuuint32_t>(box_rows)};
  const cuuint32_t steps[] = {1, 1};
  const CUresult result = tensor_map_encoder()(
      &map, CU_TENSOR_MAP_DATA_TYPE_FLOAT32, 2, const_cast<void*>(of.memory.const_data_ptr()), sizes, strides, box, steps,
      CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
      CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  kernels::require(result == CUDA_SUCCESS, "TMA takes no matrix of " + std::to_string(of.rows) + " rows of " +
                                               std::to_string(k) + " elements");
  return map;
}

template <int kBlockN>
void launch(const Rows& a, const Rows& b, const Arguments& of, int device, cudaStream_t stream) {
  const CUtensorMap map_a = tensor_map(a, of.k, kBlockM);
  const CUtensorMap map_b = tensor_map(b, of.k, kBlockN);
  const int64_t tiles = int64_t{kernels::ceil_div(of.m, kBlockM)} * kernels::ceil_div(of.n, kBlockN);
  kernels::require(tiles <= INT32_MAX / 2, "matmul::cuda_wgmma_tf32 takes fewer than 2**30 tiles");
  int multiprocessors = 0;
  cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device);
  auto* const function = tf32_persistent<kBlockN>;
  constexpr int kBytes = kSharedBytes<kBlockN>;
  kernels::require(cudaFuncSetAttribute(function, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes) == cudaSuccess,
                   "matmul::cuda_wgmma_tf32 needs " + std::to_string(kBytes) + " bytes of shared memory");
  const dim3 grid(static_cast<unsigned>(std::min<int64_t>(tiles, multiprocessors)));
  const dim3 block(kThreads);
  function<<<grid, block, static_cast<size_t>(kBytes), stream>>>(map_a, map_b, of);
  kernels::record_launch("tf32_persistent", "warp-specialized", grid, block, 1, kBytes, kStages<kBlockN>);
}

// a and b have rows of neighbouring elements; `transposed` ones are the transposes of what is multiplied.
kernels::Tensor multiply(const kernels::Tensor& a, bool a_transposed, const kernels::Tensor& b, bool b_transposed,
                         int64_t block_n) {
  using Scalar = torch::headeronly::ScalarType;
  kernels::require(a.dim() == 2 && b.dim() == 2 && a.size(a_transposed ? 0 : 1) == b.size(b_transposed ? 1 : 0) &&
                       a.scalar_type() == Scalar::Float && b.scalar_type() == Scalar::Float &&
                       a.get_device_index() == b.get_device_index(),
                   "matmul::cuda_wgmma_tf32 takes an m x k and a k x n tensor of float32 on one device");
  kernels::require(block_n == 128 || block_n == 256, "block_n must be 128 or 256, not " + std::to_string(block_n));
  const int64_t m = a.size(a_transposed ? 1 : 0), n = b.size(b_transposed ? 0 : 1), k = a.size(a_transposed ? 0 : 1);
  kernels::require(std::min({m, n, k}) > 0 && std::max({m, n, k}) < INT32_MAX / 2,
                   "matmul::cuda_wgmma_tf32 takes 1 to 2**30 rows and columns");
  const torch::stable::accelerator::DeviceGuard guard(a.get_device_index());
  const kernels::Tensor out = torch::stable::new_empty(a, {m, n});
  const Rows of_a = along_k(a, !a_transposed), of_b = along_k(b, b_transposed);
  const Arguments of = {static_cast<float*>(out.mutable_data_ptr()), static_cast<int>(m), static_cast<int>(n),
                        static_cast<int>(k)};
  const auto run = block_n == 128 ? launch<128> : launch<256>;
  run(of_a, of_b, of, a.get_device_index(), kernels::current_stream(a));
  kernels::check_launched("matmul::cuda_wgmma_tf32");
  return out;
}

kernels::Tensor empty_product(const kernels::Tensor& a, bool a_transposed, const kernels::Tensor& b, bool b_transposed,
                              int64_t) {
  return torch::stable::new_empty(a, {a.size(a_transposed ? 1 : 0), b.size(b_transposed ? 0 : 1)});
}

}  // namespace matmul::tf32

STABLE_TORCH_LIBRARY_FRAGMENT(matmul, m) {
  m.def("cuda_wgmma_tf32(Tensor a, bool a_transposed, Tensor b, bool b_transposed, int block_n) -> Tensor");
}
STABLE_TORCH_LIBRARY_IMPL(matmul, Meta, m) {
  m.impl("cuda_wgmma_tf32", TORCH_BOX(&matmul::tf32::empty_product));
}
STABLE_TORCH_LIBRARY_IMPL(matmul, CUDA, m) { m.impl("cuda_wgmma_tf32", TORCH_BOX(&matmul::tf32::multiply)); }
