// Wrappers of instructions that tiles of 80 queries take beside those of wgmma.cuh: wgmma 80 columns wide, and stmatrix
// of transposed matrices. They compile for sm_90a alone.
#pragma once

#include <cstdint>

#include "../include/wgmma.cuh"

namespace kernels {

// Stores four 8 x 8 matrices of 16-bit elements transposed: lane l has the address of column l % 8 of matrix l / 8.
__device__ inline void stmatrix_x4_trans(uint32_t to, uint32_t first, uint32_t second, uint32_t third,
                                         uint32_t fourth) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};"
               :
               : "r"(to), "r"(first), "r"(second), "r"(third), "r"(fourth)
               : "memory");
}

#define ATTENTION_WGMMA_80(type)                                                                                      \
  asm volatile(                                                                                                       \
      "{\n"                                                                                                           \
      ".reg .pred adds;\n"                                                                                            \
      "setp.ne.b32 adds, %42, 0;\n"                                                                                   \
      "wgmma.mma_async.sync.aligned.m64n80k16.f32." type "." type " {"                                                \
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, "                                                                      \
      "%10, %11, %12, %13, %14, %15, %16, %17, %18, %19, "                                                            \
      "%20, %21, %22, %23, %24, %25, %26, %27, %28, %29, "                                                            \
      "%30, %31, %32, %33, %34, %35, %36, %37, %38, %39}, "                                                           \
      "%40, %41, adds, 1, 1, %43, %44;\n"                                                                             \
      "}"                                                                                                             \
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]),                                                   \
        "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), "+f"(d[8]), "+f"(d[9]),                                                   \
        "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]),                                              \
        "+f"(d[15]), "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]),                                              \
        "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]),                                              \
        "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]),                                              \
        "+f"(d[30]), "+f"(d[31]), "+f"(d[32]), "+f"(d[33]), "+f"(d[34]),                                              \
        "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39])                                               \
      : "l"(of_a), "l"(of_b), "r"(static_cast<int>(add)), "n"(static_cast<int>(kATransposed)),                        \
        "n"(static_cast<int>(kBTransposed)))

// As wgmma() with two operands in shared memory.
template <Element kElement, bool kATransposed, bool kBTransposed>
__device__ inline void wgmma_80(float (&d)[40], uint64_t of_a, uint64_t of_b, bool add) {
  static_assert(kElement != Element::kFloat8, "elements of 2 bytes");
  if constexpr (kElement == Element::kBFloat16) {
    ATTENTION_WGMMA_80("bf16");
  } else {
    ATTENTION_WGMMA_80("f16");
  }
}

#undef ATTENTION_WGMMA_80

}  // namespace kernels
