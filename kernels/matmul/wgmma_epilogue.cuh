// The epilogue of cuda_wgmma: it rounds a tile's sums and stores them, or first adds the sums of the blocks that share
// the tile.
#pragma once

#include "wgmma_mainloop.cuh"

namespace matmul {

// The output as TMA stores to it: one matrix, or, where its rows begin anywhere, one of each residue: every eighth row, from
// its first multiple of 16 bytes to its last. Such rows are eight times an output's row apart, which is a multiple of 16
// bytes.
struct OutputMaps {
  CUtensorMap of[kResidues];
};

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
// In each 8 columns of wgmma's sums a thread has two neighbours in row lane / 4 of its warp's 16 rows, and two in the
// row 8 below: an 8 x 8 matrix as stmatrix takes it.
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

// A warpgroup stores its 64 unaligned rows: it shifts them in registers to multiples of 16 bytes, and TMA stores the
// rows of each residue. The tile's first and last columns, 8 of a row, are stored element by element. So are the
// elements after a row's last multiple of 16 bytes, from shared memory: TMA leaves out elements beyond the matrix only
// in units of 16 bytes.
//
// The window of row r that TMA stores begins s = first_aligned_column(r) columns after the tile. Its words of two
// columns are s / 2 words further in the row's quad of lanes, or in the quad's next 8 columns; an odd s takes one
// element of each of two neighbouring words. A window is 8 columns narrower than the tile, so the last box begins 8
// columns earlier.
template <typename Tile>
__device__ void store_by_residues(const float (&sums)[Tile::kBlockN / 2], float scale, unsigned char* staged,
                                  const OutputMaps& maps, const Arguments& of, int row, int column, int which) {
  constexpr int kBoxes = Tile::kBlockN / kBoxColumns;
  constexpr int kAtOnce = 2;  // boxes that are staged at a time
  uint32_t index[] = {threadIdx.x};
  fence_registers(index);  // what depends on it is not worked out before the products, which need the registers
  const int thread = static_cast<int>(index[0]) % kWarpgroup;
  const int warp = thread / 32;
  const int lane = thread % 32;
  const int quad = lane % 4;
  const int before = first_aligned_column(lane / 4, of.out_row);
  const bool is_odd = before % 2 != 0;
  const int shift_of_first = before / 2;
  const int shift_of_second = shift_of_first + (is_odd ? 1 : 0);
  const auto pair = [&](int piece, int half) {  // of 8 columns, of the upper 8 rows or the lower
    const float* const d = sums + piece * 4 + half * 2;
    return output_pair<Tile>(d[0], d[1], scale);
  };
  // Both of a thread's rows are of one residue, so that two shuffles do for two words: of an odd shift one takes both rows'
  // second elements, the other their first ones; else one takes the upper row's word, the other the lower's.
  const auto given_first = [&](int piece) {
    return __byte_perm(pair(piece, 0), pair(piece, 1), is_odd ? 0x7632 : 0x3210);
  };
  const auto given_second = [&](int piece) {
    return __byte_perm(pair(piece, 0), pair(piece, 1), is_odd ? 0x5410 : 0x7654);
  };
  const auto window = [&](int piece) {  // the upper row's word, and the lower's
    const uint32_t first = quad < shift_of_first ? given_first(piece + 1) : given_first(piece);
    const uint32_t second = quad < shift_of_second ? given_second(piece + 1) : given_second(piece);
    const uint32_t one = __shfl_sync(0xffffffffu, first, lane / 4 * 4 + (quad + shift_of_first) % 4);
    const uint32_t other = __shfl_sync(0xffffffffu, second, lane / 4 * 4 + (quad + shift_of_second) % 4);
    return make_uint2(__byte_perm(one, other, is_odd ? 0x5410 : 0x3210),
                      __byte_perm(one, other, is_odd ? 0x7632 : 0x7654));
  };
  // The first piece of 8 columns of a box.
  const auto first_piece = [](int box) { return box * (kBoxColumns / 8) - (box == kBoxes - 1 ? 1 : 0); };
  // stmatrix: lane l has the address of row l % 8, the row's residue, of matrix l / 8. Matrices 0 and 1 are of the upper and
  // the lower 8 of the warp's 16 rows, 2 and 3 are beside them.
  const uint32_t own_row = shared_address(staged) + static_cast<uint32_t>(residue_begin(lane % 8) +
                                                                          (warp * 2 + lane / 8 % 2) * kSwizzle);
  const int left = of.n - column;
#pragma unroll
  for (int part = 0; part < kBoxes; part += kAtOnce) {
    bulk_wait_group_read<0>();  // what was stored last is read
    warpgroup_barrier(which);
#pragma unroll
    for (int box = 0; box < kAtOnce; ++box) {
      const uint32_t to = own_row + static_cast<uint32_t>(box * kResidueBoxBytes);
      const uint32_t exchanged = to / kSwizzle % kSwizzleRows * 16;
#pragma unroll
      for (int i = 0; i < kBoxColumns / 8; i += 2) {
        const uint2 one = window(first_piece(part + box) + i);
        const uint2 next = window(first_piece(part + box) + i + 1);
        stmatrix_x4(to + (static_cast<uint32_t>((i + lane / 16) * 16) ^ exchanged), one.x, one.y, next.x, next.y);
      }
    }
    fence_proxy_async();
    warpgroup_barrier(which);
    if (thread < kAtOnce * kResidues) {
      const int residue = thread % kResidues;
      const int box = thread / kResidues;
      if (residue < of.m && columns_of_residue(first_aligned_column(residue, of.out_row), of.n) > 0) {
        tma_store(&maps.of[residue], staged + box * kResidueBoxBytes + residue_begin(residue),
                  column + first_piece(part + box) * 8, row / kResidues);
      }
      bulk_commit_group();
    }
    __syncwarp();
    if (left < Tile::kBlockN - 1) {  // the output ends within the windows
      for (int i = thread; i < kWarpgroupRows * 8; i += kWarpgroup) {
        const int within = i / 8;
        const int residue = within % kResidues;
        const int first = first_aligned_column(residue, of.out_row);
        const int at = columns_of_residue(first, left) + i % 8;  // in the row's window
        const int box = min(at / kBoxColumns, kBoxes - 1);
        if (row + within < of.m && at < min(left - first, Tile::kBlockN - 8) && box / kAtOnce * kAtOnce == part) {
          const unsigned char* const begin =
              staged + box % kAtOnce * kResidueBoxBytes + residue_begin(residue) + within / kResidues * kSwizzle;
          const uint32_t exchanged = shared_address(begin) / kSwizzle % kSwizzleRows * 16;
          const auto byte = static_cast<uint32_t>((at - first_piece(box) * 8) * 2);
          static_cast<uint16_t*>(of.out)[int64_t{row + within} * of.out_row + column + first + at] =
              *reinterpret_cast<const uint16_t*>(begin + (byte ^ exchanged));
        }
      }
    }
  }
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int at = row + warp * 16 + half * 8 + lane / 4;
    uint16_t* const out = static_cast<uint16_t*>(of.out) + int64_t{at} * of.out_row + column;
#pragma unroll
    for (int piece = 0; piece < Tile::kBlockN / 8; piece += Tile::kBlockN / 8 - 1) {
      const uint32_t two = pair(piece, half);
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int to = piece * 8 + quad * 2 + i;
        if (at < of.m && to < left && (to < before || to >= before + Tile::kBlockN - 8)) {
          out[to] = static_cast<uint16_t>(two >> i * 16);
        }
      }
    }
  }
}

