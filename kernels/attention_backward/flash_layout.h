// What cuda_flash works out before it computes gradients: which block of keys comes when, which queries see it, and
// what lies where in shared and in global memory. Plain C++, so that a test compiles it without CUDA.
#pragma once

#include <cstdint>

#include "../include/wgmma_descriptors.h"

namespace attention_backward {

using namespace kernels;  // instructions' names, and where they find a tile

constexpr int kRowsOfWarpgroup = 64;  // wgmma's m
constexpr int kSlab = 64;             // elements of 2 bytes in a row of 128 bytes
constexpr int kWarpgroups = 2;        // that multiply
constexpr int kBlockN = kWarpgroups * kRowsOfWarpgroup;  // keys of a block
constexpr int kGradientStages = 2;                       // buffers for the gradients of scores

// A tile's dq is computed in two parts, one by each warpgroup: 64 queries and 64 columns, or, transposed, 64 columns
// and all queries, where their number is no multiple of wgmma's m.
KERNELS_HOST_DEVICE constexpr int part_of(int head_dim, int block_m) { return head_dim * block_m / kWarpgroups; }

// A block of keys of one part of a key head of one batch entry.
struct KeyBlock {
  int block;
  int head;  // of the parts of key heads of all batch entries
};

// Steps from `first` to `end` of a part of a block of keys; none if the parts before have all of them.
struct Steps {
  int first;
  int end;
};

// A part of a block's `all` steps. A step is a tile of queries of a head that shares the keys, and they come head by
// head. Parts have the same number of steps until none are left: one may have fewer, and those after it none.
KERNELS_HOST_DEVICE constexpr Steps steps_of(int all, int part, int split) {
  const int each = (all + split - 1) / split;
  const int64_t first = int64_t{each} * part;
  return {static_cast<int>(first < all ? first : all), static_cast<int>(first + each < all ? first + each : all)};
}

// How many parts have steps.
KERNELS_HOST_DEVICE constexpr int parts_of(int all, int split) {
  const int each = (all + split - 1) / split;
  return (all + each - 1) / each;
}

// Which keys come when. Blocks of threads take them one by one, as they get done. Without a mask all take equally long
// but the last parts of a head, and they come head by head, so that blocks which work at the same time share queries in L2. With a mask the first keys
// are seen by most queries. Heads then come in groups of about equal size, and the first keys of all heads of a group
// come first: the last to be done take little time. In turns (see turn_of()) the last keys come first.
struct Schedule {
  int heads;
  int blocks;  // of keys in a head
  int groups;  // of heads
  bool last_first;

  KERNELS_HOST_DEVICE int size() const { return heads * blocks; }
  KERNELS_HOST_DEVICE int first_head(int group) const {
    return static_cast<int>(int64_t{group} * heads / groups);
  }
  // The keys that come as number `place`.
  KERNELS_HOST_DEVICE KeyBlock at(int place) const {
    const int group = static_cast<int>((int64_t{place / blocks} * groups + groups - 1) / heads);
    const int first = first_head(group);
    const int wide = first_head(group + 1) - first;
    const int within = place - first * blocks;
    const int block = within / wide;
    return {last_first ? blocks - 1 - block : block, first + within % wide};
  }
};

// The groups of a schedule, of at most `at_once` heads. Those of one size are better than fewer of two sizes, whose
// blocks would not be done at the same time, unless they were more than twice as many.
KERNELS_HOST_DEVICE constexpr int groups_of(int heads, int at_once) {
  const int least = (heads + at_once - 1) / at_once;
  for (int groups = least; groups < 2 * least; ++groups) {
    if (heads % groups == 0) {
      return groups;
    }
  }
  return least;
}

// Tiles of queries that see a block of keys: those from `first` to `full` are masked for some query or key, those from
// `full` to `end` for none.
struct QueryTiles {
  int first;
  int full;
  int end;
};

// The first query that sees a key, whose position is that of the key: the last query and the last key have the same
// position. Negative if all queries see it.
KERNELS_HOST_DEVICE inline int first_query(int key, int seq_q, int seq_k, bool causal) {
  return key - seq_k + (causal ? seq_q : 0);
}

// `key` is the block's first key. Keys past the end are masked.
KERNELS_HOST_DEVICE inline QueryTiles query_tiles(int key, int block_m, int seq_q, int seq_k, bool causal) {
  const int end = (seq_q + block_m - 1) / block_m;
  const int of_first_key = first_query(key, seq_q, seq_k, causal);
  const int of_last_key = of_first_key + kBlockN - 1;
  const int first = of_first_key > 0 ? of_first_key / block_m : 0;
  const int whole = of_last_key > 0 ? (of_last_key + block_m - 1) / block_m : 0;
  const int full = key + kBlockN > seq_k || whole > end ? end : whole;
  return {first, full, end};
}

// Where blocks add their parts of dq in turns: how many come before this one at a tile. With a mask the last block that
// sees the tile comes first, since it begins there. A block waits only for those that the schedule takes before it.
KERNELS_HOST_DEVICE inline int turn_of(int block, int tile, int block_m, int seq_q, int seq_k, bool causal) {
  if (!causal) {
    return block;
  }
  const int of_last_query = (tile * block_m + block_m - 1 + seq_k - seq_q) / kBlockN;
  const int last = (seq_k - 1) / kBlockN;
  return (of_last_query < last ? of_last_query : last) - block;
}

// The keys that a block of threads does next, and its first tile of queries; no steps at the end.
struct Keys {
  int first;       // key
  int head;        // of the parts of key heads of all batch entries
  int steps;
  int query_head;  // of the first step, of the query heads of all batch entries
  int tile;        // of the first step
  QueryTiles tiles;  // those of each head that see the keys

