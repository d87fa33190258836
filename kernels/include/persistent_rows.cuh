// persistent_rows: a persistent kernel for many long rows. As many clusters as run at the same time take one row after
// another, and a thread keeps the weight and the bias of its columns in registers for all of them. In other kernels
// every row loads them again, from L2 where they are too many for L1.
//
// Few warps fill a multiprocessor then, and nothing but the kernel's own pipeline hides latency. Three rows are in it
// at a time: row i + 2 on its way into shared memory, row i + 1 reduced there, row i waiting for the cluster's
// all-reduce, replaced by its outputs and on its way out. Both ways are bulk copies. Stores from registers would fill
// the load/store queue, and the next row's accesses would wait behind them until device memory has taken them. A warp
// copies its own slice of a row, in and out, and waits for its own mbarrier, so that no barrier of the block is in the
// loop.
//
// Rows may begin anywhere within 16 bytes. The vectors at both ends, which a row shares with its neighbours, are copied
// in with the rest; of these only the row's own elements are stored, one by one. A row lies in shared memory as it does
// in device memory within 32 bytes: bulk copies of 4096 bytes between addresses of which one is a multiple of 32 and
// the other only of 16 ran at 3578 GB/s on an H200, others at 3863 to 3923.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include "affine_parameters.cuh"
#include "async.cuh"
#include "cluster_reduce.cuh"

namespace kernels {

// The all-reduce of successive rows, pipelined: a warp adds its partial result of row i + 1 before it waits for the
// statistics of row i. The warp of a block that adds the last partial result of a row merges the block's and sends the
// result to all blocks of the cluster (st.async, mbarrier `full`). One warp of each block, another for each row, later
// merges the blocks' results and finalizes them into the row's statistics (mbarrier `ready`).
//
// Rows take kBuffers buffers in turn. Four are enough: when a warp adds its result of row i + 4, the statistics of row
// i + 2 are there, so all warps of the cluster have added theirs of it, and so have read the statistics of row i.
template <typename Op>
struct PipelinedReduce {
  using Partial = typename Op::Partial;
  using Statistics = typename Op::Statistics;
  static constexpr int kBuffers = 4;
  static constexpr int kWords = sizeof(Partial) / sizeof(float);

  struct Memory {
    uint64_t full[kBuffers];   // completes when the partial results of all blocks are here
    uint64_t ready[kBuffers];  // completes when the statistics are
    int arrivals[kBuffers];    // warps of the block that have added their partial results, over all rows
    Partial warp_partials[kBuffers][kMaxPersistentThreads / kThreadsPerWarp];
    Partial block_partials[kBuffers][kMaxClusterSize];
    Statistics statistics[kBuffers];
  };

  Memory& memory;
  const Op& op;
  const int columns;
  const int warps;
  const int cluster_size;
  const int rank;

#if __CUDA_ARCH__ >= 900
  // By one thread, before the cluster's barrier.
  __device__ void init() const {
#pragma unroll
    for (int buffer = 0; buffer < kBuffers; ++buffer) {
      memory.arrivals[buffer] = 0;
      mbarrier_init(&memory.full[buffer]);
      mbarrier_init(&memory.ready[buffer]);
    }
    fence_mbarrier_init();
#pragma unroll
    for (int buffer = 0; buffer < kBuffers; ++buffer) {
      mbarrier_arrive_expect_tx(&memory.full[buffer], cluster_size * static_cast<int>(sizeof(Partial)));
    }
  }

  // By each warp, for the cluster's row number `iteration`.
  __device__ void add(int iteration, const Partial& own) const {
    const int buffer = iteration % kBuffers;
    const int lane = static_cast<int>(threadIdx.x) % kThreadsPerWarp;
    int before = 0;
    if (lane == 0) {
      memory.warp_partials[buffer][threadIdx.x / kThreadsPerWarp] = own;
      before = shared_atomic_add(&memory.arrivals[buffer], 1);
    }
    before = __shfl_sync(0xffffffffu, before, 0);
    if (before + 1 < (iteration / kBuffers + 1) * warps) {
      return;
    }
    __syncwarp();
    const Partial merged = merge_partials<Op>(memory.warp_partials[buffer], warps);
    if (lane < cluster_size) {
      float words[kWords];
      memcpy(words, &merged, sizeof(merged));
#pragma unroll
      for (int i = 0; i < kWords; ++i) {
        st_async(reinterpret_cast<float*>(&memory.block_partials[buffer][rank]) + i, words[i], &memory.full[buffer],
                 lane);
      }
    }
  }

