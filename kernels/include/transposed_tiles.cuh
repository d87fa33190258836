// What the products with packed weights for Hopper share. They compute tiles of the output's transpose, for the weights
// are the operand of wgmma that may come from registers, or be sparse: `block_n` rows of w by `block_m` rows of x.
//
// One warpgroup copies, two multiply, each `kTiles` times 64 rows of w. Where tiles are too few for the GPU, the blocks
// of a cluster share k. Their sums meet in shared memory, which each block reads of the others, always in the same order.
#pragma once

#include <cstdint>
#include <string>
#include <type_traits>

#include "tma.cuh"
#include "transposed_tiles.h"
#include "wgmma.cuh"

namespace kernels {

constexpr int kWarpgroup = 128;  // threads
constexpr int kConsumers = 2;    // warpgroups that multiply
constexpr int kThreadsOfTile = (1 + kConsumers) * kWarpgroup;
constexpr int kConsumerWarps = kConsumers * kWarpgroup / 32;
constexpr int kRowsOfWgmma = 64;  // of w

// A product of m rows of x and n of w, and how its blocks share it.
struct TiledProduct {
  int64_t m;
  int64_t n;
  int64_t k;
  int stages;
  int split_k;  // blocks of a cluster
  void* out;
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// A block's part of k, in steps.
struct Range {
  int first;
  int last;
};

__device__ inline Range part_of(const TiledProduct& of, int rank) {
  const int64_t steps = of.k / kStepK;
  return {static_cast<int>(steps * rank / of.split_k), static_cast<int>(steps * (rank + 1) / of.split_k)};
}

// Which buffer is next, and the parity of its use: it changes each time round.
struct Buffers {
  int stage = 0;
  int parity = 0;

  __device__ void advance(int stages) {
    if (++stage == stages) {
      stage = 0;
      parity ^= 1;
    }
  }
};

// What every thread of a block works out first: where its tile is, and which part of k it multiplies.
struct Block {
  int rank;
  int64_t row_of_x;
  int64_t row_of_w;
  Range range;
};

template <int kBlockM, int kBlockN>
__device__ Block block_of(const TiledProduct& of) {
  const int rank = of.split_k > 1 ? cluster_rank() : 0;
  const PlaceOfTile at =
      place_of_tile(blockIdx.x / of.split_k, (of.m + kBlockM - 1) / kBlockM, (of.n + kBlockN - 1) / kBlockN);
  return {rank, at.m * kBlockM, at.n * kBlockN, part_of(of, rank)};
}

// The barriers of the buffers: `full` completes when a step's bytes are there, `empty` when every warp that multiplies is
// done with them.
struct Barriers {
  uint64_t* full;
  uint64_t* empty;
};

__device__ inline Barriers init_barriers(unsigned char* shared, const TileLayout& layout) {
  auto* const full = reinterpret_cast<uint64_t*>(shared + layout.barriers());
  uint64_t* const empty = full + layout.stages;
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < layout.stages; ++stage) {
      mbarrier_init(&full[stage], 1);
      mbarrier_init(&empty[stage], kConsumerWarps);
    }
    fence_mbarrier_init();
  }
  __syncthreads();
  return {full, empty};
}

// The one thread that copies: the slabs of x itself, what belongs to w by `copy_w(to, step, barrier)`.
template <typename CopyW>
__device__ void copy_steps(const CUtensorMap* map_x, const Block& block, unsigned char* shared, const TileLayout& layout,
                           const Barriers& barriers, const CopyW& copy_w) {
  Buffers buffers;
  for (int step = block.range.first; step < block.range.last; ++step) {
    // A barrier that no phase has completed yet lets the parity 1 pass: the buffers begin empty.
    mbarrier_wait_parity(&barriers.empty[buffers.stage], buffers.parity ^ 1);
    uint64_t* const full = &barriers.full[buffers.stage];
    mbarrier_arrive_expect_tx(full, layout.step_bytes());
    unsigned char* const to = shared + buffers.stage * layout.stage_bytes();
    copy_w(to + layout.w(), step, full);
    tma_load(to, map_x, step * kStepK, static_cast<int>(block.row_of_x), full);
    tma_load(to + layout.slab_bytes(), map_x, step * kStepK + kSlabK, static_cast<int>(block.row_of_x), full);
    buffers.advance(layout.stages);
  }
}

// Where the buffers begin: at a multiple of 1024 bytes, the same in all blocks of a cluster.
__device__ inline unsigned char* aligned_shared(unsigned char* shared) {
  return shared + (kSwizzleTile - shared_address(shared) % kSwizzleTile) % kSwizzleTile;
}

// Two sums, rounded, as neighbours in memory.
template <typename T>
__device__ uint32_t rounded_pair(float first, float second) {
  uint32_t pair;
  if constexpr (std::is_same_v<T, torch::headeronly::BFloat16>) {
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(second), "f"(first));
  } else {
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(second), "f"(first));
  }
  return pair;
}

// A barrier of the threads that multiply; 0 is __syncthreads()'s.
__device__ inline void consumers_barrier() { asm volatile("bar.sync 1, 256;" : : : "memory"); }

