// Wrappers of instructions that tiles of a head_dim of 96 take beside those of wgmma.cuh, which many kernels include:
// wgmma 96 columns wide with its first operand in registers, and 112 columns wide with both in shared memory. They
// compile for sm_90a alone.
#pragma once

#include <cstdint>

#include "../include/wgmma.cuh"
#include "../include/wgmma_sums.h"

namespace kernels {

#define ATTENTION_WGMMA_96(type)                                                                        \
  asm volatile(                                                                                         \
      "{\n"                                                                                             \
      ".reg .pred adds;\n"                                                                              \
      "setp.ne.b32 adds, %53, 0;\n"                                                                     \
      "wgmma.mma_async.sync.aligned.m64n96k16.f32." type "." type " {" WGMMA_SUMS_32                    \
      ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47}, "             \
      "{%48, %49, %50, %51}, %52, adds, 1, 1, %54;\n"                                                   \
      "}"                                                                                               \
      : WGMMA_OUT_32(d, 0), WGMMA_OUT_16(d, 32)                                                         \
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(of_b), "r"(static_cast<int>(add)),              \
        "n"(static_cast<int>(kBTransposed)))
#define ATTENTION_WGMMA_112(type)                                                                       \
  asm volatile(                                                                                         \
      "{\n"                                                                                             \
      ".reg .pred adds;\n"                                                                              \
      "setp.ne.b32 adds, %58, 0;\n"                                                                     \
      "wgmma.mma_async.sync.aligned.m64n112k16.f32." type "." type " {" WGMMA_SUMS_32                   \
      ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47"                \
      ", %48, %49, %50, %51, %52, %53, %54, %55}, %56, %57, adds, 1, 1, %59, %60;\n"                    \
      "}"                                                                                               \
      : WGMMA_OUT_32(d, 0), WGMMA_OUT_16(d, 32), WGMMA_OUT_8(d, 48)                                     \
      : "l"(of_a), "l"(of_b), "r"(static_cast<int>(add)), "n"(static_cast<int>(kATransposed)),          \
        "n"(static_cast<int>(kBTransposed)))

// As wgmma() with the first operand in registers.
template <Element kElement, bool kBTransposed>
__device__ inline void wgmma_96(float (&d)[48], const uint32_t* a, uint64_t of_b, bool add) {
  static_assert(kElement != Element::kFloat8, "elements of 2 bytes");
  if constexpr (kElement == Element::kBFloat16) {
    ATTENTION_WGMMA_96("bf16");
  } else {
    ATTENTION_WGMMA_96("f16");
  }
}

// As wgmma() with two operands in shared memory.
template <Element kElement, bool kATransposed, bool kBTransposed>
__device__ inline void wgmma_112(float (&d)[56], uint64_t of_a, uint64_t of_b, bool add) {
  static_assert(kElement != Element::kFloat8, "elements of 2 bytes");
  if constexpr (kElement == Element::kBFloat16) {
    ATTENTION_WGMMA_112("bf16");
  } else {
    ATTENTION_WGMMA_112("f16");
  }
}

#undef ATTENTION_WGMMA_112
#undef ATTENTION_WGMMA_96

}  // namespace kernels
