// FlashAttention-3's forward pass for Hopper (Shah and others, 2024, arXiv:2407.08608), after the paper's algorithms 1
// and 2, with what the PTX ISA says of the instructions:
//
// - A block stays on its multiprocessor and takes tile after tile of kBlockM queries of one head (persistent). The
//   "head" may be all heads that share a key head, one after the other: `queries` are those of each.
// - One warp copies, by TMA: a tile's queries once, its keys and values a block of kBlockN after the other, from the
//   last to the first. They go round `stages` buffers each. A buffer's barrier `full` says that its bytes are there,
//   its barrier `empty` that every warp that multiplies is done with it. What is outside of a head comes as zeros.
// - Each of one to three warpgroups has 64 queries. Scores are a wgmma of two operands in shared memory. Their
//   exponentials stay in registers, where they are the first operand of the product with values: the sums of one wgmma
//   lie in registers as the next one wants its operand.
// - A step starts the product of the next block's scores, then the product of this block's values. While the latter
//   runs, it does the former's softmax (the paper's algorithm 2).
// - Several warpgroups take turns to start their products (ping-pong): one's softmax falls into the other's products.
// - Rows of scores are only masked in blocks where a query does not see all keys.
// - At a tile's end a row's maximum and sum give `lse`, the logarithm of the sum of its exponentials, if somebody wants
//   it: the backward pass needs it.
#pragma once

#include <cmath>
#include <cstdint>
#include <type_traits>

#include "../include/common.cuh"
#include "../include/tma.cuh"
#include "../include/wgmma.cuh"
#include "flash_layout.h"
#include "flash_rows.cuh"
#include "wgmma_96.cuh"

