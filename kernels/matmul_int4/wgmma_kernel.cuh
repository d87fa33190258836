// The four-bit product for Hopper alone, from one row of x to thousands. It computes tiles of the output's transpose:
// weights are the first operand of wgmma, which takes that one from registers.
//
// - One thread copies by TMA, step by step along k: a slab of x, and the words and scales of w as they lie. Copies go
//   round `stages` buffers, each with a barrier `full` and a barrier `empty`, as in kernels/matmul/wgmma_kernel.cuh.
// - Two warpgroups multiply. A thread's 16 bytes of the packing are what it holds of wgmma's first operand for 8
//   instructions of 16 columns, so it needs nothing from its neighbours, and a weight is dequantised once in a block.
// - wgmma is asynchronous: while the tensor cores multiply 32 columns, the warps dequantise the next 32.
// - Where tiles are too few for the GPU, the blocks of a cluster share k. Their sums meet in shared memory, which each
//   block reads of the others, always in the same order.
#pragma once

#include <cstdint>

#include "../matmul/wgmma_ptx.cuh"
#include "weights.cuh"
#include "wgmma_layout.h"
#include "wgmma_registers.cuh"

namespace matmul_int4 {

constexpr int kThreads = 384;  // the warpgroup that copies and the two that multiply
constexpr int kWarpgroups = 2;
constexpr int kRowsOfGroup = 64;  // of w, in an instruction of a warpgroup

struct Arguments {
  int64_t m;
  int64_t n;
  int64_t k;
  int64_t group_m;  // tiles of x that are gone over together
  int stages;
  int split_k;  // blocks of a cluster
  int groups;   // scales of a row of w in a step
  bool channel;
  void* out;
};

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

constexpr int kWarpgroup = 128;
constexpr int kConsumerWarps = 8;
constexpr int kBatchK = 32;  // columns that are dequantised and multiplied at a time: a word of each row

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

// Between the writes of a batch's registers and the wgmmas that read them.
template <int kTiles>
__device__ void fence(uint32_t (&a)[kTiles][2][4]) {
#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile) {
    // As operands, so that the compiler moves no write of them behind the fence.
    asm volatile("wgmma.fence.sync.aligned;"
                 : "+r"(a[tile][0][0]), "+r"(a[tile][0][1]), "+r"(a[tile][0][2]), "+r"(a[tile][0][3]),
                   "+r"(a[tile][1][0]), "+r"(a[tile][1][1]), "+r"(a[tile][1][2]), "+r"(a[tile][1][3])
                 :
                 : "memory");
  }
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

__device__ inline uint32_t word_of(const uint4& words, int p) {
  return p == 0 ? words.x : p == 1 ? words.y : p == 2 ? words.z : words.w;
}

// A block's part of k, in steps.
struct Range {
  int first;
  int last;
};

__device__ inline Range part_of(int steps, int rank, int parts) {
  return {static_cast<int>(int64_t{steps} * rank / parts), static_cast<int>(int64_t{steps} * (rank + 1) / parts)};
}

// The one thread that copies.
__device__ inline void copy_steps(const SharedLayout& layout, const CUtensorMap* map_x, const CUtensorMap* map_words,
                                  const CUtensorMap* map_scales, const Arguments& of, unsigned char* shared,
                                  uint64_t* full, uint64_t* empty, Range range, int row_of_x, int row_of_w) {
  int stage = 0;
  int parity = 0;
  for (int step = range.first; step < range.last; ++step) {
    // A barrier that no phase has completed yet lets the parity 1 pass: the buffers begin empty.
    kernels::mbarrier_wait_parity(&empty[stage], parity ^ 1);
    kernels::mbarrier_arrive_expect_tx(&full[stage], layout.step_bytes());
    unsigned char* const to = shared + stage * layout.stage_bytes();
    matmul::tma_load(to + layout.words(), map_words, step * kStepK, row_of_w / 8, &full[stage]);
    matmul::tma_load(to + layout.scales(), map_scales, row_of_w, of.channel ? 0 : step * of.groups, &full[stage]);
    matmul::tma_load(to, map_x, step * kStepK, row_of_x, &full[stage]);
    matmul::tma_load(to + layout.slab_bytes(), map_x, step * kStepK + kSlabK, row_of_x, &full[stage]);
    if (++stage == of.stages) {
      stage = 0;
      parity ^= 1;
    }
  }
}

// Of the 256 threads that multiply each writes its sums to where the buffers were: a row for each of x.
template <int kBlockM, int kTiles>
__device__ void stage_sums(const float (&sums)[kTiles][kBlockM / 2], float* staged, int row_of_sums, int warpgroup) {
  const int thread = static_cast<int>(threadIdx.x) % kWarpgroup;
  const int first_row = thread / 32 * 16 + thread % 32 / 4;
#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
    for (int i = 0; i < kBlockM / 2; ++i) {
      // Of wgmma's sums a thread has, in each 8 columns, two neighbours in row lane / 4 of its warp's 16, and two 8 below.
      const int row = (warpgroup * kTiles + tile) * kRowsOfGroup + first_row + i / 2 % 2 * 8;
      const int column = i / 4 * 8 + thread % 4 * 2 + i % 2;
      staged[column * row_of_sums + row] = sums[tile][i];
    }
  }
}

