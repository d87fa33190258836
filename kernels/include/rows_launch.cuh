// Which kernel of rows.cuh a matrix gets, and its launch.
//
// num_warps: a block has 32 x num_warps threads. block_size: the elements that a block takes on, 8 a thread at the
// fewest. Up to kMost a thread are held in registers, more in shared memory. A block that takes on more than a row takes
// several rows, or a row and no more where they lie in shared memory; a row of more than that gets a cluster of blocks
// (sm_90). A norm's rows of more than 32768 columns, if they are many, get clusters that stay for one row after another,
// where block_size is at least 8 packs of 16 bytes a thread, less than twice that, and num_warps at most 16. With fewer
// rows than multiprocessors, clusters are made larger, so that few rows use many of them. Where 16 blocks don't hold a row,
// or blocks form no clusters, or clusters would leave most multiprocessors idle, a row is streamed, kStreamed elements a
// thread at a time: by one block, or by several in two launches when rows are too few to fill the GPU.
#pragma once

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <string>

#include "rows.cuh"
#include "rows_resident.cuh"
#include "rows_shifted.cuh"

namespace kernels {

// Elements that a thread holds, at the fewest and at the most, and that it streams at a time. With packs of one
// element, the addresses take up registers too. On an H200, 64 a thread took layernorm of 4096 rows of 65536 bfloat16
// columns from 293 us to 279, of 32768 from 152 to 136; rmsnorm gained nothing.
constexpr int kFewest = 8;
template <typename T, int V, typename Op>
constexpr int kMost = V == 1 ? 16 : sizeof(T) == 2 && Op::kBias ? 64 : 32;
template <int V>
constexpr int kStreamed = V == 1 ? 8 : 16;

struct Device {
  int multiprocessors;
  int shared_memory;         // bytes that a block may ask for
  int shared_memory_of_all;  // bytes that the blocks of a multiprocessor share, 1024 of each taken by the driver
  int64_t largest_cluster;
  bool launches_overlap;  // where a launch may begin before the one that it waits for has ended

  explicit Device(int index) {
    int major = 0;
    cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, index);
    cudaDeviceGetAttribute(&shared_memory, cudaDevAttrMaxSharedMemoryPerBlockOptin, index);
    cudaDeviceGetAttribute(&shared_memory_of_all, cudaDevAttrMaxSharedMemoryPerMultiprocessor, index);
    cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, index);
    // 9.0 and 10.x let a kernel ask for more than the portable 8.
    launches_overlap = major >= 9;
    largest_cluster = major < 9 ? 1 : major <= 10 ? kMaxCluster : kPortableCluster;
  }
};

inline int log2_from(int64_t value) {
  int exponent = 0;
  while ((int64_t{1} << exponent) < value) {
    ++exponent;
  }
  return exponent;
}

inline int64_t power_of_two_from(int64_t value) { return int64_t{1} << log2_from(value); }

// How rows are held.
struct Spread {
  int elements;  // in each thread's registers; none: in shared memory, or nowhere
  int capacity;  // packs in each block's shared memory; none: nowhere
  Sharing sharing;
};

template <typename T, int V, bool kEdges, typename Op>
Spread spread(int64_t rows, int64_t columns, int64_t block_size, int threads, const Device& device) {
  const int64_t packs =
      V == kWidest<T> ? (device.shared_memory - Meeting<Op, true>::bytes(threads, kMaxCluster)) / int64_t{16} : 0;
  const int64_t wanted = std::max<int64_t>(power_of_two_from(block_size / threads + 1) / 2, kFewest);  // rounded down
  const int64_t a_block = std::min(wanted * threads, std::max(packs * V, int64_t{kMost<T, V, Op>} * threads));
  int64_t blocks = std::min(power_of_two_from(ceil_div(columns, a_block)), device.largest_cluster);
  // Few rows: as many blocks as there are multiprocessors for and packs for their threads.
  while (blocks < device.largest_cluster && 2 * blocks * rows <= device.multiprocessors &&
         2 * blocks * threads * V <= columns) {
    blocks *= 2;
  }
  // The packs of a block, for a row that begins with one; others have no more.
  const auto share = [&](int64_t blocks) { return static_cast<int>(ceil_div(columns / V, blocks)); };
  int64_t elements = std::clamp<int64_t>(wanted, kFewest, kMost<T, V, Op>);
  if (blocks == 1 && columns <= elements * threads) {
    // The edges of a row take a thread each.
    const int64_t least = std::max<int64_t>(ceil_div(columns, elements), kEdges ? kMostEdges<V, kSpareLast<Op, kEdges>> : 1);
    const int log2_sharing = log2_from(least);
    const int rows_per_block = threads >> log2_sharing;
    if (rows_per_block >= 2) {
      return {static_cast<int>(elements), 0, {rows_per_block, 1 << log2_sharing, log2_sharing, 0, share(1)}};
    }
  } else {
    elements = std::max<int64_t>(kFewest, power_of_two_from(ceil_div(columns, blocks * threads)));
  }
  const Sharing sharing{1, threads, 0, log2_from(blocks), share(blocks)};
  if (elements <= kMost<T, V, Op>) {
    return {static_cast<int>(elements), 0, sharing};
  }
  return {0, sharing.share <= packs ? sharing.share : 0, sharing};
}

