// What cuda_wgmma does with a tile's sums: it rounds and stores them, or first brings together those of the blocks that
// share the tile.
#pragma once

#include "shifted.cuh"
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
constexpr int kStoredColumns = fewest_staged_columns(Tile::kBlockN);

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

// Elements from `to` to the next multiple of 16 bytes.
__device__ inline int elements_before(const uint16_t* to) {
  return static_cast<int>((0u - static_cast<uint32_t>(reinterpret_cast<std::uintptr_t>(to)) / 2) % 8);
}

// The same by threads, where TMA can't store to such rows: they begin anywhere. A warp stages its 16 rows of a tile, and
// stores some of them whenever products of the next tile are under way. So the tensor cores wait for the stores of the last
// tile alone; where the shared memory has no room for a tile's whole rows, for those of their first half, too.
//
// Of a row as many lanes as it has pieces of 16 bytes store the whole aligned 16 bytes, which they shift out of two pieces
// of what is staged. What is before them at a row's left end and after them at its right one, less than 8 elements each,
// goes element by element, a lane each.
template <typename Tile>
class DeferredStore {
 public:
  // `staged` is the warpgroup's part of the shared memory, with room for `columns` of its rows.
  __device__ DeferredStore(const Arguments& of, unsigned char* staged, int columns)
      : of_(of), staged_(staged), has_room_(columns == Tile::kBlockN) {}

  // Rounds and stages the warpgroup's rows of a tile, of which `row` and `column` are the first. What is staged still is
  // stored before.
  __device__ void stage_tile(const float (&sums)[Tile::kBlockN / 2], float scale, int row, int column) {
    store_rest<1>();
    const int of_warp = static_cast<int>(threadIdx.x) % kWarpgroup / 32 * kWarpRows;
    out_ = static_cast<uint16_t*>(of_.out) + int64_t{row + of_warp} * of_.out_row + column;
    rows_ = of_.m - row - of_warp;
    width_ = of_.n - column;
    next_ = 0;
#pragma unroll
    for (int part = 0; part < Tile::kBlockN / kColumns; ++part) {
      if (!has_room_) {
        store_rest<1>();
      }
      __syncwarp();
      stage<Tile, kColumns>(sums + part * kColumns / 2, scale, staged_ + (has_room_ ? part * kPartBytes : 0));
      end_ = (part + 1) * kTurns;
    }
    __syncwarp();
  }

  __device__ void store_some() {
    if (next_ < end_) {
      store_turns<1>();
    }
  }

  // So many turns at once: more take more registers, which sums need.
  template <int kAtOnce>
  __device__ void store_rest() {
    while (next_ < end_) {
      store_turns<kAtOnce>();
    }
  }

 private:
  static constexpr int kColumns = kStoredColumns<Tile>;
  static constexpr int kWarpRows = 16;
  static constexpr int kPartBytes = kWarpgroupRows * kColumns * 2;
  static constexpr int kPieces = kColumns / 8;        // of 16 bytes
  static constexpr int kRows = 32 / kPieces;          // that the lanes store in a turn
  static constexpr int kTurns = kWarpRows / kRows;    // for kColumns of the rows
  static_assert(kTurns % 4 == 0);

  // Where one of the warp's rows is staged, which begins where the swizzle does.
  __device__ const unsigned char* place(int part, int row, int piece) const {
    const int first = static_cast<int>(threadIdx.x) % kWarpgroup / 32 * kWarpRows;
    return staged_ + (has_room_ ? part * kPartBytes : 0) + first * kSwizzle +
           piece / 8 * kWarpgroupRows * kSwizzle + swizzled(row, piece % 8 * 16);
  }

  // The next kTimes turns, or those until the end of a part. All are read before the first is stored.
  template <int kTimes>
  __device__ void store_turns() {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const int part = next_ / kTurns;
    const int first = next_ % kTurns * kRows;
    uint16_t* const out = out_ + part * kColumns;
    const int width = min(kColumns, width_ - part * kColumns);
    const int rows = min(kWarpRows, rows_);
    uint4 whole[kTimes];
    uint16_t* to[kTimes];
#pragma unroll
    for (int i = 0; i < kTimes; ++i) {
      const int piece = lane % kPieces;
      const int row = first + i * kRows + lane / kPieces;
      uint16_t* const begin = out + int64_t{row} * of_.out_row;
      const int before = elements_before(begin);
      const bool is_there = row < rows && before + piece * 8 + 8 <= width;
      to[i] = is_there ? begin + before + piece * 8 : nullptr;
      if (is_there) {
        whole[i] = shifted(*reinterpret_cast<const uint4*>(place(part, row, piece)),
                           *reinterpret_cast<const uint4*>(place(part, row, min(piece + 1, kPieces - 1))), before * 2);
      }
    }
    // Two rows' ends at a time, eight lanes each.
    constexpr int kEnds = kTimes * kRows / 2;
    uint16_t end[kEnds];
    uint16_t* to_end[kEnds];
#pragma unroll
    for (int i = 0; i < kEnds; ++i) {
      const int row = first + i * 2 + lane / 16;
      uint16_t* const begin = out + int64_t{row} * of_.out_row;
      const int before = min(elements_before(begin), max(width, 0));
      const bool is_left = lane % 16 < 8;
      const int at = lane % 8 + (is_left ? 0 : before + (width - before) / 8 * 8);
      const bool is_there = row < rows && at < (is_left ? before : width);
      to_end[i] = is_there ? begin + at : nullptr;
      if (is_there) {
        end[i] = *reinterpret_cast<const uint16_t*>(place(part, row, at / 8) + at % 8 * 2);
      }
    }
#pragma unroll
    for (int i = 0; i < kTimes; ++i) {
      if (to[i] != nullptr) {
        *reinterpret_cast<uint4*>(to[i]) = whole[i];
      }
    }
#pragma unroll
    for (int i = 0; i < kEnds; ++i) {
      if (to_end[i] != nullptr) {
        *to_end[i] = end[i];
      }
    }
    next_ += kTimes;
    __syncwarp();  // products are started by whole warps
  }

  const Arguments& of_;
  unsigned char* staged_;
  bool has_room_;            // for whole rows of a tile
  uint16_t* out_ = nullptr;  // where the warp's first row begins
  int rows_ = 0;             // of the output, from there on
  int width_ = 0;            // its columns from there on
  int next_ = 0;             // turn to be stored, of those that are staged
  int end_ = 0;
};

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
