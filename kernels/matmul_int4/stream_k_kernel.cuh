// The four-bit product of many rows of x for Hopper: tiles as cuda_wgmma's, by blocks that stay on their multiprocessors
// and share the steps of the tiles evenly (stream_k.h), so that no multiprocessor waits for a last wave.
//
// - One thread copies by TMA, through all segments of its block: buffers fill while the output of a tile is stored.
// - A block that goes on with another's tile leaves its sums in device memory, in the order of its registers. To the block
//   that began the tile they come through the buffers, as the steps do; it adds them, always in the same order.
// - A warp stores its sums by stmatrix, transposed, 16 rows of x and of w at a time.
#pragma once

#include "../include/bulk_reduce.cuh"
#include "stream_k.h"
#include "stream_k_instructions.cuh"
#include "wgmma_kernel.cuh"

namespace matmul_int4 {

// Times 64 rows of w for each warpgroup: as many sums as registers hold.
template <int kBlockM>
constexpr int kStreamKTiles = kBlockM <= 128 ? 2 : 1;
template <int kBlockM>
constexpr int kStreamKRows = kConsumers * kStreamKTiles<kBlockM> * kRowsOfWgmma;

constexpr int kThreadsToClear = 256;

// Before the blocks that share tiles: none has left its sums. They are launched while this runs.
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
  int* arrived;  // 1 for each such range whose sums are there
};

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

template <int kBlockM>
using Sums = float[kStreamKTiles<kBlockM>][kBlockM / 2];

// A warpgroup multiplies its rows of w by the steps of a segment.
template <typename T, int kBlockM, bool kOneGroup>
__device__ void multiply_segment(Sums<kBlockM>& sums, const unsigned char* shared, const kernels::TileLayout& layout,
                                 const kernels::Barriers& barriers, kernels::Buffers& buffers, int steps, int groups) {
  const int thread = static_cast<int>(threadIdx.x) - kernels::kWarpgroup;
  const int lane = thread % 32;
  const int own_row = thread / kernels::kWarpgroup * kStreamKTiles<kBlockM> * kRowsOfWgmma + thread / 32 % 4 * 16;
  int last = 0;
  for (int step = 0; step < steps; ++step) {
    kernels::mbarrier_wait_parity(&barriers.full[buffers.stage], buffers.parity);
    const unsigned char* const buffer = shared + buffers.stage * layout.stage_bytes();
    // The same in all lanes, which the compiler doesn't find out otherwise: descriptors are computed once for a warp.
    const uint32_t slabs = __shfl_sync(0xffffffffu, kernels::shared_address(buffer), 0);
    const auto* const words = reinterpret_cast<const uint4*>(buffer + layout.w()) + own_row * 4 + lane;
    const auto* const pairs =
        reinterpret_cast<const uint32_t*>(buffer + layout.w() + bytes_of_words(kStreamKRows<kBlockM>)) + own_row + lane / 4;
    uint4 upper[kStreamKTiles<kBlockM>];
    uint4 lower[kStreamKTiles<kBlockM>];
    ScaleAndZero of_upper[kStreamKTiles<kBlockM>];
    ScaleAndZero of_lower[kStreamKTiles<kBlockM>];
#pragma unroll
    for (int tile = 0; tile < kStreamKTiles<kBlockM>; ++tile) {
      upper[tile] = words[tile * kRowsOfWgmma * 4];
      lower[tile] = words[tile * kRowsOfWgmma * 4 + 32];
    }
#pragma unroll
    for (int p = 0; p < kStepK / kBatchK; ++p) {
#pragma unroll
      for (int tile = 0; tile < kStreamKTiles<kBlockM>; ++tile) {
        if (p == 0 || !kOneGroup) {
          const int group = kOneGroup ? 0 : p * groups / 4;
          const uint32_t* const from = pairs + group * kStreamKRows<kBlockM> + tile * kRowsOfWgmma;
          of_upper[tile] = spread(from[0]);
          of_lower[tile] = spread(from[8]);
        }
        uint32_t a[2][4];
        dequantise<T>(a, word_of(upper[tile], p), word_of(lower[tile], p), of_upper[tile], of_lower[tile]);
        // So that the compiler moves no write of them behind the fence.
        kernels::fence_registers(a[0]);
        kernels::fence_registers(a[1]);
        kernels::wgmma_fence();
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int instruction = 2 * p + half;  // of 16 columns, four of them in a slab
          const uint64_t of_x = kernels::k_major_descriptor(
              slabs + static_cast<uint32_t>(instruction / 4 * layout.slab_bytes()), instruction % 4);
          wgmma_of_rows<T, kBlockM>(sums[tile], a[half], of_x, step > 0 || instruction > 0);
        }
        kernels::wgmma_commit_group();
        // This tile's wgmmas stay under way while the other's next weights are dequantised; those before are done.
        kernels::wgmma_wait_group<1>();
        if (p == 0 && tile == 0 && step > 0 && lane == 0) {
          kernels::mbarrier_arrive(&barriers.empty[last]);
        }
      }
    }
    last = buffers.stage;
    buffers.advance(layout.stages);
  }
  kernels::wgmma_wait_group<0>();
