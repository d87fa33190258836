// All-reduces of a row's partial results: of a warp by shuffles, of a block through shared memory, of a cluster through
// distributed shared memory (DSMEM) with st.async and an mbarrier.
#pragma once

#include <cstdint>
#include <cstring>

#include "async.cuh"
#include "launch_plan.h"

namespace kernels {

// The values of `lanes` neighbouring lanes, a power of two, combined; each of them gets the result.
template <typename F>
__device__ float warp_all_reduce(float value, int lanes, const F& combine) {
  if (lanes == kThreadsPerWarp) {
#pragma unroll
    for (int distance = kThreadsPerWarp / 2; distance > 0; distance /= 2) {
      value = combine(value, __shfl_xor_sync(0xffffffffu, value, distance));
    }
    return value;
  }
  for (int distance = lanes / 2; distance > 0; distance /= 2) {
    value = combine(value, __shfl_xor_sync(0xffffffffu, value, distance));
  }
  return value;
}

// The value of the first of `lanes` neighbouring lanes.
__device__ inline float broadcast_first_lane(float value, int lanes) {
  return lanes == 1 ? value : __shfl_sync(0xffffffffu, value, static_cast<int>(threadIdx.x) & -lanes);
}

__device__ inline float warp_reduce_sum(float value, int lanes) {
  return warp_all_reduce(value, lanes, [](float a, float b) { return a + b; });
}

__device__ inline float warp_reduce_max(float value, int lanes) {
  return warp_all_reduce(value, lanes, [](float a, float b) { return fmaxf(a, b); });
}

__device__ inline int warp_reduce_sum(int value, int lanes) {
  if (lanes == kThreadsPerWarp) {
    return __reduce_add_sync(0xffffffffu, value);
  }
  for (int distance = lanes / 2; distance > 0; distance /= 2) {
    value += __shfl_xor_sync(0xffffffffu, value, distance);
  }
  return value;
}

// Merges `count` partial results; every lane of the warp gets the result.
template <typename Op>
__device__ typename Op::Partial merge_partials(const typename Op::Partial* partials, int count) {
  const int lane = static_cast<int>(threadIdx.x) % kThreadsPerWarp;
  typename Op::Partial mine = lane < count ? partials[lane] : Op::empty();
  for (int i = lane + kThreadsPerWarp; i < count; i += kThreadsPerWarp) {
    mine = Op::merge(mine, partials[i]);
  }
  return Op::warp_merge(mine);
}

// The all-reduce among the warps of a row, once a launch: of a block, or of a cluster. Its shared memory is
// cluster_reduce_bytes() (launch_plan.h).
template <typename Op, bool kTwoStage>
struct ClusterReduce {
  using Partial = typename Op::Partial;
  static constexpr int kWords = sizeof(Partial) / sizeof(float);

  const RowPartition partition;
  const int warps = partition.threads_per_row / kThreadsPerWarp;
  const int cluster_size = 1 << partition.log2_cluster_size;
  uint64_t* const full;          // completes when all Partials of the cluster are here
  Partial* const warp_partials;  // of this block; those of the cluster follow

  __device__ ClusterReduce(const RowPartition& rows, void* shared)
      : partition(rows), full(static_cast<uint64_t*>(shared)), warp_partials(reinterpret_cast<Partial*>(full + 1)) {}

  // Initialises the mbarrier and shows it to the cluster. The row's loads are issued between this and wait_init(),
  // which makes sure that all blocks have done so.
  __device__ void init() const {
#if __CUDA_ARCH__ >= 900
    if (cluster_size > 1) {
      if (threadIdx.x == 0) {
        mbarrier_init(full);
        fence_mbarrier_init();
      }
      cluster_arrive_relaxed();
    }
#endif
  }

  __device__ void wait_init() const {
#if __CUDA_ARCH__ >= 900
    if (cluster_size > 1) {
      cluster_wait();
    }
#endif
  }

  // The merged Partials of all warps of a row; `own` is the warp's. `local_row`: which of the block's rows; `rank`:
  // which of the row's blocks. In a cluster each warp, or each block, sends its Partial to all blocks by st.async, and
  // a receiver waits for the transaction count of its own mbarrier. A barrier of the cluster with release semantics
  // would first wait for all loads and stores of its blocks.
  __device__ Partial all_reduce(const Partial& own, int local_row, int rank, bool has_row) const {
    if (warps <= 1 && cluster_size == 1) {
      return own;
    }
    const int lane = static_cast<int>(threadIdx.x) % kThreadsPerWarp;
    const int warp = static_cast<int>(threadIdx.x) / kThreadsPerWarp;
    const bool single_stage = !kTwoStage || warps * cluster_size <= kMaxSingleStage;
    if (cluster_size == 1 || !single_stage) {
      if (lane == 0) {
        warp_partials[warp] = own;
      }
      __syncthreads();
    }
    if (cluster_size == 1) {
      return has_row ? merge_partials<Op>(warp_partials + local_row * warps, warps) : own;
    }
#if __CUDA_ARCH__ >= 900
    const int senders = single_stage ? warps : 1;
    Partial* const cluster_partials = warp_partials + warps;
    if (threadIdx.x == 0) {
      mbarrier_arrive_expect_tx(full, senders * cluster_size * static_cast<int>(sizeof(Partial)));
    }
    if (warp < senders) {
      const Partial mine = single_stage ? own : merge_partials<Op>(warp_partials, warps);
      if (lane < cluster_size) {
        float words[kWords];
        memcpy(words, &mine, sizeof(mine));
#pragma unroll
        for (int i = 0; i < kWords; ++i) {
          st_async(reinterpret_cast<float*>(cluster_partials + rank * senders + warp) + i, words[i], full, lane);
        }
      }
    }
    mbarrier_wait_parity(full, 0);
    return merge_partials<Op>(cluster_partials, senders * cluster_size);
#else
    return own;
#endif
  }
};

}  // namespace kernels
