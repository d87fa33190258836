// softmax over the last dimension of a 2-D tensor on CUDA, one block a row.
//
// A thread keeps a running maximum and the sum of exp(x - maximum) over the elements it has seen, and
// rescales the sum whenever the maximum grows (the online normaliser of Milakov and Gimelshein, 2018), so
// that one pass over the row gives both. Warp shuffles, then shared memory, merge the threads' pairs. A
// second pass writes exp(x - maximum) / sum; it takes the row from shared memory if it fits there, and
// otherwise reads it again, mostly from L2. DRAM bandwidth is the limit as long as the row is read from
// DRAM once; longer rows are read twice, and short ones leave most of a block idle.
#include <algorithm>
#include <cmath>

#include "../include/common.cuh"
#include "rows.h"

namespace softmax {

// Dynamic shared memory that any kernel may ask for on any GPU, less what the merge needs.
constexpr int64_t kSharedBytes = 47 * 1024;

// The maximum of some elements, and the sum of exp(x - maximum) over them.
struct Partial {
  float maximum;
  float sum;
};

constexpr float kInfinity = INFINITY;

// What to subtract before exp: the maximum, but not the -infinity of no elements or of -infinity only, for
// which x - maximum would be NaN. NaN is skipped by fmaxf, yet not lost: exp(NaN - shift) makes the sum NaN.
// +infinity gives exp(inf - inf) = NaN, as torch does.
__device__ float shift(float maximum) { return maximum == -kInfinity ? 0.0f : maximum; }

__device__ Partial merge(const Partial& a, const Partial& b) {
  const float maximum = fmaxf(a.maximum, b.maximum);
  const float subtract = shift(maximum);
  return {maximum, a.sum * expf(a.maximum - subtract) + b.sum * expf(b.maximum - subtract)};
}

__device__ Partial merge_warp(Partial mine) {
#pragma unroll
  for (int distance = kernels::kThreadsPerWarp / 2; distance > 0; distance /= 2) {
    mine = merge(mine, {__shfl_xor_sync(0xffffffffu, mine.maximum, distance),
                        __shfl_xor_sync(0xffffffffu, mine.sum, distance)});
  }
  return mine;
}

// Every thread gets the pair of the whole block.
__device__ Partial merge_block(Partial mine) {
  __shared__ Partial of_warp[kernels::kMaxWarps];
  const unsigned warp = threadIdx.x / kernels::kThreadsPerWarp;
  const unsigned lane = threadIdx.x % kernels::kThreadsPerWarp;
  mine = merge_warp(mine);
  __syncthreads();  // the row before has been read from of_warp
  if (lane == 0) {
    of_warp[warp] = mine;
  }
  __syncthreads();
  const bool is_warp = lane < blockDim.x / kernels::kThreadsPerWarp;
  return merge_warp(is_warp ? of_warp[lane] : Partial{-kInfinity, 0.0f});
}

// Rows start row_stride elements apart in x and lie one after the other in y. N divides columns.
template <typename T, int N, bool kInShared>
__global__ void __launch_bounds__(kernels::kMaxThreads, 1)
    softmax_rows(const T* __restrict__ x, T* __restrict__ y, int64_t rows, int64_t columns, int64_t row_stride,
                int block_size) {
  using kernels::kInFlight;
  using Pack = kernels::Pack<T, N>;
  extern __shared__ uint4 shared[];
  // A thread reads back only the packs that it wrote, so that no barrier is needed.
  auto* kept = reinterpret_cast<Pack*>(shared);
  const int64_t packs = columns / N;
  const int64_t step = block_size / N;
  const int64_t threads = blockDim.x;
  for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
    const auto* from = reinterpret_cast<const Pack*>(x + row * row_stride);
    auto* to = reinterpret_cast<Pack*>(y + row * columns);

    Partial mine{-kInfinity, 0.0f};
    for (int64_t begin = 0; begin < packs; begin += step) {
      const int64_t end = min(begin + step, packs);
      for (int64_t i = begin + threadIdx.x; i < end; i += kInFlight * threads) {
        Pack pack[kInFlight];
        float maximum = mine.maximum;
#pragma unroll
        for (int k = 0; k < kInFlight; ++k) {
          if (i + k * threads < end) {
            pack[k] = from[i + k * threads];
          }
        }
#pragma unroll
        for (int k = 0; k < kInFlight; ++k) {
          if (i + k * threads < end) {
            if constexpr (kInShared) {
              kept[i + k * threads] = pack[k];
            }
#pragma unroll
            for (const T& value : pack[k].values) {
              maximum = fmaxf(maximum, static_cast<float>(value));
            }
          }
        }
        const float subtract = shift(maximum);
        float sum = mine.sum * expf(mine.maximum - subtract);
#pragma unroll
        for (int k = 0; k < kInFlight; ++k) {
          if (i + k * threads < end) {
#pragma unroll
            for (const T& value : pack[k].values) {
              sum += expf(static_cast<float>(value) - subtract);
            }
          }
        }
        mine = {maximum, sum};
      }
    }

    const Partial whole = merge_block(mine);
    const float scale = 1.0f / whole.sum;
    for (int64_t begin = 0; begin < packs; begin += step) {
      const int64_t end = min(begin + step, packs);
      for (int64_t i = begin + threadIdx.x; i < end; i += threads) {
        Pack pack = kInShared ? kept[i] : from[i];
#pragma unroll
        for (T& value : pack.values) {
          value = static_cast<T>(expf(static_cast<float>(value) - whole.maximum) * scale);
        }
        to[i] = pack;
      }
    }
  }
}

