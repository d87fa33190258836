// The warps of attention's backward pass that copy: one brings keys, values and tiles to shared memory, two have the
// parts of dq added to the sums.
#pragma once

#include <cstdint>

#include "../include/bulk_reduce.cuh"
#include "../include/common.cuh"
#include "../include/tma.cuh"
#include "flash_layout.h"
#include "flash_products.cuh"

namespace attention_backward {

constexpr int kWarps = kWarpgroups * 4;  // that multiply
// Those that copy are a warpgroup of their own, since a warpgroup gives up registers as a whole.
constexpr int kThreads = (kWarpgroups + 1) * kWarpgroup;

struct Arguments {
  Schedule schedule;
  int heads;     // of queries, of one batch entry
  int kv_heads;  // of keys
  int group;     // query heads that share a key head
  int seq_q;
  int seq_k;
  int columns;  // head_dim, which may be less than the tiles'
  bool causal;
  float scale;               // of a score
  float scale_log2;          // times log2(e)
  const float* statistics;   // of each tile of each head: logarithms, then deltas
  float* sums;               // of dq: of each tile of each head, in parts
  int* turns;                // of each part; null if parts may be added in any order
  int* taken;                // how many places of the schedule were taken after the grid's first
  uint16_t* dk;
  uint16_t* dv;
};

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

// Registers of a thread: no more in all than the block was launched with, which is the most that fits.
constexpr int kRegistersToCopy = 24;
constexpr int kRegistersToMultiply = 240;

// Named barriers; 0 is __syncthreads()'s.
constexpr int kGradientsAreThere = 1;
constexpr int kPartIsFull = 2;                            // and the next: one for each warpgroup
constexpr int kPartIsEmpty = kPartIsFull + kWarpgroups;   // and the next
constexpr int kThreadsOfPart = kWarpgroup + 32;

// Which buffer is next, and the parity of its use: it changes each time round.
struct Pipeline {
  int stage = 0;
  int parity = 0;