  KERNELS_HOST_DEVICE constexpr bool is_end() const { return steps == 0; }
};

// The barriers of a block of threads. `full` says that bytes are there, `empty` that nobody needs them any more.
struct StageBarriers {
  uint64_t q_full;
  uint64_t q_empty;
  uint64_t d_out_full;
  uint64_t d_out_empty;
};
constexpr int kMostStages = 3;
constexpr int kKeysAhead = 2;  // blocks of keys that the warps of a block of threads may be apart
struct Barriers {
  uint64_t k_full;
  uint64_t k_empty;
  uint64_t v_full;
  uint64_t v_empty;
  uint64_t keys_full[kKeysAhead];
  uint64_t keys_empty[kKeysAhead];
  StageBarriers stages[kMostStages];
  Keys keys[kKeysAhead];
};
constexpr int kBytesOfBarriers = 256;  // and keys
static_assert(sizeof(Barriers) <= kBytesOfBarriers);

// A block's shared memory, from a multiple of 1024 bytes on. Tiles are slabs of 64 elements, a row of 128 bytes for
// each query or key: of head_dim for keys, values, queries and d_out. Gradients of scores have a row for each key, or,
// for transposed parts of dq, for each query.
struct SharedLayout {
  int block_m;
  int tile_bytes;  // of queries, or of d_out
  int kv_bytes;    // of keys, or of values
  int part_bytes;  // of dq
  int stages;

  KERNELS_HOST_DEVICE constexpr SharedLayout(int head_dim, int block_m_, int stages_)
      : block_m(block_m_),
        tile_bytes(block_m_ * head_dim * 2),
        kv_bytes(kBlockN * head_dim * 2),
        part_bytes(part_of(head_dim, block_m_) * 4),
        stages(stages_) {}
  // A stage's statistics: block_m logarithms, then block_m deltas, in float32.
  KERNELS_HOST_DEVICE constexpr int statistics(int stage) const { return kBytesOfBarriers + stage * block_m * 8; }
  KERNELS_HOST_DEVICE constexpr int keys() const {
    return (statistics(stages) + kSwizzleTile - 1) / kSwizzleTile * kSwizzleTile;
  }
  KERNELS_HOST_DEVICE constexpr int values() const { return keys() + kv_bytes; }
  KERNELS_HOST_DEVICE constexpr int gradients(int stage) const {
    return values() + kv_bytes + stage * kBlockN * block_m * 2;
  }
  KERNELS_HOST_DEVICE constexpr int part(int which) const { return gradients(kGradientStages) + which * part_bytes; }
  KERNELS_HOST_DEVICE constexpr int queries(int stage) const { return part(kWarpgroups) + stage * 2 * tile_bytes; }
  KERNELS_HOST_DEVICE constexpr int d_out(int stage) const { return queries(stage) + tile_bytes; }
  // With what aligns the begin to 1024 bytes.
  KERNELS_HOST_DEVICE constexpr int bytes() const { return queries(stages) + kSwizzleTile; }
};

}  // namespace attention_backward
