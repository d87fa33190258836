// Kernels that turn each row of a matrix into a row of the same length by way of a few numbers about the
// whole row (softmax, the norms). rows_launch.cuh chooses which to run.
//
// rows_held: a row is read once from device memory and stays in registers, 8 to 64 elements a thread, until it
// is written. It is held by part of a warp, a warp, some warps of a block, a block, or on sm_90 a cluster of up
// to 16 blocks, whose warps put their partial results into each other's shared memory.
//
// rows_staged: the same for more elements a thread, which wait in shared memory, as they are, instead of registers.
// A multiprocessor has nearly as much of it, elements of 2 bytes take 2, and its few registers a thread let several
// blocks share a multiprocessor, so that one's loads run while another computes or stores.
//
// rows_resident (rows_resident.cuh): for many rows of more columns than that, in blocks that stay for one after another.
//
// rows_streamed: for rows that none of these holds. A block, or several whose partial results meet in device
// memory between two launches, reads its part of the row twice; the second time from L2 where it fits.
//
// An operation is a struct with
//   Partial                            what is known of some elements of a row
//   kFillLowest                        whether places outside of the row hold -infinity, or zero
//   empty(), merge(a, b)               Partials of no elements, and of both
//   merge_lanes(mine)                  those of a warp's lanes, the same in each of them
//   observe(elements, lanes)           the Partial of what `lanes` neighbouring lanes have, the same in each of them;
//                                      may replace values in registers by what result() wants
//   finish(own, whole, columns)        what result() needs of the row: `own` is what observe() gave this thread
//   result(value, weight, bias, row)   an element of the answer
//   Unchanged                          an operation that gives the same answer by values that were not replaced; its
//                                      finish() does not need `own`
//   kWeight, kBias, weight, bias       whether an element has a weight and a bias, and where they are
#pragma once

#include <climits>
#include <cstdint>

#include "async.cuh"
#include "rows_factors.cuh"
#include "rows_meet.cuh"

