// plan_rows() makes the launch plan of a row kernel from the problem, the operation, the device and what the caller
// asked for. Plain C++: a test compiles it without CUDA.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <numeric>
#include <string>

#include "launch_plan.h"

namespace kernels {

// Elements of a thread: at the fewest; at most in registers; and at a time where a row is read twice. With vectors of
// one element, addresses take up registers too. On an H200, 64 a thread took layernorm of 4096 rows of 65536 bfloat16
// columns from 293 us to 279, of 32768 from 152 to 136; rmsnorm gained nothing.
constexpr int kMinElements = 8;
constexpr int max_register_elements(int vector_width, int element_bytes, bool has_bias) {
  return vector_width == 1 ? 16 : element_bytes == 2 && has_bias ? 64 : 32;
}
constexpr int multi_pass_elements(int vector_width) { return vector_width == 1 ? 8 : 16; }

inline int log2_ceil(int64_t value) {
  int exponent = 0;
  while ((int64_t{1} << exponent) < value) {
    ++exponent;
  }
  return exponent;
}

inline int64_t power_of_two_ceil(int64_t value) { return int64_t{1} << log2_ceil(value); }

// How many clusters of persistent_rows with these parameters run at the same time.
using MaxActiveClusters = std::function<int(const PersistentParams&)>;

// Plans of one problem. The rules, each with its reason, are in the methods from top to bottom; plan() puts them in
// order.
class RowsPlanner {
 public:
  RowsPlanner(const RowsProblem& problem, const RowsOperation& op, const DeviceLimits& device,
              const RowsOptions& options, const MaxActiveClusters& max_active_clusters)
      : problem_(problem),
        op_(op),
        device_(device),
        options_(options),
        max_active_clusters_(max_active_clusters),
        threads_(options.num_warps * kThreadsPerWarp) {}

  LaunchPlan plan() const {
    LaunchPlan plan{};
    // Accesses of 16 bytes wherever input and output place a row alike, if need be with an alignment peel; else of an
    // element.
    plan.vector_width = problem_.vectorizable ? problem_.vector_width() : 1;
    plan.peel = problem_.vectorizable && !problem_.even;
    plan.threads = threads_;
    const Strategy asked = options_.strategy;
    check_options(plan);
    if (asked == Strategy::kPersistent || (asked == Strategy::kAuto && persistent_suits(plan))) {
      if (plan_persistent(plan)) {
        return plan;
      }
    }
    plan.realign = plan.peel && op_.has_weight && worth_realigning();
    if (asked == Strategy::kMultiPass || asked == Strategy::kSplitMultiPass ||
        (asked == Strategy::kAuto && too_few_for_clusters()) || !plan_resident(plan)) {
      plan_multi_pass(plan);
    }
    return plan;
  }

 private:
  const RowsProblem& problem_;
  const RowsOperation& op_;
  const DeviceLimits& device_;
  const RowsOptions& options_;
  const MaxActiveClusters& max_active_clusters_;
  const int threads_;

  bool is_auto() const { return options_.strategy == Strategy::kAuto; }

  std::string row() const { return "a row of " + std::to_string(problem_.columns) + " columns"; }

