// The operator cuda_wgmma: describes the matrices to TMA, and launches the kernel of wgmma_kernel.cuh, if needed after
// the kernel of edges.cuh.
#include <algorithm>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>

#include "edges.cuh"
#include "peel.h"
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

  bool aligned() const { return row_bytes % 16 == 0 && kernels::aligned_to_16(data); }
};

Lying lying(const kernels::Tensor& x, int item_bytes) {
  kernels::require(x.stride(1) == 1 || x.size(1) == 1, "matmul::cuda_wgmma takes rows of neighbouring elements");
  // The step of a single row says nothing.
  const int64_t row_bytes = x.size(0) == 1 ? kernels::ceil_div(x.size(1) * item_bytes, int64_t{16}) * 16
                                           : x.stride(0) * item_bytes;
  return {x.const_data_ptr(), x.size(0), x.size(1), row_bytes};
}

// A matrix whose rows begin at multiples of 16 bytes: x's own, or memory to which x is to be copied, as `copy`
// describes.
Lying aligned(const kernels::Tensor& x, int item_bytes, std::optional<kernels::Tensor>& memory, RowsCopy& copy) {
  const Lying of = lying(x, item_bytes);
  if (of.aligned()) {
    return of;
  }
  const int64_t row_bytes = of.columns * item_bytes;
  const int64_t stride = kernels::ceil_div(row_bytes, int64_t{128}) * 128;
  memory = torch::stable::new_empty(x, {of.rows, stride / item_bytes});
  copy = {static_cast<const unsigned char*>(of.data),
          static_cast<unsigned char*>(memory->mutable_data_ptr()),
          of.rows,
          row_bytes,
          of.row_bytes,
          stride};
  return {copy.to, of.rows, of.columns, stride};
}

// How the blocks of a launch share two copies; a matrix without rows is none.
RowsCopies shared_out(const RowsCopy& first, const RowsCopy& second) {
  const auto pieces = [](const RowsCopy& of) {
    return std::max<int64_t>(1, kernels::ceil_div(of.row_bytes, int64_t{kPieceBytes}));
  };
  const auto blocks = [&](const RowsCopy& of) { return kernels::ceil_div(of.rows * pieces(of), int64_t{kCopyWarps}); };
  kernels::require((blocks(first) + blocks(second)) * kCopyWarps <= INT32_MAX,
                   "matrices whose rows begin at no multiple of 16 bytes are too large to be copied");
  return {first,
          second,
          static_cast<int>(blocks(first)),
          static_cast<int>(blocks(first) + blocks(second)),
          static_cast<int>(pieces(first)),
          static_cast<int>(pieces(second))};
}

template <Element kElement>
constexpr CUtensorMapDataType kMapType = kElement == Element::kBFloat16  ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16
                                         : kElement == Element::kFloat16 ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16
                                                                         : CU_TENSOR_MAP_DATA_TYPE_UINT8;

// Where TMA stores an output.
template <Element kOutput>
OutputMaps output_maps(const Arguments& of) {
  OutputMaps maps{};
  const int64_t row_bytes = int64_t{of.out_row} * 2;
  if (of.store_by_tma) {
    maps.of[0] = tensor_map(kMapType<kOutput>, 2, of.out, of.m, of.n, row_bytes, kWarpgroupRows);
  } else if (of.split_k == 1) {
    for (int residue = 0; residue < kResidues; ++residue) {
      const int first = first_aligned_column(residue, of.out_row);
      const int columns = columns_of_residue(first, of.n);
      if (residue < of.m && columns > 0) {
        auto* const begin = static_cast<uint16_t*>(of.out) + int64_t{residue} * of.out_row + first;
        maps.of[residue] = tensor_map(kMapType<kOutput>, 2, begin, kernels::ceil_div(of.m - residue, int64_t{kResidues}),
                                      columns, row_bytes * kResidues, kWarpgroupRows / kResidues);
      }
    }
  }
  return maps;
}

