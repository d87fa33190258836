// The sparse form of wgmma (PTX ISA, "wgmma.mma_async.sp"), both operands in shared memory. Compiles for sm_90a alone.
#pragma once

#include <cstdint>
#include <type_traits>

#include "../include/common.cuh"
#include "../include/wgmma_sums.h"

namespace matmul_sparse {

#define SPARSE_WGMMA(n, sums, a, b, kept, adds, selector, type)                                                      \
  asm volatile(                                                                                                      \
      "{\n"                                                                                                          \
      ".reg .pred adds;\n"                                                                                           \
      "setp.ne.b32 adds, %" adds ", 0;\n"                                                                            \
      "wgmma.mma_async.sp.sync.aligned.m64n" #n "k32.f32." type "." type " {" WGMMA_SUMS_##sums "}, %" a ", %" b     \
      ", %" kept ", %" selector ", adds, 1, 1, 0, 0;\n"                                                              \
      "}"                                                                                                            \
      : WGMMA_OUT_##sums(d, 0)                                                                                       \
      : "l"(of_a), "l"(of_b), "r"(metadata), "r"(static_cast<int>(add)), "n"(kSelector))
#define SPARSE_WGMMA_OF(n, sums, a, b, kept, adds, selector)      \
  if constexpr (std::is_same_v<T, torch::headeronly::BFloat16>) { \
    SPARSE_WGMMA(n, sums, a, b, kept, adds, selector, "bf16");    \
  } else {                                                        \
    SPARSE_WGMMA(n, sums, a, b, kept, adds, selector, "f16");     \
  }

// A warpgroup multiplies 64 rows and 32 columns of a, of which 16 are kept, with kN rows of b; both are K-major in
// shared memory. kSelector: which two threads of four have the metadata, 0 for the first two. A thread's word has the
// places of 16 columns, the first or the second 16, of two of the warp's 16 rows: in its lower half for row lane / 4,
// in its upper half for the row 8 below. d = a b, or d += a b where `add`. It has kN / 2 sums per thread.
template <typename T, int kN, int kSelector>
__device__ inline void wgmma_sparse(float (&d)[kN / 2], uint64_t of_a, uint64_t of_b, uint32_t metadata, bool add) {
  static_assert(kN == 16 || kN == 32 || kN == 64 || kN == 128 || kN == 256);
  if constexpr (kN == 16) {
    SPARSE_WGMMA_OF(16, 8, "8", "9", "10", "11", "12")
  } else if constexpr (kN == 32) {
    SPARSE_WGMMA_OF(32, 16, "16", "17", "18", "19", "20")
  } else if constexpr (kN == 64) {
    SPARSE_WGMMA_OF(64, 32, "32", "33", "34", "35", "36")
  } else if constexpr (kN == 128) {
    SPARSE_WGMMA_OF(128, 64, "64", "65", "66", "67", "68")
  } else {
    SPARSE_WGMMA_OF(256, 128, "128", "129", "130", "131", "132")
  }
}

#undef SPARSE_WGMMA_OF
#undef SPARSE_WGMMA

}  // namespace matmul_sparse