#pragma unroll
  for (int tile = 0; tile < kStreamKTiles<kBlockM>; ++tile) {
    kernels::fence_registers(sums[tile]);
  }
  if (lane == 0) {
    kernels::mbarrier_arrive(&barriers.empty[last]);
  }
}

// The sums of a range that goes on with a tile, in pieces of the bytes that two slabs of x have. In a piece the threads of
// the block have four sums after each other, several times.
template <int kBlockM>
constexpr int kPieces = 2 * kStreamKTiles<kBlockM>;
template <int kBlockM>
constexpr int kFours = kBlockM / 16;  // of a thread in a piece
template <int kBlockM>
constexpr int kPartBytes = kFours<kBlockM> * kConsumers * kernels::kWarpgroup * 16;  // of a piece

template <int kBlockM>
__device__ float4* part_of_range(const StreamKArguments& of, int range) {
  return reinterpret_cast<float4*>(of.parts) + int64_t{range} * kPieces<kBlockM> * (kPartBytes<kBlockM> / 16);
}

template <int kBlockM>
__device__ float* fours(Sums<kBlockM>& sums, int i) {
  return &sums[i / (kBlockM / 8)][i % (kBlockM / 8) * 4];
}

// The warps that multiply go on at once: another one waits until the sums are written, and says so.
template <int kBlockM>
__device__ void leave_sums(Sums<kBlockM>& sums, float4* part) {
  float4* const to = part + threadIdx.x - kernels::kWarpgroup;
#pragma unroll
  for (int i = 0; i < kPieces<kBlockM> * kFours<kBlockM>; ++i) {
    const float* const four = fours<kBlockM>(sums, i);
    to[i * kConsumers * kernels::kWarpgroup] = make_float4(four[0], four[1], four[2], four[3]);
  }
  kernels::named_barrier_arrive(1, kernels::kThreadsOfTile - kernels::kWarpgroup + 32);
}