// Adds what the blocks of the cluster staged, and rounds it: a block its share of the rows of x.
template <typename T, int kBlockM, int kBlockN>
__device__ void write_out(const float* staged, int row_of_sums, const Arguments& of, int rank, int64_t row_of_x,
                          int64_t row_of_w) {
  constexpr int kFours = kBlockN / 4;
  const int rows = kBlockM / of.split_k;
  const int thread = static_cast<int>(threadIdx.x) - kWarpgroup;
  T* const out = static_cast<T*>(of.out);
  for (int place = thread; place < rows * kFours; place += kWarpgroups * kWarpgroup) {
    const int row = rank * rows + place / kFours;
    const int column = place % kFours * 4;
    if (row_of_x + row < of.m && row_of_w + column < of.n) {
      const float* const from = staged + row * row_of_sums + column;
      float4 total = *reinterpret_cast<const float4*>(from);
      if (of.split_k > 1) {
        total = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        for (int part = 0; part < of.split_k; ++part) {
          const float4 added = load_of_block(matmul::shared_address(from), part);
          total.x += added.x;
          total.y += added.y;
          total.z += added.z;
          total.w += added.w;
        }
      }
      *reinterpret_cast<uint2*>(out + (row_of_x + row) * of.n + row_of_w + column) =
          make_uint2(rounded_pair<T>(total.x, total.y), rounded_pair<T>(total.z, total.w));
    }
  }
}

#endif