namespace attention {

constexpr int kWarpgroup = 128;  // threads
constexpr float kLn2 = 0.6931471805599453f;

// Those that copy are a warpgroup of their own, since a warpgroup gives up registers as a whole.
template <int kBlockM>
constexpr int kThreads = (kBlockM / kRowsOfWarpgroup + 1) * kWarpgroup;

struct Arguments {
  Schedule schedule;
  int heads;  // of one batch entry
  int group;  // query heads that share a key head
  int seq_q;
  int queries;  // of a head: seq_q, or less if the rows of q are those of several heads, one after the other
  int seq_k;
  int stages;
  float scale;  // of a score, times log2(e)
  uint16_t* out;
  int64_t out_strides[3];  // of batch entries, heads and rows, in elements
  float* lse;  // of each row, the logarithm of the sum of its exponentials; null if nobody wants it
};

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

// Blocks of keys that the tile whose first row is `row` sees. A tile with the end of one head and the start of the next
// may have any of a head's queries.
template <int kBlockM, int kBlockN, bool kCausal>
__device__ __forceinline__ KeyBlocks blocks_seen(int row, const Arguments& of) {
  const int first = row % of.queries;
  const bool has_one_head = first + kBlockM <= of.queries || row - first + of.queries >= of.seq_q;
  return key_blocks(has_one_head ? first : 0, has_one_head ? kBlockM : of.queries, kBlockN, of.queries, of.seq_k,
                    kCausal);
}

// Registers of a thread: no more in all than the block was launched with, which is the most that fits. With one
// warpgroup that multiplies, every thread has the most from the start.
template <int kBlockM>
constexpr int kRegistersToCopy = kBlockM == 128 ? 40 : 32;
template <int kBlockM>
constexpr int kRegistersToMultiply = kBlockM == 128 ? 232 : 160;

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

template <int kBlockM>
__device__ __forceinline__ void init_barriers(Barriers* barriers, int stages) {
  constexpr int kWarps = kBlockM / 16;  // that multiply
  mbarrier_init(&barriers->q_full, 1);
  mbarrier_init(&barriers->q_empty, kWarps);
  for (int stage = 0; stage < stages; ++stage) {
    mbarrier_init(&barriers->stages[stage].k_full, 1);
    mbarrier_init(&barriers->stages[stage].k_empty, kWarps);
    mbarrier_init(&barriers->stages[stage].v_full, 1);
    mbarrier_init(&barriers->stages[stage].v_empty, kWarps);
  }
  fence_mbarrier_init();
}

// One thread copies all that the block's tiles need. A block's values come behind the keys of the next one, which are
// wanted before them.
template <int kHeadDim, int kBlockM, int kBlockN, bool kCausal>
__device__ __forceinline__ void copy_tiles(unsigned char* shared, Barriers* barriers, const CUtensorMap* map_q,
                                           const CUtensorMap* map_k, const CUtensorMap* map_v, const Arguments& of,
                                           TileIndex tile) {
  constexpr SharedLayout kLayout(kHeadDim, kBlockM, kBlockN);
  const auto copy = [&](unsigned char* to, const CUtensorMap* map, int rows, int row, int head, int entry,
                        uint64_t* full) {
    mbarrier_arrive_expect_tx(full, slabs_of(kHeadDim) * rows * kSwizzle);
#pragma unroll
    for (int slab = 0; slab < slabs_of(kHeadDim); ++slab) {
      tma_load(to + slab * rows * kSwizzle, map, slab * kSlab, row, head, entry, full);
    }
  };
  Pipeline keys;
  Pipeline values;
  int parity_of_q = 0;
  for (int number = 0; tile.head >= 0; tile = of.schedule.tile(++number, static_cast<int>(blockIdx.x))) {
    if (tile.block < 0) {
      continue;
    }
    const int entry = tile.head / of.heads;
    const int head = tile.head % of.heads;
    const int key_head = head / of.group;
    const int row = tile.block * kBlockM;
    const int end = blocks_seen<kBlockM, kBlockN, kCausal>(row, of).end;
    // A barrier that no phase has completed yet lets the parity 1 pass: the buffers begin empty.
#pragma unroll 1
    for (int n = end; n >= 0; --n) {
      if (n > 0) {
        StageBarriers& stage = barriers->stages[keys.stage];
        mbarrier_wait_parity(&stage.k_empty, keys.parity ^ 1);
        copy(shared + kLayout.keys(keys.stage), map_k, kBlockN, (n - 1) * kBlockN, key_head, entry, &stage.k_full);
        keys.advance(of.stages);
      }
      if (n == end) {
        mbarrier_wait_parity(&barriers->q_empty, parity_of_q ^ 1);
        copy(shared + kLayout.queries(), map_q, kBlockM, row, head, entry, &barriers->q_full);
        parity_of_q ^= 1;
      } else {
        StageBarriers& stage = barriers->stages[values.stage];
        mbarrier_wait_parity(&stage.v_empty, values.parity ^ 1);
        copy(shared + kLayout.values(values.stage), map_v, kBlockN, n * kBlockN, key_head, entry, &stage.v_full);
        values.advance(of.stages);
      }
    }
  }
}

// Starts a warpgroup's product of its 64 queries and a block of keys, both with rows along head_dim (K-major).
template <Element kElement, int kHeadDim, int kBlockM, int kBlockN>
__device__ __forceinline__ void start_scores(float (&scores)[kBlockN / 2], uint32_t queries, uint32_t keys) {
  const uint64_t of_queries = k_major_descriptor(queries, 0);
  const uint64_t of_keys = k_major_descriptor(keys, 0);
  fence_registers(scores);
  wgmma_fence();
#pragma unroll
  for (int step = 0; step < kHeadDim / 16; ++step) {
    const int slab = step / 4;  // a row of 128 bytes is four instructions' 32 bytes
    const int byte = step % 4 * 32;
    const uint64_t queries_of_step = further(of_queries, slab * kBlockM * kSwizzle + byte);
    const uint64_t keys_of_step = further(of_keys, slab * kBlockN * kSwizzle + byte);
    if constexpr (kBlockN == 112) {
      wgmma_112<kElement, false, false>(scores, queries_of_step, keys_of_step, step > 0);
    } else {
      wgmma<kElement, kBlockN, false, false>(scores, queries_of_step, keys_of_step, step > 0);
    }
  }
  wgmma_commit_group();
  fence_registers(scores);
}

// Starts a warpgroup's product of its probabilities and a block of values, whose rows go along head_dim, a row for each
// key (MN-major), and adds it to `sums`.
template <Element kElement, int kHeadDim, int kBlockN>
__device__ __forceinline__ void start_sums(float (&sums)[kHeadDim / 2], uint32_t (&probabilities)[kBlockN / 4],
                                           uint32_t values) {
  const uint64_t of_values = mn_major_descriptor(values, 0, kBlockN);
  fence_registers(sums);
  fence_registers(probabilities);
  wgmma_fence();
#pragma unroll
  for (int step = 0; step < kBlockN / 16; ++step) {
    const uint64_t values_of_step = further(of_values, step * 16 * kSwizzle);
    if constexpr (kHeadDim == 96) {
      wgmma_96<kElement, true>(sums, probabilities + step * 4, values_of_step, true);
    } else {
      wgmma<kElement, kHeadDim, true>(sums, probabilities + step * 4, values_of_step, true);
    }
  }
  wgmma_commit_group();
  fence_registers(sums);
  fence_registers(probabilities);
}

// A warpgroup does its 64 queries of each of the block's tiles.
template <Element kElement, int kHeadDim, int kBlockM, int kBlockN, bool kCausal>
__device__ __forceinline__ void attend_tiles(unsigned char* shared, Barriers* barriers, const Arguments& of,
                                             TileIndex tile, int which) {
  constexpr SharedLayout kLayout(kHeadDim, kBlockM, kBlockN);
  constexpr int kWarpgroups = kBlockM / kRowsOfWarpgroup;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int own_row = which * kRowsOfWarpgroup + static_cast<int>(threadIdx.x) % kWarpgroup / 32 * 16 + lane / 4;
  const uint32_t own_queries = shared_address(shared + kLayout.queries() + which * kRowsOfWarpgroup * kSwizzle);
  Pipeline keys;
  Pipeline values;
  int parity_of_q = 0;
  const auto release = [&](uint64_t* empty) {
    if (lane == 0) {
      mbarrier_arrive(empty);
    }
  };
  // Turns go round: a warpgroup's turn comes when the one before it has given it. The last one gives the first turn.
  // One alone takes none.
  const auto take_turn = [&] {
    if constexpr (kWarpgroups > 1) {
      named_barrier_sync(1 + which, 2 * kWarpgroup);
    }
  };
  const auto give_turn = [&] {
    if constexpr (kWarpgroups > 1) {
      named_barrier_arrive(1 + (which + 1) % kWarpgroups, 2 * kWarpgroup);
    }
  };
  if (which == kWarpgroups - 1) {
    give_turn();
  }

  for (int number = 0; tile.head >= 0; tile = of.schedule.tile(++number, static_cast<int>(blockIdx.x))) {
    if (tile.block < 0) {
      continue;
    }
    const int row = tile.block * kBlockM + own_row;
    const KeyBlocks seen = blocks_seen<kBlockM, kBlockN, kCausal>(tile.block * kBlockM, of);
    int sees[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int last = (row + half * 8) % of.queries + of.seq_k - of.queries + 1;
      sees[half] = kCausal && last < of.seq_k ? last : of.seq_k;
    }

    float scores[kBlockN / 2];
    uint32_t probabilities[kBlockN / 4];
    float sums[kHeadDim / 2];
    Rows rows;
#pragma unroll
    for (int i = 0; i < kHeadDim / 2; ++i) {
      sums[i] = 0.0f;
    }

    int n = seen.end - 1;
    mbarrier_wait_parity(&barriers->q_full, parity_of_q);
    mbarrier_wait_parity(&barriers->stages[keys.stage].k_full, keys.parity);
    start_scores<kElement, kHeadDim, kBlockM, kBlockN>(scores, own_queries,
                                                       shared_address(shared + kLayout.keys(keys.stage)));
    wgmma_wait_group<0>();
    fence_registers(scores);
    release(&barriers->stages[keys.stage].k_empty);
    if (n == 0) {
      release(&barriers->q_empty);
    }
    keys.advance(of.stages);
    if (n >= seen.full) {
      mask<kBlockN>(scores, n * kBlockN + lane % 4 * 2, sees);
    }
    soften<kBlockN>(scores, rows, of.scale);
    pack<kElement, kBlockN>(probabilities, scores);
    if (n > 0) {
      mbarrier_wait_parity(&barriers->stages[keys.stage].k_full, keys.parity);
    }

    // The scores of block n, and the values of the block before, n + 1.
    const auto step = [&](auto masked) __attribute__((always_inline)) {
      take_turn();
      start_scores<kElement, kHeadDim, kBlockM, kBlockN>(scores, own_queries,
                                                         shared_address(shared + kLayout.keys(keys.stage)));
      mbarrier_wait_parity(&barriers->stages[values.stage].v_full, values.parity);
      start_sums<kElement, kHeadDim, kBlockN>(sums, probabilities,
                                              shared_address(shared + kLayout.values(values.stage)));
      give_turn();
      wgmma_wait_group<1>();
      fence_registers(scores);
      release(&barriers->stages[keys.stage].k_empty);
      if (n == 0) {
        release(&barriers->q_empty);
      }
      keys.advance(of.stages);
      if constexpr (decltype(masked)::value) {
        mask<kBlockN>(scores, n * kBlockN + lane % 4 * 2, sees);
      }
      soften<kBlockN>(scores, rows, of.scale);
      // ptxas would move exponentials past the wait for wgmma. It moves none across a loop, which this wait is.
      fence_registers(scores);
      fence_registers(rows.total);
      if (n > 0) {
        mbarrier_wait_parity(&barriers->stages[keys.stage].k_full, keys.parity);
      }
      wgmma_wait_group<0>();
      fence_registers(sums);
      fence_registers(probabilities);
      release(&barriers->stages[values.stage].v_empty);
      values.advance(of.stages);
      pack<kElement, kBlockN>(probabilities, scores);
#pragma unroll
      for (int i = 0; i < kHeadDim / 2; ++i) {
        sums[i] *= rows.shrink[i / 2 % 2];
      }
    };
    --n;
    if constexpr (kCausal) {
      for (; n >= seen.full; --n) {
        step(std::true_type{});
      }
    }
    for (; n >= 0; --n) {
      step(std::false_type{});
    }

    parity_of_q ^= 1;
    mbarrier_wait_parity(&barriers->stages[values.stage].v_full, values.parity);
    start_sums<kElement, kHeadDim, kBlockN>(sums, probabilities,
                                            shared_address(shared + kLayout.values(values.stage)));
    float factors[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float total = sum_of_quad(rows.total[half]);
      factors[half] = reciprocal(total);
      if (of.lse != nullptr && lane % 4 == 0 && row + half * 8 < of.seq_q) {
        of.lse[static_cast<int64_t>(tile.head) * of.seq_q + row + half * 8] =
            (rows.largest[half] + log2f(total)) * kLn2;
      }
    }
    wgmma_wait_group<0>();
    fence_registers(sums);
    fence_registers(probabilities);
    release(&barriers->stages[values.stage].v_empty);
    values.advance(of.stages);
    const auto& [entry_stride, head_stride, row_stride] = of.out_strides;
    const int entry = tile.head / of.heads;
    const int head = tile.head % of.heads;
    uint16_t* const out = of.out + entry * entry_stride + head * head_stride + row * row_stride;
    store_rows<kElement, kHeadDim>(sums, factors, out, row_stride, row, of.seq_q, lane);
  }
  // The last turn is taken, too, so that no barrier is left halfway.
  if (which == 0) {
    take_turn();
  }
}

#endif

template <Element kElement, int kHeadDim, int kBlockM, int kBlockN, bool kCausal>
__global__ void __launch_bounds__(kThreads<kBlockM>, 1)
    flash_persistent(const __grid_constant__ CUtensorMap map_q, const __grid_constant__ CUtensorMap map_k,
                     const __grid_constant__ CUtensorMap map_v, const __grid_constant__ Arguments of) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  unsigned char* const shared = dynamic_shared_memory<kSwizzleTile>();
  auto* const barriers = reinterpret_cast<Barriers*>(shared);
  if (threadIdx.x == 0) {
    prefetch_tensor_map(&map_q);
    prefetch_tensor_map(&map_k);
    prefetch_tensor_map(&map_v);
  }
  const TileIndex first = of.schedule.tile(0, static_cast<int>(blockIdx.x));
  // The same in all threads of a warp, and by the shuffle the compiler knows that it is.
  const int warp = __shfl_sync(0xffffffff, static_cast<int>(threadIdx.x) / 32, 0);
  constexpr int kBegin = 0;  // a named barrier, at which the warp that copies does not wait
  constexpr int kThreadsAtBegin = kThreads<kBlockM> - kWarpgroup + 32;
  if (warp < kWarpgroup / 32) {
    if constexpr (kBlockM > kRowsOfWarpgroup) {
      setmaxnreg_dec<kRegistersToCopy<kBlockM>>();
    }
    if (warp == 0) {
      if (threadIdx.x == 0) {
        init_barriers<kBlockM>(barriers, of.stages);
      }
      __syncwarp();
      named_barrier_arrive(kBegin, kThreadsAtBegin);
      if (threadIdx.x == 0) {
        copy_tiles<kHeadDim, kBlockM, kBlockN, kCausal>(shared, barriers, &map_q, &map_k, &map_v, of, first);
      }
      __syncwarp();
    }
  } else {
    if constexpr (kBlockM > kRowsOfWarpgroup) {
      setmaxnreg_inc<kRegistersToMultiply<kBlockM>>();
    }
    named_barrier_sync(kBegin, kThreadsAtBegin);
    attend_tiles<kElement, kHeadDim, kBlockM, kBlockN, kCausal>(shared, barriers, of, first,
                                                                warp / (kWarpgroup / 32) - 1);
  }
#endif
}

}  // namespace attention
