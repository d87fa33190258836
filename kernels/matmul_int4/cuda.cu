// The four-bit product of few rows of x, limited by the bytes of w: each weight is read once, straight to the registers
// of the one warp that needs it, 16 bytes per thread, and dequantised there.
//
// The tensor cores multiply, so that 32 rows of x cost hardly more than one. Weights are the first operand of
// mma.m16n8k16, 16 rows of w, and x is the second, 8 rows of it. A thread's 16 bytes of the packing are what it holds of
// the first operand for 8 steps of 16 columns; it needs nothing from its neighbours.
//
// A block has 16 * kTiles rows of w, and its warps take turns along k. Their sums meet in shared memory. Blocks that share
// k leave sums in float32, which a second kernel adds.
#include <type_traits>

#include "../include/few_rows.cuh"
#include "weights.cuh"

namespace matmul_int4 {

using kernels::kRowsOfTile;
using kernels::kRowsOfX;
using kernels::most_warps;
using kernels::Tensor;

constexpr int kMostRows = 32;  // of x in a block
constexpr int kChannel = 0;    // as a group: one scale for a row

template <typename T>
__device__ void mma(float (&sums)[4], const uint32_t (&w)[4], uint32_t x0, uint32_t x1) {
  if constexpr (std::is_same_v<T, torch::headeronly::BFloat16>) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
        : "r"(w[0]), "r"(w[1]), "r"(w[2]), "r"(w[3]), "r"(x0), "r"(x1));
  } else {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
        : "r"(w[0]), "r"(w[1]), "r"(w[2]), "r"(w[3]), "r"(x0), "r"(x1));
  }
}

// Weights are read once: they take no room in L1.
__device__ inline uint4 load_words(const uint4* from) {
  uint4 words;
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(words.x), "=r"(words.y), "=r"(words.z), "=r"(words.w)
               : "l"(from));
  return words;
}

// Multiplies two steps of 16 columns: the columns of word p of each of a tile's two halves, rows 0 to 7 and 8 to 15.
template <typename T, int kBlocksOfX>
__device__ void multiply(float (&sums)[kBlocksOfX][4], uint32_t upper, uint32_t lower, const ScaleAndZero& of_upper,
                         const ScaleAndZero& of_lower, const uint32_t (&x)[kBlocksOfX][4]) {
  const uint32_t first[4] = {dequantised<T, 0>(upper, of_upper), dequantised<T, 0>(lower, of_lower),
                             dequantised<T, 1>(upper, of_upper), dequantised<T, 1>(lower, of_lower)};
  const uint32_t second[4] = {dequantised<T, 2>(upper, of_upper), dequantised<T, 2>(lower, of_lower),
                              dequantised<T, 3>(upper, of_upper), dequantised<T, 3>(lower, of_lower)};
#pragma unroll
  for (int block = 0; block < kBlocksOfX; ++block) {
    mma<T>(sums[block], first, x[block][0], x[block][1]);
    mma<T>(sums[block], second, x[block][2], x[block][3]);
  }
}

// What a warp loads of a tile of w and its scales at one step of 128 columns.
template <int kTiles, int kGroups>
struct Step {
  uint4 words[kTiles][2];
  uint32_t pairs[kTiles][2][kGroups];
};

template <int kGroup, int kTiles, int kGroups>
__device__ void load_step(Step<kTiles, kGroups>& step, const uint4* packed, const uint32_t* scales, int64_t n,
                          int64_t row, int64_t tiles_k, int64_t at, int lane) {
#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int64_t first = row + kRowsOfTile * tile + 8 * half;
      step.words[tile][half] = load_words(packed + (first / 8 * tiles_k + at) * 32 + lane);
#pragma unroll
      for (int group = 0; group < kGroups; ++group) {
        const int64_t of_row = kGroup == kChannel ? 0 : at * kGroups + group;
        step.pairs[tile][half][group] = __ldg(scales + of_row * n + first + lane / 4);
      }
    }
  }
}

