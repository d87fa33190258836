// The 2:4 sparse product of few rows of x by mma.sp, limited by the bytes of w: a thread's 16 bytes of values go from
// device memory to the registers of the tensor cores' first operand.
//
// mma.sp.m16n8k32 has 16 rows of w with 32 columns, of which 16 are kept, and 8 rows of x. Which four neighbours of w are
// which four of the instruction's columns is free, if x is taken in the same order. So a thread's 16 bytes, four times two
// values of one row, are two instructions' operands: the first two times two of the one, the others of the other. The
// metadata lies in the columns' order, so that four threads exchange it among them.
//
// What a warp loads of x, in pieces of 4 bytes, serves all its tiles of w. For many rows of x, where the tensor cores are the
// limit, mma.sp is no match for wgmma: see wgmma_kernel.cuh.
#include <string>
#include <type_traits>

#include "../include/few_rows.cuh"

namespace matmul_sparse {

using kernels::kRowsOfTile;
using kernels::kRowsOfX;
using kernels::most_warps;
using kernels::Tensor;

constexpr int kTileK = 64;    // columns of w in a tile of the metadata
constexpr int kTilesAStep = 2;
constexpr int kMostRows = 32;  // of x in a block

// kSelector: which two threads of four have the metadata, 0 for the first two.
template <typename T, int kSelector>
__device__ void mma(float (&sums)[4], uint32_t w0, uint32_t w1, uint32_t w2, uint32_t w3, const uint32_t (&x)[4],
                    uint32_t metadata) {
  if constexpr (std::is_same_v<T, torch::headeronly::BFloat16>) {
    asm("mma.sp::ordered_metadata.sync.aligned.m16n8k32.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, "
        "{%4, %5, %6, %7}, {%8, %9, %10, %11}, {%0, %1, %2, %3}, %12, %13;"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
        : "r"(w0), "r"(w1), "r"(w2), "r"(w3), "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3]), "r"(metadata),
          "n"(kSelector));
  } else {
    asm("mma.sp::ordered_metadata.sync.aligned.m16n8k32.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, "
        "{%4, %5, %6, %7}, {%8, %9, %10, %11}, {%0, %1, %2, %3}, %12, %13;"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
        : "r"(w0), "r"(w1), "r"(w2), "r"(w3), "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3]), "r"(metadata),
          "n"(kSelector));
  }
}

// What a warp loads of its rows of w at one step of 128 columns.
template <int kTiles>
struct Step {
  uint4 upper[kTiles][kTilesAStep];
  uint4 lower[kTiles][kTilesAStep];
  uint32_t metadata[kTiles][kTilesAStep];
};

// Each half of a word has four places of four bits. Thread t of four threads gets the t-th place of each thread: bytes
// from the thread two further, halves of bytes from the neighbour.
__device__ inline uint32_t transposed(uint32_t word, int lane) {
  const uint32_t of_pair = __shfl_xor_sync(0xffffffff, word, 2);
  const uint32_t bytes = __byte_perm(word, of_pair, lane % 4 < 2 ? 0x6240 : 0x3715);
  const uint32_t of_neighbour = __shfl_xor_sync(0xffffffff, bytes, 1);
  const bool even = lane % 2 == 0;
  const uint32_t own = even ? 0x0f0f0f0f : 0xf0f0f0f0;
  return (bytes & own) | ((even ? of_neighbour << 4 : of_neighbour >> 4) & ~own);
}

// Values are read once: they take no room in L1.
__device__ inline uint4 load_values(const uint4* from) {
  uint4 values;
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(values.x), "=r"(values.y), "=r"(values.z), "=r"(values.w)
               : "l"(from));
  return values;
}

// values: of the thread's upper row, 8 columns apart from what the other threads of its four have.
template <typename T, int kTiles>
__device__ void load_step(Step<kTiles>& step, const T* values, const uint32_t* metadata, int64_t k, int64_t at) {
#pragma unroll
  for (int of_n = 0; of_n < kTiles; ++of_n) {
#pragma unroll
    for (int tile = 0; tile < kTilesAStep; ++tile) {
      const int64_t column = at * kTilesAStep + tile;
      const T* const from = values + of_n * kRowsOfTile * (k / 2) + column * (kTileK / 2);
      step.upper[of_n][tile] = load_values(reinterpret_cast<const uint4*>(from));
      step.lower[of_n][tile] = load_values(reinterpret_cast<const uint4*>(from + 8 * (k / 2)));
      step.metadata[of_n][tile] = __ldg(metadata + (of_n * (k / kTileK) + column) * 32);
    }
  }
}