template <typename T, int N>
void launch(const kernels::Tensor& x, const kernels::Tensor& y, int block_size, int num_warps) {
  const int64_t row_bytes = x.size(1) * static_cast<int64_t>(sizeof(T));
  const bool in_shared = row_bytes <= kSharedBytes;
  const auto kernel = in_shared ? softmax_rows<T, N, true> : softmax_rows<T, N, false>;
  const auto blocks = static_cast<unsigned>(std::min<int64_t>(x.size(0), INT32_MAX));
  kernel<<<blocks, num_warps * kernels::kThreadsPerWarp, in_shared ? row_bytes : 0, kernels::current_stream(x)>>>(
      kernels::input<T>(x), kernels::output<T>(y), x.size(0), x.size(1), x.stride(0), block_size);
}

kernels::Tensor cuda(const kernels::Tensor& x, int64_t block_size, int64_t num_warps) {
  kernels::check_launch_parameters(block_size, num_warps);
  check(x);
  const torch::stable::accelerator::DeviceGuard guard(x.get_device_index());
  const kernels::Tensor source = x.stride(1) == 1 ? x : torch::stable::contiguous(x);
  const kernels::Tensor result = torch::stable::new_empty(source, source.sizes());
  kernels::with_element_type(source, [&](auto element) {
    using T = decltype(element);
    if (source.size(0) == 0) {
      return;
    }
    constexpr int kWidest = kernels::kWidest<T>;
    const bool wide = kernels::aligned_to_16(source.const_data_ptr()) && source.stride(0) % kWidest == 0 &&
                      source.size(1) % kWidest == 0;
    (wide ? launch<T, kWidest> : launch<T, 1>)(source, result, static_cast<int>(block_size),
                                               static_cast<int>(num_warps));
    kernels::check_launched("softmax::cuda");
  });
  return result;
}

}  // namespace softmax

STABLE_TORCH_LIBRARY_FRAGMENT(softmax, m) { m.def("cuda(Tensor x, int block_size, int num_warps) -> Tensor"); }
STABLE_TORCH_LIBRARY_IMPL(softmax, CUDA, m) { m.impl("cuda", TORCH_BOX(&softmax::cuda)); }