namespace kernels {

// Packs whose factors a thread loads ahead, in so many registers. Factors that don't lie as the row does take twice as
// many until they are shifted: these are loaded as they are wanted.
template <typename Op, bool kEdges, int kRegisters>
constexpr int kAhead = kParametersAligned<Op, kEdges> ? kRegisters / 4 / (Op::kWeight && Op::kBias ? 2 : 1) : 0;

// Blocks that share a row are a cluster. kSeveral: a block has several rows.
template <typename T, int V, int K, bool kEdges, bool kSeveral, typename Op>
__global__ void __launch_bounds__(kMaxThreads, 1)
    rows_held(const Matrix<T> matrix, const Op op, const Sharing sharing) {
  extern __shared__ uint4 shared[];
  const Meeting<Op, false> meeting(sharing, shared);
  const int threads_per_row = sharing.threads_per_row;
  const int of_block = kSeveral ? static_cast<int>(threadIdx.x) >> sharing.log2_threads_per_row : 0;
  const int thread = static_cast<int>(threadIdx.x) - of_block * threads_per_row;
  const int rank = kSeveral ? 0 : static_cast<int>(blockIdx.x) & (meeting.blocks_per_row - 1);
  const unsigned row = kSeveral ? blockIdx.x * sharing.rows_per_block + of_block
                                : blockIdx.x >> sharing.log2_blocks_per_row;
  const bool has_row = !kSeveral || (of_block < sharing.rows_per_block && row < static_cast<unsigned>(matrix.rows));
  if constexpr (!kSeveral) {
    meeting.announce();
  }

  const auto columns = static_cast<int>(matrix.columns);
  const uint64_t policy = policy_of(matrix.caching);
  const T* from = matrix.x + (has_row ? row * matrix.row_stride : 0);
  const auto pieces = cut<T, V, kEdges, kSpareLast<Op, kEdges>>(from, columns);
  const Place<int> place{rank * sharing.share + thread, has_row ? min((rank + 1) * sharing.share, pieces.packs) : 0,
                         threads_per_row, has_row && rank == 0 ? thread : INT_MAX};
  auto chunk = read<Op, V, K, kEdges>(from, pieces, place, policy);
  FactorsAhead<Op, T, V, kAhead<Op, kEdges, (K * V > 16 ? 8 : 16)>, false> factors(
      parameters_of_packs<T>(op, pieces.head), matrix.caching);
  if constexpr (kShifted<Op>) {
    wait_for_launch_before();
  }
  factors.template start<kParametersAligned<Op, kEdges>, K>(pieces.head, place);

  const auto own = op.observe(chunk, kSeveral ? min(threads_per_row, kThreadsPerWarp) : kThreadsPerWarp);
  if constexpr (!kSeveral) {
    meeting.join();
  }
  const auto whole = meeting.meet(own, of_block, rank, has_row);
  if (has_row) {
    write<Op, K, kEdges>(matrix.y + row * matrix.columns, pieces, place, policy, chunk, factors, op,
                         op.finish(own, whole, columns));
  }
}

// A block stages its share of a row, no more than `capacity` packs. Behind them lies what Meeting has.
template <typename T, int V, bool kEdges, typename Op>
__global__ void __launch_bounds__(kMaxThreads, 1)
    rows_staged(const Matrix<T> matrix, const Op op, const Sharing sharing, const int capacity) {
  extern __shared__ uint4 shared[];
  auto* const packs = reinterpret_cast<Bits<T, V>*>(shared);
  const Meeting<Op, true> meeting(sharing, packs + capacity);
  const int rank = static_cast<int>(blockIdx.x) & (meeting.blocks_per_row - 1);
  const unsigned row = blockIdx.x >> sharing.log2_blocks_per_row;
  const int thread = static_cast<int>(threadIdx.x);
  meeting.announce();

  const auto columns = static_cast<int>(matrix.columns);
  const uint64_t policy = policy_of(matrix.caching);
  const T* from = matrix.x + row * matrix.row_stride;
  const auto pieces = cut<T, V, kEdges, kSpareLast<Op, kEdges>>(from, columns);
  const int first = rank * sharing.share;
  const int count = max(0, min(sharing.share, pieces.packs - first));
  const int column = pieces.head + first * V;
  const auto* source = reinterpret_cast<const Bits<T, V>*>(from + column);
  Staged<T, V, kEdges> staged{
      packs, {thread, count, sharing.threads_per_row, rank == 0 ? thread : INT_MAX}, 0.0f, false};
  const Place<int>& place = staged.place;
#pragma unroll 4
  for (int i = place.first; i < count; i += place.step) {
    copy_async(packs + i, source + i, policy);
  }
  // Kept in L2: on an H200 that took layernorm of 131072 float32 columns from 1438 us to 1238, of 262144 bfloat16 columns
  // from 1453 to 1226; of 65536 float32 columns it takes 557 instead of 555.
  FactorsAhead<Op, T, V, kAhead<Op, kEdges, 16>, true> factors(parameters_of_packs<T>(op, pieces.head),
                                                               matrix.caching);
  if constexpr (kShifted<Op>) {
    wait_for_launch_before();
  }
  factors.template start<kParametersAligned<Op, kEdges>, INT_MAX>(column, place);
  if constexpr (kEdges) {
    staged.has_edge = place.edge < pieces.edges;
    staged.edge = staged.has_edge     ? static_cast<float>(from[edge_column<V>(pieces, place.edge)])
                  : Op::kFillLowest ? -INFINITY
                                    : 0.0f;
  }
  meeting.join();
  // A thread reads only what it copied itself: no barrier.
  wait_for_copies();

  const auto own = op.observe(staged, kThreadsPerWarp);
  const auto whole = meeting.meet(own, 0, rank, true);
  write<Op, kEdges>(matrix.y + row * matrix.columns, pieces, column, policy, staged, factors, op,
                    op.finish(own, whole, columns));
}

// What a launch of rows_streamed does with its part of a row.
enum class Pass { kBoth, kObserve, kWrite };

// blocks_per_row neighbouring blocks take a part each. kBoth is for one block a row. Otherwise kObserve leaves each
// block's Partial in `partials`, where kWrite finds those of its row; on sm_90 it begins while kObserve still runs, and
// asks for its first elements before it waits for that. Shared memory: a Partial for every warp.
template <typename T, int V, int K, bool kEdges, typename Op>
__global__ void __launch_bounds__(kMaxThreads, 1)
    rows_streamed(const Matrix<T> matrix, const Op op, const int blocks_per_row, const Pass pass,
                  typename Op::Partial* __restrict__ partials) {
  using Partial = typename Op::Partial;
  extern __shared__ uint4 shared[];
  auto* slots = reinterpret_cast<Partial*>(shared);
  const int64_t threads = blockDim.x;
  const uint64_t policy = policy_of(matrix.caching);
  const int64_t row = blockIdx.x / blocks_per_row;
  const int rank = static_cast<int>(blockIdx.x % blocks_per_row);
  const T* from = matrix.x + row * matrix.row_stride;
  const auto pieces = cut<T, V, kEdges, kSpareLast<Op, kEdges>>(from, matrix.columns);
  const int64_t share = (pieces.packs + blocks_per_row - 1) / blocks_per_row;
  const int64_t end = min((rank + 1) * share, pieces.packs);
  Place<int64_t> place{rank * share + threadIdx.x, end, threads, rank == 0 ? threadIdx.x : INT64_MAX};
  const auto next = [&] {
    place.first += K * threads;
    place.edge = INT64_MAX;  // the edges are in the first chunk
  };
  const Place<int64_t> start = place;

  Partial whole = Op::empty();
  if (pass == Pass::kObserve) {
    let_next_launch_begin();
  }
  if (pass != Pass::kWrite) {
    Partial mine = Op::empty();
    do {
      auto chunk = read<Op, V, K, kEdges>(from, pieces, place, policy_of(Caching::kNormal));
      mine = Op::merge(mine, op.observe(chunk, 1));
      next();
    } while (place.first - threadIdx.x < end);
    mine = Op::merge_lanes(mine);
    if (threadIdx.x % kThreadsPerWarp == 0) {
      slots[threadIdx.x / kThreadsPerWarp] = mine;
    }
    __syncthreads();
    whole = merge_all<Op>(slots, static_cast<int>(threads) / kThreadsPerWarp);
    if (pass == Pass::kObserve) {
      if (threadIdx.x == 0) {
        partials[blockIdx.x] = whole;
      }
      return;
    }
    place = start;
  }
  auto chunk = read<Op, V, K, kEdges>(from, pieces, place, policy);
  FactorsAhead<Op, T, V, kAhead<Op, kEdges, 16>, false> factors(
      parameters_of_packs<T>(op, static_cast<int>(pieces.head)), matrix.caching);
  factors.template start<kParametersAligned<Op, kEdges>, K>(pieces.head, place);
  if (pass == Pass::kWrite) {
    wait_for_launch_before();
    whole = merge_all<Op>(partials + row * blocks_per_row, blocks_per_row);
  }
  const typename Op::Row about = op.finish(whole, whole, matrix.columns);
  while (true) {
    write<Op, K, kEdges>(matrix.y + row * matrix.columns, pieces, place, policy, chunk, factors, op, about);
    next();
    if (place.first - threadIdx.x >= end) {
      return;
    }
    chunk = read<Op, V, K, kEdges>(from, pieces, place, policy);
    factors.template start<kParametersAligned<Op, kEdges>, K>(pieces.head, place);
  }
}

}  // namespace kernels