// The same, element by element, of a tile that is too narrow for a box between its ends.
template <typename Tile>
__device__ void store_by_elements(const float (&sums)[Tile::kBlockN / 2], float scale, const Arguments& of, int row,
                                  int column) {
  const int thread = static_cast<int>(threadIdx.x) % kWarpgroup;
  const int left = column + thread % 4 * 2;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int at = row + thread / 32 * 16 + half * 8 + thread % 32 / 4;
    uint16_t* const out = static_cast<uint16_t*>(of.out) + int64_t{at} * of.out_row + left;
#pragma unroll
    for (int piece = 0; piece < Tile::kBlockN / 8; ++piece) {
      const float* const d = sums + piece * 4 + half * 2;
      const uint32_t two = output_pair<Tile>(d[0], d[1], scale);
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        if (at < of.m && left + piece * 8 + i < of.n) {
          out[piece * 8 + i] = static_cast<uint16_t>(two >> i * 16);
        }
      }
    }
  }
}

// A barrier of all warpgroups that multiply.
template <typename Tile>
__device__ void consumers_barrier() {
  named_barrier_sync(3, Tile::kConsumers * kWarpgroup);
}

// Each of the blocks that share a tile adds the sums of its own rows and stores them. A block sends its sums of the
// other blocks' rows to them, by a bulk copy from shared memory to shared memory, and adds the sums that it receives in
// the order of k's parts: the same bits each time. This needs no second kernel, no device memory and no fence: a
// barrier of the cluster shows that all blocks have finished with their buffers, and `arrived` that all bytes are
// there.
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
