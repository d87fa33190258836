// Launches of the row kernels: the device's numbers, the plan (plan_rows.h), and the launch that it says.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>

#include "persistent_rows.cuh"
#include "plan_rows.h"
#include "realigned_parameters.cuh"
#include "rows.cuh"

namespace kernels {

inline DeviceLimits device_limits(int index) {
  DeviceLimits limits{};
  int major = 0;
  cudaDeviceGetAttribute(&limits.multiprocessors, cudaDevAttrMultiProcessorCount, index);
  cudaDeviceGetAttribute(&limits.shared_memory, cudaDevAttrMaxSharedMemoryPerBlockOptin, index);
  cudaDeviceGetAttribute(&limits.shared_memory_per_sm, cudaDevAttrMaxSharedMemoryPerMultiprocessor, index);
  cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, index);
  // 9.0 and 10.x let a kernel ask for clusters of more than the portable size.
  limits.max_cluster_size = major < 9 ? 1 : major <= 10 ? kMaxClusterSize : kPortableClusterSize;
  limits.programmatic_launch = major >= 9;
  return limits;
}

template <typename Op>
RowsOperation operation_of() {
  using Recompute = typename Op::Recompute;
  static_assert(sizeof(typename Op::Partial) == sizeof(typename Recompute::Partial));
  return {Op::kHasWeight, Op::kHasBias, sizeof(typename Op::Partial), sizeof(typename Recompute::Statistics)};
}

// The configuration of a launch, with its attributes.
struct LaunchConfig {
  cudaLaunchConfig_t config{};
  cudaLaunchAttribute attributes[2] = {};

  LaunchConfig(int64_t grid, int threads, int64_t shared_bytes, cudaStream_t stream) {
    config.gridDim = static_cast<unsigned>(grid);
    config.blockDim = static_cast<unsigned>(threads);
    config.dynamicSmemBytes = static_cast<size_t>(shared_bytes);
    config.stream = stream;
    config.attrs = attributes;
  }
  LaunchConfig(const LaunchConfig&) = delete;

  void set_cluster_size(int blocks) {
    cudaLaunchAttribute& attribute = attributes[config.numAttrs++];
    attribute.id = cudaLaunchAttributeClusterDimension;
    attribute.val.clusterDim = {static_cast<unsigned>(blocks), 1, 1};
  }

  // The grid may start once all blocks of the one before it have called launch_dependent_grids() (sm_90).
  void set_programmatic() {
    cudaLaunchAttribute& attribute = attributes[config.numAttrs++];
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
  }
};

// Lets a kernel have clusters of this size. The attribute holds for all its launches, also from other threads, so it is
// never taken back.
template <typename... Parameters>
void allow_cluster_size(void (*kernel)(Parameters...), int cluster_size) {
  if (cluster_size > kPortableClusterSize) {
    cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1);
  }
}

// Lets a kernel have all shared memory: as many blocks on a multiprocessor as that leaves room for.
template <typename... Parameters>
void allow_shared_memory(void (*kernel)(Parameters...), const DeviceLimits& device) {
  cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout, cudaSharedmemCarveoutMaxShared);
  cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, device.shared_memory);
}

// What all launches of a call have in common.
template <typename T>
struct RowsLaunch {
  const Matrix<T>& matrix;
  const LaunchPlan& plan;
  const DeviceLimits& device;
  const Tensor& x;
  const cudaStream_t stream;

  void record(const char* function) const {
    record_launch(function, name_of(plan.strategy), static_cast<unsigned>(plan.grid),
                  static_cast<unsigned>(plan.threads), plan.cluster_size(), plan.shared_bytes, plan.stages());
  }

  // A resident kernel, whose blocks form clusters of those that share a row.
  template <typename Op, typename... Parameters, typename... More>
  void resident(const char* function, void (*kernel)(Parameters...), const Op& op, More... more) const {
    LaunchConfig launch(plan.grid, plan.threads, plan.shared_bytes, stream);
    if (plan.blocks_per_row > 1) {
      launch.set_cluster_size(plan.blocks_per_row);
    }
    if (kRealigned<Op> && device.programmatic_launch) {
      launch.set_programmatic();  // it waits for the copies of its parameters
    }
    allow_cluster_size(kernel, plan.blocks_per_row);
    cudaLaunchKernelEx(&launch.config, kernel, matrix, op, plan.partition, more...);
    record(function);
  }