// How a kernel is launched: what is asked for, and where.
struct Launch {
  Arguments of;
  Lying a;  // as they are given
  Lying b;
  bool a_transposed;
  bool b_transposed;
  RowsCopies copies;
  int device;
  cudaStream_t stream;
};

// The leftover rows and columns that are peeled off, and what they are multiplied with.
BeforeTiles before(const Launch& asked, const Peeled& peeled) {
  const Arguments& of = asked.of;
  const int64_t a_row = asked.a.row_bytes / 2;
  const int64_t b_row = asked.b.row_bytes / 2;
  const int64_t a_step = asked.a_transposed ? 1 : a_row, a_k_step = asked.a_transposed ? a_row : 1;
  const int64_t b_step = asked.b_transposed ? b_row : 1, b_k_step = asked.b_transposed ? 1 : b_row;
  const int64_t m = of.m - peeled.rows;
  const int64_t n = of.n - peeled.columns;
  const auto* const a = static_cast<const uint16_t*>(asked.a.data);
  const auto* const b = static_cast<const uint16_t*>(asked.b.data);
  auto* const out = static_cast<uint16_t*>(of.out);
  const auto strips = [](int few, int64_t many) {
    return few == 0 ? 0 : static_cast<int>(kernels::ceil_div(many, int64_t{kStrip}));
  };
  return {{a + m * a_step, b, out + m * of.out_row, peeled.rows, of.n, of.k, a_step, a_k_step, b_step, b_k_step,
           of.out_row, 1},
          {b + n * b_step, a, out + n, peeled.columns, static_cast<int>(m), of.k, b_step, b_k_step, a_step, a_k_step, 1,
           of.out_row},
          strips(peeled.rows, of.n),
          strips(peeled.columns, m),
          asked.copies};
}

template <Element kElement, int kFew>
void launch_edges(const BeforeTiles& of, unsigned blocks, cudaStream_t stream) {
  before_tiles<kElement, kFew><<<dim3(blocks), dim3(kEdgeThreads), kEdgeBytes<kFew>, stream>>>(of);
  const bool copies = of.copies.blocks > 0;
  kernels::record_launch("before_tiles", copies ? "leftover rows and columns, copies" : "leftover rows and columns",
                         dim3(blocks), dim3(kEdgeThreads), 1, kEdgeBytes<kFew>);
}

// What comes before the tiles. Returns whether there is something.
template <Element kElement>
bool launch_before(const Launch& asked, const Peeled& peeled) {
  const int few = std::max(peeled.rows, peeled.columns);
  if (few == 0) {
    if (asked.copies.blocks > 0) {
      const dim3 grid(static_cast<unsigned>(asked.copies.blocks));
      const dim3 block(kCopyWarps * 32);
      copy_to_aligned_rows<<<grid, block, 0, asked.stream>>>(asked.copies);
      kernels::record_launch("copy_to_aligned_rows", "a warp a piece of a row", grid, block);
    }
    return asked.copies.blocks > 0;
  }
  if constexpr (kElement != Element::kFloat8) {
    const BeforeTiles of = before(asked, peeled);
    const int64_t blocks = int64_t{of.strips_of_rows} + of.strips_of_columns + of.copies.blocks;
    kernels::require(blocks <= INT32_MAX, "matmul::cuda_wgmma has too many leftover rows for a launch");
    const auto launch = few == 1   ? launch_edges<kElement, 1>
                        : few <= 4 ? launch_edges<kElement, 4>
                                   : launch_edges<kElement, kMostPeeled>;
    launch(of, static_cast<unsigned>(blocks), asked.stream);
  }
  return true;
}

// Clusters of a kernel that are on the device at the same time. The driver is asked once for each shape of them.
int64_t resident_clusters(const void* function, const cudaLaunchConfig_t& config, int cluster, int device) {
  static std::mutex guard;
  static std::map<std::tuple<const void*, size_t, int, int>, int64_t> known;
  const std::lock_guard<std::mutex> lock(guard);
  int64_t& clusters = known[{function, config.dynamicSmemBytes, cluster, device}];
  if (clusters == 0) {
    int found = 0;
    kernels::require(cudaOccupancyMaxActiveClusters(&found, function, &config) == cudaSuccess && found > 0,
                     "matmul::cuda_wgmma: no cluster of " + std::to_string(cluster) + " blocks with " +
                         std::to_string(config.dynamicSmemBytes) + " bytes of shared memory each fits on this GPU");
    clusters = found;
  }
  return clusters;
}

