// rows_resident: for many rows so long that their weights don't stay in L1. Blocks stay, too, and take one row after
// another: a thread has the weight and the bias of its columns in registers all the while, and reads them once.
//
// One block, or a few smaller ones, fill a multiprocessor, so that nothing else covers what a row waits for. Rows
// therefore overlap: one is on its way into shared memory, one is observed there, and one waits for what the other blocks
// of the cluster know of it, is replaced by its answer, and is on its way out. Both ways are bulk copies: stores of
// registers fill the queue of loads and stores, and whatever comes after them, the next row too, waits until device
// memory has taken them. A warp copies its own columns, in and out, and no barrier makes it wait for the block.
//
// Rows of any width may begin anywhere within 16 bytes. The packs on both ends, which they share with their neighbours,
// come along with the rest, and only what is the row's own is stored; and rows that begin alike follow each other, so that
// the columns in a thread's registers stay the same. A row lies in shared memory as it does in device memory within 32
// bytes: copies of 4096 bytes between multiples of 16 that aren't both of 32, or both not, ran at 3578 GB/s on an H200,
// others at 3863 to 3923.
#pragma once

#include <climits>
#include <cstdint>
#include <cstring>

#include "async.cuh"
#include "rows_factors.cuh"
#include "rows_meet.cuh"

namespace kernels {

// Threads of a block at most, so that each has 128 registers; half of them hold factors where there are two.
constexpr int kMostResident = 512;
// Packs of a row that a thread has at most, and rows in a block's shared memory.
constexpr int kPacksResident = 8;
constexpr int kFewestSlots = 3;
constexpr int kMostSlots = 6;
// Warps begin at multiples of 128 bytes in shared memory.
constexpr int kAlignedPacks = 8;

// What the warps of a row know of it, row after row, in shared memory. The last warp of a block that has observed a row
// merges what they know, and tells the other blocks; one warp of each block, another for every row, later merges what the
// blocks know and tells the others.
//
// Rows meet in one of kPlaces, turn by turn. A warp observes row i + 1 and then waits for row i. So when one observes row
// i + 4, row i + 2 is known, all warps of the cluster have observed it, and so have long read what they need of row i.
template <typename Op>
struct Succession {
  using Partial = typename Op::Partial;
  using Row = typename Op::Row;
  static constexpr int kPlaces = 4;
  static constexpr int kFloats = sizeof(Partial) / sizeof(float);

  struct Memory {
    uint64_t told[kPlaces];   // passes when all blocks have told what they know of a row
    uint64_t known[kPlaces];  // passes when `about` is there
    int observed[kPlaces];    // how many warps of the block have
    Partial of_warps[kPlaces][kMostResident / kThreadsPerWarp];
    Partial of_blocks[kPlaces][kMaxCluster];
    Row about[kPlaces];
  };

  Memory& memory;
  const Op& op;
  const int columns;
  const int warps;
  const int blocks;
  const int rank;

#if __CUDA_ARCH__ >= 900
  // By one thread, before the blocks of the cluster have waited for each other.
  __device__ void init() const {
#pragma unroll
    for (int place = 0; place < kPlaces; ++place) {
      memory.observed[place] = 0;
      init_barrier(&memory.told[place]);
      init_barrier(&memory.known[place]);
    }
    show_barrier_to_cluster();
#pragma unroll
    for (int place = 0; place < kPlaces; ++place) {
      expect_bytes(&memory.told[place], blocks * static_cast<int>(sizeof(Partial)));
    }
  }

  // By each warp, for the block's `turn`th row.
  __device__ void add(int turn, const Partial& own) const {
    const int place = turn % kPlaces;
    const int lane = static_cast<int>(threadIdx.x) % kThreadsPerWarp;
    int before = 0;
    if (lane == 0) {
      memory.of_warps[place][threadIdx.x / kThreadsPerWarp] = own;
      before = add_shared(&memory.observed[place], 1);
    }
    before = __shfl_sync(0xffffffffu, before, 0);
    if (before + 1 < (turn / kPlaces + 1) * warps) {
      return;
    }
    __syncwarp();
    const Partial merged = merge_all<Op>(memory.of_warps[place], warps);
    if (lane < blocks) {
      float words[kFloats];
      memcpy(words, &merged, sizeof(merged));
#pragma unroll
      for (int i = 0; i < kFloats; ++i) {
        send(reinterpret_cast<float*>(&memory.of_blocks[place][rank]) + i, words[i], &memory.told[place], lane);
      }
    }
  }

