// Kernels that turn each row of a matrix into a row of the same length by way of a few numbers about the
// whole row (softmax, the norms). rows_launch.cuh chooses which to run.
//
// rows_held: a row is read once from device memory and stays in registers, 8 to 32 elements a thread, until it
// is written. It is held by part of a warp, a warp, some warps of a block, a block, or on sm_90 a cluster of up
// to 16 blocks, whose warps put their partial results into each other's shared memory. One barrier a row.
//
// rows_staged: the same for more elements a thread, which wait in shared memory, as they are, instead of registers.
// A multiprocessor has nearly as much of it, elements of 2 bytes take 2, and its few registers a thread let several
// blocks share a multiprocessor, so that one's loads run while another computes or stores.
//
// rows_streamed: for rows that neither holds. A block, or several whose partial results meet in device
// memory between two launches, reads its part of the row twice; the second time from L2 where it fits.
//
// An operation is a struct with
//   Partial                            what is known of some elements of a row
//   kFill                              the value of a place in a chunk that lies outside of the row
//   empty(), merge(a, b)               Partials of no elements, and of both
//   observe(chunk, lanes)              the Partial of the chunks of `lanes` neighbouring lanes, the same in each
//                                      of them; may replace the chunk's values by what result() wants
//   finish(own, whole, columns)        what result() needs of the row: `own` is what observe() gave this thread
//   result(value, weight, bias, row)   an element of the answer
//   Unchanged                          an operation that gives the same answer by values that were not replaced; its
//                                      finish() does not need `own`
//   kWeight, kBias, weight, bias       whether an element has a weight and a bias, and where they are
#pragma once

#include <climits>
#include <cstdint>

#include "rows_elements.cuh"
#include "rows_meet.cuh"