// Four float32 numbers at this address of the shared memory of block `rank` of the cluster.
__device__ inline float4 load_of_block(uint32_t address, int rank) {
  float4 value;
  asm volatile(
      "{\n"
      ".reg .b32 remote;\n"
      "mapa.shared::cluster.u32 remote, %4, %5;\n"
      "ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [remote];\n"
      "}"
      : "=f"(value.x), "=f"(value.y), "=f"(value.z), "=f"(value.w)
      : "r"(address), "r"(rank)
      : "memory");
  return value;
}

// Each thread that multiplies writes its sums to where the buffers were: a row for each of x.
//
// Of wgmma's sums a thread has, in each 8 columns, two neighbours in row lane / 4 of its warp's 16, and two 8 rows below.
template <int kBlockM, int kTiles>
__device__ void stage_sums(const float (&sums)[kTiles][kBlockM / 2], float* staged, int row_of_sums, int warpgroup) {
  const int thread = static_cast<int>(threadIdx.x) % kWarpgroup;
  const int first_row = thread / 32 * 16 + thread % 32 / 4;
#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
    for (int i = 0; i < kBlockM / 2; ++i) {
      const int row = (warpgroup * kTiles + tile) * kRowsOfWgmma + first_row + i / 2 % 2 * 8;
      const int column = i / 4 * 8 + thread % 4 * 2 + i % 2;
      staged[column * row_of_sums + row] = sums[tile][i];
    }
  }
}

// Adds what the blocks of the cluster staged, and rounds it: a block its share of the rows of x.
template <typename T, int kBlockM, int kBlockN>
__device__ void write_out(const float* staged, int row_of_sums, const TiledProduct& of, const Block& block) {
  constexpr int kFours = kBlockN / 4;
  const int rows = kBlockM / of.split_k;
  T* const out = static_cast<T*>(of.out);
  for (int place = static_cast<int>(threadIdx.x) - kWarpgroup; place < rows * kFours; place += kConsumers * kWarpgroup) {
    const int row = block.rank * rows + place / kFours;
    const int column = place % kFours * 4;
    if (block.row_of_x + row < of.m && block.row_of_w + column < of.n) {
      const float* const from = staged + row * row_of_sums + column;
      float4 total = *reinterpret_cast<const float4*>(from);
      if (of.split_k > 1) {
        total = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        for (int part = 0; part < of.split_k; ++part) {
          const float4 added = load_of_block(shared_address(from), part);
          total.x += added.x;
          total.y += added.y;
          total.z += added.z;
          total.w += added.w;
        }
      }
      *reinterpret_cast<uint2*>(out + (block.row_of_x + row) * of.n + block.row_of_w + column) =
          make_uint2(rounded_pair<T>(total.x, total.y), rounded_pair<T>(total.z, total.w));
    }
  }
}

// Of the warpgroups that multiply, once all their wgmmas are done: from sums to the output.
template <typename T, int kBlockM, int kTiles>
__device__ void finish(float (&sums)[kTiles][kBlockM / 2], unsigned char* shared, const TileLayout& layout,
                       const TiledProduct& of, const Block& block) {
#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
    for (int i = 0; i < kBlockM / 2; ++i) {
      // Keeps the compiler from moving a use of the sum before the wait for its wgmmas, of which it knows nothing.
      asm volatile("" : "+f"(sums[tile][i]) : : "memory");
    }
  }
  // Nobody copies any more, and once both warpgroups are here nobody reads the buffers.
  consumers_barrier();
  auto* const staged = reinterpret_cast<float*>(shared);
  stage_sums<kBlockM, kTiles>(sums, staged, layout.row_of_sums(), static_cast<int>(threadIdx.x) / kWarpgroup - 1);
  __syncwarp();
  if (of.split_k > 1) {
    cluster_arrive();
    cluster_wait();
  } else {
    consumers_barrier();
  }
  write_out<T, kBlockM, kConsumers * kTiles * kRowsOfWgmma>(staged, layout.row_of_sums(), of, block);
  __syncwarp();
  if (of.split_k > 1) {  // a block does not end while another one may read its shared memory
    cluster_arrive();
    cluster_wait();
  }
}

// The same of the warpgroup that copies: it only waits for the others of the cluster.
__device__ inline void finish_copying(const TiledProduct& of) {
  __syncwarp();
  if (of.split_k > 1) {
    cluster_arrive();
    cluster_wait();
    cluster_arrive();
    cluster_wait();
  }
}

#endif

