// What cuda_wgmma does with a tile's sums: it rounds and stores them, or first brings together those of the blocks that
// share the tile.
#pragma once

#include "wgmma_mainloop.cuh"

namespace matmul {

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

constexpr int kBoxColumns = 64;  // 128 bytes of the output

// Two sums as neighbouring elements of the output. Only float8 has a scale.
template <typename Tile>
__device__ uint32_t output_pair(float first, float second, float scale) {
  if constexpr (Tile::kElement == Element::kFloat8) {
    return rounded_pair<Tile::kOutput>(first * scale, second * scale);
  } else {
    return rounded_pair<Tile::kOutput>(first, second);
  }
}

// A warpgroup rounds the sums of kColumns of its columns to `staged`: boxes of 64 columns, 64 rows of 128 bytes each,
// swizzled as TMA wants them. A warp writes 16 of the rows.
//
// Of wgmma's sums a thread has, in each 8 columns, two neighbours in row lane / 4 of its warp's 16, and two in the row 8
// below: an 8 x 8 matrix as stmatrix takes it.
template <typename Tile, int kColumns>
__device__ void stage(const float* sums, float scale, unsigned char* staged) {
  const int thread = static_cast<int>(threadIdx.x) % kWarpgroup;
  const int lane = thread % 32;
  // stmatrix: lane l has the address of row l % 8 of matrix l / 8. Matrices 0 and 1 are one above the other, 2 and 3 are
  // beside them.
  const int row = thread / 32 * 16 + lane % 16;
  const uint32_t base = shared_address(staged);
#pragma unroll
  for (int j = 0; j < kColumns / 8; j += 2) {
    const float* const d = sums + j * 4;
    const int piece = j + lane / 16;  // of 8 columns
    const uint32_t to =
        base + static_cast<uint32_t>(piece / 8 * kWarpgroupRows * kSwizzle + swizzled(row, piece % 8 * 16));
    stmatrix_x4(to, output_pair<Tile>(d[0], d[1], scale), output_pair<Tile>(d[2], d[3], scale),
                output_pair<Tile>(d[4], d[5], scale), output_pair<Tile>(d[6], d[7], scale));
  }
}

template <typename Tile>
constexpr int kStoredColumns = Tile::kBlockN < 128 ? Tile::kBlockN : 128;  // that are staged at a time

// Elements from the last multiple of 16 bytes to `to`.
__device__ inline int elements_past(const uint16_t* to) {
  return static_cast<int>(static_cast<uint32_t>(reinterpret_cast<std::uintptr_t>(to)) / 2 % 8);
}

// Where a row of kColumns is staged that is stored by itself: 16 bytes more apart after each two rows. So the 8 rows that a
// warp writes at once lie in different banks, but for pairs of them.
template <int kColumns>
__device__ int staged_row(int row) {
  return row * kColumns * 2 + row / 2 * 16;
}

// A warp rounds the sums of kColumns of its columns to rows in `staged`, a thread those of row `row` and of row `row` + 8.
// Both rows begin `shift` elements after a multiple of 16 bytes in device memory. So element c of a row is put to place
// (c + shift) % kColumns: all but the ends then lie as in device memory, from a multiple of 16 bytes on, and the ends share
// the first 16 bytes.
template <typename Tile, int kColumns>
__device__ void stage_rows(const float* sums, float scale, unsigned char* staged, int row, int shift) {
  constexpr int kEights = kColumns / 8;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int of_quad = lane % 4;
  const bool is_odd = shift % 2 != 0;
  const int first = of_quad + (shift + 1) / 2;  // the word of the thread's first pair
#pragma unroll
  for (int below = 0; below < 2; ++below) {
    uint32_t pairs[kEights];
#pragma unroll
    for (int j = 0; j < kEights; ++j) {
      const float* const d = sums + j * 4 + below * 2;
      pairs[j] = output_pair<Tile>(d[0], d[1], scale);
    }
    unsigned char* const to = staged + staged_row<kColumns>(row + below * 8);
#pragma unroll
    for (int j = 0; j < kEights; ++j) {
      // The pair after this one is the next thread's of the quad, or the first one's next. After the last comes the first.
      const uint32_t given = of_quad == 0 ? pairs[(j + 1) % kEights] : pairs[j];
      const uint32_t next = __shfl_sync(0xffffffffu, given, lane / 4 * 4 + (of_quad + 1) % 4);
      const uint32_t word = is_odd ? __funnelshift_r(pairs[j], next, 16) : pairs[j];
      *reinterpret_cast<uint32_t*>(to + (first + j * 4) % (kColumns / 2) * 4) = word;
    }
  }
}

// A warpgroup stores its 64 rows by TMA.
template <typename Tile>
__device__ void store_by_tma(const float (&sums)[Tile::kBlockN / 2], float scale, unsigned char* staged,
                             const CUtensorMap* map_out, int row, int column, int which) {
  constexpr int kColumns = kStoredColumns<Tile>;
  const bool stores = threadIdx.x % kWarpgroup == 0;
#pragma unroll
  for (int part = 0; part < Tile::kBlockN / kColumns; ++part) {
    if (stores) {
      bulk_wait_group_read<0>();  // what was stored last is read
    }
    warpgroup_barrier(which);
    stage<Tile, kColumns>(sums + part * kColumns / 2, scale, staged);
    fence_proxy_async();
    warpgroup_barrier(which);
    if (stores) {
#pragma unroll
      for (int box = 0; box < kColumns / kBoxColumns; ++box) {
        tma_store(map_out, staged + box * kWarpgroupRows * kSwizzle, column + part * kColumns + box * kBoxColumns, row);
      }
      bulk_commit_group();
    }
  }
}

// The same where TMA can't store: it takes a box at multiples of 16 bytes alone, and these rows begin anywhere. A warp stores
// its 16 rows, one part of the columns at a time. Between its first and its last multiple of 16 bytes a row is one bulk copy
// from shared memory, which goes on while the next tile is multiplied. What is before and after that, less than 8 elements
// each, goes element by element, both ends of all 16 rows at once.
template <typename Tile>
__device__ void store_by_rows(const float (&sums)[Tile::kBlockN / 2], float scale, unsigned char* staged,
                              const Arguments& of, int row, int column) {
  constexpr int kColumns = kStoredColumns<Tile>;
  uint32_t thread[] = {threadIdx.x};
  fence_registers(thread);  // where it stores is not worked out before the products, which need the registers
  const int lane = static_cast<int>(thread[0]) % 32;
  const int of_warp = static_cast<int>(thread[0]) % kWarpgroup / 32 * 16;  // its first row
  const int rows = of.m - row - of_warp;  // that it has, more or fewer than 16
  uint16_t* const out = static_cast<uint16_t*>(of.out) + int64_t{row + of_warp} * of.out_row + column;
  // A lane stages rows lane / 4 and lane / 4 + 8, which begin at the same place in 16 bytes, and stores row lane % 16.
  const int shift = elements_past(out + int64_t{lane / 4} * of.out_row);
  const int stored = lane % 16;
  uint16_t* const to_row = out + int64_t{stored} * of.out_row;
  const unsigned char* const from_row = staged + staged_row<kColumns>(of_warp + stored);
  const int past = elements_past(to_row);
  const int before = (8 - past) % 8;  // elements before the first multiple of 16 bytes
#pragma unroll
  for (int part = 0; part < Tile::kBlockN / kColumns; ++part) {
    const int width = stored < rows ? min(kColumns, of.n - column - part * kColumns) : 0;
    const int pieces = max(width - before, 0) / 8;  // of 16 bytes
    uint16_t* const to = to_row + part * kColumns;
    bulk_wait_group_read<0>();  // what was stored last is read
    __syncwarp();
    stage_rows<Tile, kColumns>(sums + part * kColumns / 2, scale, staged, of_warp + lane / 4, shift);
    fence_proxy_async();
    __syncwarp();
    if (lane < 16) {
      if (pieces > 0) {
        bulk_store(to + before, from_row + (before > 0 ? 16 : 0), pieces * 16);
      }
      bulk_commit_group();
    }
    // A lane has the left end of its row, or the right one.
    const bool is_left = lane < 16;
    const int begin = is_left ? 0 : min(before, max(width, 0)) + pieces * 8;
    const int end = is_left ? min(before, width) : width;
#pragma unroll
    for (int i = 0; i < 7; ++i) {
      const int at = begin + i;
      if (at < end) {
        to[at] = *reinterpret_cast<const uint16_t*>(from_row + (at + past) % kColumns * 2);
      }
    }
  }
}

// A barrier of all warpgroups that multiply.
template <typename Tile>
__device__ void consumers_barrier() {
  named_barrier_sync(3, Tile::kConsumers * kWarpgroup);
}

// The blocks that share a tile bring their sums together, each those of its rows, and store them. A block sends each of
// the others what it has of their rows, a bulk copy from shared memory to shared memory, and adds up what it was sent in
// the order of k's parts: the same bits each time. That takes neither a second kernel nor memory, and no fence: a barrier
// of the cluster says that all are done with their buffers, and `arrived` that all bytes are there.
template <typename Tile>
__device__ void reduce_and_store(const float (&sums)[Tile::kBlockN / 2], float scale, unsigned char* shared,
                                 const SharedLayout& layout, uint64_t* arrived, const Place& place, const Arguments& of,
                                 int top, int column) {
  const int thread = static_cast<int>(threadIdx.x) - kWarpgroup;  // of those that multiply
  const int lane = thread % 32;
  auto* const own = reinterpret_cast<float*>(shared);
  const int across = layout.columns_of_sums();
  consumers_barrier<Tile>();  // the buffers are read, and become memory for sums
  cluster_arrive_relaxed();
  {
    float* const to = own + (thread / 32 * 16 + lane / 4) * across + lane % 4 * 2;
#pragma unroll
    for (int j = 0; j < Tile::kBlockN / 8; ++j) {
      *reinterpret_cast<float2*>(to + j * 8) = make_float2(sums[j * 4], sums[j * 4 + 1]);
      *reinterpret_cast<float2*>(to + 8 * across + j * 8) = make_float2(sums[j * 4 + 2], sums[j * 4 + 3]);
    }
  }
  fence_proxy_async();
  consumers_barrier<Tile>();
  cluster_wait();  // the other blocks' buffers are read
  if (thread < of.split_k && thread != place.part) {
    bulk_copy_cluster(shared + layout.slot(place.part, thread), shared + thread * layout.part_bytes(),
                      layout.part_bytes(), arrived, place.rank(place.above, thread, of.cluster_size));
  }
  __syncwarp();
  mbarrier_wait_parity(arrived, 0);

  constexpr int kAcross = Tile::kBlockN / 4;  // pieces of 4 columns
  const int first = place.part * layout.rows_of_part();
  const bool whole = of.out_row % 4 == 0;  // a piece is inside or outside as a whole, and aligned to 8 bytes
  for (int i = thread; i < layout.rows_of_part() * kAcross; i += Tile::kConsumers * kWarpgroup) {
    const int row = i / kAcross;
    const int within = i % kAcross * 4;
    float4 total = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    for (int part = 0; part < of.split_k; ++part) {
      const float* const from =
          part == place.part ? own + (first + row) * across
                             : reinterpret_cast<const float*>(shared + layout.slot(part, place.part)) + row * across;
      const float4 some = *reinterpret_cast<const float4*>(from + within);
      total.x += some.x;
      total.y += some.y;
      total.z += some.z;
      total.w += some.w;
    }
    const uint2 four = make_uint2(output_pair<Tile>(total.x, total.y, scale), output_pair<Tile>(total.z, total.w, scale));
    const int to_row = top + first + row;
    const int to_column = column + within;
    if (to_row < of.m && to_column < of.n) {
      uint16_t* const to = static_cast<uint16_t*>(of.out) + int64_t{to_row} * of.out_row + to_column;
      if (whole) {
        *reinterpret_cast<uint2*>(to) = four;
      } else {
        const uint16_t elements[4] = {static_cast<uint16_t>(four.x), static_cast<uint16_t>(four.x >> 16),
                                      static_cast<uint16_t>(four.y), static_cast<uint16_t>(four.y >> 16)};
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          if (to_column + j < of.n) {
            to[j] = elements[j];
          }
        }
      }
    }
  }
}

#endif

}  // namespace matmul