// Lets a launch begin while the one before it still runs, once all blocks of that say so (sm_90).
inline cudaLaunchAttribute overlap() {
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  return attribute;
}

inline unsigned grid(int64_t blocks) {
  require(blocks <= INT32_MAX, "a launch has at most 2**31 - 1 blocks, this needs " + std::to_string(blocks));
  return static_cast<unsigned>(blocks);
}

// Lets a kernel have clusters of so many blocks. What a kernel may have is the same for all its launches, also those of
// other threads: it is never set to less.
template <typename... Parameters>
void allow_clusters(void (*kernel)(Parameters...), int64_t blocks_per_row) {
  if (blocks_per_row > kPortableCluster) {
    cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1);
  }
}

// Lets a kernel keep rows in shared memory, as many blocks on a multiprocessor as that leaves room for.
template <typename... Parameters>
void allow_shared_memory(void (*kernel)(Parameters...), const Device& device) {
  cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout, cudaSharedmemCarveoutMaxShared);
  cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, device.shared_memory);
}

// Launches a kernel whose blocks form clusters of those that share a row, and records it by these names. Shared memory:
// `staged` bytes, and what Meeting has. Where it may overlap, it begins while the launch before it still runs, and
// itself waits for that.
template <typename Meeting, typename... Parameters, typename... Arguments>
void launch_sharing(const char* function, const char* strategy, void (*kernel)(Parameters...), int64_t rows,
                    const Sharing& sharing, int threads, int64_t staged, bool may_overlap, cudaStream_t stream,
                    const Arguments&... arguments) {
  const int blocks = 1 << sharing.log2_blocks_per_row;
  cudaLaunchAttribute attributes[2] = {};
  unsigned count = 0;
  if (blocks > 1) {
    attributes[count].id = cudaLaunchAttributeClusterDimension;
    attributes[count++].val.clusterDim = {static_cast<unsigned>(blocks), 1, 1};
  }
  if (may_overlap) {
    attributes[count++] = overlap();
  }
  cudaLaunchConfig_t config{};
  config.gridDim = grid(ceil_div(rows, sharing.rows_per_block) * blocks);
  config.blockDim = threads;
  config.dynamicSmemBytes = staged + Meeting::bytes(threads, blocks);
  config.stream = stream;
  config.attrs = attributes;
  config.numAttrs = count;
  allow_clusters(kernel, blocks);
  cudaLaunchKernelEx(&config, kernel, arguments...);
  record_launch(function, strategy, config.gridDim, config.blockDim, blocks, config.dynamicSmemBytes);
}

template <typename T, int V, int K, bool kEdges, typename Op>
void launch_held(const Matrix<T>& matrix, const Op& op, int threads, const Sharing& sharing, const Device& device,
                 cudaStream_t stream) {
  const auto kernel =
      sharing.rows_per_block > 1 ? rows_held<T, V, K, kEdges, true, Op> : rows_held<T, V, K, kEdges, false, Op>;
  launch_sharing<Meeting<Op, false>>("rows_held", "register_resident", kernel, matrix.rows, sharing, threads, 0,
                                     kShifted<Op> && device.launches_overlap, stream, matrix, op, sharing);
}

