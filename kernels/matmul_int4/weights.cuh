// Four-bit weights out of the packing, two neighbours at a time: what the CUDA kernels of this folder share.
#pragma once

#include <cstring>

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "../include/common.cuh"

namespace matmul_int4 {

constexpr int kTileK = 128;  // columns of w in a tile of the packing

// 16-bit arithmetic on pairs. A weight q beneath kMagic is the number kMagic + q: q is in the lowest bits of the fraction.
template <typename T>
struct Pair;

template <>
struct Pair<torch::headeronly::BFloat16> {
  using Type = __nv_bfloat162;
  static constexpr uint32_t kMagic = 0x43004300;   // 128
  static constexpr uint32_t kOffset = 0xc308c308;  // -136: less 128, less the weight that stands for 0
  static constexpr uint32_t kOne = 0x3f803f80;
};

template <>
struct Pair<torch::headeronly::Half> {
  using Type = __half2;
  static constexpr uint32_t kMagic = 0x64006400;   // 1024
  static constexpr uint32_t kOffset = 0xe408e408;  // -1032
  static constexpr uint32_t kOne = 0x3c003c00;
};

// a * b + c of both halves, each rounded once.
template <typename T>
__device__ uint32_t multiply_add(uint32_t a, uint32_t b, uint32_t c) {
  typename Pair<T>::Type left;
  typename Pair<T>::Type right;
  typename Pair<T>::Type added;
  memcpy(&left, &a, 4);
  memcpy(&right, &b, 4);
  memcpy(&added, &c, 4);
  const auto result = __hfma2(left, right, added);
  uint32_t bits;
  memcpy(&bits, &result, 4);
  return bits;
}

// A scale and a zero, each in both halves of a word.
struct ScaleAndZero {
  uint32_t scale;
  uint32_t zero;
};

__device__ inline ScaleAndZero spread(uint32_t pair) {
  return {__byte_perm(pair, 0, 0x1010), __byte_perm(pair, 0, 0x3232)};
}

// Two neighbouring weights of a word, those at bits 4 * kPlace and 16 above: (q - 8) * scale + zero, where q - 8 is exact.
template <typename T, int kPlace>
__device__ uint32_t dequantised(uint32_t word, const ScaleAndZero& by) {
  uint32_t bits;
  // (word >> 4 kPlace) & mask | magic, the two logical operations in one.
  asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(bits) : "r"(word >> (4 * kPlace)), "n"(0x000f000f), "n"(Pair<T>::kMagic));
  const uint32_t centred = multiply_add<T>(bits, Pair<T>::kOne, Pair<T>::kOffset);
  return multiply_add<T>(centred, by.scale, by.zero);
}

}  // namespace matmul_int4
