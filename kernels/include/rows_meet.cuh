// How those who share a row learn what the others found: lanes by shuffles, warps by shared memory, blocks of a cluster
// by each other's shared memory.
#pragma once

#include <cstdint>
#include <cstring>

#include "async.cuh"

namespace kernels {

// A number of `lanes` neighbouring lanes, a power of two, combined in each of them.
template <typename F>
__device__ float across_lanes(float value, int lanes, const F& combine) {
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

// What the first of `lanes` neighbouring lanes has.
__device__ inline float of_first_lane(float value, int lanes) {
  return lanes == 1 ? value : __shfl_sync(0xffffffffu, value, static_cast<int>(threadIdx.x) & -lanes);
}

__device__ inline float sum_of_lanes(float value, int lanes) {
  return across_lanes(value, lanes, [](float a, float b) { return a + b; });
}

__device__ inline float maximum_of_lanes(float value, int lanes) {
  return across_lanes(value, lanes, [](float a, float b) { return fmaxf(a, b); });
}

__device__ inline int sum_of_lanes(int value, int lanes) {
  if (lanes == kThreadsPerWarp) {
    return __reduce_add_sync(0xffffffffu, value);
  }
  for (int distance = lanes / 2; distance > 0; distance /= 2) {
    value += __shfl_xor_sync(0xffffffffu, value, distance);
  }
  return value;
}

// The Partials of `count` places merged, the same in each lane of the warp.
template <typename Op>
__device__ typename Op::Partial merge_all(const typename Op::Partial* places, int count) {
  const int lane = static_cast<int>(threadIdx.x) % kThreadsPerWarp;
  typename Op::Partial mine = lane < count ? places[lane] : Op::empty();
  for (int i = lane + kThreadsPerWarp; i < count; i += kThreadsPerWarp) {
    mine = Op::merge(mine, places[i]);
  }
  return Op::merge_lanes(mine);
}

// Who shares a row: several rows a block, of a power of two of threads each; or one row a block, or a power of two of
// neighbouring blocks, of all their threads.
struct Sharing {
  int rows_per_block;
  int threads_per_row;
  int log2_threads_per_row;  // for several rows a block
  int log2_blocks_per_row;
  int share;  // packs of a row for each of its blocks
};

// Blocks of a cluster that every GPU with clusters runs, and at most where a kernel asks for more.
constexpr int kPortableCluster = 8;
constexpr int kMaxCluster = 16;

// Partials that each warp of a cluster merges itself, where kBlocksFirst. Of more, each block first merges its warps',
// at the price of a barrier more, and of registers, which rows held in registers don't have.
constexpr int kMergedAtOnce = 64;

// Where the warps of a row leave their Partials for each other, in each block's shared memory.
template <typename Op, bool kBlocksFirst>
struct Meeting {
  using Partial = typename Op::Partial;
  static constexpr int kFloats = sizeof(Partial) / sizeof(float);

  // Bytes of shared memory: a barrier, and a Partial for each of a block's warps and for each sender of a cluster.
  static int64_t bytes(int threads, int64_t blocks_per_row) {
    const int64_t warps = threads / kThreadsPerWarp;
    const int64_t received = blocks_per_row == 1 ? 0 : kBlocksFirst ? kMergedAtOnce : blocks_per_row * warps;
    return 8 + (warps + received) * static_cast<int64_t>(sizeof(Partial));
  }

  const Sharing sharing;
  const int warps = sharing.threads_per_row / kThreadsPerWarp;
  const int blocks_per_row = 1 << sharing.log2_blocks_per_row;
  uint64_t* const arrived;  // where blocks form clusters: a barrier that counts the bytes
  Partial* const slots;

  __device__ Meeting(const Sharing& of, void* shared)
      : sharing(of), arrived(static_cast<uint64_t*>(shared)), slots(reinterpret_cast<Partial*>(arrived + 1)) {}

  // Lets the other blocks of the row write here. What is done between this and join() covers the wait for them.
  __device__ void announce() const {
#if __CUDA_ARCH__ >= 900
    if (blocks_per_row > 1) {
      if (threadIdx.x == 0) {
        init_barrier(arrived);
        show_barrier_to_cluster();
      }
      arrive_at_cluster();
    }
#endif
  }

  __device__ void join() const {
#if __CUDA_ARCH__ >= 900
    if (blocks_per_row > 1) {
      wait_for_cluster();
    }
#endif
  }

  // The Partials of all who share a row, merged; within a warp observe() did so. Once a launch. `of_block`: which of
  // the block's rows; `rank`: which of the row's blocks. In a cluster a Partial is sent, of each warp or of the block,
  // and its bytes are counted where they arrive: a barrier of the cluster would first wait for all that its blocks have
  // stored.
  __device__ Partial meet(const Partial& own, int of_block, int rank, bool has_row) const {
    if (warps <= 1 && blocks_per_row == 1) {
      return own;
    }
    const int lane = static_cast<int>(threadIdx.x) % kThreadsPerWarp;
    const int warp = static_cast<int>(threadIdx.x) / kThreadsPerWarp;
    const bool at_once = !kBlocksFirst || warps * blocks_per_row <= kMergedAtOnce;
    if (blocks_per_row == 1 || !at_once) {
      if (lane == 0) {
        slots[warp] = own;
      }
      __syncthreads();
    }
    if (blocks_per_row == 1) {
      return has_row ? merge_all<Op>(slots + of_block * warps, warps) : own;
    }
#if __CUDA_ARCH__ >= 900
    const int senders = at_once ? warps : 1;
    Partial* const received = slots + warps;
    if (threadIdx.x == 0) {
      expect_bytes(arrived, senders * blocks_per_row * static_cast<int>(sizeof(Partial)));
    }
    if (warp < senders) {
      const Partial mine = at_once ? own : merge_all<Op>(slots, warps);
      if (lane < blocks_per_row) {
        float words[kFloats];
        memcpy(words, &mine, sizeof(mine));
#pragma unroll
        for (int i = 0; i < kFloats; ++i) {
          send(reinterpret_cast<float*>(received + rank * senders + warp) + i, words[i], arrived, lane);
        }
      }
    }
    wait_for_phase(arrived, 0);
    return merge_all<Op>(received, senders * blocks_per_row);
#else
    return own;
#endif
  }
};

}  // namespace kernels
