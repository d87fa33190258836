// Attention's backward pass for Hopper, after FlashAttention-3's (Shah and others, 2024, arXiv:2407.08608), as its
// source has it: hopper/mainloop_bwd_sm90_tma_gmma_ws.hpp of Dao-AILab/flash-attention.
//
// - A block of threads stays on its multiprocessor (persistent). It takes 128 keys of a key head after the other, and
//   goes through the tiles of queries that see them, of all heads that share the key head, or through a part of these
//   steps. Each of two warpgroups has 64 keys, and their sums of dk and dv in registers.
// - Scores are transposed, a row for each key. So probabilities and their gradients lie in registers as the products
//   with d_out and queries want their first operand.
// - dq is a sum over all keys: both warpgroups write their gradients of scores to shared memory, and each multiplies
//   all of them with keys for a part of the tile's dq. The copy engine adds the parts to sums in device memory.
// - One warp copies, by TMA: keys and values once, queries and d_out with their rows' statistics tile after tile. They
//   go round kStages buffers, and the next keys' first tiles are copied while the last ones are multiplied. Two more
//   warps have the parts of dq added.
//
// A step of kBlockM queries does 5 products of 2 kBlockM 128 head_dim operations. Its second floor is shared memory:
// wgmma reads both operands of scores, of their gradients' first product and of dq, and the second ones of dv and dk,
// once for each warpgroup; gradients of scores, dq, queries and d_out are written, and dq is read, once. The page
// docs/kernels/attention_backward.md counts both for each tile.
#pragma once

#include <climits>
#include <cmath>
#include <cstdint>
#include <type_traits>

#include "../include/bulk_reduce.cuh"
#include "../include/common.cuh"
#include "../include/tma.cuh"
#include "../include/wgmma.cuh"
#include "flash_layout.h"
#include "flash_products.cuh"
#include "flash_rows.cuh"

