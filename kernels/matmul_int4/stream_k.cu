// The operator cuda_stream_k: tells TMA where x and the weights lie, and launches the kernel of stream_k_kernel.cuh.
#include "../include/transposed_tiles_launch.cuh"
#include "stream_k_kernel.cuh"

namespace matmul_int4 {

using kernels::Tensor;
using Scalar = torch::headeronly::ScalarType;

constexpr int kChannel = 0;  // as a group: one scale for a row

struct Given {
  const Tensor& x;
  const Tensor& packed;
  const Tensor& scales;
  Arguments of;
};

// The bytes of shared memory that a block may have.
int most_shared_bytes(int device) {
  int bytes = 0;
  cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
  return bytes;
}

template <typename T, int kBlockM, bool kOneGroup>
void launch(Given given, cudaStream_t stream) {
  constexpr const char* kName = "product_stream_k";
  kernels::TiledProduct& of = given.of.product;
  const int device = given.x.get_device_index();
  const auto layout_of = [&](int stages) {
    return StreamKLayout{{kBlockM, kStreamKRows<kBlockM>, stages, bytes_of_w(kStreamKRows<kBlockM>, given.of.groups)},
                         kernels::kConsumerWarps};
  };
  const int most = most_shared_bytes(device);
  of.stages = kMostStages;
  while (of.stages > 2 && layout_of(of.stages).bytes() > most) {
    --of.stages;
  }
  const StreamKLayout layout = layout_of(of.stages);
  const auto* const function = reinterpret_cast<const void*>(product_stream_k<T, kBlockM, kOneGroup>);
  kernels::require(cudaFuncSetAttribute(function, cudaFuncAttributeMaxDynamicSharedMemorySize, layout.bytes()) ==
                       cudaSuccess,
                   std::string(kName) + " needs " + std::to_string(layout.bytes()) + " bytes of shared memory");

  int multiprocessors = 0;
  cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device);
  const int64_t tiles = kernels::ceil_div(of.m, int64_t{kBlockM}) * kernels::ceil_div(of.n, int64_t{kStreamKRows<kBlockM>});
  kernels::require(tiles <= INT32_MAX / 2, "matmul_int4::cuda_stream_k takes fewer than 2**30 tiles");
  const StreamK work = stream_k(static_cast<int>(tiles), static_cast<int>(of.k / kStepK), multiprocessors);
  const int64_t ranges = work.shared > 0 ? work.blocks : 0;
  const Tensor parts = torch::stable::new_empty(given.x, {ranges, kBlockM, kStreamKRows<kBlockM>}, Scalar::Float);
  const Tensor arrived = torch::stable::new_empty(given.x, {ranges}, Scalar::Int);
  const StreamKArguments arguments{given.of, work, static_cast<float*>(parts.mutable_data_ptr()),
                                   static_cast<int*>(arrived.mutable_data_ptr())};

  const CUtensorMap map_x = kernels::map_of_slabs<T>(given.x.const_data_ptr(), of.m, of.k, kBlockM);
  // Tiles of 8 rows of w and 128 columns: a row of them is a row of the matrix.
  const CUtensorMap map_words =
      kernels::map_of_words(given.packed.const_data_ptr(), of.n / 8, of.k, kStreamKRows<kBlockM> / 8, kStepK);
  const CUtensorMap map_scales =
      kernels::map_of_words(given.scales.const_data_ptr(), given.scales.size(0), of.n, given.of.groups, kStreamKRows<kBlockM>);
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(work.blocks));
  config.blockDim = dim3(kernels::kThreadsOfTile);
  config.dynamicSmemBytes = static_cast<size_t>(layout.bytes());
  config.stream = stream;
  config.attrs = &attribute;
  if (ranges > 0) {
    clear_arrived<<<1, kThreadsToClear, 0, stream>>>(arguments.arrived, static_cast<int>(arrived.numel()));
    config.numAttrs = 1;
  }
  cudaLaunchKernelEx(&config, product_stream_k<T, kBlockM, kOneGroup>, map_x, map_words, map_scales, arguments);
  kernels::record_launch(kName, ranges > 0 ? "stream-k" : "persistent", config.gridDim, config.blockDim, 1,
                         layout.bytes(), of.stages);
}