  template <int V, int K, bool kPeel, typename Op>
  void register_resident(const Op& op) const {
    resident("register_resident_rows",
             plan.partition.rows_per_block > 1 ? register_resident_rows<T, V, K, kPeel, true, Op>
                                               : register_resident_rows<T, V, K, kPeel, false, Op>,
             op);
  }

  template <int V, bool kPeel, typename Op>
  void shared_memory_resident(const Op& op) const {
    const auto kernel = shared_memory_resident_rows<T, V, kPeel, Op>;
    allow_shared_memory(kernel, device);
    resident("shared_memory_resident_rows", kernel, op, plan.partition.vectors_per_block);
  }

  template <bool kPeel, typename Op>
  void persistent(const Op& op) const {
    const auto kernel = persistent_rows<T, kPeel, Op>;
    LaunchConfig launch(plan.grid, plan.threads, plan.shared_bytes, stream);
    launch.set_cluster_size(plan.blocks_per_row);
    allow_cluster_size(kernel, plan.blocks_per_row);
    allow_shared_memory(kernel, device);
    cudaLaunchKernelEx(&launch.config, kernel, matrix, op, plan.persistent);
    record("persistent_rows");
  }

  template <int V, bool kPeel, typename Op>
  void multi_pass(const Op& op) const {
    using Partial = typename Op::Partial;
    const auto kernel = multi_pass_rows<T, V, multi_pass_elements(V) / V, kPeel, Op>;
    const auto launch_pass = [&](Pass pass, bool programmatic, void* partials) {
      LaunchConfig launch(plan.grid, plan.threads, plan.shared_bytes, stream);
      if (programmatic) {
        launch.set_programmatic();
      }
      cudaLaunchKernelEx(&launch.config, kernel, matrix, op, plan.blocks_per_row, pass,
                         static_cast<Partial*>(partials));
      record("multi_pass_rows");
    };
    if (plan.strategy == Strategy::kMultiPass) {
      launch_pass(Pass::kBoth, false, nullptr);
      return;
    }
    constexpr auto kWords = static_cast<int64_t>(sizeof(Partial) / sizeof(float));
    const Tensor partials =
        torch::stable::new_empty(x, {plan.grid, kWords}, torch::headeronly::ScalarType::Float);
    launch_pass(Pass::kReduce, false, partials.mutable_data_ptr());
    launch_pass(Pass::kApply, device.programmatic_launch, partials.mutable_data_ptr());
  }

  // All but persistent.
  template <int V, bool kPeel, typename Op>
  void run(const Op& op) const {
    using Recompute = typename Op::Recompute;
    if (plan.strategy == Strategy::kRegisterResident) {
      // More than kMost elements don't occur, so that no kernel is compiled for them.
      constexpr int kMost = max_register_elements(V, sizeof(T), Op::kHasBias);
      switch (plan.elements_per_thread) {
        case 8:
          return register_resident<V, 8 / V, kPeel>(op);
        case 16:
          return register_resident<V, 16 / V, kPeel>(op);
        case 32:
          return register_resident<V, std::min(32, kMost) / V, kPeel>(op);
        default:
          return register_resident<V, kMost / V, kPeel>(op);
      }
    }
    if constexpr (V > 1) {
      if (plan.strategy == Strategy::kSharedMemoryResident) {
        return shared_memory_resident<V, kPeel>(Recompute(op));
      }
    }
    multi_pass<V, kPeel>(Recompute(op));
  }
};

