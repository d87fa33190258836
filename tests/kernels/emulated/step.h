// What the steps of matmul need beside hopper.h: elements that convert, cp.async, ldmatrix and mma, tensor maps, and a
// launch of a grid. It stands in for step.cuh, tma.cuh and mma.cuh.
#pragma once

#include <string>
#include <tuple>
#include <type_traits>

#include "hopper.h"

#undef __shared__
#define __shared__ static

// The types of elements that a step takes, in the place of its operator. A step has a namespace of its own.
#define MATMUL_STEP(name, unit, ...)        \
  namespace matmul::name {                  \
  using Elements = std::tuple<__VA_ARGS__>; \
  }

struct dim3 {
  unsigned x, y;
  explicit dim3(unsigned x_, unsigned y_ = 1) : x(x_), y(y_) {}
};
using cudaStream_t = int;
enum { cudaSuccess, cudaFuncAttributeMaxDynamicSharedMemorySize };
template <typename Function>
int cudaFuncSetAttribute(Function, int, int) {
  return cudaSuccess;
}

namespace matmul {

template <kernels::Element kElement>
struct Short {
  uint16_t bits;
  Short() = default;
  explicit Short(float x) : bits(kernels::rounded<kElement>(x)) {}
  explicit operator float() const { return kernels::widened<kElement>(bits); }
};
using BFloat16 = Short<kernels::Element::kBFloat16>;
using Half = Short<kernels::Element::kFloat16>;

template <typename T>
struct Product {
  const T* a;
  const T* b;
  T* out;
  int m;
  int n;
  int k;
};

inline dim3 grid_of(int m, int n, int block_m, int block_n) {
  return dim3(static_cast<unsigned>((n + block_n - 1) / block_n), static_cast<unsigned>((m + block_m - 1) / block_m));
}
inline unsigned char* block_memory() { return kernels::dynamic_shared_memory<16>(); }

}  // namespace matmul

namespace emulated {

inline unsigned seed = 0;

// A thread's copies by cp.async: since its last group, and the groups that are under way.
struct Copies {
  std::vector<std::function<void()>> since;
  std::deque<std::vector<std::function<void()>>> groups;
};
inline std::map<const Fiber*, Copies> copies;

// What the lanes of a warp have of the operands of an mma.
struct Operands {
  uint32_t a[32][4], b[32][2];
};
inline std::map<const Warp*, Operands> operands;

// A grid, a block after the other. A block finds NaN in its dynamic shared memory.
template <typename Kernel>
void launch(const Kernel& kernel, dim3 grid, int threads, int bytes, cudaStream_t) {
  unsigned char* const memory = attention::shared_memory;
  for (unsigned y = 0; y < grid.y; ++y) {
    for (unsigned x = 0; x < grid.x; ++x) {
      std::fill_n(memory, kSharedBytes, static_cast<unsigned char>(0xFF));
      copies.clear();
      operands.clear();
      blockIdx.y = y;
      run_block(x, grid.x, threads, seed + y, kernel);
      if (std::any_of(memory + bytes, memory + kSharedBytes, [](unsigned char byte) { return byte != 0xFF; })) {
        fail("the kernel writes past the shared memory that it asks for");
      }
    }
  }
}

inline const uint16_t* address_of(int lane, const void* own) {
  const auto address = reinterpret_cast<uintptr_t>(own);
  const uint32_t low = exchange(static_cast<uint32_t>(address), lane);
  const uint32_t high = exchange(static_cast<uint32_t>(address >> 32), lane);
  return reinterpret_cast<const uint16_t*>(uintptr_t{high} << 32 | low);
}

}  // namespace emulated

