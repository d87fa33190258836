// The four-bit product of many rows of x for Hopper: cuda_wgmma's tiles of 256 rows of w, by blocks that stay on their
// multiprocessors and share the steps of the tiles evenly (stream_k.h), so that no multiprocessor waits for a last wave.
//
// - One thread copies by TMA, through all segments of its block: buffers fill while the output of a tile is stored.
// - A block that goes on with another's tile leaves its sums in device memory, in the order of its registers. The block
//   that began the tile adds them, always in the same order.
// - A warp stores its sums by stmatrix, transposed, 16 rows of x and of w at a time.
#pragma once

#include "../include/bulk_reduce.cuh"
#include "stream_k.h"
#include "stream_k_instructions.cuh"
#include "wgmma_kernel.cuh"

namespace matmul_int4 {

constexpr int kStreamKTiles = 2;  // times 64 rows of w for each warpgroup
constexpr int kStreamKRows = kConsumers * kStreamKTiles * kRowsOfWgmma;

constexpr int kThreadsToClear = 256;

// Before the blocks that share tiles: none of their warps has left its sums. They are launched while this runs.
__global__ void __launch_bounds__(kThreadsToClear) clear_arrived(int* arrived, int count) {
  kernels::launch_dependent_grids();
  for (int i = static_cast<int>(threadIdx.x); i < count; i += kThreadsToClear) {
    arrived[i] = 0;
  }
}

struct StreamKArguments {
  Arguments of;
  StreamK work;
  float* parts;  // the sums of each range that goes on with a tile
  int* arrived;  // 1 for each warp of such a range that has left its sums
};

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

template <int kBlockM>
using Sums = float[kStreamKTiles][kBlockM / 2];

// A warpgroup multiplies its rows of w by the steps of a segment.
template <typename T, int kBlockM, bool kOneGroup>
__device__ void multiply_segment(Sums<kBlockM>& sums, const unsigned char* shared, const kernels::TileLayout& layout,
                                 const kernels::Barriers& barriers, kernels::Buffers& buffers, int steps, int groups) {
  const int thread = static_cast<int>(threadIdx.x) - kernels::kWarpgroup;
  const int lane = thread % 32;
  const int own_row = thread / kernels::kWarpgroup * kStreamKTiles * kRowsOfWgmma + thread / 32 % 4 * 16;
  // The same in all lanes, which the compiler doesn't find out otherwise: descriptors are computed once for a warp.
  steps = __shfl_sync(0xffffffffu, steps, 0);
  int last = 0;
  for (int step = 0; step < steps; ++step) {
    kernels::mbarrier_wait_parity(&barriers.full[buffers.stage], buffers.parity);
    const unsigned char* const buffer = shared + buffers.stage * layout.stage_bytes();
    const uint32_t slabs = kernels::shared_address(buffer);
    const auto* const words = reinterpret_cast<const uint4*>(buffer + layout.w()) + own_row * 4 + lane;
    const auto* const pairs =
        reinterpret_cast<const uint32_t*>(buffer + layout.w() + bytes_of_words(kStreamKRows)) + own_row + lane / 4;
    uint4 upper[kStreamKTiles];
    uint4 lower[kStreamKTiles];
    ScaleAndZero of_upper[kStreamKTiles];
    ScaleAndZero of_lower[kStreamKTiles];
#pragma unroll
    for (int tile = 0; tile < kStreamKTiles; ++tile) {
      upper[tile] = words[tile * kRowsOfWgmma * 4];
      lower[tile] = words[tile * kRowsOfWgmma * 4 + 32];
    }
#pragma unroll
    for (int p = 0; p < kStepK / kBatchK; ++p) {
      uint32_t a[kStreamKTiles][2][4];
#pragma unroll
      for (int tile = 0; tile < kStreamKTiles; ++tile) {
        if (p == 0 || !kOneGroup) {
          const int group = kOneGroup ? 0 : p * groups / 4;
          const uint32_t* const from = pairs + group * kStreamKRows + tile * kRowsOfWgmma;
          of_upper[tile] = spread(from[0]);
          of_lower[tile] = spread(from[8]);
        }
        dequantise<T>(a[tile], word_of(upper[tile], p), word_of(lower[tile], p), of_upper[tile], of_lower[tile]);
        // So that the compiler moves no write of them behind the fence.
        kernels::fence_registers(a[tile][0]);
        kernels::fence_registers(a[tile][1]);
      }
      kernels::wgmma_fence();
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int instruction = 2 * p + half;  // of 16 columns, four of them in a slab
        const uint64_t of_x = kernels::k_major_descriptor(
            slabs + static_cast<uint32_t>(instruction / 4 * layout.slab_bytes()), instruction % 4);
#pragma unroll
        for (int tile = 0; tile < kStreamKTiles; ++tile) {
          wgmma_of_rows<T, kBlockM>(sums[tile], a[tile][half], of_x, step > 0 || instruction > 0);
        }
      }
      kernels::wgmma_commit_group();
      // This batch stays under way, the one before is done.
      kernels::wgmma_wait_group<1>();
      if (p == 0 && step > 0 && lane == 0) {
        kernels::mbarrier_arrive(&barriers.empty[last]);
      }
    }
    last = buffers.stage;
    buffers.advance(layout.stages);
  }
  kernels::wgmma_wait_group<0>();
#pragma unroll
  for (int tile = 0; tile < kStreamKTiles; ++tile) {
    kernels::fence_registers(sums[tile]);
  }
  if (lane == 0) {
    kernels::mbarrier_arrive(&barriers.empty[last]);
  }
}

