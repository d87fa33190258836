// The launch plan of a row kernel (rows.cuh, persistent_rows.cuh): which strategy, and how rows are divided among
// threads, blocks and clusters. plan_rows() makes it from the problem, the operation, the device and what the caller
// asked for. Plain C++: a test compiles it without CUDA.
//
// block_size and num_warps mean the same in every strategy. A block has 32 x num_warps threads. It takes on block_size
// elements at most, but at least kMinElements a thread.
#pragma once

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <stdexcept>
#include <string>

#include "gpu_limits.h"

#if defined(__CUDACC__)
#define KERNELS_HOST_DEVICE __host__ __device__
#else
#define KERNELS_HOST_DEVICE
#endif

namespace kernels {

enum class Strategy { kAuto, kRegisterResident, kSharedMemoryResident, kPersistent, kMultiPass, kSplitMultiPass };
constexpr const char* kStrategies[] = {"auto",       "register_resident", "shared_memory_resident",
                                       "persistent", "multi_pass",        "split_multi_pass"};

inline const char* name_of(Strategy strategy) { return kStrategies[static_cast<int>(strategy)]; }

// Ends the planning with a sentence for the caller.
[[noreturn]] inline void refuse(const std::string& sentence) { throw std::runtime_error(sentence); }

inline Strategy strategy_named(const std::string& name) {
  const auto found = std::find(std::begin(kStrategies), std::end(kStrategies), name);
  if (found == std::end(kStrategies)) {
    refuse(
        "strategy must be auto, register_resident, shared_memory_resident, persistent, multi_pass or split_multi_pass, "
        "not " +
        name);
  }
  return static_cast<Strategy>(found - std::begin(kStrategies));
}

struct RowsProblem {
  int64_t rows;
  int64_t columns;
  int64_t row_stride;  // in elements
  int element_bytes;
  bool vectorizable;  // input and output place each row alike within 16 bytes
  bool even;          // all rows, and weight and bias, begin and end at multiples of 16 bytes

  int vector_width() const { return 16 / element_bytes; }
};

struct RowsOperation {
  bool has_weight;
  bool has_bias;
  int partial_bytes;     // of a partial result
  int statistics_bytes;  // of what is known of a whole row
};

struct DeviceLimits {
  int multiprocessors;
  int shared_memory;         // bytes that a block may ask for
  int shared_memory_per_sm;  // bytes that the blocks of a multiprocessor share, 1024 of each taken by the driver
  int max_cluster_size;      // 1 before sm_90
  bool programmatic_launch;  // sm_90: a grid may start before the one that it depends on has ended
};

// What the caller asks for. block_size and num_warps mean the same in every strategy: a block has 32 x num_warps
// threads, and takes on block_size elements, but at least 8 a thread. With kAuto the plan decides the rest; 0 leaves a
// number to the plan.
struct RowsOptions {
  int64_t block_size;
  int num_warps;
  Strategy strategy = Strategy::kAuto;
  int cluster_size = 0;
  int stages = 0;
};

// How resident rows are divided among threads: several rows per block, each with a power of two of its threads; or one
// row per block; or one row per cluster of a power of two of neighbouring blocks, with all their threads.
struct RowPartition {
  int rows_per_block;
  int threads_per_row;
  int log2_threads_per_row;  // for several rows per block
  int log2_cluster_size;
  int vectors_per_block;  // of a row that begins with a vector; others have no more
};

// Limits of the persistent kernel: the threads of a block, so that each has 128 registers, half of which hold weight
// and bias; and a thread's vectors of a row.
constexpr int kMaxPersistentThreads = 512;
constexpr int kMaxVectorsPerThread = 8;
// Pipeline stages, rows in a block's shared memory: one is on its way in, one is reduced, one is on its way out.
constexpr int kMinStages = 3;
constexpr int kMaxStages = 6;
// Vectors of 128 bytes: warp slices begin at multiples of these in shared memory.
constexpr int kVectorsPerLine = 8;

// How persistent clusters divide rows.
struct PersistentParams {
  int warps;              // of a block
  int cluster_size;       // blocks that share a row
  int vectors_per_block;  // of a row
  int stages;
  // Rows that many apart begin alike within 16 bytes, and a cluster takes such rows one after another. 1: rows in any
  // order.
  int alignment_period;

  KERNELS_HOST_DEVICE int vectors_per_warp() const {
    return (vectors_per_block + warps * kVectorsPerLine - 1) / (warps * kVectorsPerLine) * kVectorsPerLine;
  }

  // In shared memory. With an alignment peel, a warp's slice begins at its first or second vector, and two may follow
  // it.
  template <bool kPeel>
  KERNELS_HOST_DEVICE int stage_vectors_per_warp() const {
    return vectors_per_warp() + (kPeel ? kVectorsPerLine : 0);
  }
  template <bool kPeel>
  KERNELS_HOST_DEVICE int vectors_per_stage() const {
    return warps * stage_vectors_per_warp<kPeel>();
  }

  // The time that a row takes, in vectors per lane.
  int steps() const { return (vectors_per_warp() + kThreadsPerWarp - 1) / kThreadsPerWarp; }
};

struct LaunchPlan {
  Strategy strategy;        // never kAuto
  int vector_width;         // elements an access: 16 bytes of them, or one
  bool peel;                // rows have an unaligned head and tail
  bool realign;             // a small launch copies weight and bias first (realigned_parameters.cuh)
  int threads;              // of a block
  int elements_per_thread;  // in registers; in multi-pass strategies at a time; 0 where they lie in shared memory
  int blocks_per_row;       // a cluster of them, except where split_multi_pass divides a row among independent blocks
  RowPartition partition;   // register_resident, shared_memory_resident
  PersistentParams persistent;
  int64_t grid;          // blocks
  int64_t shared_bytes;  // of a block, dynamic

  int cluster_size() const { return strategy == Strategy::kSplitMultiPass ? 1 : blocks_per_row; }
  int stages() const { return strategy == Strategy::kPersistent ? persistent.stages : 0; }
};

// The maximum number of a cluster's partial results that every warp merges by itself in the two-stage reduction of
// shared-memory-resident rows. With more, each block first merges its warps' results. That takes one more
// __syncthreads(), and registers, which register-resident rows don't have.
constexpr int kMaxSingleStage = 64;

// Shared memory of ClusterReduce: an mbarrier, and a partial result for each warp of the block and each sender of the
// cluster.
inline int64_t cluster_reduce_bytes(int partial_bytes, bool two_stage, int threads, int64_t cluster_size) {
  const int64_t warps = threads / kThreadsPerWarp;
  const int64_t received = cluster_size == 1 ? 0 : two_stage ? kMaxSingleStage : cluster_size * warps;
  return 8 + (warps + received) * partial_bytes;
}

// Shared memory of persistent_rows beside its stages: PersistentSharedMemory.
constexpr int64_t persistent_bytes(int partial_bytes, int statistics_bytes) {
  constexpr int kWarps = kMaxPersistentThreads / kThreadsPerWarp;
  const int64_t reduction = 4 * (2 * 8 + 4 + 2 * int64_t{kWarps} * partial_bytes + statistics_bytes);
  const int64_t barriers = int64_t{kMaxStages} * kWarps * 8;
  return (reduction + barriers + 15) / 16 * 16 + int64_t{kMaxStages} * kWarps * 16;
}

}  // namespace kernels