int multiprocessors(int device) {
  int found = 0;
  kernels::require(cudaDeviceGetAttribute(&found, cudaDevAttrMultiProcessorCount, device) == cudaSuccess,
                   "matmul::cuda_wgmma: the driver does not say how many multiprocessors the GPU has");
  return found;
}

template <typename Tile>
void launch(const Lying& a, const Lying& b, const Launch& asked) {
  Arguments of = asked.of;
  constexpr int kItem = kItemBytes<Tile::kElement>;
  constexpr int kSlabRows = kSwizzle / kItem;  // of k, where rows do not go along it
  const CUtensorMap map_a = tensor_map(kMapType<Tile::kElement>, kItem, a.data, a.rows, a.columns, a.row_bytes,
                                       Tile::kATransposed ? kSlabRows : Tile::kBlockM);
  const CUtensorMap map_b = tensor_map(kMapType<Tile::kElement>, kItem, b.data, b.rows, b.columns, b.row_bytes,
                                       (Tile::kBTransposed ? Tile::kBlockN : kSlabRows) / of.cluster_size);
  const auto* const function = reinterpret_cast<const void*>(wgmma_persistent<Tile>);
  const int shared_bytes = SharedLayout(Tile::kBlockM, Tile::kBlockN, of.stages, of.split_k).bytes();
  kernels::require(
      cudaFuncSetAttribute(function, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes) == cudaSuccess,
      "matmul::cuda_wgmma needs " + std::to_string(shared_bytes) + " bytes of shared memory");
  const int cluster = of.cluster_size * of.split_k;
  cudaLaunchAttribute attributes[2]{};
  attributes[0].id = cudaLaunchAttributeClusterDimension;
  attributes[0].val.clusterDim.x = static_cast<unsigned>(cluster);
  attributes[0].val.clusterDim.y = attributes[0].val.clusterDim.z = 1;
  attributes[1].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[1].val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.blockDim = dim3(Tile::kThreads);
  config.dynamicSmemBytes = static_cast<size_t>(shared_bytes);
  config.stream = asked.stream;
  config.attrs = attributes;
  config.numAttrs = 1;
  config.gridDim = dim3(static_cast<unsigned>(cluster));
  Peeled peeled{0, 0};
  const int64_t resident = resident_clusters(function, config, cluster, asked.device);
  if constexpr (Tile::kElement != Element::kFloat8) {
    const Tiling tiling{of.m, of.n, of.k, Tile::kBlockM, Tile::kBlockN, of.cluster_size, resident,
                        multiprocessors(asked.device), Tile::kConsumers == 2 && of.split_k == 1,
                        asked.copies.blocks > 0};
    peeled = peel(tiling);
  }
  const bool is_after = launch_before<Tile::kElement>(asked, peeled);
  of.m -= peeled.rows;
  of.n -= peeled.columns;
  const OutputMaps maps_out = output_maps<Tile::kOutput>(of);
  const int64_t tiles = kernels::ceil_div(of.m, int64_t{Tile::kBlockM} * of.cluster_size) *
                        kernels::ceil_div(of.n, int64_t{Tile::kBlockN});
  kernels::require(tiles <= INT32_MAX / 16, "matmul::cuda_wgmma has too many tiles for a launch");
  // Blocks that share a tile take one.
  const int64_t clusters = of.split_k > 1 ? tiles : std::min(tiles, resident);
  config.gridDim = dim3(static_cast<unsigned>(clusters * cluster));
  config.numAttrs = is_after ? 2 : 1;
  const void* arguments[] = {&map_a, &map_b, &maps_out, &of};
  // What it returns, check_launched() asks for.
  cudaLaunchKernelExC(&config, function, const_cast<void**>(arguments));
  kernels::record_launch("wgmma_persistent", of.split_k > 1 ? "split-k" : "warp-specialized", config.gridDim,
                         config.blockDim, cluster, shared_bytes, of.stages);
}

