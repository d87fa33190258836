// Wrappers of instructions that cuda_stream_k takes beside those of cuda_wgmma: wgmma with its first operand in
// registers for other numbers of rows of x, and stmatrix that transposes. They compile for sm_90a alone.
#pragma once

#include <cstdint>

#include "wgmma_registers.cuh"

namespace matmul_int4 {

#define STREAM_K_SUMS_48 WGMMA_SUMS_32 \
  ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47"
#define STREAM_K_SUMS_56 STREAM_K_SUMS_48 ", %48, %49, %50, %51, %52, %53, %54, %55"
#define STREAM_K_SUMS_80 WGMMA_SUMS_64 \
  ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79"
#define STREAM_K_SUMS_96 STREAM_K_SUMS_80 \
  ", %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#define STREAM_K_SUMS_112 STREAM_K_SUMS_96 \
  ", %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109" \
  ", %110, %111"
#define STREAM_K_SUMS_120 STREAM_K_SUMS_112 ", %112, %113, %114, %115, %116, %117, %118, %119"
#define STREAM_K_OUT_48 WGMMA_OUT_32(d, 0), WGMMA_OUT_16(d, 32)
#define STREAM_K_OUT_56 STREAM_K_OUT_48, WGMMA_OUT_8(d, 48)
#define STREAM_K_OUT_80 WGMMA_OUT_64(d, 0), WGMMA_OUT_16(d, 64)
#define STREAM_K_OUT_96 STREAM_K_OUT_80, WGMMA_OUT_16(d, 80)
#define STREAM_K_OUT_112 STREAM_K_OUT_96, WGMMA_OUT_16(d, 96)
#define STREAM_K_OUT_120 STREAM_K_OUT_112, WGMMA_OUT_8(d, 112)

#define STREAM_K_WGMMA(n, sums, a0, a1, a2, a3, b, adds, type)                                                       \
  asm volatile(                                                                                                      \
      "{\n"                                                                                                          \
      ".reg .pred adds;\n"                                                                                           \
      "setp.ne.b32 adds, %" adds ", 0;\n"                                                                            \
      "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32." type "." type " {" STREAM_K_SUMS_##sums "}, {%" a0 ", %" a1  \
      ", %" a2 ", %" a3 "}, %" b ", adds, 1, 1, 0;\n"                                                                \
      "}"                                                                                                            \
      : STREAM_K_OUT_##sums                                                                                          \
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(of_b), "r"(static_cast<int>(add)))
#define STREAM_K_WGMMA_OF(n, sums, a0, a1, a2, a3, b, adds)       \
  if constexpr (std::is_same_v<T, torch::headeronly::BFloat16>) { \
    STREAM_K_WGMMA(n, sums, a0, a1, a2, a3, b, adds, "bf16");     \
  } else {                                                        \
    STREAM_K_WGMMA(n, sums, a0, a1, a2, a3, b, adds, "f16");      \
  }

// As wgmma_registers(), for more widths.
template <typename T, int kN>
__device__ inline void wgmma_of_rows(float (&d)[kN / 2], const uint32_t (&a)[4], uint64_t of_b, bool add) {
  if constexpr (kN == 96) {
    STREAM_K_WGMMA_OF(96, 48, "48", "49", "50", "51", "52", "53")
  } else if constexpr (kN == 112) {
    STREAM_K_WGMMA_OF(112, 56, "56", "57", "58", "59", "60", "61")
  } else if constexpr (kN == 160) {
    STREAM_K_WGMMA_OF(160, 80, "80", "81", "82", "83", "84", "85")
  } else if constexpr (kN == 192) {
    STREAM_K_WGMMA_OF(192, 96, "96", "97", "98", "99", "100", "101")
  } else if constexpr (kN == 224) {
    STREAM_K_WGMMA_OF(224, 112, "112", "113", "114", "115", "116", "117")
  } else if constexpr (kN == 240) {
    STREAM_K_WGMMA_OF(240, 120, "120", "121", "122", "123", "124", "125")
  } else {
    wgmma_registers<T, kN>(d, a, of_b, add);
  }
}

#undef STREAM_K_WGMMA_OF
#undef STREAM_K_WGMMA
#undef STREAM_K_OUT_48
#undef STREAM_K_OUT_56
#undef STREAM_K_OUT_80
#undef STREAM_K_OUT_96
#undef STREAM_K_OUT_112
#undef STREAM_K_OUT_120
#undef STREAM_K_SUMS_48
#undef STREAM_K_SUMS_56
#undef STREAM_K_SUMS_80
#undef STREAM_K_SUMS_96
#undef STREAM_K_SUMS_112
#undef STREAM_K_SUMS_120

// Stores four 8 x 8 matrices of 16-bit elements transposed: lane l has the address of column l % 8 of matrix l / 8.
__device__ inline void stmatrix_x4_trans(uint32_t to, uint32_t first, uint32_t second, uint32_t third,
                                         uint32_t fourth) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};"
               :
               : "r"(to), "r"(first), "r"(second), "r"(third), "r"(fourth)
               : "memory");
}

}  // namespace matmul_int4
