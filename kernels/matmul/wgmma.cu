// The operator cuda_wgmma: tells TMA where the matrices lie, and launches the kernel of wgmma_kernel.cuh.
#include <algorithm>
#include <optional>
#include <string>
#include <type_traits>

#include "wgmma_kernel.cuh"

namespace matmul {

// A matrix of rows that lie one after the other, `row_bytes` apart, of which boxes of 128 bytes of each of `box_rows`
// rows are copied. What is outside of the matrix is zeros.
CUtensorMap tensor_map(CUtensorMapDataType type, int item_bytes, const void* data, int64_t rows, int64_t columns,
                       int64_t row_bytes, int box_rows) {
  CUtensorMap map{};
  const cuuint64_t sizes[] = {static_cast<cuuint64_t>(columns), static_cast<cuuint64_t>(rows)};
  const cuuint64_t strides[] = {static_cast<cuuint64_t>(row_bytes)};
  const cuuint32_t box[] = {static_cast<cuuint32_t>(kSwizzle / item_bytes), static_cast<cuuint32_t>(box_rows)};
  const cuuint32_t steps[] = {1, 1};
  const CUresult result =
      tensor_map_encoder()(&map, type, 2, const_cast<void*>(data), sizes, strides, box, steps,
                           CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                           CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  kernels::require(result == CUDA_SUCCESS,
                   "TMA takes no matrix of " + std::to_string(rows) + " rows of " + std::to_string(columns) +
                       " elements, " + std::to_string(row_bytes) + " bytes apart");
  return map;
}

// A matrix as it lies in memory: rows of neighbouring elements.
struct Lying {
  const void* data;
  int64_t rows;
  int64_t columns;
  int64_t row_bytes;
};

Lying lying(const kernels::Tensor& x, int item_bytes) {
  kernels::require(x.stride(1) == 1 || x.size(1) == 1, "matmul::cuda_wgmma takes rows of neighbouring elements");
  const Lying of{x.const_data_ptr(), x.size(0), x.size(1), x.stride(0) * item_bytes};
  kernels::require(of.row_bytes % 16 == 0 && kernels::aligned_to_16(of.data),
                   "matmul::cuda_wgmma takes rows that begin at multiples of 16 bytes");
  return of;
}

template <Element kElement>
constexpr CUtensorMapDataType kMapType = kElement == Element::kBFloat16  ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16
                                         : kElement == Element::kFloat16 ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16
                                                                         : CU_TENSOR_MAP_DATA_TYPE_UINT8;

template <Element kElement, int kBlockN, bool kATransposed, bool kBTransposed>
void launch(const Lying& a, const Lying& b, const Arguments& of, int device, cudaStream_t stream) {
  constexpr int kItem = kItemBytes<kElement>;
  constexpr int kSlabRows = kSwizzle / kItem;  // of k, where rows do not go along it
  const CUtensorMap map_a = tensor_map(kMapType<kElement>, kItem, a.data, a.rows, a.columns, a.row_bytes,
                                       kATransposed ? kSlabRows : kBlockM);
  const CUtensorMap map_b = tensor_map(kMapType<kElement>, kItem, b.data, b.rows, b.columns, b.row_bytes,
                                       kBTransposed ? kBlockN / of.cluster_size : kSlabRows);
  constexpr auto kOutput = kElement == Element::kFloat8 ? kMapType<Element::kBFloat16> : kMapType<kElement>;
  const CUtensorMap map_out = of.store_by_tma ? tensor_map(kOutput, 2, of.out, of.m, of.n, of.n * 2, 64) : CUtensorMap{};

  auto* const function = wgmma_persistent<kElement, kBlockN, kATransposed, kBTransposed>;
  const int shared_bytes = SharedLayout(kBlockN, of.stages).bytes();
  kernels::require(
      cudaFuncSetAttribute(function, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes) == cudaSuccess,
      "matmul::cuda_wgmma needs " + std::to_string(shared_bytes) + " bytes of shared memory");
  int multiprocessors = 0;
  cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device);
  const int64_t tiles =
      kernels::ceil_div(of.m, kBlockM * of.cluster_size) * kernels::ceil_div(of.n, int64_t{kBlockN});
  const int64_t clusters = std::min<int64_t>(tiles, multiprocessors / of.cluster_size);

  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim.x = static_cast<unsigned>(of.cluster_size);
  attribute.val.clusterDim.y = attribute.val.clusterDim.z = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(clusters * of.cluster_size));
  config.blockDim = dim3(kThreads);
  config.dynamicSmemBytes = static_cast<size_t>(shared_bytes);
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = 1;
  const void* arguments[] = {&map_a, &map_b, &map_out, &of};
  // What it returns, check_launched() asks for.
  cudaLaunchKernelExC(&config, reinterpret_cast<const void*>(function), const_cast<void**>(arguments));
  kernels::record_launch("wgmma_persistent", "warp-specialized", config.gridDim, config.blockDim, of.cluster_size,
                         shared_bytes, of.stages);
}

template <Element kElement, int kBlockN>
void with_layout(const Lying& a, bool a_transposed, const Lying& b, bool b_transposed, const Arguments& of, int device,
                 cudaStream_t stream) {
  if constexpr (kElement == Element::kFloat8) {
    kernels::require(!a_transposed && b_transposed, "the tensor cores take float8 with a row-major and b column-major");
    launch<kElement, kBlockN, false, true>(a, b, of, device, stream);
  } else if (a_transposed) {
    b_transposed ? launch<kElement, kBlockN, true, true>(a, b, of, device, stream)
                 : launch<kElement, kBlockN, true, false>(a, b, of, device, stream);
  } else {
    b_transposed ? launch<kElement, kBlockN, false, true>(a, b, of, device, stream)
                 : launch<kElement, kBlockN, false, false>(a, b, of, device, stream);
  }
}