  // What no problem allows.
  void check_options(const LaunchPlan& plan) const {
    const std::string name = name_of(options_.strategy);
    const bool clusters = options_.strategy == Strategy::kRegisterResident ||
                          options_.strategy == Strategy::kSharedMemoryResident ||
                          options_.strategy == Strategy::kPersistent;
    if (options_.cluster_size != 0 && !clusters) {
      refuse("strategy " + name + " takes no cluster_size, not " + std::to_string(options_.cluster_size));
    }
    if (options_.stages != 0 && options_.strategy != Strategy::kPersistent) {
      refuse("strategy " + name + " takes no stages, not " + std::to_string(options_.stages));
    }
    if (options_.stages != 0 && (options_.stages < kMinStages || options_.stages > kMaxStages)) {
      refuse("stages must be from 3 to 6, not " + std::to_string(options_.stages));
    }
    if (options_.cluster_size < 0 || options_.cluster_size > device_.max_cluster_size) {
      refuse("cluster_size must be from 1 to " + std::to_string(device_.max_cluster_size) + " on this GPU, not " +
             std::to_string(options_.cluster_size));
    }
    if (options_.cluster_size != power_of_two_ceil(options_.cluster_size) && options_.cluster_size != 0 &&
        options_.strategy != Strategy::kPersistent) {
      refuse("strategy " + name + " needs a power of two as cluster_size, not " +
             std::to_string(options_.cluster_size));
    }
    if (plan.vector_width == 1 && (options_.strategy == Strategy::kSharedMemoryResident ||
                                   options_.strategy == Strategy::kPersistent)) {
      refuse("strategy " + name + " needs an input and an output whose rows begin alike within 16 bytes");
    }
  }

  // Persistent clusters keep weight and bias in registers, so they suit operations with a weight, in rows too long for
  // the weights to stay in L1. block_size has to give a thread as many vectors as it takes. On an H200, layernorm of
  // 4096 rows of 65536 float32 columns took 528 us instead of 553, of 32768 as long as before, of 16384 145 instead of
  // 135: the start and the end of the pipeline, where not all of it overlaps, are a larger part there.
  bool persistent_suits(const LaunchPlan& plan) const {
    constexpr int64_t kMostColumns = 32 << 10;
    const int64_t elements = max_persistent_elements();
    return plan.vector_width > 1 && op_.has_weight && problem_.columns > kMostColumns &&
           threads_ <= kMaxPersistentThreads && options_.block_size >= elements && options_.block_size < 2 * elements &&
           power_of_two_ceil(ceil_div(problem_.columns, elements)) <= device_.max_cluster_size;
  }

  int64_t max_persistent_elements() const { return int64_t{kMaxVectorsPerThread} * problem_.vector_width() * threads_; }

  // Whether the rows are many enough; if persistent clusters were asked for, refuses what they can't do.
  bool plan_persistent(LaunchPlan& plan) const {
    constexpr int64_t kMinRowsPerCluster = 8;
    if (!is_auto()) {
      check_persistent();
    }
    // A block takes on no more than its threads' registers have weights for.
    const int64_t elements = std::min(max_persistent_elements(), options_.block_size);
    const int64_t least = ceil_div(problem_.columns, elements);
    const int64_t chosen = options_.cluster_size != 0 ? options_.cluster_size : power_of_two_ceil(least);
    if (least > chosen || chosen > device_.max_cluster_size) {
      refuse(row() + " needs a persistent cluster of at least " + std::to_string(least) + " blocks of " +
             std::to_string(elements) + " elements, more than " +
             std::to_string(std::min<int64_t>(chosen, device_.max_cluster_size)));
    }
    PersistentParams params = persistent_params(chosen, plan.peel);
    int clusters = active_clusters(params);
    if (options_.cluster_size == 0) {
      // Fewer blocks than a power of two, where they have room to fetch ahead and all rows take less time: layernorm of
      // 70000 bfloat16 columns took 297 us in clusters of 3 and 343 of 4.
      constexpr int kEnoughStages = 4;
      for (int64_t blocks = least; blocks < chosen; ++blocks) {
        const PersistentParams fewer = persistent_params(blocks, plan.peel);
        const auto faster = [&](int64_t by) { return fewer.steps() * clusters < params.steps() * by; };
        if (fewer.stages >= kEnoughStages &&
            faster(device_.multiprocessors * (kMaxPersistentThreads / threads_) / blocks)) {
          const int by = active_clusters(fewer);
          if (faster(by)) {
            params = fewer;
            clusters = by;
          }
        }
      }
    }
    if (plan.peel && op_.has_weight) {
      // Clusters take rows as many apart as there are clusters, if such rows begin alike; else each a run of rows that
      // do.
      const auto period = static_cast<int>(problem_.vector_width() /
                                           std::gcd(int64_t{problem_.vector_width()}, problem_.row_stride));
      const int over = clusters % period;
      // To leave up to a fifteenth of the clusters idle costs less than runs, which read the weights again between
      // runs.
      if (15 * over <= clusters) {
        clusters -= over;
      } else {
        params.alignment_period = period;
      }
    }
    if (is_auto() && problem_.rows < kMinRowsPerCluster * clusters) {
      return false;
    }
    if (clusters == 0) {
      if (is_auto()) {
        return false;
      }
      refuse("no persistent cluster of " + std::to_string(params.cluster_size) + " blocks of " +
             std::to_string(options_.num_warps) + " warps with at least " +
             std::to_string(std::max(options_.stages, kMinStages)) + " stages fits on this GPU for " + row());
    }
    clusters = static_cast<int>(std::min<int64_t>(clusters, problem_.rows));
    plan.strategy = Strategy::kPersistent;
    plan.blocks_per_row = params.cluster_size;
    plan.persistent = params;
    plan.grid = int64_t{clusters} * params.cluster_size;
    plan.shared_bytes = int64_t{16} * params.stages * vectors_per_stage(params, plan.peel) +
                        persistent_bytes(op_.partial_bytes, op_.statistics_bytes);
    return true;
  }