template <typename T, int kBlockM>
void with_groups(const Given& given, cudaStream_t stream) {
  given.of.groups == 1 ? launch<T, kBlockM, true>(given, stream) : launch<T, kBlockM, false>(given, stream);
}

template <typename T>
void with_rows(int64_t block_m, const Given& given, cudaStream_t stream) {
  switch (block_m) {
    case 64:
      return with_groups<T, 64>(given, stream);
    case 96:
      return with_groups<T, 96>(given, stream);
    case 112:
      return with_groups<T, 112>(given, stream);
    case 128:
      return with_groups<T, 128>(given, stream);
    case 160:
      return with_groups<T, 160>(given, stream);
    case 192:
      return with_groups<T, 192>(given, stream);
    case 224:
      return with_groups<T, 224>(given, stream);
    case 240:
      return with_groups<T, 240>(given, stream);
    default:
      kernels::require(false, "block_m must be 64, 96, 112, 128, 160, 192, 224 or 240, not " + std::to_string(block_m));
  }
}

// x: m x k and scales: groups x n x 2, of one 16-bit dtype; packed: words as the kernel's declaration says.
Tensor cuda_stream_k(const Tensor& x, const Tensor& packed, const Tensor& scales, int64_t group, int64_t block_m) {
  const int64_t m = x.size(0);
  const int64_t n = scales.size(1);
  const int64_t k = x.size(1);
  kernels::require(k > 0 && k % kStepK == 0 && n % 16 == 0,
                   "matmul_int4::cuda_stream_k takes whole tiles of 128 columns and 16 rows of w");
  kernels::require(m <= INT32_MAX / 2 && n <= INT32_MAX / 2 && k <= INT32_MAX / 4,
                   "matmul_int4::cuda_stream_k takes fewer than 2**30 rows and 2**29 columns");
  kernels::require(kernels::aligned_to_16(packed.const_data_ptr()) && kernels::aligned_to_16(x.const_data_ptr()) &&
                       kernels::aligned_to_16(scales.const_data_ptr()),
                   "matmul_int4::cuda_stream_k takes tensors that begin at a multiple of 16 bytes");
  const torch::stable::accelerator::DeviceGuard guard(x.get_device_index());
  const Tensor out = torch::stable::new_empty(x, {m, n});
  if (out.numel() == 0) {
    return out;
  }
  const bool channel = group == kChannel;
  const Given given{x, packed, scales,
                    Arguments{{m, n, k, 0, 1, out.mutable_data_ptr()},
                              channel ? 1 : static_cast<int>(kStepK / group),
                              channel}};
  const cudaStream_t stream = kernels::current_stream(x);
  if (x.scalar_type() == Scalar::BFloat16) {
    with_rows<torch::headeronly::BFloat16>(block_m, given, stream);
  } else {
    with_rows<torch::headeronly::Half>(block_m, given, stream);
  }
  kernels::check_launched("matmul_int4::cuda_stream_k");
  return out;
}

Tensor meta_stream_k(const Tensor& x, const Tensor&, const Tensor& scales, int64_t, int64_t) {
  return torch::stable::new_empty(x, {x.size(0), scales.size(1)});
}

}  // namespace matmul_int4

STABLE_TORCH_LIBRARY_FRAGMENT(matmul_int4, m) {
  m.def("cuda_stream_k(Tensor x, Tensor packed, Tensor scales, int group, int block_m) -> Tensor");
}

STABLE_TORCH_LIBRARY_IMPL(matmul_int4, Meta, m) { m.impl("cuda_stream_k", TORCH_BOX(&matmul_int4::meta_stream_k)); }

STABLE_TORCH_LIBRARY_IMPL(matmul_int4, CUDA, m) { m.impl("cuda_stream_k", TORCH_BOX(&matmul_int4::cuda_stream_k)); }
