// What the CUDA extensions share: packs of 16 bytes and how they are read and written, the checks of launch
// parameters, the stream to launch on, and the check that a launch was accepted.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>

#include <cuda_runtime.h>

#include "common.h"
#include "launch_record.h"

namespace kernels {

constexpr int kThreadsPerWarp = 32;
constexpr int kMaxWarps = 32;
constexpr int kMaxThreads = kMaxWarps * kThreadsPerWarp;

// Packs that a thread loads at most before it uses the first.
constexpr int kInFlight = 4;

// N neighbouring elements that one instruction loads or stores.
template <typename T, int N>
struct alignas(N * sizeof(T)) Pack {
  T values[N];
};

// Elements in the widest pack, 16 bytes.
template <typename T>
constexpr int kWidest = 16 / sizeof(T);

// How the caches treat memory that a kernel touches once. kStreaming marks it to be evicted first, so that it does not
// push out what is used again, such as a norm's weights or what the next kernel reads.
enum class Caching { kNormal, kStreaming };

// The better of the two for tensors of so many bytes. What is marked pushes out nothing but what is marked: whatever
// other kernels left in L2 would stay there all the while, and of large tensors the answers that wait there for
// device memory lack its room. On an H200 a softmax of 65536 float32 columns takes 530 us instead of 511 after some
// other kernel has written a gigabyte; one of 4096 columns, whose tensors nearly fit, 33.5 us instead of 33.8.
inline Caching caching_of(int64_t bytes, int device) {
  int cache = 0;
  cudaDeviceGetAttribute(&cache, cudaDevAttrL2CacheSize, device);
  return bytes > int64_t{cache} / 2 * 3 ? Caching::kNormal : Caching::kStreaming;
}

template <int kBytes>
struct Word;
template <>
struct Word<2> {
  using Type = unsigned short;
};
template <>
struct Word<4> {
  using Type = unsigned int;
};
template <>
struct Word<8> {
  using Type = uint2;
};
template <>
struct Word<16> {
  using Type = uint4;
};

// What L2 is told with an access. PTX ISA, "createpolicy".
__device__ inline uint64_t policy_of(Caching caching) {
  uint64_t policy;
  if (caching == Caching::kStreaming) {
    asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  } else {
    asm("createpolicy.fractional.L2::evict_normal.b64 %0, 1.0;" : "=l"(policy));
  }
  return policy;
}

// The same for what is used again beside such memory, as weights are for each row: large tensors would push it out.
__device__ inline uint64_t policy_beside(Caching caching) {
  uint64_t policy;
  if (caching == Caching::kStreaming) {
    asm("createpolicy.fractional.L2::evict_normal.b64 %0, 1.0;" : "=l"(policy));
  } else {
    asm("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(policy));
  }
  return policy;
}

// One load instruction for the pack, as it is in memory. In L1 it is the first to go, but it is there: where packs lie
// across L1's sectors, two warps use one. Packs narrower than 16 bytes are loaded and stored without a policy.
template <typename T, int N>
__device__ auto load_bits(const Pack<T, N>* from, uint64_t policy) {
  using W = typename Word<sizeof(Pack<T, N>)>::Type;
  const auto* word = reinterpret_cast<const W*>(from);
  if constexpr (sizeof(W) == 16) {
    uint4 bits;
    asm("ld.global.L1::evict_first.L2::cache_hint.v4.u32 {%0, %1, %2, %3}, [%4], %5;"
        : "=r"(bits.x), "=r"(bits.y), "=r"(bits.z), "=r"(bits.w)
        : "l"(word), "l"(policy));
    return bits;
  } else {
    return *word;
  }
}

template <typename T, int N>
__device__ Pack<T, N> load(const Pack<T, N>* from, uint64_t policy) {
  const auto bits = load_bits(from, policy);
  Pack<T, N> pack;
  memcpy(&pack, &bits, sizeof(pack));
  return pack;
}

// One store instruction for the pack. Not known to the compiler as an access to memory, so that loads of what no kernel
// writes need not wait for it: nothing that is stored is read again.
template <typename T, int N>
__device__ void store(Pack<T, N>* to, const Pack<T, N>& pack, uint64_t policy) {
  using W = typename Word<sizeof(Pack<T, N>)>::Type;
  W word;
  memcpy(&word, &pack, sizeof(pack));
  auto* const at = reinterpret_cast<W*>(to);
  if constexpr (sizeof(W) == 16) {
    asm volatile("st.global.L2::cache_hint.v4.u32 [%0], {%1, %2, %3, %4}, %5;"
                 :
                 : "l"(at), "r"(word.x), "r"(word.y), "r"(word.z), "r"(word.w), "l"(policy));
  } else {
    *at = word;
  }
}

inline bool aligned_to_16(const void* pointer) { return reinterpret_cast<std::uintptr_t>(pointer) % 16 == 0; }

// A step of block_size elements is a whole number of packs of any element type.
inline void check_launch_parameters(int64_t block_size, int64_t num_warps) {
  require(block_size >= 32 && block_size <= (1 << 20) && block_size % 32 == 0,
          "block_size must be a multiple of 32 from 32 to 1048576, not " + std::to_string(block_size));
  require(num_warps >= 1 && num_warps <= kMaxWarps,
          "num_warps must be from 1 to 32 (a block has 32 x num_warps threads), not " + std::to_string(num_warps));
}

// The stream that torch would launch on for this tensor's device.
inline cudaStream_t current_stream(const Tensor& x) {
  void* stream = nullptr;
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_current_cuda_stream(x.get_device_index(), &stream));
  return static_cast<cudaStream_t>(stream);
}

// Right after a launch, for whoever asked what was launched. A cluster's blocks are side by side.
inline void record_launch(const char* function, const char* strategy, const dim3& grid, const dim3& block,
                          int blocks_of_cluster = 1, int64_t shared_bytes = 0, int stages = 0) {
  record_launch({function,
                 strategy,
                 {grid.x, grid.y, grid.z},
                 {block.x, block.y, block.z},
                 {static_cast<unsigned>(blocks_of_cluster), 1, 1},
                 shared_bytes,
                 stages});
}

// Right after a launch, on the host: a launch that the driver refuses would otherwise be silent.
inline void check_launched(const char* operation) {
  const cudaError_t error = cudaGetLastError();
  require(error == cudaSuccess, std::string(operation) + " could not be launched: " + cudaGetErrorString(error));
}

// 2 to the power of x by the hardware's unit: 2 ulp wrong at most; below the smallest normal number it gives 0.
__device__ inline float exp2_(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// 1 / x, 1 ulp wrong at most; of numbers below the smallest normal one it is infinite.
__device__ inline float reciprocal(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

inline int64_t ceil_div(int64_t value, int64_t by) { return (value + by - 1) / by; }

}  // namespace kernels
