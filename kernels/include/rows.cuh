// Kernels that turn each row of a matrix into a row of the same length by way of a few numbers about the
// whole row (softmax, the norms). rows_launch.cuh chooses which to run.
//
// rows_held: a row is read once from device memory and stays in registers, 8 to 32 elements a thread, until it
// is written. It is held by part of a warp, a warp, some warps of a block, a block, or on sm_90 a cluster of up
// to 16 blocks, whose warps put their partial results into each other's shared memory. One barrier a row.
//
// rows_streamed: for rows that this does not hold. A block, or several whose partial results meet in device
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
//   kWeight, kBias, weight, bias       whether an element has a weight and a bias, and where they are
#pragma once

#include <climits>
#include <cstdint>

#include <cooperative_groups.h>

#include "common.cuh"

namespace kernels {

// Blocks of a cluster that every GPU with clusters runs, and at most where a kernel asks for more.
constexpr int kPortableCluster = 8;
constexpr int kMaxCluster = 16;

template <typename T>
struct Matrix {
  const T* x;          // rows row_stride elements apart
  T* y;                // contiguous
  int64_t rows;
  int64_t columns;
  int64_t row_stride;
};

// Elements of a row in a thread's registers: K packs of V elements and, where rows may begin or end inside a pack
// (kEdges), one of the few elements before the first whole pack or after the last.
template <int V, int K, bool kEdges>
struct Chunk {
  float values[K][V];
  float edge;
  int packs;  // the first of the K that lie in the row; the rest hold kFill
  bool has_edge;

  // Calls f with every value, also with those outside of the row.
  template <typename F>
  __device__ __forceinline__ void each(const F& f) {
#pragma unroll
    for (auto& pack : values) {
#pragma unroll
      for (float& value : pack) {
        f(value);
      }
    }
    if constexpr (kEdges) {
      f(edge);
    }
  }

  // Calls f with the values that lie in the row.
  template <typename F>
  __device__ __forceinline__ void each_in_row(const F& f) {
#pragma unroll
    for (int k = 0; k < K; ++k) {
      if (k < packs) {
#pragma unroll
        for (float& value : values[k]) {
          f(value);
        }
      }
    }
    if constexpr (kEdges) {
      if (has_edge) {
        f(edge);
      }
    }
  }

