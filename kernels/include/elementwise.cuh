// A function of one element, applied to a tensor on CUDA.
#pragma once

#include <cstdint>

#include "common.cuh"

namespace kernels {

// A block takes block_size neighbouring elements, and ends: blocks that start as others end keep loads and stores
// mixed, which a grid that stays and takes block after block does not. A thread loads K packs of N neighbouring
// elements before it uses the first, so that a warp reads 32 x N x sizeof(T) bytes in a row; where block_size is more
// than that for all threads, they do so again. Nothing is kept: each element is read once and written once.
template <typename T, int N, int K, typename F>
__global__ void __launch_bounds__(kMaxThreads)
    elementwise(const T* __restrict__ x, T* __restrict__ y, int64_t count, int block_size, Caching caching, F f) {
  const int64_t begin = static_cast<int64_t>(blockIdx.x) * block_size;
  const int size = static_cast<int>(min(count - begin, static_cast<int64_t>(block_size)));
  const auto* from = reinterpret_cast<const Pack<T, N>*>(x + begin);
  auto* to = reinterpret_cast<Pack<T, N>*>(y + begin);
  const int packs = size / N;
  const int threads = static_cast<int>(blockDim.x);
  const uint64_t policy = policy_of(caching);
  for (int i = static_cast<int>(threadIdx.x); i < packs; i += K * threads) {
    Pack<T, N> pack[K];
#pragma unroll
    for (int k = 0; k < K; ++k) {
      if (i + k * threads < packs) {
        pack[k] = load(from + i + k * threads, policy);
      }
    }
#pragma unroll
    for (int k = 0; k < K; ++k) {
      if (i + k * threads < packs) {
#pragma unroll
        for (T& value : pack[k].values) {
          value = static_cast<T>(f(static_cast<float>(value)));
        }
        store(to + i + k * threads, pack[k], policy);
      }
    }
  }
  // Fewer than N elements are left over in the last block.
  const int i = packs * N + static_cast<int>(threadIdx.x);
  if (i < size) {
    y[begin + i] = static_cast<T>(f(static_cast<float>(x[begin + i])));
  }
}

template <typename T, int N, typename F>
void launch_elementwise(const Tensor& x, const Tensor& y, int block_size, int num_warps, const F& f) {
  const int threads = num_warps * kThreadsPerWarp;
  const int64_t blocks = ceil_div(x.numel(), block_size);
  require(blocks <= INT32_MAX, "a launch has at most 2**31 - 1 blocks, this needs " + std::to_string(blocks));
  const int64_t packs = ceil_div(block_size, int64_t{N} * threads);
  const auto kernel = packs <= 1   ? elementwise<T, N, 1, F>
                      : packs <= 2 ? elementwise<T, N, 2, F>
                                   : elementwise<T, N, kInFlight, F>;
  const Caching caching = caching_of(x.numel() * static_cast<int64_t>(sizeof(T)), x.get_device_index());
  kernel<<<static_cast<unsigned>(blocks), threads, 0, current_stream(x)>>>(input<T>(x), output<T>(y), x.numel(),
                                                                           block_size, caching, f);
  record_launch("elementwise", "block_stride", static_cast<unsigned>(blocks), threads);
}

// y[i] = f(x[i]), computed in float32 and rounded once; the answer is contiguous. Elements are loaded and
// stored 16 bytes at a time, or one at a time where x does not start at a multiple of 16 bytes.
template <typename F>
Tensor elementwise_cuda(const char* operation, const Tensor& x, int64_t block_size, int64_t num_warps, const F& f) {
  check_launch_parameters(block_size, num_warps);
  const torch::stable::accelerator::DeviceGuard guard(x.get_device_index());
  const Tensor source = torch::stable::contiguous(x);
  const Tensor result = torch::stable::empty_like(source);
  with_element_type(source, [&](auto element) {
    using T = decltype(element);
    if (source.numel() == 0) {
      return;
    }
    const auto launch = aligned_to_16(source.const_data_ptr()) && aligned_to_16(result.const_data_ptr())
                            ? launch_elementwise<T, kWidest<T>, F>
                            : launch_elementwise<T, 1, F>;
    launch(source, result, static_cast<int>(block_size), static_cast<int>(num_warps), f);
    check_launched(operation);
  });
  return result;
}

}  // namespace kernels