// A thread's sums of a range, four neighbours at a time, beside those of the block's other threads.
template <int kBlockM>
__device__ float4* part_of_range(const StreamKArguments& of, int range) {
  constexpr int64_t kSums = int64_t{kBlockM} * kStreamKRows;
  return reinterpret_cast<float4*>(of.parts + range * kSums) + threadIdx.x - kernels::kWarpgroup;
}
__device__ inline int* arrived_of_range(const StreamKArguments& of, int range) {
  return of.arrived + range * kernels::kConsumerWarps + (static_cast<int>(threadIdx.x) - kernels::kWarpgroup) / 32;
}

template <int kBlockM>
__device__ void leave_sums(const Sums<kBlockM>& sums, const StreamKArguments& of, int range) {
  float4* const to = part_of_range<kBlockM>(of, range);
#pragma unroll
  for (int tile = 0; tile < kStreamKTiles; ++tile) {
#pragma unroll
    for (int i = 0; i < kBlockM / 8; ++i) {
      to[(tile * (kBlockM / 8) + i) * kConsumers * kernels::kWarpgroup] =
          make_float4(sums[tile][4 * i], sums[tile][4 * i + 1], sums[tile][4 * i + 2], sums[tile][4 * i + 3]);
    }
  }
  kernels::wait_on_dependent_grids();  // until `arrived` is cleared
  __syncwarp();
  if (threadIdx.x % 32 == 0) {
    kernels::next_turn(arrived_of_range(of, range));
  }
}

// Adds the sums of the ranges that go on with a tile. `steps_end` is the end of its steps among all shared tiles' steps.
template <int kBlockM>
__device__ void add_parts(Sums<kBlockM>& sums, const StreamKArguments& of, int range, int steps_end) {
  kernels::wait_on_dependent_grids();  // until `arrived` is cleared
  for (int from = range + 1; from < of.work.blocks && of.work.begin(from) < steps_end; ++from) {
    if (threadIdx.x % 32 == 0) {
      kernels::wait_for_turn(arrived_of_range(of, from), 1);
    }
    __syncwarp();
    const float4* const part = part_of_range<kBlockM>(of, from);
#pragma unroll
    for (int tile = 0; tile < kStreamKTiles; ++tile) {
#pragma unroll
      for (int i = 0; i < kBlockM / 8; ++i) {
        const float4 added = load_part(&part[(tile * (kBlockM / 8) + i) * kConsumers * kernels::kWarpgroup]);
        sums[tile][4 * i] += added.x;
        sums[tile][4 * i + 1] += added.y;
        sums[tile][4 * i + 2] += added.z;
        sums[tile][4 * i + 3] += added.w;
      }
    }
  }
}

// A warp rounds and stores its sums. In each 8 columns of wgmma's sums, which are rows of x, a thread has two neighbours
// in row lane / 4 of its warp's 16 rows of w, and two 8 rows below: two 8 x 8 matrices as stmatrix takes them.
template <typename T, int kBlockM>
__device__ void store_sums(const Sums<kBlockM>& sums, unsigned char* pieces, const kernels::TiledProduct& of,
                           int64_t row_of_x, int64_t row_of_w) {
  constexpr kernels::Element kElement = kernels::kElementOf<T>;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  // Matrices 0 and 1 are the warp's upper and lower 8 rows of w, for 8 rows of x; 2 and 3 for the next 8.
  const int place = (lane / 16 * 8 + lane % 8) * kPieceRowBytes + lane / 8 % 2 * 16;
  const int row = lane / 2;
#pragma unroll
  for (int tile = 0; tile < kStreamKTiles; ++tile) {
    const int64_t column = row_of_w + tile * kRowsOfWgmma;
    if (column >= of.n) {  // n is a multiple of 16
      break;
    }
#pragma unroll
    for (int i = 0; i < kBlockM / kPieceRows; ++i) {
      unsigned char* const piece = pieces + i % 2 * kPieceBytes;
      const float* const own = &sums[tile][8 * i];
      stmatrix_x4_trans(kernels::shared_address(piece + place), kernels::rounded_pair<kElement>(own[0], own[1]),
                        kernels::rounded_pair<kElement>(own[2], own[3]),
                        kernels::rounded_pair<kElement>(own[4], own[5]),
                        kernels::rounded_pair<kElement>(own[6], own[7]));
      __syncwarp();
      const int64_t of_x = row_of_x + i * kPieceRows + row;
      if (of_x < of.m) {
        const uint4 eight = *reinterpret_cast<const uint4*>(piece + row * kPieceRowBytes + lane % 2 * 16);
        *reinterpret_cast<uint4*>(static_cast<T*>(of.out) + of_x * of.n + column + lane % 2 * 8) = eight;
      }
    }
    __syncwarp();
  }
}