namespace attention_backward {

constexpr int kWarps = kWarpgroups * 4;  // that multiply
// Those that copy are a warpgroup of their own, since a warpgroup gives up registers as a whole.
constexpr int kThreads = (kWarpgroups + 1) * kWarpgroup;

struct Arguments {
  Schedule schedule;
  int heads;     // of queries, of one batch entry
  int parts;     // of key heads: each key head has `split`
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
  uint16_t* dk;              // of each part
  uint16_t* dv;
  int split;                 // parts of a key head. Among the integers above, it costs the loop of 80 queries more spills
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

// The warp that copies takes places of the schedule, and tells the others which keys these are.
__device__ __forceinline__ void tell(Barriers* barriers, Pipeline& next, const Keys& keys) {
  mbarrier_wait_parity(&barriers->keys_empty[next.stage], next.parity ^ 1);
  barriers->keys[next.stage] = keys;
  mbarrier_arrive(&barriers->keys_full[next.stage]);
  next.advance(kKeysAhead);
}

// A number that all threads of a warp have: by the shuffle the compiler knows that it is one, and keeps it once.
__device__ __forceinline__ int uniform(int number) { return __shfl_sync(0xffffffff, number, 0); }

// The next keys, for a warp; those of the end have no steps.
__device__ __forceinline__ Keys next_keys(Barriers* barriers, Pipeline& next) {
  mbarrier_wait_parity(&barriers->keys_full[next.stage], next.parity);
  const Keys& at = barriers->keys[next.stage];
  const Keys keys = {uniform(at.first), uniform(at.head), uniform(at.steps), uniform(at.query_head), uniform(at.tile),
                     {uniform(at.tiles.first), uniform(at.tiles.full), uniform(at.tiles.end)}};
  if (threadIdx.x % 32 == 0) {
    mbarrier_arrive(&barriers->keys_empty[next.stage]);
  }
  next.advance(kKeysAhead);
  return keys;
}

// Goes to the next step's tile, and to its head.
__device__ __forceinline__ void advance(const QueryTiles& tiles, int& tile, int& head) {
  if (++tile == tiles.end) {
    tile = tiles.first;
    ++head;
  }
}

// One thread copies all that the block of threads needs.
template <int kHeadDim, int kBlockM, int kStages>
__device__ __forceinline__ void copy_tiles(unsigned char* shared, Barriers* barriers, const CUtensorMap* map_q,
                                           const CUtensorMap* map_k, const CUtensorMap* map_v,
                                           const CUtensorMap* map_d_out, const Arguments& of) {
  constexpr SharedLayout kLayout(kHeadDim, kBlockM, kStages);
  Pipeline next;
  Pipeline told;
  int parity_of_keys = 1;  // a barrier that no phase has completed yet lets the parity 1 pass: buffers begin empty
  // What comes before has written statistics, and zeros for sums and places.
  wait_on_dependent_grids();
  int place = static_cast<int>(blockIdx.x);
#pragma unroll 1
  while (place < of.schedule.size()) {
    const KeyBlock at = of.schedule.at(place);
    const int entry = at.head / of.parts;
    const int kv_head = at.head / of.split;  // of all batch entries
    const QueryTiles tiles = query_tiles(at.block * kBlockN, kBlockM, of.seq_q, of.seq_k, of.causal);
    const int of_head = tiles.end - tiles.first;
    const Steps steps = steps_of(of.group * of_head, at.head - kv_head * of.split, of.split);
    const Keys keys = {at.block * kBlockN, at.head, steps.end - steps.first, kv_head * of.group + steps.first / of_head,
                       tiles.first + steps.first % of_head, tiles};
    if (!keys.is_end()) {  // this part has steps; without any it would end the other warps
      tell(barriers, told, keys);
    }
    const auto copy = [&](int to, const CUtensorMap* map, int rows, int row, int head, uint64_t* full) {
#pragma unroll
      for (int slab = 0; slab < kHeadDim / kSlab; ++slab) {
        tma_load(shared + to + slab * rows * kSwizzle, map, slab * kSlab, row, head, entry, full);
      }
    };
    int tile = keys.tile;
    int head = keys.query_head;
#pragma unroll 1
    for (int step = 0; step < keys.steps; ++step) {
      StageBarriers& stage = barriers->stages[next.stage];
      const float* const statistics = of.statistics + (int64_t{head} * tiles.end + tile) * 2 * kBlockM;
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
      if (step == 0) {
        // The keys before need values until their last step begins, and themselves until it ends.
        const int kv_head_of_entry = kv_head - entry * (of.heads / of.group);
        mbarrier_wait_parity(&barriers->v_empty, parity_of_keys);
        mbarrier_arrive_expect_tx(&barriers->v_full, kLayout.kv_bytes);
        copy(kLayout.values(), map_v, kBlockN, keys.first, kv_head_of_entry, &barriers->v_full);
        mbarrier_wait_parity(&barriers->k_empty, parity_of_keys);
        mbarrier_arrive_expect_tx(&barriers->k_full, kLayout.kv_bytes);
        copy(kLayout.keys(), map_k, kBlockN, keys.first, kv_head_of_entry, &barriers->k_full);
        parity_of_keys ^= 1;
      }
      advance(tiles, tile, head);
    }
    // Not earlier: a block that has much to do would leave the next keys to nobody else.
    place = static_cast<int>(gridDim.x) + atomicAdd(of.taken, 1);
  }
  tell(barriers, told, Keys{});
}

// A warp has the parts of dq of one warpgroup added to the sums: at once, or when it is the block's turn. The next turn
// begins when the part is added.
template <int kHeadDim, int kBlockM, int kStages>
__device__ __forceinline__ void add_parts(unsigned char* shared, Barriers* barriers, const Arguments& of, int which) {
  constexpr SharedLayout kLayout(kHeadDim, kBlockM, kStages);
  const auto* const from = reinterpret_cast<const float*>(shared + kLayout.part(which));
  Pipeline told;
#pragma unroll 1
  for (;;) {
    const Keys keys = next_keys(barriers, told);
    if (keys.is_end()) {
      break;
    }
    int tile = keys.tile;
    int head = keys.query_head;
#pragma unroll 1
    for (int step = 0; step < keys.steps; ++step) {
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
      advance(keys.tiles, tile, head);
    }
  }
}

// A warpgroup does its 64 keys of each block of keys.
template <Element kElement, int kHeadDim, int kBlockM, int kStages>
__device__ __forceinline__ void differentiate(unsigned char* shared, Barriers* barriers, const Arguments& of,
                                              int which) {
  static_assert(kIsTransposed<kBlockM> ? kHeadDim == kWarpgroups * kSlab
                                       : kHeadDim * kBlockM == kWarpgroups * kSlab * kRowsOfWarpgroup,
                "each warpgroup has a part of dq");
  constexpr int kSlabs = kHeadDim / kSlab;
  constexpr int kNumbers = kOfPart<kHeadDim, kBlockM>;
  constexpr SharedLayout kLayout(kHeadDim, kBlockM, kStages);
  const int thread = static_cast<int>(threadIdx.x) % kWarpgroup;
  const int lane = thread % 32;
  const int own_row = which * kRowsOfWarpgroup + thread / 32 * 16;  // of its warp, in the block of keys
  const uint32_t own_keys = shared_address(shared + kLayout.keys() + which * kRowsOfWarpgroup * kSwizzle);
  const uint32_t own_values = shared_address(shared + kLayout.values() + which * kRowsOfWarpgroup * kSwizzle);
  const uint32_t keys_of_part =
      shared_address(shared + kLayout.keys() + which % kSlabs * kBlockN * kSwizzle);
  auto* const part = reinterpret_cast<float4*>(shared + kLayout.part(which)) + thread;
  // stmatrix: lane l has the address of row l % 8 of matrix l / 8, of which odd ones are 8 keys further, and the last
  // two 8 queries further. The next 16 queries are 16 rows further in transposed tiles, else 32 bytes, which the swizzle
  // has at bits of their own.
  const int stored_key = own_row + lane / 8 % 2 * 8;
  const int stored_query = lane / 16 * 8;
  const int stored = kIsTransposed<kBlockM>
                         ? stored_key / kSlab * kBlockM * kSwizzle + swizzled(stored_query + lane % 8, stored_key % kSlab * 2)
                         : swizzled(stored_key + lane % 8, stored_query * 2);
  const auto release = [&](uint64_t* empty) {
    if (lane == 0) {
      mbarrier_arrive(empty);
    }
  };

  Pipeline next;
  Pipeline told;
  int parity_of_keys = 0;
  int gradient_stage = 0;
#pragma unroll 1
  for (;;) {
    const Keys keys = next_keys(barriers, told);
    if (keys.is_end()) {
      break;
    }
    const int own_key = keys.first + own_row + lane / 4;  // and 8 further
    float dk[kHeadDim / 2];
    float dv[kHeadDim / 2];
#pragma unroll
    for (int i = 0; i < kHeadDim / 2; ++i) {
      dk[i] = 0.0f;
      dv[i] = 0.0f;
    }
    int steps = keys.steps;
    int tile = keys.tile;
    mbarrier_wait_parity(&barriers->k_full, parity_of_keys);
    mbarrier_wait_parity(&barriers->v_full, parity_of_keys);
#pragma unroll 1
    do {
      StageBarriers& stage = barriers->stages[next.stage];
      const auto* const logarithms = reinterpret_cast<const float*>(shared + kLayout.statistics(next.stage));
      const float* const deltas = logarithms + kBlockM;
      const uint32_t queries = shared_address(shared + kLayout.queries(next.stage));
      const uint32_t d_out = shared_address(shared + kLayout.d_out(next.stage));
      float scores[kBlockM / 2];
      float gradients[kBlockM / 2];
      uint32_t packed_scores[kBlockM / 4];
      uint32_t packed_gradients[kBlockM / 4];
      mbarrier_wait_parity(&stage.q_full, next.parity);
      start_product<kElement, kHeadDim, kBlockM>(scores, own_keys, queries);
      mbarrier_wait_parity(&stage.d_out_full, next.parity);
      start_product<kElement, kHeadDim, kBlockM>(gradients, own_values, d_out);
      wgmma_wait_group<1>();
      fence_registers(scores);

#pragma unroll
      for (int i = 0; i < kBlockM / 8; ++i) {
        const float2 logarithm = *reinterpret_cast<const float2*>(logarithms + i * 8 + lane % 4 * 2);
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          float& score = scores[i * 4 + j];
          score = exp2_(fmaf(score, of.scale_log2, j % 2 == 0 ? -logarithm.x : -logarithm.y));
        }
      }
      if (tile < keys.tiles.full) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int key = own_key + half * 8;
          // A query before this one, counted from the thread's first column, does not see the thread's key.
          const int first = first_query(key, of.seq_q, of.seq_k, of.causal) - tile * kBlockM - lane % 4 * 2;
          const int sees_from = key < of.seq_k ? first : INT_MAX;
#pragma unroll
          for (int i = 0; i < kBlockM / 4; ++i) {
            if (i / 2 * 8 + i % 2 < sees_from) {
              scores[i / 2 * 4 + half * 2 + i % 2] = 0.0f;
            }
          }
        }
      }
      if (++tile == keys.tiles.end) {
        tile = keys.tiles.first;
      }
      pack<kElement, kBlockM>(packed_scores, scores);
      wgmma_wait_group<0>();
      fence_registers(gradients);
      if (--steps == 0) {
        release(&barriers->v_empty);
      }
#pragma unroll
      for (int i = 0; i < kBlockM / 8; ++i) {
        const float2 delta = *reinterpret_cast<const float2*>(deltas + i * 8 + lane % 4 * 2);
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          gradients[i * 4 + j] = scores[i * 4 + j] * (gradients[i * 4 + j] - (j % 2 == 0 ? delta.x : delta.y));
        }
      }
      pack<kElement, kBlockM>(packed_gradients, gradients);

