// What the CUDA extensions share: vectors of 16 bytes and their loads and stores, L2 eviction hints, the checks of
// launch parameters, the stream to launch on, and the check that a launch was accepted.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>

#include <cuda_runtime.h>

#include "common.h"
#include "gpu_limits.h"
#include "launch_record.h"

namespace kernels {

// N neighbouring elements that one instruction loads or stores.
template <typename T, int N>
struct alignas(N * sizeof(T)) Vector {
  T values[N];
};

// The vector width: elements in the widest load or store, 16 bytes.
template <typename T>
constexpr int kVectorWidth = 16 / sizeof(T);

// L2's eviction priorities. Memory that a kernel touches once is marked evict_first, so that it does not evict what is
// used again, such as a norm's weights or what the next kernel reads.
enum class EvictionPriority { kEvictNormal, kEvictFirst, kEvictLast };

// The priority for the input and the output of a kernel that touches so many bytes once: evict_first up to one and a
// half times the size of L2, evict_normal above. Lines marked evict_first evict only each other. Data that other
// kernels left in L2 then stays there, and a large tensor lacks that room for its writes on their way to device memory.
// On an H200 a softmax of 65536 float32 columns took 530 us instead of 511 with evict_first after another kernel had
// written a gigabyte; one of 4096 columns, whose tensors nearly fit into L2, 33.5 us instead of 33.8.
inline EvictionPriority eviction_priority_of(int64_t bytes, int device) {
  int l2_bytes = 0;
  cudaDeviceGetAttribute(&l2_bytes, cudaDevAttrL2CacheSize, device);
  return bytes > int64_t{l2_bytes} / 2 * 3 ? EvictionPriority::kEvictNormal : EvictionPriority::kEvictFirst;
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

// An L2 cache policy for loads and stores. PTX ISA, "createpolicy".
template <EvictionPriority kPriority>
__device__ uint64_t create_policy() {
  uint64_t policy;
  if constexpr (kPriority == EvictionPriority::kEvictFirst) {
    asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  } else if constexpr (kPriority == EvictionPriority::kEvictNormal) {
    asm("createpolicy.fractional.L2::evict_normal.b64 %0, 1.0;" : "=l"(policy));
  } else {
    asm("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(policy));
  }
  return policy;
}

// For a tensor of priority evict_first or evict_normal, which is touched once.
__device__ inline uint64_t make_policy(EvictionPriority priority) {
  uint64_t policy;
  if (priority == EvictionPriority::kEvictFirst) {
    policy = create_policy<EvictionPriority::kEvictFirst>();
  } else {
    policy = create_policy<EvictionPriority::kEvictNormal>();
  }
  return policy;
}

// The next higher priority, for what is used again beside such a tensor, as weights are for each row.
__device__ inline uint64_t make_policy_for_reused(EvictionPriority priority) {
  uint64_t policy;
  if (priority == EvictionPriority::kEvictFirst) {
    policy = create_policy<EvictionPriority::kEvictNormal>();
  } else {
    policy = create_policy<EvictionPriority::kEvictLast>();
  }
  return policy;
}

// Loads a vector as raw bits, by one instruction. Its line is evicted first from L1, but L1 does keep it: where vectors
// lie across sectors, two warps use one. Vectors narrower than 16 bytes are loaded and stored without a policy.
template <typename T, int N>
__device__ auto load_raw(const Vector<T, N>* from, uint64_t policy) {
  using W = typename Word<sizeof(Vector<T, N>)>::Type;
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
__device__ Vector<T, N> load(const Vector<T, N>* from, uint64_t policy) {
  const auto bits = load_raw(from, policy);
  Vector<T, N> vector;
  memcpy(&vector, &bits, sizeof(vector));
  return vector;
}

// Stores a vector by one instruction. The asm has no memory clobber, so that the compiler may move loads of read-only
// memory across it: nothing that is stored is read again.
template <typename T, int N>
__device__ void store(Vector<T, N>* to, const Vector<T, N>& vector, uint64_t policy) {
  using W = typename Word<sizeof(Vector<T, N>)>::Type;
  W word;
  memcpy(&word, &vector, sizeof(vector));
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

// A block_size is a whole number of vectors of any element type.
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

// Right after a launch: records it for whoever asked what was launched. Clusters extend along x.
inline void record_launch(const char* function, const char* strategy, const dim3& grid, const dim3& block,
                          int cluster_size = 1, int64_t shared_bytes = 0, int stages = 0) {
  record_launch({function,
                 strategy,
                 {grid.x, grid.y, grid.z},
                 {block.x, block.y, block.z},
                 {static_cast<unsigned>(cluster_size), 1, 1},
                 shared_bytes,
                 stages});
}

// Right after a launch, on the host: a launch that the driver refuses is otherwise silent.
inline void check_launched(const char* operation) {
  const cudaError_t error = cudaGetLastError();
  require(error == cudaSuccess, std::string(operation) + " could not be launched: " + cudaGetErrorString(error));
}

// 2 to the power of x by the special function unit, at most 2 ulp wrong. Results below the smallest normal number are
// 0.
__device__ inline float exp2_(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// 1 / x, at most 1 ulp wrong; infinite for numbers below the smallest normal one.
__device__ inline float reciprocal(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

}  // namespace kernels