template <typename T, typename Out, int kBlocksOfX, int kTiles>
__global__ void __launch_bounds__(32 * most_warps(kBlocksOfX * kTiles))
    product(const T* x, const T* values, const uint32_t* metadata, Out* out, int64_t m, int64_t n, int64_t k) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int warps = static_cast<int>(blockDim.x) / 32;
  const int64_t row = static_cast<int64_t>(blockIdx.x) * kRowsOfTile * kTiles;
  const int64_t steps = k / (kTileK * kTilesAStep);
  const int64_t stride = static_cast<int64_t>(warps) * gridDim.y;
  const T* const own_values = values + (row + lane / 4) * (k / 2) + 8 * (lane % 4);
  const uint32_t* const own_metadata = metadata + row / kRowsOfTile * (k / kTileK) * 32 + lane;
  // Column 2 (lane % 4) of an instruction's 32 is the column 16 (lane % 4 / 2) + 2 (lane % 2) of a tile of w.
  const T* const own_x = x + static_cast<int64_t>(lane / 4) * k + 16 * (lane % 4 / 2) + 2 * (lane % 2);

  float sums[kTiles][kBlocksOfX][4] = {};
  Step<kTiles> now;
  int64_t at = static_cast<int64_t>(blockIdx.y) * warps + warp;
  if (at < steps) {
    load_step(now, own_values, own_metadata, k, at);
  }
  for (; at < steps; at += stride) {
    Step<kTiles> next = now;
    if (at + stride < steps) {
      load_step(next, own_values, own_metadata, k, at + stride);
    }
#pragma unroll
    for (int tile = 0; tile < kTilesAStep; ++tile) {
      uint32_t kept[kTiles];
#pragma unroll
      for (int of_n = 0; of_n < kTiles; ++of_n) {
        kept[of_n] = transposed(now.metadata[of_n][tile], lane);
      }
#pragma unroll
      for (int block = 0; block < kBlocksOfX; ++block) {
        uint32_t of_x[2][4];
#pragma unroll
        for (int instruction = 0; instruction < 2; ++instruction) {
#pragma unroll
          for (int quarter = 0; quarter < 4; ++quarter) {
            const int column = 32 * (quarter % 2) + 4 * (quarter / 2) + 8 * instruction;
            const T* const from = own_x + kRowsOfX * block * k + (at * kTilesAStep + tile) * kTileK + column;
            const bool inside = kRowsOfX * block + lane / 4 < m;
            of_x[instruction][quarter] = inside ? __ldg(reinterpret_cast<const unsigned int*>(from)) : 0;
          }
        }
#pragma unroll
        for (int of_n = 0; of_n < kTiles; ++of_n) {
          const uint4 upper = now.upper[of_n][tile];
          const uint4 lower = now.lower[of_n][tile];
          mma<T, 0>(sums[of_n][block], upper.x, lower.x, upper.y, lower.y, of_x[0], kept[of_n]);
          mma<T, 1>(sums[of_n][block], upper.z, lower.z, upper.w, lower.w, of_x[1], kept[of_n]);
        }
      }
    }
    now = next;
  }
  kernels::write_sums(sums, out, m, n, row);
}

struct Arguments {
  const Tensor& x;
  const Tensor& values;
  const Tensor& metadata;
  int64_t warps;
  int64_t split_k;
};

template <typename T, typename Out, int kBlocksOfX, int kTiles>
void launch(const Arguments& given, Out* out, cudaStream_t stream) {
  const int64_t n = given.values.size(0);
  const dim3 grid(static_cast<unsigned>(n / (kRowsOfTile * kTiles)), static_cast<unsigned>(given.split_k));
  const dim3 block(static_cast<unsigned>(32 * given.warps));
  const int shared = kernels::bytes_of_sums(static_cast<int>(given.warps), kTiles, kBlocksOfX);
  product<T, Out, kBlocksOfX, kTiles><<<grid, block, static_cast<size_t>(shared), stream>>>(
      kernels::input<T>(given.x), kernels::input<T>(given.values), kernels::input<uint32_t>(given.metadata), out,
      given.x.size(0), n, given.x.size(1));
  kernels::record_launch("product", given.split_k > 1 ? "split_k" : "warps_along_k", grid, block, 1, shared);
}

template <typename T, typename Out, int kBlocksOfX>
void with_tiles(const Arguments& given, int64_t tiles_n, Out* out, cudaStream_t stream) {
  tiles_n == 2 ? launch<T, Out, kBlocksOfX, 2>(given, out, stream) : launch<T, Out, kBlocksOfX, 1>(given, out, stream);
}