// What a launch of such a kernel can be given, whatever its weights are. Raises with the operator's name.
inline void check_tiles(const std::string& name, int64_t block_m, int64_t block_n, int64_t split_k, int64_t stages,
                        int64_t m, int64_t n, int64_t k) {
  require((block_m == 16 || block_m == 32 || block_m == 64 || block_m == 128 || block_m == 256) &&
              (block_n == 128 || block_n == 256) && block_m * block_n <= 128 * 256,
          "block_m must be 16, 32, 64, 128 or 256 and block_n 128 or 256, not both 256");
  require(split_k == 1 || split_k == 2 || split_k == 4 || split_k == 8, "split_k must be 1, 2, 4 or 8");
  require(stages >= 2 && stages <= 16, "stages must be from 2 to 16, not " + std::to_string(stages));
  require(k % kStepK == 0 && n % 16 == 0 && k / kStepK >= split_k,
          name + " takes whole tiles of 128 columns and 16 rows of w, and a step for each block that shares k");
  require(m <= INT32_MAX / 2 && n <= INT32_MAX / 2 && k <= INT32_MAX / 2, name + " takes fewer than 2**30 rows");
}

// Calls f with a tile's rows of x, and with how many times 64 rows of w a warpgroup has.
template <typename F>
void with_tile(int64_t block_m, int64_t block_n, const F& f) {
  const auto with_tiles = [&](auto rows) {
    constexpr int kRows = rows;
    if (block_n == 128) {
      return f(rows, std::integral_constant<int, 1>{});
    }
    if constexpr (kRows < 256) {
      f(rows, std::integral_constant<int, 2>{});
    }
  };
  switch (block_m) {
    case 16:
      return with_tiles(std::integral_constant<int, 16>{});
    case 32:
      return with_tiles(std::integral_constant<int, 32>{});
    case 64:
      return with_tiles(std::integral_constant<int, 64>{});
    case 128:
      return with_tiles(std::integral_constant<int, 128>{});
    default:
      return with_tiles(std::integral_constant<int, 256>{});
  }
}

// A matrix of rows without gaps between them, of which boxes of `box_rows` x `box_columns` elements are copied. What is
// outside of the matrix is zeros. The matrix and its rows begin at multiples of 16 bytes.
inline CUtensorMap map_of_rows(CUtensorMapDataType type, int item_bytes, CUtensorMapSwizzle swizzle, const void* data,
                               int64_t rows, int64_t columns, int box_rows, int box_columns) {
  CUtensorMap map{};
  const cuuint64_t sizes[] = {static_cast<cuuint64_t>(columns), static_cast<cuuint64_t>(rows)};
  const cuuint64_t strides[] = {static_cast<cuuint64_t>(columns * item_bytes)};
  const cuuint32_t box[] = {static_cast<cuuint32_t>(box_columns), static_cast<cuuint32_t>(box_rows)};
  const cuuint32_t steps[] = {1, 1};
  const CUresult result = tensor_map_encoder()(&map, type, 2, const_cast<void*>(data), sizes, strides, box, steps,
                                               CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle,
                                               CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  require(result == CUDA_SUCCESS, "TMA takes no matrix of " + std::to_string(rows) + " rows of " +
                                      std::to_string(columns) + " elements of " + std::to_string(item_bytes) + " bytes");
  return map;
}

// A matrix of 16-bit elements as wgmma reads it: slabs of 64 columns, with the 128-byte swizzle.
template <typename T>
CUtensorMap map_of_slabs(const void* data, int64_t rows, int64_t columns, int box_rows) {
  constexpr auto kType = std::is_same_v<T, torch::headeronly::BFloat16> ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16
                                                                       : CU_TENSOR_MAP_DATA_TYPE_FLOAT16;
  return map_of_rows(kType, 2, CU_TENSOR_MAP_SWIZZLE_128B, data, rows, columns, box_rows, kSlabK);
}

// A matrix of 32-bit words as it is.
inline CUtensorMap map_of_words(const void* data, int64_t rows, int64_t columns, int box_rows, int box_columns) {
  return map_of_rows(CU_TENSOR_MAP_DATA_TYPE_INT32, 4, CU_TENSOR_MAP_SWIZZLE_NONE, data, rows, columns, box_rows,
                     box_columns);
}

// Launches a block for each tile, or a cluster where blocks share k.
inline void launch_tiles(const char* name, const void* function, const TileLayout& layout, const TiledProduct& of,
                         void** arguments, cudaStream_t stream) {
  require(layout.bytes_of_sums() <= layout.barriers(),
          std::string(name) + " needs more stages: the sums are staged in their place");
  require(cudaFuncSetAttribute(function, cudaFuncAttributeMaxDynamicSharedMemorySize, layout.bytes()) == cudaSuccess,
          std::string(name) + " needs " + std::to_string(layout.bytes()) + " bytes of shared memory");
  const int64_t tiles = ceil_div(of.m, int64_t{layout.block_m}) * ceil_div(of.n, int64_t{layout.block_n});
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim.x = static_cast<unsigned>(of.split_k);
  attribute.val.clusterDim.y = attribute.val.clusterDim.z = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(tiles * of.split_k));
  config.blockDim = dim3(kThreadsOfTile);
  config.dynamicSmemBytes = static_cast<size_t>(layout.bytes());
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = 1;
  // What it returns, check_launched() asks for.
  cudaLaunchKernelExC(&config, function, arguments);
  record_launch(name, of.split_k > 1 ? "split_k" : "warp-specialized", config.gridDim, config.blockDim, of.split_k,
                layout.bytes(), of.stages);
}

}  // namespace kernels