  // By each warp, before it observes the next row: one of them does it.
  __device__ void settle(int turn) const {
    if (turn % warps != static_cast<int>(threadIdx.x) / kThreadsPerWarp) {
      return;
    }
    const int place = turn % kPlaces;
    wait_for_phase(&memory.told[place], turn / kPlaces % 2);
    const Partial whole = merge_all<Op>(memory.of_blocks[place], blocks);
    if (threadIdx.x % kThreadsPerWarp == 0) {
      expect_bytes(&memory.told[place], blocks * static_cast<int>(sizeof(Partial)));
      memory.about[place] = op.finish(whole, whole, columns);
      arrive(&memory.known[place]);
    }
  }

  __device__ Row about(int turn) const {
    wait_for_phase(&memory.known[turn % kPlaces], turn / kPlaces % 2);
    return memory.about[turn % kPlaces];
  }
#endif
};

// How blocks share rows.
struct Residence {
  int warps;   // of a block
  int blocks;  // of a cluster, and so of a row
  int share;   // packs of a row for each of its blocks
  int slots;   // rows in a block's shared memory
  int alike;   // rows that begin alike within 16 bytes, and follow each other, are so many apart; 1: any, in their order

  __host__ __device__ int packs_of_warp() const {
    return (share + warps * kAlignedPacks - 1) / (warps * kAlignedPacks) * kAlignedPacks;
  }

  // In shared memory. A portion of a row with edges begins with one of the first two packs, and is followed by two.
  template <bool kEdges>
  __host__ __device__ int room_of_warp() const {
    return packs_of_warp() + (kEdges ? kAlignedPacks : 0);
  }
  template <bool kEdges>
  __host__ __device__ int room_of_row() const {
    return warps * room_of_warp<kEdges>();
  }

  // A cluster takes as long for a row as its warps have steps, of a pack for each lane.
  int steps() const { return (packs_of_warp() + kThreadsPerWarp - 1) / kThreadsPerWarp; }
};

// The rows that a cluster takes: those that are as many apart as there are clusters, or, where some begin alike, a piece
// of all rows in the order in which these follow each other. There the weight is read again where a piece goes over from
// some to others; in the first order, if the number of clusters is not a multiple of `alike`, it would be for every row.
class Turns {
 public:
  int count;

  __device__ Turns(int rows, int alike, int cluster, int clusters) : rows_(rows), alike_(alike) {
    if (alike == 1) {
      step_ = clusters;
      index_ = cluster;
      count = (rows - cluster + clusters - 1) / clusters;
      return;
    }
    step_ = 1;
    index_ = static_cast<int>(int64_t{cluster} * rows / clusters);
    count = static_cast<int>((int64_t{cluster} + 1) * rows / clusters) - index_;
    go_over();
  }

  __device__ int row() const { return first_ + alike_ * index_; }

  __device__ void next() {
    index_ += step_;
    if (alike_ > 1) {
      go_over();
    }
  }

 private:
  int rows_;
  int alike_;
  int first_ = 0;  // of those that begin alike
  int index_;      // among them
  int step_;

  __device__ void go_over() {
    for (int own = 0; first_ < alike_ && index_ >= (own = (rows_ - first_ + alike_ - 1) / alike_); ++first_) {
      index_ -= own;
    }
  }
};

// What a warp has of a row: packs, and, where the row's first or last one is among these, the elements before or behind
// it, in packs of which other rows have the rest.
template <typename T>
struct alignas(16) Portion {
  static constexpr int V = kWidest<T>;

  int row;
  int column;  // of the first pack
  int count;
  int8_t shift;  // where in shared memory the first pack is
  int8_t head;   // elements before that
  int8_t tail;   // elements behind the last