      // Who writes here has passed the barrier of the step before, and so has everybody the reads of two steps before.
      const uint32_t to = shared_address(shared + kLayout.gradients(gradient_stage));
      gradient_stage ^= 1;
#pragma unroll
      for (int i = 0; i < kBlockM / 16; ++i) {
        const uint32_t* const four = packed_gradients + i * 4;
        if constexpr (kIsTransposed<kBlockM>) {
          const uint32_t at = to + static_cast<uint32_t>(stored + i * 16 * kSwizzle);
          stmatrix_x4_trans(at, four[0], four[1], four[2], four[3]);
        } else {
          const uint32_t at = to + static_cast<uint32_t>((stored ^ i % 4 * 32) + i / 4 * kBlockN * kSwizzle);
          stmatrix_x4(at, four[0], four[1], four[2], four[3]);
        }
      }
      start_sums<kElement, kHeadDim, kBlockM>(dv, packed_scores, d_out);
      fence_proxy_async();
      named_barrier_sync(kGradientsAreThere, kWarpgroups * kWarpgroup);
      float sums[kNumbers];
      start_part<kElement, kHeadDim, kBlockM>(sums, to + static_cast<uint32_t>(which / kSlabs * kBlockN * kSwizzle),
                                              keys_of_part);
      wgmma_wait_group<1>();
      fence_registers(dv);
      fence_registers(packed_scores);
      release(&stage.d_out_empty);
      start_sums<kElement, kHeadDim, kBlockM>(dk, packed_gradients, queries);
      wgmma_wait_group<1>();
      fence_registers(sums);
      if (steps == 0) {
        release(&barriers->k_empty);
      }
      named_barrier_sync(kPartIsEmpty + which, kThreadsOfPart);
#pragma unroll
      for (int i = 0; i < kNumbers / 4; ++i) {
        part[i * kWarpgroup] = make_float4(sums[i * 4], sums[i * 4 + 1], sums[i * 4 + 2], sums[i * 4 + 3]);
      }
      fence_proxy_async();
      named_barrier_arrive(kPartIsFull + which, kThreadsOfPart);
      wgmma_wait_group<0>();
      fence_registers(dk);
      fence_registers(packed_gradients);
      release(&stage.q_empty);
      next.advance(kStages);
    } while (steps > 0);

    parity_of_keys ^= 1;
    const int64_t first = (int64_t{keys.head} * of.seq_k + own_key) * of.columns;
    store_rows<kElement, kHeadDim>(dv, 1.0f, of.dv + first, of.columns, of.columns, own_key, of.seq_k, lane);
    store_rows<kElement, kHeadDim>(dk, of.scale, of.dk + first, of.columns, of.columns, own_key, of.seq_k, lane);
  }
}