template <typename T, typename Out>
void with_rows(const Arguments& given, int64_t tiles_n, Out* out, cudaStream_t stream) {
  const int64_t m = given.x.size(0);
  if (m <= kRowsOfX) {
    with_tiles<T, Out, 1>(given, tiles_n, out, stream);
  } else if (m <= 2 * kRowsOfX) {
    with_tiles<T, Out, 2>(given, tiles_n, out, stream);
  } else {
    with_tiles<T, Out, 4>(given, tiles_n, out, stream);
  }
}

Tensor empty_product(const Tensor& x, const Tensor& values) {
  return torch::stable::new_empty(x, {x.size(0), values.size(0)});
}

// x: m x k and values: n x k / 2, of one 16-bit dtype; metadata: words as the kernel's declaration says.
Tensor cuda(const Tensor& x, const Tensor& values, const Tensor& metadata, int64_t tiles_n, int64_t warps_k,
            int64_t split_k) {
  const int64_t n = values.size(0);
  kernels::require(tiles_n == 1 || tiles_n == 2, "tiles_n must be 1 or 2, not " + std::to_string(tiles_n));
  const int64_t sums = tiles_n * (x.size(0) > 2 * kRowsOfX ? 4 : x.size(0) > kRowsOfX ? 2 : 1);
  kernels::require(warps_k >= 1 && warps_k <= most_warps(static_cast<int>(sums)) && split_k >= 1,
                   "warps_k must be 1 to 16, above 16 rows of x, or 8 with tiles_n 2, 1 to 8; split_k at least 1");
  kernels::require(
      x.size(0) <= kMostRows && x.size(1) % (kTileK * kTilesAStep) == 0 && n % (kRowsOfTile * tiles_n) == 0,
      "matmul_sparse::cuda takes at most 32 rows of x, and of w whole tiles of 16 or 32 rows and 128 columns");
  kernels::require(kernels::aligned_to_16(values.const_data_ptr()) &&
                       reinterpret_cast<std::uintptr_t>(x.const_data_ptr()) % 4 == 0,
                   "matmul_sparse::cuda takes values that begin at a multiple of 16 bytes, and x at one of 4");
  const torch::stable::accelerator::DeviceGuard guard(x.get_device_index());
  const Tensor out = empty_product(x, values);
  if (out.numel() == 0) {
    return out;
  }
  const cudaStream_t stream = kernels::current_stream(x);
  const Arguments given{x, values, metadata, warps_k, split_k};
  const auto with_type = [&](auto element) {
    using T = decltype(element);
    if (split_k == 1) {
      with_rows<T>(given, tiles_n, kernels::output<T>(out), stream);
      return;
    }
    const Tensor parts =
        torch::stable::new_empty(x, {split_k, x.size(0), n}, torch::headeronly::ScalarType::Float);
    with_rows<T>(given, tiles_n, kernels::output<float>(parts), stream);
    constexpr unsigned kThreads = 256;
    const dim3 grid(static_cast<unsigned>(kernels::ceil_div(out.numel(), int64_t{kThreads})));
    kernels::add_parts<T><<<grid, kThreads, 0, stream>>>(kernels::input<float>(parts), kernels::output<T>(out),
                                                         out.numel(), static_cast<int>(split_k));
    kernels::record_launch("add_parts", "add_parts", grid, dim3(kThreads));
  };
  if (x.scalar_type() == torch::headeronly::ScalarType::BFloat16) {
    with_type(torch::headeronly::BFloat16{});
  } else {
    with_type(torch::headeronly::Half{});
  }
  kernels::check_launched("matmul_sparse::cuda");
  return out;
}

Tensor meta(const Tensor& x, const Tensor& values, const Tensor&, int64_t, int64_t, int64_t) {
  return empty_product(x, values);
}

}  // namespace matmul_sparse

STABLE_TORCH_LIBRARY_FRAGMENT(matmul_sparse, m) {
  m.def("cuda(Tensor x, Tensor values, Tensor metadata, int tiles_n, int warps_k, int split_k) -> Tensor");
}

STABLE_TORCH_LIBRARY_IMPL(matmul_sparse, Meta, m) { m.impl("cuda", TORCH_BOX(&matmul_sparse::meta)); }

STABLE_TORCH_LIBRARY_IMPL(matmul_sparse, CUDA, m) { m.impl("cuda", TORCH_BOX(&matmul_sparse::cuda)); }