template <typename T, typename Out, int kGroup, int kBlocksOfX, int kTiles>
__global__ void __launch_bounds__(32 * most_warps(kBlocksOfX))
    product(const T* x, const uint4* packed, const uint32_t* scales, Out* out, int64_t m, int64_t n, int64_t k) {
  constexpr int kGroups = kGroup == kChannel ? 1 : kTileK / kGroup;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int warps = static_cast<int>(blockDim.x) / 32;
  const int64_t row = static_cast<int64_t>(blockIdx.x) * kRowsOfTile * kTiles;
  const int64_t tiles_k = k / kTileK;
  const int64_t stride = static_cast<int64_t>(warps) * gridDim.y;
  // A thread's rows of x, and the first of the columns that it holds of them in a step of 16.
  const T* const own_x = x + static_cast<int64_t>(lane / 4) * k + 2 * (lane % 4);

  float sums[kTiles][kBlocksOfX][4] = {};
  Step<kTiles, kGroups> now;
  int64_t at = static_cast<int64_t>(blockIdx.y) * warps + warp;
  if (at < tiles_k) {
    load_step<kGroup>(now, packed, scales, n, row, tiles_k, at, lane);
  }
  for (; at < tiles_k; at += stride) {
    Step<kTiles, kGroups> next = now;
    if (at + stride < tiles_k) {
      load_step<kGroup>(next, packed, scales, n, row, tiles_k, at + stride, lane);
    }
#pragma unroll
    for (int p = 0; p < 4; ++p) {
      uint32_t of_x[kBlocksOfX][4];
#pragma unroll
      for (int block = 0; block < kBlocksOfX; ++block) {
#pragma unroll
        for (int quarter = 0; quarter < 4; ++quarter) {
          const bool inside = kRowsOfX * block + lane / 4 < m;
          const T* const from = own_x + kRowsOfX * block * k + at * kTileK + 32 * p + 8 * quarter;
          of_x[block][quarter] = inside ? __ldg(reinterpret_cast<const unsigned int*>(from)) : 0;
        }
      }
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
        const auto word = [p](const uint4& words) { return p == 0 ? words.x : p == 1 ? words.y : p == 2 ? words.z : words.w; };
        const int group = p * kGroups / 4;
        multiply<T, kBlocksOfX>(sums[tile], word(now.words[tile][0]), word(now.words[tile][1]),
                                spread(now.pairs[tile][0][group]), spread(now.pairs[tile][1][group]), of_x);
      }
    }
    now = next;
  }

  kernels::write_sums(sums, out, m, n, row);
}

struct Arguments {
  const Tensor& x;
  const Tensor& packed;
  const Tensor& scales;
  int64_t warps;
  int64_t split_k;
};

template <typename T, typename Out, int kGroup, int kBlocksOfX, int kTiles>
void launch(const Arguments& given, Out* out, cudaStream_t stream) {
  const int64_t m = given.x.size(0);
  const int64_t n = given.scales.size(1);
  const dim3 grid(static_cast<unsigned>(n / (kRowsOfTile * kTiles)), static_cast<unsigned>(given.split_k));
  const dim3 block(static_cast<unsigned>(32 * given.warps));
  const int shared = kernels::bytes_of_sums(static_cast<int>(given.warps), kTiles, kBlocksOfX);
  const auto function = product<T, Out, kGroup, kBlocksOfX, kTiles>;
  constexpr int kSharedOfAnyBlock = 48 << 10;
  if (shared > kSharedOfAnyBlock) {
    cudaFuncSetAttribute(function, cudaFuncAttributeMaxDynamicSharedMemorySize, shared);
  }
  function<<<grid, block, static_cast<size_t>(shared), stream>>>(
      kernels::input<T>(given.x), kernels::input<uint4>(given.packed), kernels::input<uint32_t>(given.scales), out, m, n,
      given.x.size(1));
  kernels::record_launch("product", given.split_k > 1 ? "split_k" : "warps_along_k", grid, block, 1, shared);
}

template <typename T, typename Out, int kGroup, int kBlocksOfX>
void with_tiles(const Arguments& given, int64_t tiles_n, Out* out, cudaStream_t stream) {
  if constexpr (kBlocksOfX <= 2) {
    if (tiles_n == 2) {
      return launch<T, Out, kGroup, kBlocksOfX, 2>(given, out, stream);
    }
  }
  launch<T, Out, kGroup, kBlocksOfX, 1>(given, out, stream);
}

template <typename T, typename Out, int kGroup>
void with_rows(const Arguments& given, int64_t tiles_n, Out* out, cudaStream_t stream) {
  const int64_t m = given.x.size(0);
  if (m <= kRowsOfX) {
    with_tiles<T, Out, kGroup, 1>(given, tiles_n, out, stream);
  } else if (m <= 2 * kRowsOfX) {
    with_tiles<T, Out, kGroup, 2>(given, tiles_n, out, stream);
  } else {
    with_tiles<T, Out, kGroup, 4>(given, tiles_n, out, stream);
  }
}