template <typename T, int V, bool kEdges, typename Op>
void launch_staged(const Matrix<T>& matrix, const Op& op, int threads, const Spread& how, const Device& device,
                   cudaStream_t stream) {
  using Unchanged = typename Op::Unchanged;
  const auto kernel = rows_staged<T, V, kEdges, Unchanged>;
  allow_shared_memory(kernel, device);
  launch_sharing<Meeting<Unchanged, true>>("rows_staged", "shared_memory_resident", kernel, matrix.rows, how.sharing,
                                           threads, int64_t{16} * how.capacity,
                                           kShifted<Op> && device.launches_overlap, stream, matrix, Unchanged(op),
                                           how.sharing, how.capacity);
}

// How rows_resident would have a row in so many blocks; they have no slots where there is no room for the fewest.
template <typename T, bool kEdges, typename Op>
Residence residence_of(int64_t columns, int64_t blocks, int threads, const Device& device) {
  // Blocks begin at multiples of 128 bytes of a row, in shared memory and so, if the row does, in device memory.
  const int64_t share = ceil_div(ceil_div(columns, kWidest<T>), blocks * kAlignedPacks) * kAlignedPacks;
  Residence residence{threads / kThreadsPerWarp, static_cast<int>(blocks), static_cast<int>(share), 0, 1};
  // As many blocks on a multiprocessor as their registers leave room for.
  const int64_t room = std::min(device.shared_memory, device.shared_memory_of_all / (kMostResident / threads) - 1024);
  const int64_t slots = (room - static_cast<int64_t>(sizeof(ResidentMemory<T, Op>))) /
                        (int64_t{16} * residence.room_of_row<kEdges>());
  residence.slots = slots < kFewestSlots ? 0 : static_cast<int>(std::min<int64_t>(slots, kMostSlots));
  return residence;
}

// A launch of rows_resident by so many clusters.
template <typename T, bool kEdges, typename Op>
struct Stay {
  cudaLaunchAttribute cluster{};
  cudaLaunchConfig_t config{};

  Stay(const Residence& residence, int clusters, cudaStream_t stream) {
    cluster.id = cudaLaunchAttributeClusterDimension;
    cluster.val.clusterDim = {static_cast<unsigned>(residence.blocks), 1, 1};
    config.gridDim = static_cast<unsigned>(clusters * residence.blocks);
    config.blockDim = residence.warps * kThreadsPerWarp;
    config.dynamicSmemBytes =
        int64_t{16} * residence.slots * residence.room_of_row<kEdges>() + sizeof(ResidentMemory<T, Op>);
    config.stream = stream;
    config.attrs = &cluster;
    config.numAttrs = 1;
  }
  Stay(const Stay&) = delete;
};

// How many clusters run at the same time, if any.
template <typename T, bool kEdges, typename Op>
int clusters_at_once(const Residence& residence, const Device& device) {
  if (residence.slots == 0) {
    return 0;
  }
  const auto kernel = rows_resident<T, kEdges, Op>;
  allow_clusters(kernel, residence.blocks);
  allow_shared_memory(kernel, device);
  const Stay<T, kEdges, Op> stay(residence, 1, nullptr);
  int clusters = 0;
  if (cudaOccupancyMaxActiveClusters(&clusters, kernel, &stay.config) != cudaSuccess) {
    cudaGetLastError();  // or the check of the launch would find it
    return 0;
  }
  return clusters;
}