// How many clusters of persistent_rows run at the same time, if any.
template <typename T, bool kPeel, typename Op>
int max_active_clusters(const PersistentParams& params, const DeviceLimits& device) {
  const auto kernel = persistent_rows<T, kPeel, Op>;
  constexpr int64_t kBytes = persistent_bytes(sizeof(typename Op::Partial), sizeof(typename Op::Statistics));
  static_assert(sizeof(PersistentSharedMemory<T, Op>) == kBytes);
  const int64_t shared_bytes = int64_t{16} * params.stages * params.vectors_per_stage<kPeel>() + kBytes;
  LaunchConfig launch(params.cluster_size, params.warps * kThreadsPerWarp, shared_bytes, nullptr);
  launch.set_cluster_size(params.cluster_size);
  allow_cluster_size(kernel, params.cluster_size);
  allow_shared_memory(kernel, device);
  int clusters = 0;
  if (cudaOccupancyMaxActiveClusters(&clusters, kernel, &launch.config) != cudaSuccess) {
    cudaGetLastError();  // or the check of the launch would find it
    return 0;
  }
  return clusters;
}

inline RowsOptions rows_options(int64_t block_size, int64_t num_warps, const std::string& strategy,
                                int64_t cluster_size, int64_t stages) {
  check_launch_parameters(block_size, num_warps);
  require(cluster_size >= 0 && cluster_size <= kMaxClusterSize,
          "cluster_size must be from 0 to 16, not " + std::to_string(cluster_size));
  require(stages >= 0 && stages <= kMaxStages, "stages must be 0 or from 3 to 6, not " + std::to_string(stages));
  return {block_size, static_cast<int>(num_warps), strategy_named(strategy), static_cast<int>(cluster_size),
          static_cast<int>(stages)};
}

// Applies an operation to every row of x, a 2-D tensor whose columns are contiguous. y is contiguous and of the same
// shape.
template <typename T, typename Op>
void launch_rows(const char* operation, const Tensor& x, const Tensor& y, const Op& op, const RowsOptions& options) {
  using Recompute = typename Op::Recompute;
  if (x.size(0) == 0) {
    return;
  }
  require(x.size(0) <= INT32_MAX, std::string(operation) + " takes at most 2**31 - 1 rows, this has " +
                                      std::to_string(x.size(0)));
  constexpr int V = kVectorWidth<T>;
  const int64_t bytes = x.numel() * static_cast<int64_t>(sizeof(T));
  const Matrix<T> matrix{input<T>(x),  output<T>(y), x.size(0), x.size(1), x.stride(0),
                         eviction_priority_of(bytes, x.get_device_index())};
  const auto offset = [](const void* pointer) { return reinterpret_cast<std::uintptr_t>(pointer) % 16; };
  const bool vectorizable = offset(matrix.x) == offset(matrix.y) && offset(matrix.x) % sizeof(T) == 0 &&
                            (matrix.rows == 1 || (matrix.row_stride - matrix.columns) % V == 0);
  const bool even = offset(matrix.x) == 0 && matrix.columns % V == 0 && op.parameters_aligned();
  const RowsProblem problem{matrix.rows, matrix.columns, matrix.row_stride, sizeof(T), vectorizable, even};
  const DeviceLimits device = device_limits(x.get_device_index());
  const LaunchPlan plan = plan_rows(problem, operation_of<Op>(), device, options, [&](const PersistentParams& params) {
    return even ? max_active_clusters<T, false, Recompute>(params, device)
                : max_active_clusters<T, true, Recompute>(params, device);
  });
  const RowsLaunch<T> launch{matrix, plan, device, x, current_stream(x)};
  if (plan.strategy == Strategy::kPersistent) {
    plan.peel ? launch.template persistent<true>(Recompute(op)) : launch.template persistent<false>(Recompute(op));
  } else if (plan.vector_width == 1) {
    launch.template run<1, false>(op);
  } else if (!plan.peel) {
    launch.template run<V, false>(op);
  } else if (!plan.realign) {
    launch.template run<V, true>(op);
  } else if constexpr (Op::kHasWeight) {
    Tensor copies;
    launch.template run<V, true>(realigned<T>(op, x, copies, launch.stream));
  }
  check_launched(operation);
}

}  // namespace kernels