  // The first V lanes take an element of the head each, the next ones of the tail.
  __device__ bool has_edge(int lane) const { return lane < V ? lane < head : lane - V < tail; }
  __device__ int edge(int lane) const { return lane < V ? lane : column + count * V + lane - V; }
};

template <typename T, typename Op>
struct ResidentMemory {
  static constexpr int kWarps = kMostResident / kThreadsPerWarp;

  typename Succession<Op>::Memory succession;
  uint64_t arrived[kMostSlots][kWarps];  // a warp's columns of a row
  Portion<T> portion[kMostSlots][kWarps];
};

// Rows begin where kEdges lets them, and so do weight and bias. Shared memory: `slots` times room_of_row() packs, and
// ResidentMemory.
template <typename T, bool kEdges, typename Op>
__global__ void __launch_bounds__(kMostResident, 1)
    rows_resident(const Matrix<T> matrix, const Op op, const Residence residence) {
#if __CUDA_ARCH__ >= 900
  constexpr int V = kWidest<T>;
  constexpr int kPacks = kPacksResident;
  constexpr int kBytes = sizeof(Bits<T, V>);
  extern __shared__ uint4 shared[];
  auto* const ring = reinterpret_cast<Bits<T, V>*>(shared);
  const int slots = residence.slots;
  const int room = residence.room_of_row<kEdges>();
  auto& memory = *reinterpret_cast<ResidentMemory<T, Op>*>(ring + slots * room);
  const int lane = static_cast<int>(threadIdx.x) % kThreadsPerWarp;
  const int warp = static_cast<int>(threadIdx.x) / kThreadsPerWarp;
  const int blocks = residence.blocks;
  const int cluster = static_cast<int>(blockIdx.x) / blocks;
  const int rank = static_cast<int>(blockIdx.x) - cluster * blocks;
  const auto columns = static_cast<int>(matrix.columns);
  const Succession<Op> succession{memory.succession, op, columns, residence.warps, blocks, rank};
  if (threadIdx.x == 0) {
    succession.init();
  }
  if (lane < slots) {
    init_barrier(&memory.arrived[lane][warp]);
    show_barrier_to_cluster();
  }
  // All of a warp's threads arrive together.
  __syncwarp();
  arrive_and_show();

  // The warp's packs of every row.
  const int begin = rank * residence.share + warp * residence.packs_of_warp();
  const int end = min(begin + residence.packs_of_warp(), (rank + 1) * residence.share);
  Bits<T, V>* const own = ring + warp * residence.room_of_warp<kEdges>();
  const auto portion_of = [&](int row) {
    const T* const from = matrix.x + row * matrix.row_stride;
    const auto pieces = cut<T, V, kEdges, kEdges>(from, columns);
    Portion<T> portion{row, pieces.head + begin * V, max(0, min(end, pieces.packs) - begin), 0, 0, 0};
    if constexpr (kEdges) {
      const bool last = portion.count > 0 && begin + portion.count == pieces.packs;
      portion.shift = static_cast<int8_t>(2 - reinterpret_cast<std::uintptr_t>(from + pieces.head) / kBytes % 2);
      portion.head = static_cast<int8_t>(begin == 0 ? pieces.head : 0);
      portion.tail = static_cast<int8_t>(last ? pieces.edges - pieces.head : 0);
    }
    return portion;
  };
  Turns turns(static_cast<int>(matrix.rows), residence.alike, cluster, static_cast<int>(gridDim.x) / blocks);
  const Portion<T> first = portion_of(turns.row());
  const auto fetch = [&](int turn, int at) {
    if (lane == 0 && turn < turns.count) {
      const Portion<T> portion = portion_of(turns.row());
      turns.next();
      memory.portion[at][warp] = portion;
      const int before = portion.head > 0 ? 1 : 0;
      const int bytes = (before + portion.count + (portion.tail + V - 1) / V) * kBytes;
      expect_bytes(&memory.arrived[at][warp], bytes);
      if (bytes > 0) {
        copy_in(own + at * room + portion.shift - before,
                matrix.x + portion.row * matrix.row_stride + portion.column - before * V, bytes,
                &memory.arrived[at][warp]);
      }
    }
  };
  // Where there are no edges, all that differs is the row.
  const auto fetched = [&](int at) {
    if constexpr (kEdges) {
      return memory.portion[at][warp];
    } else {
      Portion<T> portion = first;
      portion.row = memory.portion[at][warp].row;
      return portion;
    }
  };
  for (int turn = 0; turn < slots; ++turn) {
    fetch(turn, turn);
  }
  Factors<Op, T, V> factors[kPacks];
  Factors<Op, T, 1> factors_of_edge;
  int column;  // where these factors begin
  const auto load_factors = [&](const Portion<T>& portion) {
    column = portion.column;
#pragma unroll
    for (int k = 0; k < kPacks; ++k) {
      const int pack = lane + k * kThreadsPerWarp;
      if (pack < portion.count) {
        factors[k].template load<!kEdges, false>(parameters_of<T>(op), column + pack * V, 0);
      }
    }
    if (kEdges && portion.has_edge(lane)) {
      factors_of_edge.template load<true, false>(parameters_of<T>(op), portion.edge(lane), 0);
    }
  };
  load_factors(first);
  wait_for_cluster();

  const auto observe = [&](int turn, int at, int parity) {
    wait_for_phase(&memory.arrived[at][warp], parity);
    const Portion<T> portion = fetched(at);
    Bits<T, V>* const packs = own + at * room + portion.shift;
    Staged<T, V, kEdges> row{packs, {lane, portion.count, kThreadsPerWarp, 0}, 0.0f, false};
    if (kEdges && portion.has_edge(lane)) {
      row.has_edge = true;
      row.edge = static_cast<float>(reinterpret_cast<const T*>(packs)[portion.edge(lane) - portion.column]);
    }
    succession.add(turn, op.observe(row, kThreadsPerWarp));
  };
  observe(0, 0, 0);
  int at = 0;      // where the row is
  int parity = 0;  // of the phase that has brought it
  for (int turn = 0; turn < turns.count; ++turn) {
    const int next = at + 1 == slots ? 0 : at + 1;
    const int next_parity = next == 0 ? 1 - parity : parity;
    if constexpr (kEdges) {
      if (memory.portion[at][warp].column != column) {
        load_factors(memory.portion[at][warp]);
      }
    }
    succession.settle(turn);
    if (turn + 1 < turns.count) {
      observe(turn + 1, next, next_parity);
    }
    const Portion<T> portion = fetched(at);
    Bits<T, V>* const packs = own + at * room + portion.shift;
    const typename Op::Row about = succession.about(turn);
#pragma unroll
    for (int k = 0; k < kPacks; ++k) {
      const int pack = lane + k * kThreadsPerWarp;
      factors[k].pin();
      if (pack < portion.count) {
        float values[V];
        unpack<T, V>(packs[pack], values);
        const Pack<T, V> answer = factors[k].answer(values, op, about);
        memcpy(packs + pack, &answer, sizeof(answer));
      }
    }
    show_to_copies();
    __syncwarp();
    T* const to = matrix.y + portion.row * matrix.columns;
    if (lane == 0) {
      if (portion.count > 0) {
        copy_out(to + portion.column, packs, portion.count * kBytes);
      }
      end_group();
    }
    if (kEdges && portion.has_edge(lane)) {
      const int edge = portion.edge(lane);
      const float values[1] = {static_cast<float>(reinterpret_cast<const T*>(packs)[edge - portion.column])};
      to[edge] = factors_of_edge.answer(values, op, about).values[0];
    }
    if (turn > 0) {
      // The row before this one has made room.
      if (lane == 0) {
        wait_until_read<1>();
      }
      fetch(turn - 1 + slots, at == 0 ? slots - 1 : at - 1);
    }
    at = next;
    parity = next_parity;
  }
  if (lane == 0) {
    wait_until_read<0>();
  }
#endif
}

}  // namespace kernels