  __device__ int count() const { return packs * V + (kEdges && has_edge ? 1 : 0); }
};

// A row cut into packs that start at multiples of their size: `head` elements, `packs` packs, the tail.
struct Cut {
  int64_t head;
  int64_t packs;
  int64_t edges;  // elements in head and tail, fewer than two packs
};

template <typename T, int V, bool kEdges>
__device__ Cut cut(const T* row, int64_t columns) {
  int64_t head = 0;
  if constexpr (kEdges) {
    const auto misplaced = static_cast<int64_t>(reinterpret_cast<std::uintptr_t>(row) / sizeof(T) % V);
    head = min(misplaced == 0 ? int64_t{0} : V - misplaced, columns);
  }
  const int64_t packs = (columns - head) / V;
  return {head, packs, columns - packs * V};
}

// The places of a thread's chunk: packs first, first + step, ... below end; the edge is element `edge` of
// those in head and tail. Index is as wide as the rows at hand need.
template <typename Index>
struct Place {
  Index first;
  Index end;
  Index step;
  Index edge;
};

template <int V>
__device__ int64_t edge_column(const Cut& cut, int64_t edge) {
  return edge < cut.head ? edge : edge + cut.packs * V;
}

template <Caching caching, typename Op, int V, int K, bool kEdges, typename T, typename Index>
__device__ Chunk<V, K, kEdges> read(const T* row, const Cut& cut, const Place<Index>& place) {
  Chunk<V, K, kEdges> chunk;
  const auto* from = reinterpret_cast<const Pack<T, V>*>(row + cut.head) + place.first;
  Pack<T, V> packs[K];
  chunk.packs = 0;
#pragma unroll
  for (int k = 0; k < K; ++k) {
    if (place.first + k * place.step < place.end) {
      packs[k] = load<caching>(from + k * place.step);
      chunk.packs = k + 1;
    }
  }
  chunk.has_edge = kEdges && place.edge < cut.edges;
  chunk.edge = chunk.has_edge ? static_cast<float>(row[edge_column<V>(cut, place.edge)]) : Op::kFill;
#pragma unroll
  for (int k = 0; k < K; ++k) {
#pragma unroll
    for (int j = 0; j < V; ++j) {
      chunk.values[k][j] = k < chunk.packs ? static_cast<float>(packs[k].values[j]) : Op::kFill;
    }
  }
  return chunk;
}

// N neighbouring elements of a row's weight or bias; every row uses them again, so they stay in the caches.
template <bool kAligned, typename T, int N>
__device__ Pack<T, N> parameters(const T* all, int64_t column) {
  Pack<T, N> pack;
  if constexpr (kAligned) {
    pack = load<Caching::kNormal>(reinterpret_cast<const Pack<T, N>*>(all + column));
  } else {
#pragma unroll
    for (int j = 0; j < N; ++j) {
      pack.values[j] = all[column + j];
    }
  }
  return pack;
}

template <typename Op, typename T, int V, int K, bool kEdges, typename Index>
__device__ void write(T* row, const Cut& cut, const Place<Index>& place, const Chunk<V, K, kEdges>& chunk, const Op& op,
                      const typename Op::Row& about) {
  auto* to = reinterpret_cast<Pack<T, V>*>(row + cut.head) + place.first;
#pragma unroll
  for (int k = 0; k < K; ++k) {
    if (k < chunk.packs) {
      const int64_t column = cut.head + static_cast<int64_t>(place.first + k * place.step) * V;
      Pack<T, V> weight;
      Pack<T, V> bias;
      if constexpr (Op::kWeight) {
        weight = parameters<!kEdges, T, V>(op.weight, column);
      }
      if constexpr (Op::kBias) {
        bias = parameters<!kEdges, T, V>(op.bias, column);
      }
      Pack<T, V> pack;
#pragma unroll
      for (int j = 0; j < V; ++j) {
        const float w = Op::kWeight ? static_cast<float>(weight.values[j]) : 1.0f;
        const float b = Op::kBias ? static_cast<float>(bias.values[j]) : 0.0f;
        pack.values[j] = static_cast<T>(op.result(chunk.values[k][j], w, b, about));
      }
      store<kTouchedOnce>(to + k * place.step, pack);
    }
  }
  if constexpr (kEdges) {
    if (chunk.has_edge) {
      const int64_t column = edge_column<V>(cut, place.edge);
      float w = 1.0f;
      float b = 0.0f;
      if constexpr (Op::kWeight) {
        w = static_cast<float>(op.weight[column]);
      }
      if constexpr (Op::kBias) {
        b = static_cast<float>(op.bias[column]);
      }
      row[column] = static_cast<T>(op.result(chunk.edge, w, b, about));
    }
  }
}

// A number of `lanes` neighbouring lanes, a power of two, combined in each of them.
template <typename F>
__device__ float across_lanes(float value, int lanes, const F& combine) {
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

// The Partials of `count` places merged, the same in each lane of the warp.
template <typename Op>
__device__ typename Op::Partial merge_all(const typename Op::Partial* places, int count) {
  using Partial = typename Op::Partial;
  constexpr int kFloats = sizeof(Partial) / sizeof(float);
  const int lane = threadIdx.x % kThreadsPerWarp;
  // The smallest power of two of lanes with a place each; the other lanes do as these do.
  const int lanes = count >= kThreadsPerWarp ? kThreadsPerWarp : count <= 1 ? 1 : 1 << (32 - __clz(count - 1));
  Partial mine = Op::empty();
  for (int i = lane % lanes; i < count; i += lanes) {
    mine = Op::merge(mine, places[i]);
  }
  for (int distance = lanes / 2; distance > 0; distance /= 2) {
    float words[kFloats];
    memcpy(words, &mine, sizeof(mine));
#pragma unroll
    for (float& word : words) {
      word = __shfl_xor_sync(0xffffffffu, word, distance);
    }
    Partial other;
    memcpy(&other, words, sizeof(other));
    // In the order of the lanes, so that all of them get the same bits.
    mine = (lane & distance) == 0 ? Op::merge(mine, other) : Op::merge(other, mine);
  }
  return mine;
}

// Who shares a row: several rows a block, of a power of two of threads each; or one row a block, or a power of two of
// neighbouring blocks, of all their threads.
struct Sharing {
  int rows_per_block;
  int threads_per_row;
  int log2_threads_per_row;  // for several rows a block
  int log2_blocks_per_row;
};

// Blocks that share a row are a cluster. Shared memory: a Partial for every warp of all of them.
template <typename T, int V, int K, bool kEdges, typename Op>
__global__ void __launch_bounds__(kMaxThreads, 1)
    rows_held(const Matrix<T> matrix, const Op op, const Sharing sharing) {
  using Partial = typename Op::Partial;
  extern __shared__ uint4 shared[];
  auto* slots = reinterpret_cast<Partial*>(shared);
  const int threads_per_row = sharing.threads_per_row;
  const int blocks_per_row = 1 << sharing.log2_blocks_per_row;
  const int of_block =
      sharing.rows_per_block == 1 ? 0 : static_cast<int>(threadIdx.x) >> sharing.log2_threads_per_row;
  const int thread = static_cast<int>(threadIdx.x) - of_block * threads_per_row;
  const int rank = static_cast<int>(blockIdx.x) & (blocks_per_row - 1);
  const int64_t row =
      static_cast<int64_t>(blockIdx.x >> sharing.log2_blocks_per_row) * sharing.rows_per_block + of_block;
  const bool has_row = of_block < sharing.rows_per_block && row < matrix.rows;
#if __CUDA_ARCH__ >= 900
  // The other blocks must run before their shared memory is written; the row's loads cover the wait.
  const cooperative_groups::cluster_group cluster = cooperative_groups::this_cluster();
  if (blocks_per_row > 1) {
    cluster.barrier_arrive();
  }
#endif

  const T* from = matrix.x + (has_row ? row * matrix.row_stride : 0);
  const Cut pieces = cut<T, V, kEdges>(from, matrix.columns);
  const int packs = static_cast<int>(pieces.packs);
  const int share = (packs + blocks_per_row - 1) >> sharing.log2_blocks_per_row;
  const Place<int> place{rank * share + thread, has_row ? min((rank + 1) * share, packs) : 0, threads_per_row,
                         has_row && rank == 0 ? thread : INT_MAX};
  auto chunk = read<kTouchedOnce, Op, V, K, kEdges>(from, pieces, place);

  const Partial own = op.observe(chunk, min(threads_per_row, kThreadsPerWarp));
  Partial whole = own;
  if (threads_per_row > kThreadsPerWarp || blocks_per_row > 1) {
    const int lane = static_cast<int>(threadIdx.x) % kThreadsPerWarp;
    const int warp = static_cast<int>(threadIdx.x) / kThreadsPerWarp;
    const int warps = threads_per_row / kThreadsPerWarp;
#if __CUDA_ARCH__ >= 900
    if (blocks_per_row > 1) {
      cluster.barrier_wait();
      if (lane < blocks_per_row) {
        cluster.map_shared_rank(slots, lane)[rank * warps + warp] = own;
      }
      cluster.sync();
    }
#endif
    if (blocks_per_row == 1) {
      if (lane == 0) {
        slots[warp] = own;
      }
      __syncthreads();
    }
    if (has_row) {
      whole = merge_all<Op>(slots + of_block * warps, warps * blocks_per_row);
    }
  }
  if (has_row) {
    write<Op>(matrix.y + row * matrix.columns, pieces, place, chunk, op, op.finish(own, whole, matrix.columns));
  }
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
  do {
    auto chunk = read<kTouchedOnce, Op, V, K, kEdges>(from, pieces, place);
    const Partial own = op.observe(chunk, 1);
    write<Op>(matrix.y + row * matrix.columns, pieces, place, chunk, op, op.finish(own, whole, matrix.columns));
    next();
  } while (place.first - threadIdx.x < end);
}

}  // namespace kernels
