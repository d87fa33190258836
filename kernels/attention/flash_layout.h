// What cuda_flash works out before it computes: which tile of queries comes when, which keys it sees, and what lies
// where in shared memory. Plain C++, so that a test compiles it without CUDA.
#pragma once

#include <cstdint>

#include "../include/wgmma_descriptors.h"

namespace attention {

using namespace kernels;  // instructions' names, and where they find a tile

constexpr int kRowsOfWarpgroup = 64;  // queries, wgmma's m
constexpr int kSlab = 64;             // elements of 2 bytes in a row of 128 bytes

// Blocks take a tile each in a round. In every other round they take them the other way round: where tiles get cheaper
// from one to the next, the block that had the most expensive one then has the cheapest.
KERNELS_HOST_DEVICE inline int place_of(int round, int block, int grid) {
  return round * grid + (round % 2 == 0 ? block : grid - 1 - block);
}

// A tile: block_m queries of one head of one batch entry.
struct TileIndex {
  int block;
  int head;  // of those of all batch entries
};

// The tile that comes at a place of the order. A section is as many heads as have their keys in L2 together. With a mask
// the tiles that see most keys come first in it, of all its heads: what takes longest begins first (LPT, Graham, 1969).
KERNELS_HOST_DEVICE inline TileIndex tile_of(int place, int blocks, int heads, int section, bool causal) {
  const int tiles_of_section = section * blocks;
  const int first = place / tiles_of_section * section;
  const int wide = heads - first < section ? heads - first : section;  // the last section may have fewer
  const int within = place % tiles_of_section;
  const int block = within / wide;
  return {causal ? blocks - 1 - block : block, first + within % wide};
}

// Blocks of keys that a tile sees: those from `full` to `end` are masked for some query, those before `full` for none.
struct KeyBlocks {
  int full;
  int end;
};

// The last query and the last key have the same position. `row` is the tile's first query, which sees a key.
KERNELS_HOST_DEVICE inline KeyBlocks key_blocks(int row, int block_m, int block_n, int seq_q, int seq_k, bool causal) {
  const int first_sees = row + seq_k - seq_q + 1;  // keys
  const int last_sees = first_sees + block_m - 1;
  const int in_full = causal && first_sees < seq_k ? first_sees : seq_k;
  const int in_all = causal && last_sees < seq_k ? last_sees : seq_k;
  return {in_full / block_n, (in_all + block_n - 1) / block_n};
}

// The barriers of a block. `full` says that bytes are there, `empty` that nobody needs them any more.
struct StageBarriers {
  uint64_t k_full;
  uint64_t k_empty;
  uint64_t v_full;
  uint64_t v_empty;
};
constexpr int kMostStages = 8;
struct Barriers {
  uint64_t q_full;
  uint64_t q_empty;
  StageBarriers stages[kMostStages];
};
static_assert(sizeof(Barriers) <= kSwizzleTile);

// A block's shared memory, from a multiple of 1024 bytes on: the barriers, the queries, then for each stage a block of
// keys and one of values. Each is slabs of 64 elements of head_dim, a row of 128 bytes for each query or key.
struct SharedLayout {
  int q_bytes;
  int kv_bytes;  // of a block of keys, or of values

  KERNELS_HOST_DEVICE constexpr SharedLayout(int head_dim, int block_m, int block_n)
      : q_bytes(block_m * head_dim * 2), kv_bytes(block_n * head_dim * 2) {}
  KERNELS_HOST_DEVICE static constexpr int queries() { return kSwizzleTile; }
  KERNELS_HOST_DEVICE constexpr int keys(int stage) const { return queries() + q_bytes + stage * 2 * kv_bytes; }
  KERNELS_HOST_DEVICE constexpr int values(int stage) const { return keys(stage) + kv_bytes; }
  // With what aligns the begin to 1024 bytes.
  KERNELS_HOST_DEVICE constexpr int bytes(int stages) const { return keys(stages) + kSwizzleTile; }
};

}  // namespace attention