namespace kernels {

inline void require(bool condition, const std::string& sentence) {
  if (!condition) {
    emulated::fail(sentence.c_str());
  }
}
inline void record_launch(const char*, const char*, dim3, dim3, int = 1, int = 0, int = 0) {}

// A copy is done at once, or as late as the waits allow.
inline void cp_async_or_zeros(void* to, const void* from, bool is_inside) {
  if (reinterpret_cast<uintptr_t>(to) % 16 != 0 || reinterpret_cast<uintptr_t>(from) % 16 != 0) {
    emulated::fail("a copy begins at no multiple of 16 bytes");
  }
  const auto copy = [=] { is_inside ? std::memcpy(to, from, 16) : std::memset(to, 0, 16); };
  if (emulated::cluster->copies_late) {
    emulated::copies[emulated::running].since.push_back(copy);
  } else {
    copy();
  }
}
inline void cp_async_commit_group() {
  emulated::Copies& of = emulated::copies[emulated::running];
  of.groups.push_back(std::move(of.since));
  of.since.clear();
}
template <int kPending>
void cp_async_wait_group() {
  auto& groups = emulated::copies[emulated::running].groups;
  for (; groups.size() > kPending; groups.pop_front()) {
    for (const auto& copy : groups.front()) {
      copy();
    }
  }
}

inline void ldmatrix(uint32_t (&to)[4], const void* from, bool transposed) {
  const int row = emulated::lane() / 4, column = emulated::lane() % 4 * 2;
  for (int matrix = 0; matrix < 4; ++matrix) {
    const uint16_t *first, *second;
    if (transposed) {
      first = emulated::address_of(matrix * 8 + column, from) + row;
      second = emulated::address_of(matrix * 8 + column + 1, from) + row;
    } else {
      first = emulated::address_of(matrix * 8 + row, from) + column;
      second = first + 1;
    }
    to[matrix] = *first | uint32_t{*second} << 16;
  }
  emulated::meet();
}
inline void ldmatrix_x4(uint32_t (&to)[4], const void* from) { ldmatrix(to, from, false); }
inline void ldmatrix_x4_trans(uint32_t (&to)[4], const void* from) { ldmatrix(to, from, true); }

// PTX ISA, "Matrix Fragments for mma.m16n8k16 with floating point type".
template <typename T>
void mma_m16n8k16(float (&sums)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  emulated::Operands& of = emulated::operands[&emulated::warp()];
  const int lane = emulated::lane();
  std::copy_n(a, 4, of.a[lane]);
  of.b[lane][0] = b0;
  of.b[lane][1] = b1;
  emulated::meet();
  const auto element = [](uint32_t pair, int k) {
    T x;
    x.bits = static_cast<uint16_t>(k % 2 ? pair >> 16 : pair);
    return static_cast<float>(x);
  };
  for (int i = 0; i < 4; ++i) {
    const int row = lane / 4, column = lane % 4 * 2 + i % 2;
    for (int k = 0; k < 16; ++k) {
      sums[i] += element(of.a[row * 4 + k % 8 / 2][i / 2 + k / 8 * 2], k) *
                 element(of.b[column * 4 + k % 8 / 2][k / 8], k);
    }
  }
  emulated::meet();
}

using Encoder = int (*)(CUtensorMap*, int, int, void*, const uint64_t*, const uint64_t*, const uint32_t*, const uint32_t*,
                        int, int, int, int);
inline Encoder tensor_map_encoder() {
  return [](CUtensorMap* map, int, int, void* data, const uint64_t* sizes, const uint64_t* row_bytes, const uint32_t* box,
            const uint32_t*, int, int, int, int) {
    *map = {static_cast<const uint16_t*>(data),
            {static_cast<int>(sizes[0]), static_cast<int>(sizes[1]), 1, 1},
            {1, static_cast<int64_t>(row_bytes[0] / 2), 0, 0},
            static_cast<int>(box[1])};
    return box[0] == 64 ? 0 : 1;
  };
}

}  // namespace kernels

using CUresult = int;
using cuuint32_t = uint32_t;
using cuuint64_t = uint64_t;
enum {
  CUDA_SUCCESS,
  CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
  CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
  CU_TENSOR_MAP_INTERLEAVE_NONE,
  CU_TENSOR_MAP_SWIZZLE_128B,
  CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
  CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
};