  void check_persistent() const {
    if (device_.max_cluster_size == 1) {
      refuse("strategy persistent needs sm_90 or later");
    }
    if (threads_ > kMaxPersistentThreads) {
      refuse("strategy persistent takes at most 16 warps a block, not " + std::to_string(options_.num_warps));
    }
    if (problem_.columns < kVectorsPerLine * problem_.vector_width()) {
      refuse("strategy persistent needs rows of at least 128 bytes, not of " + std::to_string(problem_.columns) +
             " columns");
    }
  }

  static int vectors_per_stage(const PersistentParams& params, bool peel) {
    return peel ? params.vectors_per_stage<true>() : params.vectors_per_stage<false>();
  }

  // Rows in persistent clusters of this size. stages is 0 where shared memory has no room for as many as there have to
  // be.
  PersistentParams persistent_params(int64_t cluster_size, bool peel) const {
    // Blocks begin at multiples of 128 bytes of a row, in shared memory and so, if the row does, in device memory.
    const int64_t vectors = ceil_div(problem_.columns, problem_.vector_width());
    const int64_t share = ceil_div(vectors, cluster_size * kVectorsPerLine) * kVectorsPerLine;
    PersistentParams params{options_.num_warps, static_cast<int>(cluster_size), static_cast<int>(share), 0, 1};
    const auto stages_in = [&](int64_t bytes) {
      return (bytes - persistent_bytes(op_.partial_bytes, op_.statistics_bytes)) /
             (int64_t{16} * vectors_per_stage(params, peel));
    };
    // As many as leave room for the blocks on a multiprocessor that their registers allow.
    const int blocks = kMaxPersistentThreads / threads_;
    const int64_t room = std::min(device_.shared_memory, device_.shared_memory_per_sm / blocks - 1024);
    int64_t stages = std::min<int64_t>(stages_in(room), kMaxStages);
    // Where they were asked for, or persistent clusters with less room than these need, fewer blocks.
    const int64_t wanted = options_.stages != 0 ? options_.stages : std::max<int64_t>(stages, kMinStages);
    if (!is_auto()) {
      stages = stages_in(device_.shared_memory) < wanted ? 0 : wanted;
    }
    params.stages = stages < kMinStages ? 0 : static_cast<int>(stages);
    return params;
  }

  int active_clusters(const PersistentParams& params) const {
    return params.stages == 0 ? 0 : max_active_clusters_(params);
  }