// rows_resident, where rows are long and many, and block_size gives a thread as many packs as it takes: whether it was
// launched.
template <typename T, bool kEdges, typename Op>
bool launch_resident(const Matrix<T>& matrix, const Op& op, int64_t block_size, int threads, const Device& device,
                     cudaStream_t stream) {
  // On an H200, layernorm of 4096 rows of 65536 float32 columns took 528 us instead of 553, of 32768 as long as before, of
  // 16384 145 instead of 135: beginning and end, where not all of it overlaps, are a larger part there.
  constexpr int64_t kMostColumns = 32 << 10;
  constexpr int64_t kLeastRows = 8;
  constexpr int kEnoughSlots = 4;
  const int64_t elements = int64_t{kPacksResident} * kWidest<T> * threads;
  const int64_t least = ceil_div(matrix.columns, elements);
  const int64_t most = power_of_two_from(least);
  if (matrix.columns <= kMostColumns || threads > kMostResident || block_size < elements ||
      block_size >= 2 * elements || most > device.largest_cluster) {
    return false;
  }
  Residence residence = residence_of<T, kEdges, Op>(matrix.columns, most, threads, device);
  int clusters = clusters_at_once<T, kEdges, Op>(residence, device);
  // Fewer blocks a row, where they have room to fetch ahead and all rows take less time: layernorm of 70000 bfloat16 columns
  // took 297 us in clusters of 3 and 343 of 4.
  for (int64_t blocks = least; blocks < most; ++blocks) {
    const auto fewer = residence_of<T, kEdges, Op>(matrix.columns, blocks, threads, device);
    const auto faster = [&](int64_t by) { return fewer.steps() * clusters < residence.steps() * by; };
    if (fewer.slots >= kEnoughSlots && faster(device.multiprocessors * (kMostResident / threads) / blocks)) {
      const int by = clusters_at_once<T, kEdges, Op>(fewer, device);
      if (faster(by)) {
        residence = fewer;
        clusters = by;
      }
    }
  }
  if (kEdges) {
    // If rows that are as many apart as there are clusters begin alike, a cluster takes these.
    const auto alike = static_cast<int>(kWidest<T> / std::gcd(int64_t{kWidest<T>}, matrix.row_stride));
    const int over = clusters % alike;
    if (15 * over <= clusters) {
      clusters -= over;
    } else {
      residence.alike = alike;
    }
  }
  if (clusters == 0 || matrix.rows < kLeastRows * clusters) {
    return false;
  }
  const Stay<T, kEdges, Op> stay(residence, clusters, stream);
  cudaLaunchKernelEx(&stay.config, rows_resident<T, kEdges, Op>, matrix, op, residence);
  record_launch("rows_resident", "persistent", stay.config.gridDim, stay.config.blockDim, residence.blocks,
                stay.config.dynamicSmemBytes, residence.slots);
  return true;
}

// Whether clusters would leave three quarters of the multiprocessors idle while each block has more to read than two
// launches take: on an H200 one row of 262144 float32 columns is faster in two launches, one of 65536 is not.
inline bool too_few_for_clusters(int64_t rows, int64_t row_bytes, const Device& device) {
  constexpr int64_t kBytesPerBlock = 32 << 10;
  return 4 * rows * device.largest_cluster <= device.multiprocessors &&
         row_bytes >= kBytesPerBlock * device.largest_cluster;
}

template <typename T, int V, bool kEdges, typename Op>
void launch_streamed(const Matrix<T>& matrix, const Op& op, int64_t block_size, int threads, const Device& device,
                     const Tensor& x) {
  using Partial = typename Op::Partial;
  using Unchanged = typename Op::Unchanged;
  const auto kernel = rows_streamed<T, V, kStreamed<V> / V, kEdges, Unchanged>;
  cudaLaunchConfig_t config{};
  config.blockDim = threads;
  config.dynamicSmemBytes = threads / kThreadsPerWarp * sizeof(Partial);
  config.stream = current_stream(x);
  const auto launch = [&](int64_t blocks_per_row, Pass pass, void* partials) {
    config.gridDim = grid(matrix.rows * blocks_per_row);
    cudaLaunchKernelEx(&config, kernel, matrix, Unchanged(op), static_cast<int>(blocks_per_row), pass,
                       static_cast<Partial*>(partials));
    record_launch("rows_streamed", pass == Pass::kBoth ? "multi_pass" : "split_multi_pass", config.gridDim,
                  config.blockDim, 1, config.dynamicSmemBytes);
  };
  // Two blocks a multiprocessor at most, of at least one step each.
  const int64_t blocks = std::min(ceil_div(2 * device.multiprocessors, matrix.rows),
                                  ceil_div(matrix.columns, std::max(block_size, int64_t{kStreamed<V>} * threads)));
  if (matrix.rows >= device.multiprocessors || blocks < 2) {
    launch(1, Pass::kBoth, nullptr);
    return;
  }
  const Tensor partials =
      torch::stable::new_empty(x, {matrix.rows * blocks, static_cast<int64_t>(sizeof(Partial) / sizeof(float))},
                               torch::headeronly::ScalarType::Float);
  launch(blocks, Pass::kObserve, partials.mutable_data_ptr());
  cudaLaunchAttribute beside = overlap();
  config.attrs = &beside;
  config.numAttrs = device.launches_overlap ? 1 : 0;
  launch(blocks, Pass::kWrite, partials.mutable_data_ptr());
}