// kTiles: times 64 rows of w for each warpgroup. kOneGroup: a row of w has one scale in a step.
template <typename T, int kBlockM, int kTiles, bool kOneGroup>
__global__ void __launch_bounds__(kThreads, 1)
    product_wgmma(const __grid_constant__ CUtensorMap map_x, const __grid_constant__ CUtensorMap map_words,
                  const __grid_constant__ CUtensorMap map_scales, const __grid_constant__ Arguments of) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  constexpr int kBlockN = kWarpgroups * kTiles * kRowsOfGroup;
  extern __shared__ unsigned char shared_memory[];
  const SharedLayout layout{kBlockM, kBlockN, kOneGroup ? 1 : of.groups, of.stages};
  // All blocks of a cluster have the same addresses, so that rounding up leaves them the same.
  unsigned char* const shared =
      shared_memory +
      (matmul::kSwizzleTile - matmul::shared_address(shared_memory) % matmul::kSwizzleTile) % matmul::kSwizzleTile;
  auto* const full = reinterpret_cast<uint64_t*>(shared + layout.barriers());
  uint64_t* const empty = full + of.stages;

  if (threadIdx.x == 0) {
    matmul::prefetch_tensor_map(&map_x);
    matmul::prefetch_tensor_map(&map_words);
    matmul::prefetch_tensor_map(&map_scales);
    for (int stage = 0; stage < of.stages; ++stage) {
      matmul::mbarrier_init(&full[stage], 1);
      matmul::mbarrier_init(&empty[stage], kConsumerWarps);
    }
    kernels::fence_mbarrier_init();
  }
  __syncthreads();

  const int rank = of.split_k > 1 ? matmul::cluster_rank() : 0;
  const matmul::TileIndex at = matmul::grouped_tile(blockIdx.x / of.split_k, (of.m + kBlockM - 1) / kBlockM,
                                                    (of.n + kBlockN - 1) / kBlockN, of.group_m);
  const int64_t row_of_x = at.m * kBlockM;
  const int64_t row_of_w = at.n * kBlockN;
  const Range range = part_of(static_cast<int>(of.k / kStepK), rank, of.split_k);
  const int warpgroup = static_cast<int>(threadIdx.x) / kWarpgroup - 1;

  if (warpgroup < 0) {
    matmul::setmaxnreg_dec<40>();
    if (threadIdx.x == 0) {
      copy_steps(layout, &map_x, &map_words, &map_scales, of, shared, full, empty, range, static_cast<int>(row_of_x),
                 static_cast<int>(row_of_w));
    }
    __syncwarp();
    if (of.split_k > 1) {
      kernels::cluster_arrive();
      kernels::cluster_wait();
      kernels::cluster_arrive();
      kernels::cluster_wait();
    }
  } else {
    matmul::setmaxnreg_inc<232>();
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const int warp = static_cast<int>(threadIdx.x) / 32 % 4;
    // The warp's first row of w in the block, of its first tile.
    const int own_row = warpgroup * kTiles * kRowsOfGroup + warp * 16;
    float sums[kTiles][kBlockM / 2];
    int stage = 0;
    int parity = 0;
    int last = 0;
    for (int step = range.first; step < range.last; ++step) {
      kernels::mbarrier_wait_parity(&full[stage], parity);
      const unsigned char* const buffer = shared + stage * layout.stage_bytes();
      const uint32_t slabs = matmul::shared_address(buffer);
      const auto* const words = reinterpret_cast<const uint4*>(buffer + layout.words()) + own_row * 4 + lane;
      const auto* const pairs = reinterpret_cast<const uint32_t*>(buffer + layout.scales()) + own_row + lane / 4;
      uint4 upper[kTiles];
      uint4 lower[kTiles];
      ScaleAndZero of_upper[kTiles];
      ScaleAndZero of_lower[kTiles];
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
        upper[tile] = words[tile * kRowsOfGroup * 4];
        lower[tile] = words[tile * kRowsOfGroup * 4 + 32];
      }
#pragma unroll
      for (int p = 0; p < kStepK / kBatchK; ++p) {
        uint32_t a[kTiles][2][4];
#pragma unroll
        for (int tile = 0; tile < kTiles; ++tile) {
          if (p == 0 || !kOneGroup) {
            const int group = kOneGroup ? 0 : p * of.groups / 4;
            const uint32_t* const from = pairs + group * kBlockN + tile * kRowsOfGroup;
            of_upper[tile] = spread(from[0]);
            of_lower[tile] = spread(from[8]);
          }
          const uint32_t u = word_of(upper[tile], p);
          const uint32_t l = word_of(lower[tile], p);
          a[tile][0][0] = dequantised<T, 0>(u, of_upper[tile]);
          a[tile][0][1] = dequantised<T, 0>(l, of_lower[tile]);
          a[tile][0][2] = dequantised<T, 1>(u, of_upper[tile]);
          a[tile][0][3] = dequantised<T, 1>(l, of_lower[tile]);
          a[tile][1][0] = dequantised<T, 2>(u, of_upper[tile]);
          a[tile][1][1] = dequantised<T, 2>(l, of_lower[tile]);
          a[tile][1][2] = dequantised<T, 3>(u, of_upper[tile]);
          a[tile][1][3] = dequantised<T, 3>(l, of_lower[tile]);
        }
        fence<kTiles>(a);
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int instruction = 2 * p + half;  // of 16 columns, four of them in a slab
          const uint64_t of_x = matmul::k_major_descriptor(
              slabs + static_cast<uint32_t>(instruction / 4 * layout.slab_bytes()), instruction % 4);
#pragma unroll
          for (int tile = 0; tile < kTiles; ++tile) {
            wgmma_registers<T, kBlockM>(sums[tile], a[tile][half], of_x, step > range.first || instruction > 0);
          }
        }
        matmul::wgmma_commit_group();
        // This batch stays under way, the one before is done.
        matmul::wgmma_wait_group<1>();
        if (p == 0 && step > range.first && lane == 0) {
          kernels::mbarrier_arrive(&empty[last]);
        }
      }
      last = stage;
      if (++stage == of.stages) {
        stage = 0;
        parity ^= 1;
      }
    }
    matmul::wgmma_wait_group<0>();

    // Nobody copies any more, and once both warpgroups are here nobody reads the buffers.
    consumers_barrier();
    auto* const staged = reinterpret_cast<float*>(shared);
    stage_sums<kBlockM, kTiles>(sums, staged, layout.row_of_sums(), warpgroup);
    __syncwarp();
    if (of.split_k > 1) {
      kernels::cluster_arrive();
      kernels::cluster_wait();
    } else {
      consumers_barrier();
    }
    write_out<T, kBlockM, kBlockN>(staged, layout.row_of_sums(), of, rank, row_of_x, row_of_w);
    __syncwarp();
    if (of.split_k > 1) {  // a block does not end while another one may read its shared memory
      kernels::cluster_arrive();
      kernels::cluster_wait();
    }
  }
#endif
}

}  // namespace matmul_int4