  // By each warp, before it adds its result of the next row; one of them does it.
  __device__ void finalize(int iteration) const {
    if (iteration % warps != static_cast<int>(threadIdx.x) / kThreadsPerWarp) {
      return;
    }
    const int buffer = iteration % kBuffers;
    mbarrier_wait_parity(&memory.full[buffer], iteration / kBuffers % 2);
    const Partial whole = merge_partials<Op>(memory.block_partials[buffer], cluster_size);
    if (threadIdx.x % kThreadsPerWarp == 0) {
      mbarrier_arrive_expect_tx(&memory.full[buffer], cluster_size * static_cast<int>(sizeof(Partial)));
      memory.statistics[buffer] = op.finalize(whole, whole, columns);
      mbarrier_arrive(&memory.ready[buffer]);
    }
  }

  __device__ Statistics wait(int iteration) const {
    mbarrier_wait_parity(&memory.ready[iteration % kBuffers], iteration / kBuffers % 2);
    return memory.statistics[iteration % kBuffers];
  }
#endif
};

// The rows that a cluster takes: every `clusters`th row; or, with an alignment period, a contiguous run of all rows in
// the order of their alignment. Weights are loaded again where a run passes from one alignment to the next. In the
// first order they would be for every row, unless the number of clusters is a multiple of the period.
class TileScheduler {
 public:
  int count;

  __device__ TileScheduler(int rows, int period, int cluster, int clusters) : rows_(rows), period_(period) {
    if (period == 1) {
      step_ = clusters;
      index_ = cluster;
      count = (rows - cluster + clusters - 1) / clusters;
      return;
    }
    step_ = 1;
    index_ = static_cast<int>(int64_t{cluster} * rows / clusters);
    count = static_cast<int>((int64_t{cluster} + 1) * rows / clusters) - index_;
    enter_group();
  }

  __device__ int row() const { return first_ + period_ * index_; }

  __device__ void next() {
    index_ += step_;
    if (period_ > 1) {
      enter_group();
    }
  }

 private:
  int rows_;
  int period_;
  int first_ = 0;  // row of the group of rows that begin alike
  int index_;      // in the group
  int step_;

  // Makes index_ one of the group that it lies in.
  __device__ void enter_group() {
    for (int size = 0; first_ < period_ && index_ >= (size = (rows_ - first_ + period_ - 1) / period_); ++first_) {
      index_ -= size;
    }
  }
};

// What a warp has of a row: vectors, and, where the row's first or last vector is among these, the scalars before or
// after it.
template <typename T>
struct alignas(16) WarpSlice {
  static constexpr int V = kVectorWidth<T>;

  int row;
  int column;    // of the first vector
  int count;     // of vectors
  int8_t shift;  // where in shared memory the first vector is
  int8_t head;   // scalars before it
  int8_t tail;   // scalars after the last

  // The first V lanes take a scalar of the head each, the next ones of the tail.
  __device__ bool has_scalar(int lane) const { return lane < V ? lane < head : lane - V < tail; }
  __device__ int scalar(int lane) const { return lane < V ? lane : column + count * V + lane - V; }
};

template <typename T, typename Op>
struct PersistentSharedMemory {
  static constexpr int kWarps = kMaxPersistentThreads / kThreadsPerWarp;