template <typename T, int V, bool kEdges, typename Op>
void launch_rows_of(const Matrix<T>& matrix, const Op& op, int64_t block_size, int threads, const Device& device,
                    const Tensor& x) {
  const Spread how = spread<T, V, kEdges, Op>(matrix.rows, matrix.columns, block_size, threads, device);
  const cudaStream_t stream = current_stream(x);
  if (too_few_for_clusters(matrix.rows, matrix.columns * static_cast<int64_t>(sizeof(T)), device)) {
    return launch_streamed<T, V, kEdges>(matrix, op, block_size, threads, device, x);
  }
  switch (how.elements) {
    case 8:
      return launch_held<T, V, 8 / V, kEdges>(matrix, op, threads, how.sharing, device, stream);
    case 16:
      return launch_held<T, V, 16 / V, kEdges>(matrix, op, threads, how.sharing, device, stream);
    // More than kMost don't occur, so that no kernel is compiled for them.
    case 32:
      return launch_held<T, V, std::min(32, kMost<T, V, Op>) / V, kEdges>(matrix, op, threads, how.sharing, device,
                                                                          stream);
    case 64:
      return launch_held<T, V, kMost<T, V, Op> / V, kEdges>(matrix, op, threads, how.sharing, device, stream);
  }
  if constexpr (V == kWidest<T>) {
    if (how.capacity > 0) {
      return launch_staged<T, V, kEdges>(matrix, op, threads, how, device, stream);
    }
  }
  launch_streamed<T, V, kEdges>(matrix, op, block_size, threads, device, x);
}

// Every row of x, a 2-D tensor with its columns side by side, into y, contiguous and of the same shape. The accesses
// are 16 bytes wide, if need be but for the ends of a row, wherever x and y place a row alike within 16 bytes;
// elsewhere an element wide.
template <typename T, typename Op>
void launch_rows(const char* operation, const Tensor& x, const Tensor& y, const Op& op, int64_t block_size,
                 int64_t num_warps) {
  if (x.size(0) == 0) {
    return;
  }
  require(x.size(0) <= INT32_MAX, std::string(operation) + " takes at most 2**31 - 1 rows, this has " +
                                      std::to_string(x.size(0)));
  constexpr int64_t kWide = kWidest<T>;
  const Matrix<T> matrix{input<T>(x),  output<T>(y), x.size(0), x.size(1), x.stride(0),
                         caching_of(x.numel() * static_cast<int64_t>(sizeof(T)), x.get_device_index())};
  const auto place = [](const void* pointer) { return reinterpret_cast<std::uintptr_t>(pointer) % 16; };
  const bool alike = place(matrix.x) == place(matrix.y) && place(matrix.x) % sizeof(T) == 0 &&
                     (matrix.rows == 1 || (matrix.row_stride - matrix.columns) % kWide == 0);
  const bool whole = place(matrix.x) == 0 && matrix.columns % kWide == 0 && op.parameters_aligned();
  const int threads = static_cast<int>(num_warps) * kThreadsPerWarp;
  const Device device(x.get_device_index());
  const auto stays = [&] {
    if constexpr (Op::kWeight) {
      const auto launch = whole ? launch_resident<T, false, Op> : launch_resident<T, true, Op>;
      return launch(matrix, op, block_size, threads, device, current_stream(x));
    }
    return false;
  };
  if (!alike) {
    launch_rows_of<T, 1, false>(matrix, op, block_size, threads, device, x);
  } else if (stays()) {
    // There is nothing else to launch.
  } else if (whole) {
    launch_rows_of<T, kWidest<T>, false>(matrix, op, block_size, threads, device, x);
  } else if (!Op::kWeight || !worth_copying<T>(x)) {
    launch_rows_of<T, kWidest<T>, true>(matrix, op, block_size, threads, device, x);
  } else if constexpr (Op::kWeight) {
    Tensor memory;
    launch_rows_of<T, kWidest<T>, true>(matrix, with_copies<T>(op, x, memory, current_stream(x)), block_size, threads,
                                        device, x);
  }
  check_launched(operation);
}

}  // namespace kernels
