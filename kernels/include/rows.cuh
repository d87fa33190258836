// Row kernels: each row of a matrix becomes a row of the same length by way of a few numbers about the whole row
// (softmax, the norms). They differ in where a row lies between its one read and its one write; plan_rows.h chooses,
// rows_launch.cuh launches.
//
//   register_resident_rows       in registers, 8 to 64 elements per thread, of part of a warp up to 16 blocks (a cluster)
//   shared_memory_resident_rows  in the shared memory of a block or a cluster, as raw elements
//   persistent_rows              in shared memory, in the pipeline of a persistent cluster (persistent_rows.cuh)
//   multi_pass_rows              nowhere: it is read twice, the second time from L2 where it fits
//
// Each reads top to bottom: where the thread's data lies, the loads, the reduction, the stores.
//
// An operation is a struct with
//   Partial                                 a partial result: what is known of some elements of a row
//   Statistics                              what apply() needs of the whole row
//   empty(), merge(a, b)                    the Partial of no elements, and of both
//   warp_merge(mine)                        the merged Partials of a warp's lanes, the same in each of them
//   reduce(fragment, lanes)                 the Partial of `lanes` neighbouring lanes, the same in each of them. It may
//                                           replace values in registers by what apply() wants
//   finalize(own, whole, columns)           the Statistics; `own` is what reduce() gave this thread
//   apply(value, weight, bias, statistics)  an element of the output
//   Recompute                               an operation with the same outputs whose reduce() replaces no values and
//                                           whose finalize() ignores `own`: where a row does not stay in registers
//   kPadLowest                              whether padding is -infinity, or zero
//   kHasWeight, kHasBias, weight, bias      whether an element has a weight and a bias, and where they are
#pragma once

#include <climits>
#include <cstdint>

#include "affine_parameters.cuh"
#include "async.cuh"
#include "cluster_reduce.cuh"

