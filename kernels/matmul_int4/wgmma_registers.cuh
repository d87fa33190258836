// wgmma with its first operand in registers (PTX ISA, "wgmma.mma_async"). Compiles for sm_90a alone.
#pragma once

#include <cstdint>
#include <type_traits>

#include "../include/common.cuh"
#include "../include/wgmma_sums.h"

namespace matmul_int4 {

#define INT4_WGMMA(n, sums, a0, a1, a2, a3, b, adds, type)                                                       \
  asm volatile(                                                                                                  \
      "{\n"                                                                                                      \
      ".reg .pred adds;\n"                                                                                       \
      "setp.ne.b32 adds, %" adds ", 0;\n"                                                                        \
      "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32." type "." type " {" WGMMA_SUMS_##sums "}, {%" a0 ", %" a1 \
      ", %" a2 ", %" a3 "}, %" b ", adds, 1, 1, 0;\n"                                                            \
      "}"                                                                                                        \
      : WGMMA_OUT_##sums(d, 0)                                                                                   \
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(of_b), "r"(static_cast<int>(add)))
#define INT4_WGMMA_OF(n, sums, a0, a1, a2, a3, b, adds)           \
  if constexpr (std::is_same_v<T, torch::headeronly::BFloat16>) { \
    INT4_WGMMA(n, sums, a0, a1, a2, a3, b, adds, "bf16");         \
  } else {                                                        \
    INT4_WGMMA(n, sums, a0, a1, a2, a3, b, adds, "f16");          \
  }

// A warpgroup multiplies 64 rows and 16 columns of a, of which a thread has those that mma.m16n8k16 wants of it for its
// warp's 16 rows, with kN rows of b, which is K-major in shared memory. d = a b, or d += a b where `add`. It has kN / 2
// sums per thread. The registers of a are read until the group is waited for.
template <typename T, int kN>
__device__ inline void wgmma_registers(float (&d)[kN / 2], const uint32_t (&a)[4], uint64_t of_b, bool add) {
  static_assert(kN == 16 || kN == 32 || kN == 64 || kN == 128 || kN == 256);
  if constexpr (kN == 16) {
    INT4_WGMMA_OF(16, 8, "8", "9", "10", "11", "12", "13")
  } else if constexpr (kN == 32) {
    INT4_WGMMA_OF(32, 16, "16", "17", "18", "19", "20", "21")
  } else if constexpr (kN == 64) {
    INT4_WGMMA_OF(64, 32, "32", "33", "34", "35", "36", "37")
  } else if constexpr (kN == 128) {
    INT4_WGMMA_OF(128, 64, "64", "65", "66", "67", "68", "69")
  } else {
    INT4_WGMMA_OF(256, 128, "128", "129", "130", "131", "132", "133")
  }
}

#undef INT4_WGMMA_OF
#undef INT4_WGMMA

}  // namespace matmul_int4
