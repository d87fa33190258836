// Vectors of neighbouring elements in registers: as raw bits, converted to float32, and two 16-bit elements an
// instruction.
#pragma once

#include <cstring>

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "common.cuh"

namespace kernels {

// 4 bytes of elements: one float or a pair of 16-bit elements. kLowest holds the bits of -infinity.
template <typename T>
struct WordOf;
template <>
struct WordOf<float> {
  using Type = float;
  static constexpr unsigned kLowest = 0xff800000;
  __device__ static Type maximum(Type a, Type b) { return fmaxf(a, b); }
};
template <>
struct WordOf<c10::BFloat16> {
  using Type = __nv_bfloat162;
  static constexpr unsigned kLowest = 0xff80ff80;
  __device__ static Type maximum(Type a, Type b) { return __hmax2(a, b); }
  // One instruction each: a bfloat16 is the upper half of a float.
  __device__ static float2 floats(unsigned word) {
    return {__uint_as_float(word << 16), __uint_as_float(word & 0xffff0000u)};
  }
};
template <>
struct WordOf<c10::Half> {
  using Type = __half2;
  static constexpr unsigned kLowest = 0xfc00fc00;
  __device__ static Type maximum(Type a, Type b) { return __hmax2(a, b); }
  __device__ static float2 floats(unsigned word) {
    Type pair;
    memcpy(&pair, &word, sizeof(pair));
    return __half22float2(pair);
  }
};

// The raw bits of a Vector. A loaded Vector of 16-bit elements would be taken apart by the compiler as soon as it
// arrives, so that the thread waits for it there; raw bits are unpacked where they are used.
template <typename T, int N>
using RawVector = typename Word<N * sizeof(T)>::Type;

template <typename T, int N>
__device__ void unpack(const RawVector<T, N>& bits, float (&values)[N]) {
  if constexpr (sizeof(T) == 2 && N % 2 == 0) {
    unsigned words[N / 2];
    memcpy(words, &bits, sizeof(bits));
#pragma unroll
    for (int i = 0; i < N / 2; ++i) {
      const float2 both = WordOf<T>::floats(words[i]);
      values[2 * i] = both.x;
      values[2 * i + 1] = both.y;
    }
  } else {
    Vector<T, N> vector;
    memcpy(&vector, &bits, sizeof(bits));
#pragma unroll
    for (int i = 0; i < N; ++i) {
      values[i] = static_cast<float>(vector.values[i]);
    }
  }
}

// What stands in for elements beyond a row's end: zero, or -infinity, the neutral element of a maximum.
template <typename T, int N, bool kPadLowest>
__device__ RawVector<T, N> padding() {
  constexpr int kBytes = N * sizeof(T);
  unsigned words[(kBytes + 3) / 4];
#pragma unroll
  for (unsigned& word : words) {
    word = kPadLowest ? WordOf<T>::kLowest : 0;
  }
  RawVector<T, N> bits;
  memcpy(&bits, words, kBytes);
  return bits;
}

// The elementwise maximum of two vectors, in place.
template <typename T>
__device__ void elementwise_max(uint4& bits, const uint4& others) {
  typename WordOf<T>::Type words[4];
  typename WordOf<T>::Type other_words[4];
  memcpy(words, &bits, sizeof(bits));
  memcpy(other_words, &others, sizeof(others));
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    words[i] = WordOf<T>::maximum(words[i], other_words[i]);
  }
  memcpy(&bits, words, sizeof(bits));
}

// Hides from the compiler where these bits come from, so that it can't move work on them to before this point.
__device__ inline void optimization_barrier(uint4& bits) {
  asm volatile("" : "+r"(bits.x), "+r"(bits.y), "+r"(bits.z), "+r"(bits.w));
}

// A sum in four independent accumulators, so that an addition need not wait for the one before.
struct Accumulators {
  float sums[4] = {};

  // `i` is a constant once loops are unrolled.
  __device__ void add(int i, float value) { sums[i % 4] += value; }
  __device__ void add_square(int i, float value) { sums[i % 4] = fmaf(value, value, sums[i % 4]); }
  __device__ float total() const { return (sums[0] + sums[1]) + (sums[2] + sums[3]); }
};

}  // namespace kernels