using Scalar = torch::headeronly::ScalarType;

// Calls f with the kind of element of a tensor.
template <typename F>
void with_element(const kernels::Tensor& x, const F& f) {
  if (x.scalar_type() == Scalar::BFloat16) {
    f(std::integral_constant<Element, Element::kBFloat16>{});
  } else if (x.scalar_type() == Scalar::Half) {
    f(std::integral_constant<Element, Element::kFloat16>{});
  } else {
    kernels::require(x.scalar_type() == Scalar::Float8_e4m3fn,
                     std::string("matmul::cuda_wgmma takes bfloat16, float16 and float8_e4m3fn, not ") +
                         torch::headeronly::toString(x.scalar_type()));
    f(std::integral_constant<Element, Element::kFloat8>{});
  }
}

kernels::Tensor cuda_wgmma(const kernels::Tensor& a, bool a_transposed, const kernels::Tensor& b, bool b_transposed,
                           const std::optional<kernels::Tensor>& scale_a, const std::optional<kernels::Tensor>& scale_b,
                           int64_t block_n, int64_t group_m, int64_t stages, int64_t cluster_size) {
  kernels::require(a.dim() == 2 && b.dim() == 2 && a.scalar_type() == b.scalar_type() &&
                       a.size(a_transposed ? 0 : 1) == b.size(b_transposed ? 1 : 0) &&
                       a.get_device_index() == b.get_device_index() && scale_a.has_value() == scale_b.has_value(),
                   "matmul::cuda_wgmma takes an m x k and a k x n tensor of one dtype on one device");
  kernels::require(block_n == 128 || block_n == 256, "block_n must be 128 or 256, not " + std::to_string(block_n));
  kernels::require(stages >= 2 && stages <= 8, "stages must be from 2 to 8, not " + std::to_string(stages));
  kernels::require(cluster_size == 1 || cluster_size == 2,
                   "cluster_size must be 1 or 2, not " + std::to_string(cluster_size));
  kernels::require(group_m >= 1, "group_m must be at least 1, not " + std::to_string(group_m));
  const torch::stable::accelerator::DeviceGuard guard(a.get_device_index());
  const int64_t m = a.size(a_transposed ? 1 : 0);
  const int64_t n = b.size(b_transposed ? 0 : 1);
  kernels::require(m <= INT32_MAX / 2 && n <= INT32_MAX / 2, "matmul::cuda_wgmma takes fewer than 2**30 rows");
  const bool is_float8 = a.scalar_type() == Scalar::Float8_e4m3fn;
  const kernels::Tensor result = torch::stable::new_empty(a, {m, n}, is_float8 ? Scalar::BFloat16 : a.scalar_type());
  if (result.numel() == 0) {
    return result;
  }
  Arguments of{};
  of.m = m;
  of.n = n;
  of.k = a.size(a_transposed ? 0 : 1);
  of.group = std::max<int64_t>(1, group_m / cluster_size);
  of.stages = static_cast<int>(stages);
  of.cluster_size = static_cast<int>(cluster_size);
  of.store_by_tma = n % 8 == 0;
  of.scale_a = scale_a.has_value() ? kernels::input<float>(*scale_a) : nullptr;
  of.scale_b = scale_b.has_value() ? kernels::input<float>(*scale_b) : nullptr;
  of.out = result.mutable_data_ptr();
  with_element(a, [&](auto element) {
    constexpr Element kElement = decltype(element)::value;
    const Lying left = lying(a, kItemBytes<kElement>);
    const Lying right = lying(b, kItemBytes<kElement>);
    const auto run = block_n == 256 ? with_layout<kElement, 256> : with_layout<kElement, 128>;
    run(left, a_transposed, right, b_transposed, of, a.get_device_index(), kernels::current_stream(a));
  });
  kernels::check_launched("matmul::cuda_wgmma");
  return result;
}

kernels::Tensor meta_wgmma(const kernels::Tensor& a, bool a_transposed, const kernels::Tensor& b, bool b_transposed,
                           const std::optional<kernels::Tensor>&, const std::optional<kernels::Tensor>&, int64_t,
                           int64_t, int64_t, int64_t) {
  const bool is_float8 = a.scalar_type() == Scalar::Float8_e4m3fn;
  return torch::stable::new_empty(a, {a.size(a_transposed ? 1 : 0), b.size(b_transposed ? 0 : 1)},
                                  is_float8 ? Scalar::BFloat16 : a.scalar_type());
}

}  // namespace matmul

STABLE_TORCH_LIBRARY_FRAGMENT(matmul, m) {
  m.def(
      "cuda_wgmma(Tensor a, bool a_transposed, Tensor b, bool b_transposed, Tensor? scale_a, Tensor? scale_b, "
      "int block_n, int group_m, int stages, int cluster_size) -> Tensor");
}

STABLE_TORCH_LIBRARY_IMPL(matmul, Meta, m) { m.impl("cuda_wgmma", TORCH_BOX(&matmul::meta_wgmma)); }

STABLE_TORCH_LIBRARY_IMPL(matmul, CUDA, m) { m.impl("cuda_wgmma", TORCH_BOX(&matmul::cuda_wgmma)); }
