// A function of one element, applied to a tensor on CUDA.
#pragma once

#include <cstdint>

#include "common.cuh"

namespace kernels {

// Vectors that a thread has in flight at most.
constexpr int kVectorsInFlight = 4;

// A block takes block_size neighbouring elements and ends. Blocks that start as others end keep loads and stores mixed,
// which a persistent kernel does not. A thread has K vectors of N neighbouring elements in flight before it uses the
// first; a warp reads 32 x N x sizeof(T) contiguous bytes with each load. Where block_size is more than K vectors a
// thread, the threads do so again. Each element is read once and written once.
template <typename T, int N, int K, typename F>
__global__ void __launch_bounds__(kMaxThreads)
    elementwise(const T* __restrict__ x, T* __restrict__ y, int64_t count, int block_size, EvictionPriority eviction,
                F f) {
  const int64_t begin = static_cast<int64_t>(blockIdx.x) * block_size;
  const int size = static_cast<int>(min(count - begin, static_cast<int64_t>(block_size)));
  const auto* from = reinterpret_cast<const Vector<T, N>*>(x + begin);
  auto* to = reinterpret_cast<Vector<T, N>*>(y + begin);
  const int vectors = size / N;
  const int threads = static_cast<int>(blockDim.x);
  const uint64_t policy = make_policy(eviction);
  for (int i = static_cast<int>(threadIdx.x); i < vectors; i += K * threads) {
    Vector<T, N> vector[K];
#pragma unroll
    for (int k = 0; k < K; ++k) {
      if (i + k * threads < vectors) {
        vector[k] = load(from + i + k * threads, policy);
      }
    }
#pragma unroll
    for (int k = 0; k < K; ++k) {
      if (i + k * threads < vectors) {
#pragma unroll
        for (T& value : vector[k].values) {
          value = static_cast<T>(f(static_cast<float>(value)));
        }
        store(to + i + k * threads, vector[k], policy);
      }
    }
  }
  // Fewer than N elements are left over in the last block.
  const int i = vectors * N + static_cast<int>(threadIdx.x);
  if (i < size) {
    y[begin + i] = static_cast<T>(f(static_cast<float>(x[begin + i])));
  }
}

template <typename T, int N, typename F>
void launch_elementwise(const Tensor& x, const Tensor& y, int block_size, int num_warps, const F& f) {
  const int threads = num_warps * kThreadsPerWarp;
  const int64_t blocks = ceil_div(x.numel(), block_size);
  require(blocks <= INT32_MAX, "a launch has at most 2**31 - 1 blocks, this needs " + std::to_string(blocks));
  const int64_t vectors = ceil_div(block_size, int64_t{N} * threads);
  const auto kernel = vectors <= 1   ? elementwise<T, N, 1, F>
                      : vectors <= 2 ? elementwise<T, N, 2, F>
                                   : elementwise<T, N, kVectorsInFlight, F>;
  const int64_t bytes = x.numel() * static_cast<int64_t>(sizeof(T));
  const EvictionPriority eviction = eviction_priority_of(bytes, x.get_device_index());
  kernel<<<static_cast<unsigned>(blocks), threads, 0, current_stream(x)>>>(input<T>(x), output<T>(y), x.numel(),
                                                                           block_size, eviction, f);
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
                            ? launch_elementwise<T, kVectorWidth<T>, F>
                            : launch_elementwise<T, 1, F>;
    launch(source, result, static_cast<int>(block_size), static_cast<int>(num_warps), f);
    check_launched(operation);
  });
  return result;
}

}  // namespace kernels
