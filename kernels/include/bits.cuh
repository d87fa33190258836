// Elements as words: 16-bit floats come two to a word, and instructions that take both at once save half.
#pragma once

#include <cstring>

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "common.cuh"

namespace kernels {

// 4 bytes of elements: what one instruction compares, and the bits of nothing but -infinity.
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
  // An instruction each: a bfloat16 is the upper half of a float.
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

// N neighbouring elements as they are in memory. Not a Pack: in registers the compiler takes one apart into elements
// of 16 bits as soon as it arrives, and so waits for it.
template <typename T, int N>
using Bits = typename Word<N * sizeof(T)>::Type;

template <typename T, int N>
__device__ void unpack(const Bits<T, N>& bits, float (&values)[N]) {
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
    Pack<T, N> pack;
    memcpy(&pack, &bits, sizeof(bits));
#pragma unroll
    for (int i = 0; i < N; ++i) {
      values[i] = static_cast<float>(pack.values[i]);
    }
  }
}

// Elements that are zero or, to be lost in a maximum, -infinity.
template <typename T, int N, bool kLowest>
__device__ Bits<T, N> filled() {
  constexpr int kBytes = N * sizeof(T);
  unsigned words[(kBytes + 3) / 4];
#pragma unroll
  for (unsigned& word : words) {
    word = kLowest ? WordOf<T>::kLowest : 0;
  }
  Bits<T, N> bits;
  memcpy(&bits, words, kBytes);
  return bits;
}

// The greater of each element and its like among 16 bytes of others.
template <typename T>
__device__ void take_maximum(uint4& bits, const uint4& others) {
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

// As far as the compiler knows, these bits are others now.
__device__ inline void forget(uint4& bits) { asm volatile("" : "+r"(bits.x), "+r"(bits.y), "+r"(bits.z), "+r"(bits.w)); }

// A sum in parts, so that an addition need not wait for the one before.
struct Sum {
  static constexpr int kParts = 4;
  float parts[kParts] = {};

  // `i` as known to the compiler.
  __device__ void add(int i, float value) { parts[i % kParts] += value; }
  __device__ void add_square(int i, float value) { parts[i % kParts] = fmaf(value, value, parts[i % kParts]); }
  __device__ float total() const { return (parts[0] + parts[1]) + (parts[2] + parts[3]); }
};

}  // namespace kernels