#endif

// kOneGroup: a row of w has one scale in a step.
template <typename T, int kBlockM, bool kOneGroup>
__global__ void __launch_bounds__(kernels::kThreadsOfTile, 1)
    product_stream_k(const __grid_constant__ CUtensorMap map_x, const __grid_constant__ CUtensorMap map_words,
                     const __grid_constant__ CUtensorMap map_scales, const __grid_constant__ StreamKArguments given) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  const Arguments& of = given.of;
  const kernels::TiledProduct& product = of.product;
  unsigned char* const shared = kernels::dynamic_shared_memory<kernels::kSwizzleTile>();
  const StreamKLayout layout{
      {kBlockM, kStreamKRows, product.stages, bytes_of_w(kStreamKRows, kOneGroup ? 1 : of.groups)},
      kernels::kConsumerWarps};
  const kernels::Barriers barriers = kernels::init_barriers(shared, layout.tile);
  const int64_t tiles_m = (product.m + kBlockM - 1) / kBlockM;
  const int64_t tiles_n = (product.n + kStreamKRows - 1) / kStreamKRows;
  Segments segments(given.work, static_cast<int>(blockIdx.x));
  Segment segment{};
  kernels::Buffers buffers;

  if (threadIdx.x < kernels::kWarpgroup) {
    kernels::setmaxnreg_dec<40>();
    if (threadIdx.x == 0) {
      while (segments.next(segment)) {
        const kernels::PlaceOfTile at = kernels::place_of_tile(segment.tile, tiles_m, tiles_n);
        const int row_of_x = static_cast<int>(at.m * kBlockM);
        const int row_of_w = static_cast<int>(at.n * kStreamKRows);
        for (int step = segment.first; step < segment.last; ++step) {
          // A barrier that no phase has completed yet lets the parity 1 pass: the buffers begin empty.
          kernels::mbarrier_wait_parity(&barriers.empty[buffers.stage], buffers.parity ^ 1);
          uint64_t* const full = &barriers.full[buffers.stage];
          kernels::mbarrier_arrive_expect_tx(full, layout.tile.step_bytes());
          unsigned char* const to = shared + buffers.stage * layout.tile.stage_bytes();
          unsigned char* const to_w = to + layout.tile.w();
          kernels::tma_load(to_w, &map_words, step * kStepK, row_of_w / 8, full);
          kernels::tma_load(to_w + bytes_of_words(kStreamKRows), &map_scales, row_of_w,
                            of.channel ? 0 : step * of.groups, full);
          kernels::tma_load(to, &map_x, step * kStepK, row_of_x, full);
          kernels::tma_load(to + layout.tile.slab_bytes(), &map_x, step * kStepK + kernels::kSlabK, row_of_x, full);
          buffers.advance(product.stages);
        }
      }
    }
  } else {
    kernels::setmaxnreg_inc<232>();
    const int warp = (static_cast<int>(threadIdx.x) - kernels::kWarpgroup) / 32;
    unsigned char* const pieces = shared + layout.pieces() + warp * 2 * kPieceBytes;
    const int own_row = warp / 4 * kStreamKTiles * kRowsOfWgmma + warp % 4 * 16;
    const int range = given.work.range_of(static_cast<int>(blockIdx.x));
    Sums<kBlockM> sums;
    while (segments.next(segment)) {
      multiply_segment<T, kBlockM, kOneGroup>(sums, shared, layout.tile, barriers, buffers,
                                              segment.last - segment.first, of.groups);
      if (segment.first > 0) {
        leave_sums<kBlockM>(sums, given, range);
        continue;
      }
      if (segment.last < given.work.steps) {
        add_parts<kBlockM>(sums, given, range, (segment.tile + 1) * given.work.steps);
      }
      const kernels::PlaceOfTile at = kernels::place_of_tile(segment.tile, tiles_m, tiles_n);
      store_sums<T, kBlockM>(sums, pieces, product, at.m * kBlockM, at.n * kStreamKRows + own_row);
    }
  }
#endif
}

}  // namespace matmul_int4