template <Element kElement, int kBlockM, int kBlockN>
void with_layout(const Lying& a, bool a_transposed, const Lying& b, bool b_transposed, bool promoted,
                 const Launch& asked) {
  if constexpr (kElement == Element::kFloat8) {
    kernels::require(!a_transposed && b_transposed, "the tensor cores take float8 with a row-major and b column-major");
    if constexpr (kBlockN == 256) {
      kernels::require(!promoted, "float8 in ieee takes tiles of at most 128 columns");
      launch<Tile<kElement, kBlockM, kBlockN, false, true, false>>(a, b, asked);
    } else {
      promoted ? launch<Tile<kElement, kBlockM, kBlockN, false, true, true>>(a, b, asked)
               : launch<Tile<kElement, kBlockM, kBlockN, false, true, false>>(a, b, asked);
    }
  } else if (a_transposed) {
    if constexpr (kBlockM < 128 || kBlockN < 128) {
      kernels::require(false, "matmul::cuda_wgmma takes a column-major a in tiles of 128 rows and 128 or 256 columns");
    } else {
      b_transposed ? launch<Tile<kElement, kBlockM, kBlockN, true, true, false>>(a, b, asked)
                   : launch<Tile<kElement, kBlockM, kBlockN, true, false, false>>(a, b, asked);
    }
  } else {
    b_transposed ? launch<Tile<kElement, kBlockM, kBlockN, false, true, false>>(a, b, asked)
                 : launch<Tile<kElement, kBlockM, kBlockN, false, false, false>>(a, b, asked);
  }
}