namespace kernels {

// Vectors whose affine parameters a thread prefetches into so many registers. Unaligned parameters take twice as many
// until they are shifted; they are loaded when they are used.
template <typename Op, bool kPeel, int kRegisters>
constexpr int kPrefetched =
    kParametersAligned<Op, kPeel> ? kRegisters / 4 / (Op::kHasWeight && Op::kHasBias ? 2 : 1) : 0;

// K vectors of V elements per thread. kSeveralRows: a block has several rows; else blocks of a cluster share a row.
template <typename T, int V, int K, bool kPeel, bool kSeveralRows, typename Op>
__global__ void __launch_bounds__(kMaxThreads, 1)
    register_resident_rows(const Matrix<T> matrix, const Op op, const RowPartition partition) {
  extern __shared__ uint4 shared[];
  const ClusterReduce<Op, false> cluster_reduce(partition, shared);
  const int threads_per_row = partition.threads_per_row;
  const int local_row = kSeveralRows ? static_cast<int>(threadIdx.x) >> partition.log2_threads_per_row : 0;
  const int thread = static_cast<int>(threadIdx.x) - local_row * threads_per_row;
  const int rank = kSeveralRows ? 0 : static_cast<int>(blockIdx.x) & (cluster_reduce.cluster_size - 1);
  const unsigned row =
      kSeveralRows ? blockIdx.x * partition.rows_per_block + local_row : blockIdx.x >> partition.log2_cluster_size;
  const bool has_row =
      !kSeveralRows || (local_row < partition.rows_per_block && row < static_cast<unsigned>(matrix.rows));
  if constexpr (!kSeveralRows) {
    cluster_reduce.init();
  }

  const auto columns = static_cast<int>(matrix.columns);
  const uint64_t policy = make_policy(matrix.eviction);
  const T* from = matrix.x + (has_row ? row * matrix.row_stride : 0);
  const auto peeled = peel<T, V, kPeel, kPeelLast<Op, kPeel>>(from, columns);
  const ThreadSlice<int> slice{rank * partition.vectors_per_block + thread,
                               has_row ? min((rank + 1) * partition.vectors_per_block, peeled.vectors) : 0,
                               threads_per_row, has_row && rank == 0 ? thread : INT_MAX};
  auto fragment = load_fragment<Op, V, K, kPeel>(from, peeled, slice, policy);
  AffinePrefetch<Op, T, V, kPrefetched<Op, kPeel, (K * V > 16 ? 8 : 16)>, false> affine(
      affine_pointers_of_vectors<T>(op, peeled.head), matrix.eviction);
  if constexpr (kRealigned<Op>) {
    wait_on_dependent_grids();
  }
  affine.template prefetch<kParametersAligned<Op, kPeel>, K>(peeled.head, slice);

  const auto own = op.reduce(fragment, kSeveralRows ? min(threads_per_row, kThreadsPerWarp) : kThreadsPerWarp);
  if constexpr (!kSeveralRows) {
    cluster_reduce.wait_init();
  }
  const auto whole = cluster_reduce.all_reduce(own, local_row, rank, has_row);
  if (has_row) {
    store_fragment<Op, K, kPeel>(matrix.y + row * matrix.columns, peeled, slice, policy, fragment, affine, op,
                                 op.finalize(own, whole, columns));
  }
}

// Shared memory: `capacity` vectors, which are partition.vectors_per_block, then that of ClusterReduce.
template <typename T, int V, bool kPeel, typename Op>
__global__ void __launch_bounds__(kMaxThreads, 1)
    shared_memory_resident_rows(const Matrix<T> matrix, const Op op, const RowPartition partition,
                                const int capacity) {
  extern __shared__ uint4 shared[];
  auto* const vectors = reinterpret_cast<RawVector<T, V>*>(shared);
  const ClusterReduce<Op, true> cluster_reduce(partition, vectors + capacity);
  const int rank = static_cast<int>(blockIdx.x) & (cluster_reduce.cluster_size - 1);
  const unsigned row = blockIdx.x >> partition.log2_cluster_size;
  const int thread = static_cast<int>(threadIdx.x);
  cluster_reduce.init();

  const auto columns = static_cast<int>(matrix.columns);
  const uint64_t policy = make_policy(matrix.eviction);
  const T* from = matrix.x + row * matrix.row_stride;
  const auto peeled = peel<T, V, kPeel, kPeelLast<Op, kPeel>>(from, columns);
  const int first = rank * partition.vectors_per_block;
  const int count = max(0, min(partition.vectors_per_block, peeled.vectors - first));
  const int column = peeled.head + first * V;
  const auto* source = reinterpret_cast<const RawVector<T, V>*>(from + column);
  SharedFragment<T, V, kPeel> fragment{
      vectors, {thread, count, partition.threads_per_row, rank == 0 ? thread : INT_MAX}, 0.0f, false};
  const ThreadSlice<int>& slice = fragment.slice;
#pragma unroll 4
  for (int i = slice.first; i < count; i += slice.step) {
    cp_async(vectors + i, source + i, policy);
  }
  // Parameters get an L2 eviction hint here: on an H200 that took layernorm of 131072 float32 columns from 1438 us to
  // 1238, of 262144 bfloat16 columns from 1453 to 1226; of 65536 float32 columns it takes 557 instead of 555.
  AffinePrefetch<Op, T, V, kPrefetched<Op, kPeel, 16>, true> affine(affine_pointers_of_vectors<T>(op, peeled.head),
                                                                    matrix.eviction);
  if constexpr (kRealigned<Op>) {
    wait_on_dependent_grids();
  }
  affine.template prefetch<kParametersAligned<Op, kPeel>, INT_MAX>(column, slice);
  if constexpr (kPeel) {
    fragment.has_scalar = slice.scalar < peeled.scalars;
    fragment.scalar = fragment.has_scalar ? static_cast<float>(from[scalar_column<V>(peeled, slice.scalar)])
                      : Op::kPadLowest    ? -INFINITY
                                          : 0.0f;
  }
  cluster_reduce.wait_init();
  // A thread reads only what it copied itself, so no __syncthreads() is needed.
  cp_async_wait_all();

  const auto own = op.reduce(fragment, kThreadsPerWarp);
  const auto whole = cluster_reduce.all_reduce(own, 0, rank, true);
  store_fragment<Op, kPeel>(matrix.y + row * matrix.columns, peeled, column, policy, fragment, affine, op,
                            op.finalize(own, whole, columns));
}

// What a launch of multi_pass_rows does with its part of a row.
enum class Pass { kBoth, kReduce, kApply };

// blocks_per_row neighbouring blocks take a part of a row each. With one, kBoth does all. With several, kReduce leaves
// each block's Partial in device memory, in `partials`, and kApply finds those of its row there. On sm_90 kApply starts
// while kReduce still runs, and has its first loads in flight before it waits for that. Shared memory: a Partial for
// each warp.
template <typename T, int V, int K, bool kPeel, typename Op>
__global__ void __launch_bounds__(kMaxThreads, 1)
    multi_pass_rows(const Matrix<T> matrix, const Op op, const int blocks_per_row, const Pass pass,
                    typename Op::Partial* __restrict__ partials) {
  using Partial = typename Op::Partial;
  extern __shared__ uint4 shared[];
  auto* warp_partials = reinterpret_cast<Partial*>(shared);
  const int64_t threads = blockDim.x;
  const uint64_t policy = make_policy(matrix.eviction);
  const int64_t row = blockIdx.x / blocks_per_row;
  const int rank = static_cast<int>(blockIdx.x % blocks_per_row);
  const T* from = matrix.x + row * matrix.row_stride;
  const auto peeled = peel<T, V, kPeel, kPeelLast<Op, kPeel>>(from, matrix.columns);
  const int64_t vectors_per_block = (peeled.vectors + blocks_per_row - 1) / blocks_per_row;
  const int64_t end = min((rank + 1) * vectors_per_block, peeled.vectors);
  ThreadSlice<int64_t> slice{rank * vectors_per_block + threadIdx.x, end, threads, rank == 0 ? threadIdx.x : INT64_MAX};
  const auto next = [&] {
    slice.first += K * threads;
    slice.scalar = INT64_MAX;  // scalars belong to the first step
  };
  const ThreadSlice<int64_t> first_slice = slice;

  Partial whole = Op::empty();
  if (pass == Pass::kReduce) {
    launch_dependent_grids();
  }
  if (pass != Pass::kApply) {
    Partial mine = Op::empty();
    do {
      auto fragment =
          load_fragment<Op, V, K, kPeel>(from, peeled, slice, create_policy<EvictionPriority::kEvictNormal>());
      mine = Op::merge(mine, op.reduce(fragment, 1));
      next();
    } while (slice.first - threadIdx.x < end);
    mine = Op::warp_merge(mine);
    if (threadIdx.x % kThreadsPerWarp == 0) {
      warp_partials[threadIdx.x / kThreadsPerWarp] = mine;
    }
    __syncthreads();
    whole = merge_partials<Op>(warp_partials, static_cast<int>(threads) / kThreadsPerWarp);
    if (pass == Pass::kReduce) {
      if (threadIdx.x == 0) {
        partials[blockIdx.x] = whole;
      }
      return;
    }
    slice = first_slice;
  }
  auto fragment = load_fragment<Op, V, K, kPeel>(from, peeled, slice, policy);
  AffinePrefetch<Op, T, V, kPrefetched<Op, kPeel, 16>, false> affine(
      affine_pointers_of_vectors<T>(op, static_cast<int>(peeled.head)), matrix.eviction);
  affine.template prefetch<kParametersAligned<Op, kPeel>, K>(peeled.head, slice);
  if (pass == Pass::kApply) {
    wait_on_dependent_grids();
    whole = merge_partials<Op>(partials + row * blocks_per_row, blocks_per_row);
  }
  const typename Op::Statistics statistics = op.finalize(whole, whole, matrix.columns);
  while (true) {
    store_fragment<Op, K, kPeel>(matrix.y + row * matrix.columns, peeled, slice, policy, fragment, affine, op,
                                 statistics);
    next();
    if (slice.first - threadIdx.x >= end) {
      return;
    }
    fragment = load_fragment<Op, V, K, kPeel>(from, peeled, slice, policy);
    affine.template prefetch<kParametersAligned<Op, kPeel>, K>(peeled.head, slice);
  }
}

}  // namespace kernels
