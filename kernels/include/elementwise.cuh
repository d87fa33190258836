// A function of one element, applied to a tensor on CUDA.
#pragma once

#include <algorithm>
#include <cstdint>

#include "common.cuh"

namespace kernels {

// More blocks than this never fit on a streaming multiprocessor at once.
constexpr int64_t kBlocksPerMultiprocessor = 32;

// A block takes block_size neighbouring elements, then the next block_size elements that no other block
// takes, until none are left. Its threads load N neighbouring elements each, so that a warp reads
// 32 x N x sizeof(T) bytes in a row, and have up to kInFlight loads under way. Nothing is kept: each
// element is read once and written once. Indices have 64 bits.
template <typename T, int N, typename F>
__global__ void __launch_bounds__(kMaxThreads)
    elementwise(const T* __restrict__ x, T* __restrict__ y, int64_t count, int block_size, F f) {
  const auto* from = reinterpret_cast<const Pack<T, N>*>(x);
  auto* to = reinterpret_cast<Pack<T, N>*>(y);
  const int64_t packs = count / N;
  const int64_t step = block_size / N;
  const int64_t threads = blockDim.x;
  for (int64_t begin = blockIdx.x * step; begin < packs; begin += gridDim.x * step) {
    const int64_t end = min(begin + step, packs);
    for (int64_t i = begin + threadIdx.x; i < end; i += kInFlight * threads) {
      Pack<T, N> pack[kInFlight];
#pragma unroll
      for (int k = 0; k < kInFlight; ++k) {
        if (i + k * threads < end) {
          pack[k] = from[i + k * threads];
        }
      }
#pragma unroll
      for (int k = 0; k < kInFlight; ++k) {
        if (i + k * threads < end) {
#pragma unroll
          for (T& value : pack[k].values) {
            value = static_cast<T>(f(static_cast<float>(value)));
          }
          to[i + k * threads] = pack[k];
        }
      }
    }
  }
  // Fewer than N elements are left over; the last block takes them one by one.
  const int64_t i = packs * N + threadIdx.x;
  if (blockIdx.x == gridDim.x - 1 && i < count) {
    y[i] = static_cast<T>(f(static_cast<float>(x[i])));
  }
}

template <typename T, int N, typename F>
void launch_elementwise(const Tensor& x, const Tensor& y, int block_size, int num_warps, const F& f) {
  int multiprocessors = 0;
  cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, x.get_device_index());
  const int64_t wanted = std::max<int64_t>(1, ceil_div(x.numel(), block_size));
  const int64_t blocks = std::min(wanted, multiprocessors * kBlocksPerMultiprocessor);
  elementwise<T, N, F><<<static_cast<unsigned>(blocks), num_warps * kThreadsPerWarp, 0, current_stream(x)>>>(
      input<T>(x), output<T>(y), x.numel(), block_size, f);
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
