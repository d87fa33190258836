// rows_resident: for many rows so long that their weights don't stay in L1. Blocks stay, too, and take one row after
// another: a thread has the weight and the bias of its columns in registers all the while, and reads them once.
//
// One block, or a few smaller ones, fill a multiprocessor, so that nothing else covers what a row waits for. Rows
// therefore overlap: one is on its way into shared memory, one is observed there, and one waits for what the other blocks
// of the cluster know of it, is replaced by its answer, and is on its way out. Both ways are bulk copies: stores of
// registers fill the queue of loads and stores, and whatever comes after them, the next row too, waits until device
// memory has taken them. A warp copies its own columns, in and out, and no barrier makes it wait for the block.
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

template <typename Op>
struct ResidentMemory {
  typename Succession<Op>::Memory succession;
  uint64_t arrived[kMostSlots][kMostResident / kThreadsPerWarp];  // a warp's columns of a row
};

// The packs of a block's share, as many for each of its warps.
__host__ __device__ inline int packs_of_slot(const Sharing& sharing) {
  const int warps = sharing.threads_per_row / kThreadsPerWarp;
  return (sharing.share + warps * kAlignedPacks - 1) / (warps * kAlignedPacks) * (warps * kAlignedPacks);
}

// Every block of a cluster has `sharing.share` packs of a row. Rows, weight and bias begin at multiples of 16 bytes.
// Shared memory: `slots` times packs_of_slot() packs, and ResidentMemory.
template <typename T, typename Op>
__global__ void __launch_bounds__(kMostResident, 1)
    rows_resident(const Matrix<T> matrix, const Op op, const Sharing sharing, const int slots) {
#if __CUDA_ARCH__ >= 900
  constexpr int V = kWidest<T>;
  constexpr int kPacks = kPacksResident;
  extern __shared__ uint4 shared[];
  auto* const ring = reinterpret_cast<Bits<T, V>*>(shared);
  const int packs_of_slot = kernels::packs_of_slot(sharing);
  auto& memory = *reinterpret_cast<ResidentMemory<Op>*>(ring + slots * packs_of_slot);
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % kThreadsPerWarp;
  const int warp = thread / kThreadsPerWarp;
  const int blocks = 1 << sharing.log2_blocks_per_row;
  const int rank = static_cast<int>(blockIdx.x) & (blocks - 1);
  const auto columns = static_cast<int>(matrix.columns);
  const Succession<Op> succession{memory.succession, op,   columns, sharing.threads_per_row / kThreadsPerWarp,
                                  blocks,            rank};
  if (thread == 0) {
    succession.init();
  }
  if (lane < slots) {
    init_barrier(&memory.arrived[lane][warp]);
    show_barrier_to_cluster();
  }
  // All of a warp's threads arrive together.
  __syncwarp();
  arrive_and_show();

  // The cluster's rows: one of `step`.
  const int step = static_cast<int>(gridDim.x) >> sharing.log2_blocks_per_row;
  const int first_row = static_cast<int>(blockIdx.x) >> sharing.log2_blocks_per_row;
  const int rows = (static_cast<int>(matrix.rows) - first_row + step - 1) / step;
  const T* const x = matrix.x + first_row * matrix.row_stride;
  T* const y = matrix.y + first_row * matrix.columns;
  const int64_t x_step = step * matrix.row_stride;
  const int64_t y_step = step * matrix.columns;

  // The warp's packs of the block's share.
  const int first = rank * sharing.share;
  const int each = packs_of_slot / succession.warps;
  const int begin = warp * each;
  const int end = min(begin + each, min(sharing.share, columns / V - first));
  const int bytes = max(0, end - begin) * static_cast<int>(sizeof(Bits<T, V>));
  const int column = (first + begin) * V;
  const Place<int> place{begin + lane, end, kThreadsPerWarp, INT_MAX};
  const auto fetch = [&](int turn, int at) {
    if (lane == 0 && bytes > 0 && turn < rows) {
      expect_bytes(&memory.arrived[at][warp], bytes);
      copy_in(ring + at * packs_of_slot + begin, x + turn * x_step + column, bytes, &memory.arrived[at][warp]);
    }
  };
  for (int turn = 0; turn < slots; ++turn) {
    fetch(turn, turn);
  }
  Factors<Op, T, V> factors[kPacks];
#pragma unroll
  for (int k = 0; k < kPacks; ++k) {
    const int pack = place.first + k * place.step;
    if (pack < end) {
      factors[k].template load<true, false>(parameters_of<T>(op), (first + pack) * V, 0);
    }
  }
  wait_for_cluster();

  const auto observe = [&](int turn, int at, int parity) {
    if (bytes > 0) {
      wait_for_phase(&memory.arrived[at][warp], parity);
    }
    Staged<T, V, false> row{ring + at * packs_of_slot, place, 0.0f, false};
    succession.add(turn, op.observe(row, kThreadsPerWarp));
  };
  observe(0, 0, 0);
  int at = 0;      // where the row is
  int parity = 0;  // of the phase that has brought it
  for (int turn = 0; turn < rows; ++turn) {
    const int next = at + 1 == slots ? 0 : at + 1;
    const int next_parity = next == 0 ? 1 - parity : parity;
    succession.settle(turn);
    if (turn + 1 < rows) {
      observe(turn + 1, next, next_parity);
    }
    const typename Op::Row about = succession.about(turn);
    Bits<T, V>* const packs = ring + at * packs_of_slot;
#pragma unroll
    for (int k = 0; k < kPacks; ++k) {
      const int pack = place.first + k * place.step;
      factors[k].pin();
      if (pack < end) {
        float values[V];
        unpack<T, V>(packs[pack], values);
        const Pack<T, V> answer = factors[k].answer(values, op, about);
        memcpy(packs + pack, &answer, sizeof(answer));
      }
    }
    show_to_copies();
    __syncwarp();
    if (lane == 0 && bytes > 0) {
      copy_out(y + turn * y_step + column, packs + begin, bytes);
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