  typename PipelinedReduce<Op>::Memory reduction;
  uint64_t full[kMaxStages][kWarps];  // completes when the warp's slice of a row is here
  WarpSlice<T> slice[kMaxStages][kWarps];
};

// Shared memory: a ring of `stages` times vectors_per_stage() vectors, then PersistentSharedMemory. The op computes
// from values that stay as they are (Op::Recompute).
template <typename T, bool kPeel, typename Op>
__global__ void __launch_bounds__(kMaxPersistentThreads, 1)
    persistent_rows(const Matrix<T> matrix, const Op op, const PersistentParams params) {
#if __CUDA_ARCH__ >= 900
  constexpr int V = kVectorWidth<T>;
  constexpr int kBytes = sizeof(RawVector<T, V>);
  extern __shared__ uint4 shared[];
  auto* const ring = reinterpret_cast<RawVector<T, V>*>(shared);
  const int stages = params.stages;
  const int stage_vectors = params.vectors_per_stage<kPeel>();
  auto& memory = *reinterpret_cast<PersistentSharedMemory<T, Op>*>(ring + stages * stage_vectors);
  const int lane = static_cast<int>(threadIdx.x) % kThreadsPerWarp;
  const int warp = static_cast<int>(threadIdx.x) / kThreadsPerWarp;
  const int cluster_size = params.cluster_size;
  const int cluster = static_cast<int>(blockIdx.x) / cluster_size;
  const int rank = static_cast<int>(blockIdx.x) - cluster * cluster_size;
  const auto columns = static_cast<int>(matrix.columns);
  const PipelinedReduce<Op> reduction{memory.reduction, op, columns, params.warps, cluster_size, rank};
  if (threadIdx.x == 0) {
    reduction.init();
  }
  if (lane < stages) {
    mbarrier_init(&memory.full[lane][warp]);
    fence_mbarrier_init();
  }
  // All of a warp's threads arrive together.
  __syncwarp();
  cluster_arrive();

  // The warp's vectors of every row.
  const int begin = rank * params.vectors_per_block + warp * params.vectors_per_warp();
  const int end = min(begin + params.vectors_per_warp(), (rank + 1) * params.vectors_per_block);
  RawVector<T, V>* const own = ring + warp * params.stage_vectors_per_warp<kPeel>();
  const auto slice_of = [&](int row) {
    const T* const from = matrix.x + row * matrix.row_stride;
    const auto peeled = peel<T, V, kPeel, kPeel>(from, columns);
    WarpSlice<T> slice{row, peeled.head + begin * V, max(0, min(end, peeled.vectors) - begin), 0, 0, 0};
    if constexpr (kPeel) {
      const bool last = slice.count > 0 && begin + slice.count == peeled.vectors;
      slice.shift = static_cast<int8_t>(2 - reinterpret_cast<std::uintptr_t>(from + peeled.head) / kBytes % 2);
      slice.head = static_cast<int8_t>(begin == 0 ? peeled.head : 0);
      slice.tail = static_cast<int8_t>(last ? peeled.scalars - peeled.head : 0);
    }
    return slice;
  };
  TileScheduler scheduler(static_cast<int>(matrix.rows), params.alignment_period, cluster,
                          static_cast<int>(gridDim.x) / cluster_size);
  const WarpSlice<T> first = slice_of(scheduler.row());
  // Starts the copy of the next row into a stage.
  const auto prefetch_row = [&](int iteration, int stage) {
    if (lane == 0 && iteration < scheduler.count) {
      const WarpSlice<T> slice = slice_of(scheduler.row());
      scheduler.next();
      memory.slice[stage][warp] = slice;
      const int before = slice.head > 0 ? 1 : 0;
      const int bytes = (before + slice.count + (slice.tail + V - 1) / V) * kBytes;
      mbarrier_arrive_expect_tx(&memory.full[stage][warp], bytes);
      if (bytes > 0) {
        bulk_load(own + stage * stage_vectors + slice.shift - before,
                  matrix.x + slice.row * matrix.row_stride + slice.column - before * V, bytes,
                  &memory.full[stage][warp]);
      }
    }
  };
  // Without an alignment peel, slices differ by their row alone.
  const auto slice_in = [&](int stage) {
    if constexpr (kPeel) {
      return memory.slice[stage][warp];
    } else {
      WarpSlice<T> slice = first;
      slice.row = memory.slice[stage][warp].row;
      return slice;
    }
  };
  for (int iteration = 0; iteration < stages; ++iteration) {
    prefetch_row(iteration, iteration);
  }
  AffineParameters<Op, T, V> affine[kMaxVectorsPerThread];
  AffineParameters<Op, T, 1> scalar_affine;
  int column;  // of the first of these parameters
  const auto load_affine = [&](const WarpSlice<T>& slice) {
    column = slice.column;
#pragma unroll
    for (int k = 0; k < kMaxVectorsPerThread; ++k) {
      const int vector = lane + k * kThreadsPerWarp;
      if (vector < slice.count) {
        affine[k].template load<!kPeel, false>(affine_pointers<T>(op), column + vector * V, 0);
      }
    }
    if (kPeel && slice.has_scalar(lane)) {
      scalar_affine.template load<true, false>(affine_pointers<T>(op), slice.scalar(lane), 0);
    }
  };
  load_affine(first);
  cluster_wait();

  // Waits for a row and adds the warp's partial result of it.
  const auto reduce = [&](int iteration, int stage, int parity) {
    mbarrier_wait_parity(&memory.full[stage][warp], parity);
    const WarpSlice<T> slice = slice_in(stage);
    RawVector<T, V>* const vectors = own + stage * stage_vectors + slice.shift;
    constexpr float kPadding = Op::kPadLowest ? -INFINITY : 0.0f;
    SharedFragment<T, V, kPeel> row{vectors, {lane, slice.count, kThreadsPerWarp, 0}, kPadding, false};
    if (kPeel && slice.has_scalar(lane)) {
      row.has_scalar = true;
      row.scalar = static_cast<float>(reinterpret_cast<const T*>(vectors)[slice.scalar(lane) - slice.column]);
    }
    reduction.add(iteration, op.reduce(row, kThreadsPerWarp));
  };
  reduce(0, 0, 0);
  int stage = 0;
  int parity = 0;  // of the stage's mbarrier
  for (int iteration = 0; iteration < scheduler.count; ++iteration) {
    const int next = stage + 1 == stages ? 0 : stage + 1;
    const int next_parity = next == 0 ? 1 - parity : parity;
    if constexpr (kPeel) {
      if (memory.slice[stage][warp].column != column) {
        load_affine(memory.slice[stage][warp]);
      }
    }
    reduction.finalize(iteration);
    if (iteration + 1 < scheduler.count) {
      reduce(iteration + 1, next, next_parity);
    }
    const WarpSlice<T> slice = slice_in(stage);
    RawVector<T, V>* const vectors = own + stage * stage_vectors + slice.shift;
    const typename Op::Statistics statistics = reduction.wait(iteration);
#pragma unroll
    for (int k = 0; k < kMaxVectorsPerThread; ++k) {
      const int vector = lane + k * kThreadsPerWarp;
      affine[k].keep_packed();
      if (vector < slice.count) {
        float values[V];
        unpack<T, V>(vectors[vector], values);
        const Vector<T, V> outputs = affine[k].apply(values, op, statistics);
        memcpy(vectors + vector, &outputs, sizeof(outputs));
      }
    }
    fence_proxy_async();
    __syncwarp();
    T* const to = matrix.y + slice.row * matrix.columns;
    if (lane == 0) {
      if (slice.count > 0) {
        bulk_store(to + slice.column, vectors, slice.count * kBytes);
      }
      bulk_commit_group();
    }
    if (kPeel && slice.has_scalar(lane)) {
      const int scalar = slice.scalar(lane);
      const float values[1] = {static_cast<float>(reinterpret_cast<const T*>(vectors)[scalar - slice.column])};
      to[scalar] = scalar_affine.apply(values, op, statistics).values[0];
    }
    if (iteration > 0) {
      // The stage of the row before this one is free once its bulk store has read it.
      if (lane == 0) {
        bulk_wait_group_read<1>();
      }
      prefetch_row(iteration - 1 + stages, stage == 0 ? stages - 1 : stage - 1);
    }
    stage = next;
    parity = next_parity;
  }
  if (lane == 0) {
    bulk_wait_group_read<0>();
  }
#endif
}

}  // namespace kernels