  // Whether copies of weight and bias, one for each alignment that a row may have, are worth a launch more, which takes
  // about half a microsecond on an H200: with 4096 rows, layernorm of 1823 bfloat16 columns takes 11.9 us instead of
  // 12.8 and of 50257 258 instead of 287, but rmsnorm of 781 5.4 instead of 4.9. With few rows the copies would be more
  // than the rows.
  bool worth_realigning() const {
    constexpr int64_t kMinElementsOfMatrix = int64_t{1} << 22;
    constexpr int64_t kMinRowsPerCopy = 16;
    return problem_.rows * problem_.columns >= kMinElementsOfMatrix &&
           problem_.rows >= kMinRowsPerCopy * problem_.vector_width();
  }

  // Whether clusters would leave three quarters of the multiprocessors idle while each block has more to read than a
  // second launch takes: on an H200 one row of 262144 float32 columns is faster in two launches, one of 65536 is not.
  bool too_few_for_clusters() const {
    constexpr int64_t kMinBytesPerBlock = 32 << 10;
    return 4 * problem_.rows * device_.max_cluster_size <= device_.multiprocessors &&
           problem_.columns * problem_.element_bytes >= kMinBytesPerBlock * device_.max_cluster_size;
  }

  // A row stays in the registers or the shared memory of part of a block, a block or a cluster. Returns whether one is
  // large enough; if one of the two was asked for and is not, refuses.
  bool plan_resident(LaunchPlan& plan) const {
    const Strategy asked = options_.strategy;
    const int64_t width = plan.vector_width;
    const int64_t reduce_bytes = cluster_reduce_bytes(op_.partial_bytes, true, threads_, kMaxClusterSize);
    const int64_t shared_vectors = width > 1 ? (device_.shared_memory - reduce_bytes) / 16 : 0;
    const int64_t most = max_register_elements(plan.vector_width, problem_.element_bytes, op_.has_bias);
    // Elements a thread by block_size, a power of two. Up to `most` lie in registers, more in shared memory: a
    // multiprocessor has nearly as much of it, elements of 16 bits take half of what they take in registers, and with
    // few registers a thread several blocks share a multiprocessor, so that one's loads run while another computes or
    // stores.
    const int64_t wanted = std::max<int64_t>(power_of_two_ceil(options_.block_size / threads_ + 1) / 2, kMinElements);
    const int64_t in_registers = most * threads_;
    const int64_t in_shared_memory = shared_vectors * width;
    const int64_t capacity = asked == Strategy::kRegisterResident       ? in_registers
                             : asked == Strategy::kSharedMemoryResident ? in_shared_memory
                                                                        : std::max(in_shared_memory, in_registers);
    const int64_t block_elements = std::min(wanted * threads_, capacity);
    const int64_t cluster_size = resident_cluster_size(block_elements, width);
    // Several rows a block, each with a power of two of threads, where a row leaves at least half of them free. Without
    // a cluster a thread has the elements that block_size says, else the fewest that hold the row.
    int64_t elements = std::clamp<int64_t>(wanted, kMinElements, most);
    RowPartition partition{1, threads_, 0, log2_ceil(cluster_size),
                           static_cast<int>(ceil_div(problem_.columns / width, cluster_size))};
    if (cluster_size == 1 && problem_.columns <= elements * threads_) {
      if (asked != Strategy::kSharedMemoryResident) {
        const int64_t least = std::max<int64_t>(ceil_div(problem_.columns, elements), max_scalars(plan));
        const int log2_threads = log2_ceil(least);
        if (threads_ >> log2_threads >= 2) {
          partition.rows_per_block = threads_ >> log2_threads;
          partition.threads_per_row = 1 << log2_threads;
          partition.log2_threads_per_row = log2_threads;
        }
      }
    } else {
      const int64_t least = ceil_div(problem_.columns, cluster_size * threads_);
      elements = std::max<int64_t>(kMinElements, power_of_two_ceil(least));
    }
    if (options_.cluster_size != 0 && problem_.columns > cluster_size * block_elements) {
      refuse(row() + " does not fit into " + std::to_string(cluster_size) + " blocks of " +
             std::to_string(block_elements) + " elements");
    }
    plan.blocks_per_row = static_cast<int>(cluster_size);
    plan.partition = partition;
    plan.grid = ceil_div(problem_.rows, partition.rows_per_block) * cluster_size;
    if (elements <= most && asked != Strategy::kSharedMemoryResident) {
      plan.strategy = Strategy::kRegisterResident;
      plan.elements_per_thread = static_cast<int>(elements);
      plan.shared_bytes = cluster_reduce_bytes(op_.partial_bytes, false, threads_, cluster_size);
      return true;
    }
    if (partition.vectors_per_block > 0 && partition.vectors_per_block <= shared_vectors &&
        asked != Strategy::kRegisterResident) {
      plan.strategy = Strategy::kSharedMemoryResident;
      plan.shared_bytes = int64_t{16} * partition.vectors_per_block +
                          cluster_reduce_bytes(op_.partial_bytes, true, threads_, cluster_size);
      return true;
    }
    if (!is_auto()) {
      refuse(row() + " does not fit into the " +
             (asked == Strategy::kRegisterResident ? "registers" : "shared memory") + " of " +
             std::to_string(cluster_size) + " blocks of " + std::to_string(options_.num_warps) + " warps");
    }
    return false;
  }