template <typename T, typename Out>
void with_group(const Arguments& given, int64_t group, int64_t tiles_n, Out* out, cudaStream_t stream) {
  switch (group) {
    case 32:
      return with_rows<T, Out, 32>(given, tiles_n, out, stream);
    case 64:
      return with_rows<T, Out, 64>(given, tiles_n, out, stream);
    case 128:
      return with_rows<T, Out, 128>(given, tiles_n, out, stream);
    default:
      return with_rows<T, Out, kChannel>(given, tiles_n, out, stream);
  }
}

Tensor empty_product(const Tensor& x, const Tensor& scales) {
  return torch::stable::new_empty(x, {x.size(0), scales.size(1)});
}

// x: m x k and scales: groups x n x 2, of one 16-bit dtype; packed: words as the kernel's declaration says.
Tensor cuda(const Tensor& x, const Tensor& packed, const Tensor& scales, int64_t group, int64_t tiles_n, int64_t warps_k,
            int64_t split_k) {
  const int64_t n = scales.size(1);
  const int64_t k = x.size(1);
  const bool many = x.size(0) > 2 * kRowsOfX;
  kernels::require((tiles_n == 1 || (tiles_n == 2 && !many)) && warps_k >= 1 &&
                       warps_k <= most_warps(many ? 4 : 1) && split_k >= 1,
                   "tiles_n must be 1 or 2 and warps_k 1 to 16, above 16 rows of x 1 and 1 to 8; split_k at least 1");
  kernels::require(x.size(0) <= kMostRows && k % kTileK == 0 && n % (kRowsOfTile * tiles_n) == 0,
                   "matmul_int4::cuda takes at most 32 rows of x, and of w whole tiles of 128 columns and 16 or 32 rows");
  kernels::require(kernels::aligned_to_16(packed.const_data_ptr()) &&
                       reinterpret_cast<std::uintptr_t>(x.const_data_ptr()) % 4 == 0 &&
                       reinterpret_cast<std::uintptr_t>(scales.const_data_ptr()) % 4 == 0,
                   "matmul_int4::cuda takes weights that begin at a multiple of 16 bytes, and x and scales at one of 4");
  const torch::stable::accelerator::DeviceGuard guard(x.get_device_index());
  const Tensor out = empty_product(x, scales);
  if (out.numel() == 0) {
    return out;
  }
  const cudaStream_t stream = kernels::current_stream(x);
  const Arguments given{x, packed, scales, warps_k, split_k};
  const auto with_type = [&](auto element) {
    using T = decltype(element);
    if (split_k == 1) {
      with_group<T>(given, group, tiles_n, kernels::output<T>(out), stream);
      return;
    }
    const Tensor parts =
        torch::stable::new_empty(x, {split_k, x.size(0), n}, torch::headeronly::ScalarType::Float);
    with_group<T>(given, group, tiles_n, kernels::output<float>(parts), stream);
    constexpr unsigned kThreads = 256;
    const dim3 grid(static_cast<unsigned>(kernels::ceil_div(out.numel(), int64_t{kThreads})));
    kernels::add_parts<T><<<grid, kThreads, 0, stream>>>(kernels::input<float>(parts), kernels::output<T>(out), out.numel(),
                                                static_cast<int>(split_k));
    kernels::record_launch("add_parts", "add_parts", grid, dim3(kThreads));
  };
  if (x.scalar_type() == torch::headeronly::ScalarType::BFloat16) {
    with_type(torch::headeronly::BFloat16{});
  } else {
    with_type(torch::headeronly::Half{});
  }
  kernels::check_launched("matmul_int4::cuda");
  return out;
}

Tensor meta(const Tensor& x, const Tensor&, const Tensor& scales, int64_t, int64_t, int64_t, int64_t) {
  return empty_product(x, scales);
}

}  // namespace matmul_int4

STABLE_TORCH_LIBRARY_FRAGMENT(matmul_int4, m) {
  m.def(
      "cuda(Tensor x, Tensor packed, Tensor scales, int group, int tiles_n, int warps_k, int split_k) -> Tensor");
}

STABLE_TORCH_LIBRARY_IMPL(matmul_int4, Meta, m) { m.impl("cuda", TORCH_BOX(&matmul_int4::meta)); }

STABLE_TORCH_LIBRARY_IMPL(matmul_int4, CUDA, m) { m.impl("cuda", TORCH_BOX(&matmul_int4::cuda)); }