template <Element kElement, int kBlockM>
auto with_columns(int64_t block_n) {
  return block_n == 256   ? with_layout<kElement, kBlockM, 256>
         : block_n == 128 ? with_layout<kElement, kBlockM, 128>
                          : with_layout<kElement, kBlockM, 64>;
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
                           bool promoted, int64_t block_m, int64_t block_n, int64_t group_m, int64_t stages,
                           int64_t cluster_size, int64_t split_k) {
  kernels::require(a.dim() == 2 && b.dim() == 2 && a.scalar_type() == b.scalar_type() &&
                       a.size(a_transposed ? 0 : 1) == b.size(b_transposed ? 1 : 0) &&
                       a.get_device_index() == b.get_device_index() && scale_a.has_value() == scale_b.has_value(),
                   "matmul::cuda_wgmma takes an m x k and a k x n tensor of one dtype on one device");
  kernels::require(block_m == 64 || block_m == 128, "block_m must be 64 or 128, not " + std::to_string(block_m));
  kernels::require(block_n == 64 || block_n == 128 || block_n == 256,
                   "block_n must be 64, 128 or 256, not " + std::to_string(block_n));
  kernels::require(stages >= 2 && stages <= 12, "stages must be from 2 to 12, not " + std::to_string(stages));
  kernels::require(cluster_size == 1 || cluster_size == 2 || cluster_size == 4,
                   "cluster_size must be 1, 2 or 4, not " + std::to_string(cluster_size));
  kernels::require(split_k == 1 || split_k == 2 || split_k == 4 || split_k == 8,
                   "split_k must be 1, 2, 4 or 8, not " + std::to_string(split_k));
  kernels::require(cluster_size * split_k <= 8, "cluster_size x split_k must be at most 8, not " +
                                                    std::to_string(cluster_size * split_k));
  kernels::require(group_m >= 1 && group_m <= 1024, "group_m must be from 1 to 1024, not " + std::to_string(group_m));
  const torch::stable::accelerator::DeviceGuard guard(a.get_device_index());
  const int64_t m = a.size(a_transposed ? 1 : 0);
  const int64_t n = b.size(b_transposed ? 0 : 1);
  const int64_t k = a.size(a_transposed ? 0 : 1);
  kernels::require(m <= INT32_MAX / 2 && n <= INT32_MAX / 2 && k <= INT32_MAX / 2,
                   "matmul::cuda_wgmma takes fewer than 2**30 rows and columns");
  const bool is_float8 = a.scalar_type() == Scalar::Float8_e4m3fn;
  const kernels::Tensor result = torch::stable::new_empty(a, {m, n}, is_float8 ? Scalar::BFloat16 : a.scalar_type());
  if (result.numel() == 0) {
    return result;
  }
  Launch asked{};
  Arguments& of = asked.of;
  of.m = static_cast<int>(m);
  of.n = static_cast<int>(n);
  of.k = static_cast<int>(k);
  of.out_row = static_cast<int>(n);
  of.group = static_cast<int>(std::max<int64_t>(1, group_m / cluster_size));
  of.stages = static_cast<int>(stages);
  of.cluster_size = static_cast<int>(cluster_size);
  of.split_k = static_cast<int>(split_k);
  of.store_by_tma = n % 8 == 0;
  of.scale_a = scale_a.has_value() ? kernels::input<float>(*scale_a) : nullptr;
  of.scale_b = scale_b.has_value() ? kernels::input<float>(*scale_b) : nullptr;
  of.out = result.mutable_data_ptr();
  asked.device = a.get_device_index();
  asked.stream = kernels::current_stream(a);
  with_element(a, [&](auto element) {
    constexpr Element kElement = decltype(element)::value;
    constexpr int kItem = kItemBytes<kElement>;
    constexpr int64_t kElements = kSwizzle / kItem;
    kernels::require(kernels::ceil_div(k, kElements) >= split_k,
                     "split_k " + std::to_string(split_k) + " needs as many steps of " + std::to_string(kElements) +
                         " along k, which is " + std::to_string(k));
    std::optional<kernels::Tensor> memory_of_a, memory_of_b;
    RowsCopy copy_of_a{}, copy_of_b{};
    const Lying left = aligned(a, kItem, memory_of_a, copy_of_a);
    const Lying right = aligned(b, kItem, memory_of_b, copy_of_b);
    asked.a = lying(a, kItem);
    asked.b = lying(b, kItem);
    asked.a_transposed = a_transposed;
    asked.b_transposed = b_transposed;
    if (memory_of_a.has_value() || memory_of_b.has_value()) {
      asked.copies = shared_out(copy_of_a, copy_of_b);
    }
    const auto run = block_m == 64 ? with_columns<kElement, 64>(block_n) : with_columns<kElement, 128>(block_n);
    run(left, a_transposed, right, b_transposed, promoted, asked);
  });
  kernels::check_launched("matmul::cuda_wgmma");
  return result;
}

kernels::Tensor meta_wgmma(const kernels::Tensor& a, bool a_transposed, const kernels::Tensor& b, bool b_transposed,
                           const std::optional<kernels::Tensor>&, const std::optional<kernels::Tensor>&, bool, int64_t,
                           int64_t, int64_t, int64_t, int64_t, int64_t) {
  const bool is_float8 = a.scalar_type() == Scalar::Float8_e4m3fn;
  return torch::stable::new_empty(a, {a.size(a_transposed ? 1 : 0), b.size(b_transposed ? 0 : 1)},
                                  is_float8 ? Scalar::BFloat16 : a.scalar_type());
}

}  // namespace matmul

STABLE_TORCH_LIBRARY_FRAGMENT(matmul, m) {
  m.def(
      "cuda_wgmma(Tensor a, bool a_transposed, Tensor b, bool b_transposed, Tensor? scale_a, Tensor? scale_b, "
      "bool promoted, int block_m, int block_n, int group_m, int stages, int cluster_size, int split_k) -> Tensor");
}

STABLE_TORCH_LIBRARY_IMPL(matmul, Meta, m) { m.impl("cuda_wgmma", TORCH_BOX(&matmul::meta_wgmma)); }

STABLE_TORCH_LIBRARY_IMPL(matmul, CUDA, m) { m.impl("cuda_wgmma", TORCH_BOX(&matmul::cuda_wgmma)); }