namespace kernels {

// Blocks that share a row are a cluster.
template <typename T, int V, int K, bool kEdges, typename Op>
__global__ void __launch_bounds__(kMaxThreads, 1)
    rows_held(const Matrix<T> matrix, const Op op, const Sharing sharing) {
  extern __shared__ uint4 shared[];
  const Meeting<Op> meeting(sharing, shared);
  const int threads_per_row = sharing.threads_per_row;
  const int blocks_per_row = meeting.blocks_per_row;
  const int of_block =
      sharing.rows_per_block == 1 ? 0 : static_cast<int>(threadIdx.x) >> sharing.log2_threads_per_row;
  const int thread = static_cast<int>(threadIdx.x) - of_block * threads_per_row;
  const int rank = static_cast<int>(blockIdx.x) & (blocks_per_row - 1);
  const int64_t row =
      static_cast<int64_t>(blockIdx.x >> sharing.log2_blocks_per_row) * sharing.rows_per_block + of_block;
  const bool has_row = of_block < sharing.rows_per_block && row < matrix.rows;
  meeting.announce();

  const T* from = matrix.x + (has_row ? row * matrix.row_stride : 0);
  const Cut pieces = cut<T, V, kEdges>(from, matrix.columns);
  const int packs = static_cast<int>(pieces.packs);
  const int share = (packs + blocks_per_row - 1) >> sharing.log2_blocks_per_row;
  const Place<int> place{rank * share + thread, has_row ? min((rank + 1) * share, packs) : 0, threads_per_row,
                         has_row && rank == 0 ? thread : INT_MAX};
  auto chunk = read<kTouchedOnce, Op, V, K, kEdges>(from, pieces, place);

  const auto own = op.observe(chunk, min(threads_per_row, kThreadsPerWarp));
  meeting.join();
  const auto whole = meeting.meet(own, of_block, rank, has_row);
  if (has_row) {
    write<Op, T, V, kEdges>(matrix.y + row * matrix.columns, pieces, place, chunk, op,
                            op.finish(own, whole, matrix.columns));
  }
}

// A block stages its share of a row, no more than `capacity` packs. Behind them lies what Meeting has.
template <typename T, int V, bool kEdges, typename Op>
__global__ void __launch_bounds__(kMaxThreads, 1)
    rows_staged(const Matrix<T> matrix, const Op op, const Sharing sharing, const int capacity) {
  extern __shared__ uint4 shared[];
  auto* const packs = reinterpret_cast<Pack<T, V>*>(shared);
  const Meeting<Op> meeting(sharing, packs + capacity);
  const int blocks_per_row = meeting.blocks_per_row;
  const int rank = static_cast<int>(blockIdx.x) & (blocks_per_row - 1);
  const int64_t row = blockIdx.x >> sharing.log2_blocks_per_row;
  const int thread = static_cast<int>(threadIdx.x);
  const int threads = sharing.threads_per_row;
  meeting.announce();

  const T* from = matrix.x + row * matrix.row_stride;
  const Cut pieces = cut<T, V, kEdges>(from, matrix.columns);
  const int share = static_cast<int>((pieces.packs + blocks_per_row - 1) >> sharing.log2_blocks_per_row);
  const int first = rank * share;
  const int count = max(0, min(share, static_cast<int>(pieces.packs) - first));
  const auto* source = reinterpret_cast<const Pack<T, V>*>(from + pieces.head) + first;
  const uint64_t policy = evict_first_policy();
  for (int i = thread; i < count; i += threads) {
    copy_async(packs + i, source + i, policy);
  }
  Staged<T, V, kEdges> staged{packs + thread, (count - thread + threads - 1) / threads, threads, Op::kFill, false};
  if constexpr (kEdges) {
    staged.has_edge = rank == 0 && thread < pieces.edges;
    if (staged.has_edge) {
      staged.edge = static_cast<float>(from[edge_column<V>(pieces, thread)]);
    }
  }
  meeting.join();
  // A thread reads only what it copied itself: no barrier.
  wait_for_copies();

  const auto own = op.observe(staged, kThreadsPerWarp);
  const auto whole = meeting.meet(own, 0, rank, true);
  const Place<int> place{first + thread, 0, threads, thread};
  write<Op, T, V, kEdges>(matrix.y + row * matrix.columns, pieces, place, staged, op,
                          op.finish(own, whole, matrix.columns));
}

// What a launch of rows_streamed does with its part of a row.
enum class Pass { kBoth, kObserve, kWrite };

// blocks_per_row neighbouring blocks take a part each. kBoth is for one block a row. Otherwise kObserve leaves each
// block's Partial in `partials`, where kWrite finds those of its row. Shared memory: a Partial for every thread.
template <typename T, int V, int K, bool kEdges, typename Op>
__global__ void __launch_bounds__(kMaxThreads, 1)
    rows_streamed(const Matrix<T> matrix, const Op op, const int blocks_per_row, const Pass pass,
                  typename Op::Partial* __restrict__ partials) {
  using Partial = typename Op::Partial;
  extern __shared__ uint4 shared[];
  auto* slots = reinterpret_cast<Partial*>(shared);
  const int64_t threads = blockDim.x;
  const int64_t row = blockIdx.x / blocks_per_row;
  const int rank = static_cast<int>(blockIdx.x % blocks_per_row);
  const T* from = matrix.x + row * matrix.row_stride;
  const Cut pieces = cut<T, V, kEdges>(from, matrix.columns);
  const int64_t share = (pieces.packs + blocks_per_row - 1) / blocks_per_row;
  const int64_t end = min((rank + 1) * share, pieces.packs);
  Place<int64_t> place{rank * share + threadIdx.x, end, threads, rank == 0 ? threadIdx.x : INT64_MAX};
  const auto next = [&] {
    place.first += K * threads;
    place.edge = INT64_MAX;  // the edges are in the first chunk
  };
  const Place<int64_t> start = place;

  Partial whole;
  if (pass == Pass::kWrite) {
    whole = merge_all<Op>(partials + row * blocks_per_row, blocks_per_row);
  } else {
    Partial mine = Op::empty();
    do {
      auto chunk = read<Caching::kNormal, Op, V, K, kEdges>(from, pieces, place);
      mine = Op::merge(mine, op.observe(chunk, 1));
      next();
    } while (place.first - threadIdx.x < end);
    slots[threadIdx.x] = mine;
    __syncthreads();
    whole = merge_all<Op>(slots, static_cast<int>(threads));
    if (pass == Pass::kObserve) {
      if (threadIdx.x == 0) {
        partials[blockIdx.x] = whole;
      }
      return;
    }
    place = start;
  }
  const typename Op::Row about = op.finish(whole, whole, matrix.columns);
  do {
    const auto chunk = read<kTouchedOnce, Op, V, K, kEdges>(from, pieces, place);
    write<Op, T, V, kEdges>(matrix.y + row * matrix.columns, pieces, place, chunk, op, about);
    next();
  } while (place.first - threadIdx.x < end);
}

}  // namespace kernels