  // As many blocks as the row needs; with few rows as many as there are multiprocessors, and vectors for their threads.
  int64_t resident_cluster_size(int64_t block_elements, int64_t width) const {
    if (options_.cluster_size != 0) {
      return options_.cluster_size;
    }
    const int64_t most = device_.max_cluster_size;
    int64_t blocks = std::min(power_of_two_ceil(ceil_div(problem_.columns, block_elements)), most);
    while (blocks < most && 2 * blocks * problem_.rows <= device_.multiprocessors &&
           2 * blocks * threads_ * width <= problem_.columns) {
      blocks *= 2;
    }
    return blocks;
  }

  // Most elements in the head and the tail of a row, which take a thread each. Where weights are loaded unaligned, the
  // last vector is peeled too (affine_parameters.cuh:kPeelLast).
  int64_t max_scalars(const LaunchPlan& plan) const {
    const int64_t width = plan.vector_width;
    return plan.peel ? 2 * (width - 1) + (op_.has_weight && !plan.realign ? width : 0) : 1;
  }

  // A row is read twice, the second time from L2 where it fits. If rows are too few to fill the GPU, each is split
  // among several blocks, two a multiprocessor at most and of at least one step each, in two launches.
  void plan_multi_pass(LaunchPlan& plan) const {
    const int64_t step = int64_t{multi_pass_elements(plan.vector_width)} * threads_;
    const int64_t blocks = std::min(ceil_div(2 * device_.multiprocessors, problem_.rows),
                                    ceil_div(problem_.columns, std::max(options_.block_size, step)));
    const bool can_split = problem_.rows < device_.multiprocessors && blocks >= 2;
    if (options_.strategy == Strategy::kSplitMultiPass && !can_split) {
      refuse("strategy split_multi_pass is for few rows of more than block_size columns, not for " +
             std::to_string(problem_.rows) + " rows of " + std::to_string(problem_.columns) + " columns");
    }
    const bool split = can_split && options_.strategy != Strategy::kMultiPass;
    plan.strategy = split ? Strategy::kSplitMultiPass : Strategy::kMultiPass;
    plan.elements_per_thread = multi_pass_elements(plan.vector_width);
    plan.blocks_per_row = split ? static_cast<int>(blocks) : 1;
    plan.grid = problem_.rows * plan.blocks_per_row;
    plan.shared_bytes = int64_t{threads_ / kThreadsPerWarp} * op_.partial_bytes;
  }
};

inline LaunchPlan plan_rows(const RowsProblem& problem, const RowsOperation& op, const DeviceLimits& device,
                            const RowsOptions& options, const MaxActiveClusters& max_active_clusters) {
  const LaunchPlan plan = RowsPlanner(problem, op, device, options, max_active_clusters).plan();
  if (plan.grid > INT32_MAX) {
    refuse("a launch has at most 2**31 - 1 blocks, this needs " + std::to_string(plan.grid));
  }
  return plan;
}

}  // namespace kernels