  __device__ __forceinline__ void advance(int stages) {
    if (++stage == stages) {
      stage = 0;
      parity ^= 1;
    }
  }
};

// The warp that copies takes places of the schedule, and says to the others which keys these are.
__device__ __forceinline__ void announce(Barriers* barriers, Pipeline& next, const Keys& keys) {
  mbarrier_wait_parity(&barriers->keys_empty[next.stage], next.parity ^ 1);
  barriers->keys[next.stage] = keys;
  mbarrier_arrive(&barriers->keys_full[next.stage]);
  next.advance(kKeysAhead);
}

// A number that all threads of a warp have: by the shuffle the compiler knows that it is one, and keeps it once.
__device__ __forceinline__ int uniform(int number) { return __shfl_sync(0xffffffff, number, 0); }

// The next keys, for a warp; those of the end have no tiles.
__device__ __forceinline__ Keys next_keys(Barriers* barriers, Pipeline& next) {
  mbarrier_wait_parity(&barriers->keys_full[next.stage], next.parity);
  const Keys& at = barriers->keys[next.stage];
  const Keys keys = {uniform(at.first), uniform(at.head), uniform(at.query_head),
                     {uniform(at.tiles.first), uniform(at.tiles.full), uniform(at.tiles.end)}};
  if (threadIdx.x % 32 == 0) {
    mbarrier_arrive(&barriers->keys_empty[next.stage]);
  }
  next.advance(kKeysAhead);
  return keys;
}

// One thread copies all that the block of threads needs.
template <int kHeadDim, int kBlockM, int kStages>
__device__ __forceinline__ void copy_tiles(unsigned char* shared, Barriers* barriers, const CUtensorMap* map_q,
                                           const CUtensorMap* map_k, const CUtensorMap* map_v,
                                           const CUtensorMap* map_d_out, const Arguments& of) {
  constexpr SharedLayout kLayout(kHeadDim, kBlockM, kStages);
  Pipeline next;
  Pipeline of_keys;
  int parity_of_keys = 1;  // a barrier that no phase has completed yet lets the parity 1 pass: buffers begin empty
  // What comes before has written statistics, and zeros for sums and places.
  wait_on_dependent_grids();
  int place = static_cast<int>(blockIdx.x);
#pragma unroll 1
  while (place < of.schedule.size()) {
    const KeyBlock at = of.schedule.at(place);
    const int entry = at.head / of.kv_heads;
    const Keys keys = {at.block * kBlockN, at.head, at.head * of.group,
                       query_tiles(at.block * kBlockN, kBlockM, of.seq_q, of.seq_k, of.causal)};
    announce(barriers, of_keys, keys);
    const auto copy = [&](int to, const CUtensorMap* map, int rows, int row, int head, uint64_t* full) {
#pragma unroll
      for (int slab = 0; slab < kHeadDim / kSlab; ++slab) {
        tma_load(shared + to + slab * rows * kSwizzle, map, slab * kSlab, row, head, entry, full);
      }
    };
    bool is_first = true;
#pragma unroll 1
    for (int head = keys.query_head; head < keys.query_head + of.group; ++head) {
#pragma unroll 1
      for (int tile = keys.tiles.first; tile < keys.tiles.end; ++tile) {
        StageBarriers& stage = barriers->stages[next.stage];
        const float* const statistics = of.statistics + (int64_t{head} * keys.tiles.end + tile) * 2 * kBlockM;
        unsigned char* const to = shared + kLayout.statistics(next.stage);
        const int of_entry = head - entry * of.heads;
        mbarrier_wait_parity(&stage.q_empty, next.parity ^ 1);
        mbarrier_arrive_expect_tx(&stage.q_full, kLayout.tile_bytes + kBlockM * 4);
        copy(kLayout.queries(next.stage), map_q, kBlockM, tile * kBlockM, of_entry, &stage.q_full);
        bulk_load(to, statistics, kBlockM * 4, &stage.q_full);
        mbarrier_wait_parity(&stage.d_out_empty, next.parity ^ 1);
        mbarrier_arrive_expect_tx(&stage.d_out_full, kLayout.tile_bytes + kBlockM * 4);
        copy(kLayout.d_out(next.stage), map_d_out, kBlockM, tile * kBlockM, of_entry, &stage.d_out_full);
        bulk_load(to + kBlockM * 4, statistics + kBlockM, kBlockM * 4, &stage.d_out_full);
        next.advance(kStages);
        if (is_first) {
          // The keys before need values until their last step begins, and themselves until it ends.
          const int kv_head = at.head - entry * of.kv_heads;
          mbarrier_wait_parity(&barriers->v_empty, parity_of_keys);
          mbarrier_arrive_expect_tx(&barriers->v_full, kLayout.kv_bytes);
          copy(kLayout.values(), map_v, kBlockN, keys.first, kv_head, &barriers->v_full);
          mbarrier_wait_parity(&barriers->k_empty, parity_of_keys);
          mbarrier_arrive_expect_tx(&barriers->k_full, kLayout.kv_bytes);
          copy(kLayout.keys(), map_k, kBlockN, keys.first, kv_head, &barriers->k_full);
          parity_of_keys ^= 1;
          is_first = false;
        }
      }
    }
    // Not earlier: a block that has much to do would leave the next keys to nobody else.
    place = static_cast<int>(gridDim.x) + atomicAdd(of.taken, 1);
  }
  announce(barriers, of_keys, Keys{});
}

// A warp has the parts of dq of one warpgroup added to the sums: at once, or when it is the block's turn. The next turn
// begins when the part is added.
template <int kHeadDim, int kBlockM, int kStages>
__device__ __forceinline__ void add_parts(unsigned char* shared, Barriers* barriers, const Arguments& of, int which) {
  constexpr SharedLayout kLayout(kHeadDim, kBlockM, kStages);
  const auto* const from = reinterpret_cast<const float*>(shared + kLayout.part(which));
  Pipeline of_keys;
#pragma unroll 1
  for (;;) {
    const Keys keys = next_keys(barriers, of_keys);
    if (keys.is_end()) {
      break;
    }
#pragma unroll 1
    for (int head = keys.query_head; head < keys.query_head + of.group; ++head) {
#pragma unroll 1
      for (int tile = keys.tiles.first; tile < keys.tiles.end; ++tile) {
        named_barrier_arrive(kPartIsEmpty + which, kThreadsOfPart);
        named_barrier_sync(kPartIsFull + which, kThreadsOfPart);
        if (threadIdx.x % 32 == 0) {
          const int64_t part = (int64_t{head} * keys.tiles.end + tile) * kWarpgroups + which;
          if (of.turns != nullptr) {
            wait_for_turn(of.turns + part,
                          turn_of(keys.first / kBlockN, tile, kBlockM, of.seq_q, of.seq_k, of.causal));
          }
          bulk_reduce_add(of.sums + part * part_of(kHeadDim, kBlockM), from, kLayout.part_bytes);
          bulk_commit_group();
          if (of.turns != nullptr) {
            bulk_wait_group_all();
            next_turn(of.turns + part);
          } else {
            bulk_wait_group_read<0>();
          }
        }
        __syncwarp();
      }
    }
  }
}

#endif

}  // namespace attention_backward