// Adds a range's sums, which come through the buffers.
template <int kBlockM>
__device__ void add_part(Sums<kBlockM>& sums, const unsigned char* shared, const kernels::TileLayout& layout,
                         const kernels::Barriers& barriers, kernels::Buffers& buffers) {
#pragma unroll
  for (int piece = 0; piece < kPieces<kBlockM>; ++piece) {
    kernels::mbarrier_wait_parity(&barriers.full[buffers.stage], buffers.parity);
    const auto* const from = reinterpret_cast<const float4*>(shared + buffers.stage * layout.stage_bytes()) +
                             threadIdx.x - kernels::kWarpgroup;
#pragma unroll
    for (int i = 0; i < kFours<kBlockM>; ++i) {
      const float4 added = from[i * kConsumers * kernels::kWarpgroup];
      float* const four = fours<kBlockM>(sums, piece * kFours<kBlockM> + i);
      four[0] += added.x;
      four[1] += added.y;
      four[2] += added.z;
      four[3] += added.w;
    }
    __syncwarp();
    if (threadIdx.x % 32 == 0) {
      kernels::mbarrier_arrive(&barriers.empty[buffers.stage]);
    }
    buffers.advance(layout.stages);
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
  for (int tile = 0; tile < kStreamKTiles<kBlockM>; ++tile) {
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
      {kBlockM, kStreamKRows<kBlockM>, product.stages, bytes_of_w(kStreamKRows<kBlockM>, kOneGroup ? 1 : of.groups)},
      kernels::kConsumerWarps};
  const kernels::Barriers barriers = kernels::init_barriers(shared, layout.tile);
  const int64_t tiles_m = (product.m + kBlockM - 1) / kBlockM;
  const int64_t tiles_n = (product.n + kStreamKRows<kBlockM> - 1) / kStreamKRows<kBlockM>;
  Segments segments(given.work, static_cast<int>(blockIdx.x));
  Segment segment{};
  kernels::Buffers buffers;

  const int range = given.work.range_of(static_cast<int>(blockIdx.x));

  if (threadIdx.x < kernels::kWarpgroup) {
    kernels::setmaxnreg_dec<40>();
    if (threadIdx.x == 0) {
      kernels::prefetch_tensor_map(&map_x);
      kernels::prefetch_tensor_map(&map_words);
      kernels::prefetch_tensor_map(&map_scales);
      const auto next_buffer = [&](int bytes) {
        // A barrier that no phase has completed yet lets the parity 1 pass: the buffers begin empty.
        kernels::mbarrier_wait_parity(&barriers.empty[buffers.stage], buffers.parity ^ 1);
        kernels::mbarrier_arrive_expect_tx(&barriers.full[buffers.stage], bytes);
        return shared + buffers.stage * layout.tile.stage_bytes();
      };
      while (segments.next(segment)) {
        const kernels::PlaceOfTile at = kernels::place_of_tile(segment.tile, tiles_m, tiles_n);
        const int row_of_x = static_cast<int>(at.m * kBlockM);
        const int row_of_w = static_cast<int>(at.n * kStreamKRows<kBlockM>);
        for (int step = segment.first; step < segment.last; ++step) {
          unsigned char* const to = next_buffer(layout.tile.step_bytes());
          unsigned char* const to_w = to + layout.tile.w();
          uint64_t* const full = &barriers.full[buffers.stage];
          kernels::tma_load(to_w, &map_words, step * kStepK, row_of_w / 8, full);
          kernels::tma_load(to_w + bytes_of_words(kStreamKRows<kBlockM>), &map_scales, row_of_w,
                            of.channel ? 0 : step * of.groups, full);
          kernels::tma_load(to, &map_x, step * kStepK, row_of_x, full);
          kernels::tma_load(to + layout.tile.slab_bytes(), &map_x, step * kStepK + kernels::kSlabK, row_of_x, full);
          buffers.advance(product.stages);
        }
        for (int from = range + 1; given.work.goes_on(segment, from); ++from) {
          kernels::wait_on_dependent_grids();  // until `arrived` is cleared
          kernels::wait_for_turn(&given.arrived[from], 1);
          const auto* const part = reinterpret_cast<const unsigned char*>(part_of_range<kBlockM>(given, from));
          for (int piece = 0; piece < kPieces<kBlockM>; ++piece) {
            unsigned char* const to = next_buffer(kPartBytes<kBlockM>);
            kernels::bulk_load(to, part + piece * kPartBytes<kBlockM>, kPartBytes<kBlockM>,
                               &barriers.full[buffers.stage]);
            buffers.advance(product.stages);
          }
        }
      }
    } else if (threadIdx.x / 32 == 1 && segments.next(segment) && segment.first > 0) {
      kernels::wait_on_dependent_grids();  // until `arrived` is cleared
      kernels::named_barrier_sync(1, kernels::kThreadsOfTile - kernels::kWarpgroup + 32);
      if (threadIdx.x % 32 == 0) {
        kernels::next_turn(&given.arrived[range]);
      }
    }
  } else {
    kernels::setmaxnreg_inc<232>();
    const int warp = (static_cast<int>(threadIdx.x) - kernels::kWarpgroup) / 32;
    unsigned char* const pieces = shared + layout.pieces() + warp * 2 * kPieceBytes;
    const int own_row = warp / 4 * kStreamKTiles<kBlockM> * kRowsOfWgmma + warp % 4 * 16;
    Sums<kBlockM> sums;
    while (segments.next(segment)) {
      multiply_segment<T, kBlockM, kOneGroup>(sums, shared, layout.tile, barriers, buffers,
                                              segment.last - segment.first, of.groups);
      if (segment.first > 0) {
        leave_sums<kBlockM>(sums, part_of_range<kBlockM>(given, range));
        continue;
      }
      for (int from = range + 1; given.work.goes_on(segment, from); ++from) {
        add_part<kBlockM>(sums, shared, layout.tile, barriers, buffers);
      }
      const kernels::PlaceOfTile at = kernels::place_of_tile(segment.tile, tiles_m, tiles_n);
      store_sums<T, kBlockM>(sums, pieces, product, at.m * kBlockM, at.n * kStreamKRows<kBlockM> + own_row);
    }
  }
#endif
}

}  // namespace matmul_int4