#endif

template <Element kElement, int kHeadDim, int kBlockM, int kStages>
__global__ void __launch_bounds__(kThreads, 1)
    flash_gradients(const __grid_constant__ CUtensorMap map_q, const __grid_constant__ CUtensorMap map_k,
                    const __grid_constant__ CUtensorMap map_v, const __grid_constant__ CUtensorMap map_d_out,
                    const __grid_constant__ Arguments of) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  // The next grid's blocks begin on multiprocessors without a block of this one, and wait for its end.
  launch_dependent_grids();
  unsigned char* const shared = dynamic_shared_memory<kSwizzleTile>();
  auto* const barriers = reinterpret_cast<Barriers*>(shared);
  if (threadIdx.x == 0) {
    prefetch_tensor_map(&map_q);
    prefetch_tensor_map(&map_k);
    prefetch_tensor_map(&map_v);
    prefetch_tensor_map(&map_d_out);
    mbarrier_init(&barriers->k_full, 1);
    mbarrier_init(&barriers->k_empty, kWarps);
    mbarrier_init(&barriers->v_full, 1);
    mbarrier_init(&barriers->v_empty, kWarps);
    for (int i = 0; i < kKeysAhead; ++i) {
      mbarrier_init(&barriers->keys_full[i], 1);
      mbarrier_init(&barriers->keys_empty[i], kWarps + kWarpgroups);
    }
    for (int stage = 0; stage < kStages; ++stage) {
      mbarrier_init(&barriers->stages[stage].q_full, 1);
      mbarrier_init(&barriers->stages[stage].q_empty, kWarps);
      mbarrier_init(&barriers->stages[stage].d_out_full, 1);
      mbarrier_init(&barriers->stages[stage].d_out_empty, kWarps);
    }
    fence_mbarrier_init();
  }
  __syncthreads();

  const int warp = uniform(static_cast<int>(threadIdx.x) / 32);
  if (warp < 4) {
    setmaxnreg_dec<kRegistersToCopy>();
    if (threadIdx.x == 0) {
      copy_tiles<kHeadDim, kBlockM, kStages>(shared, barriers, &map_q, &map_k, &map_v, &map_d_out, of);
    }
    __syncwarp();
    if (warp == 1 || warp == 2) {
      add_parts<kHeadDim, kBlockM, kStages>(shared, barriers, of, warp - 1);
    }
  } else {
    setmaxnreg_inc<kRegistersToMultiply>();
    differentiate<kElement, kHeadDim, kBlockM, kStages>(shared, barriers, of, warp / 4 - 1);
  }
#endif
}

}  // namespace attention_backward
