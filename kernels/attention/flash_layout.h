// What cuda_flash works out before it computes: which tile of queries comes when, which keys it sees, and what lies
// where in shared memory. Plain C++, so that a test compiles it without CUDA.
#pragma once

#include <cstdint>

#include "../include/wgmma_descriptors.h"

namespace attention {

using namespace kernels;  // instructions' names, and where they find a tile

constexpr int kRowsOfWarpgroup = 64;  // queries, wgmma's m
constexpr int kSlab = 64;             // elements of 2 bytes in a row of 128 bytes

// Slabs of a tile. The second one of 96 columns is whole, too, so that all have one swizzle: TMA fills its other 32
// columns with zeros, which no instruction reads.
KERNELS_HOST_DEVICE constexpr int slabs_of(int head_dim) { return (head_dim + kSlab - 1) / kSlab; }

// A tile: block_m queries of one head of one batch entry.
struct TileIndex {
  int block;  // of queries; negative if there is no tile, and another may follow
  int head;   // of those of all batch entries; negative if no other follows
};

// Which tiles a block of the grid does. It is known beforehand, so that nobody has to count.
//
// Without a mask all tiles take equally long, and the grid goes through them head by head, so that its blocks share keys
// and values in L2. With a mask a tile takes as long as it sees keys: a head's last block of queries and its first one
// together take as long as the second last and the second. So the grid goes through such pairs, head by head. Where
// pairs make no whole number of rounds, the tiles of the last round and a part are sorted. Those that see most keys come
// first (LPT, Graham, 1969), and in every other round the grid takes them the other way round: the block that had the
// longest tile has the shortest one next. Tiles with the queries of several heads come head by head, too, in every other
// round the other way round: their lengths repeat, and a block would get the longest each time.
struct Schedule {
  int heads;
  int blocks;  // of queries in a head
  int grid;
  bool causal;
  bool is_packed;  // a tile may have the queries of several heads
  int pairs_of_head;
  int alone;        // 1 if a head's last block is a pair of its own, since their number is odd
  int rounds;       // of pairs
  int first_head;   // of the sorted pairs, which may lack some of this head's
  int first_pair;   // of that head
  int whole_heads;  // of the sorted pairs
  int long_tiles;   // a pair's later block of queries
  int short_tiles;  // and the earlier one

  Schedule() = default;
  Schedule(int heads_, int blocks_, int grid_, bool causal_, bool is_packed_)
      : heads(heads_),
        blocks(blocks_),
        grid(grid_),
        causal(causal_),
        is_packed(is_packed_),
        pairs_of_head((blocks + 1) / 2),
        alone(blocks % 2) {
    const int pairs = heads * pairs_of_head;
    const int whole = pairs / grid;
    rounds = pairs % grid == 0 ? whole : whole > 0 ? whole - 1 : 0;
    first_head = rounds * grid / pairs_of_head;
    first_pair = rounds * grid % pairs_of_head;
    whole_heads = heads - first_head - (first_pair > 0 ? 1 : 0);
    long_tiles = pairs - rounds * grid;
    short_tiles = long_tiles - alone * whole_heads;
  }

  // The tile of block `at` of the grid that comes as number `number`.
  KERNELS_HOST_DEVICE TileIndex tile(int number, int at) const {
    if (!causal || is_packed) {
      const int place = number * grid + (causal && number % 2 == 1 ? grid - 1 - at : at);
      return place < heads * blocks ? TileIndex{place % blocks, place / blocks} : TileIndex{-1, -1};
    }
    if (number < 2 * rounds) {
      const int place = number / 2 * grid + at;
      const int pair = place % pairs_of_head;
      return {number % 2 == 0 ? blocks - 1 - pair : pair - alone, place / pairs_of_head};
    }
    const int round = number - 2 * rounds;
    const int place = round * grid + (round % 2 == 0 ? at : grid - 1 - at);
    if (place >= long_tiles + short_tiles) {
      return {-1, -1};
    }
    // The order of short tiles is that of the long ones backwards, without those that have none.
    const bool is_long = place < long_tiles;
    const int order = is_long ? place : alone * whole_heads + long_tiles + short_tiles - 1 - place;
    const int without_first = first_pair * whole_heads;
    const bool has_first = order >= without_first;
    const int wide = has_first ? heads - first_head : whole_heads;
    const int within = has_first ? order - without_first : order;
    const int pair = (has_first ? first_pair : 0) + within / wide;
    return {is_long ? blocks - 1 - pair : pair - alone, heads - wide + within % wide};
  }
};

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
      : q_bytes(slabs_of(head_dim) * block_m * kSwizzle), kv_bytes(slabs_of(head_dim) * block_n * kSwizzle) {}
  KERNELS_HOST_DEVICE static constexpr int queries() { return kSwizzleTile; }
  KERNELS_HOST_DEVICE constexpr int keys(int stage) const { return queries() + q_bytes + stage * 2 * kv_bytes; }
  KERNELS_HOST_DEVICE constexpr int values(int stage) const { return keys(stage) + kv_bytes; }
  // With what aligns the begin to 1024 bytes.
  KERNELS_HOST_DEVICE constexpr int bytes(int stages) const { return keys(stages) + kSwizzleTile; }
};

}  // namespace attention
