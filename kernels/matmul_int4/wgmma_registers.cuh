// wgmma with its first operand in registers (PTX ISA, "wgmma.mma_async"). Compiles for sm_90a alone.
#pragma once

#include <cstdint>
#include <type_traits>

#include "../include/common.cuh"

namespace matmul_int4 {

#define INT4_OUT_8(d, i)                                                                                 \
  "+f"(d[i]), "+f"(d[(i) + 1]), "+f"(d[(i) + 2]), "+f"(d[(i) + 3]), "+f"(d[(i) + 4]), "+f"(d[(i) + 5]), \
      "+f"(d[(i) + 6]), "+f"(d[(i) + 7])
#define INT4_OUT_16(d, i) INT4_OUT_8(d, i), INT4_OUT_8(d, (i) + 8)
#define INT4_OUT_32(d, i) INT4_OUT_16(d, i), INT4_OUT_16(d, (i) + 16)
#define INT4_OUT_64(d, i) INT4_OUT_32(d, i), INT4_OUT_32(d, (i) + 32)
#define INT4_OUT_128(d, i) INT4_OUT_64(d, i), INT4_OUT_64(d, (i) + 64)
#define INT4_SUMS_8 "%0, %1, %2, %3, %4, %5, %6, %7"
#define INT4_SUMS_16 INT4_SUMS_8 ", %8, %9, %10, %11, %12, %13, %14, %15"
#define INT4_SUMS_32 \
  INT4_SUMS_16 ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define INT4_SUMS_64                                                                                             \
  INT4_SUMS_32 ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, " \
               "%50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define INT4_SUMS_128                                                                                            \
  INT4_SUMS_64 ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, %80, %81, " \
               "%82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, %96, %97, %98, %99, "    \
               "%100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, %112, %113, %114, "    \
               "%115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"

#define INT4_WGMMA(n, sums, a0, a1, a2, a3, b, adds, type)                                                           \
  asm volatile(                                                                                                      \
      "{\n"                                                                                                          \
      ".reg .pred adds;\n"                                                                                           \
      "setp.ne.b32 adds, %" adds ", 0;\n"                                                                            \
      "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32." type "." type " {" INT4_SUMS_##sums "}, {%" a0 ", %" a1 ", %" a2 \
      ", %" a3 "}, %" b ", adds, 1, 1, 0;\n"                                                                         \
      "}"                                                                                                            \
      : INT4_OUT_##sums(d, 0)                                                                                        \
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(of_b), "r"(static_cast<int>(add)))
#define INT4_WGMMA_OF(n, sums, a0, a1, a2, a3, b, adds)             \
  if constexpr (std::is_same_v<T, torch::headeronly::BFloat16>) {   \
    INT4_WGMMA(n, sums, a0, a1, a2, a3, b, adds, "bf16");           \
  } else {                                                          \
    INT4_WGMMA(n, sums, a0, a1, a2, a3, b, adds, "f16");            \
  }

// A warpgroup multiplies 64 rows and 16 columns of a, of which a thread has those that mma.m16n8k16 wants of it for its
// warp's 16 rows, with kN rows of b, which is K-major in shared memory. d = a b, or d += a b where `add`. It has kN / 2
// sums a thread. The registers of a are read until the group is waited for.
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
#undef INT4_SUMS_128
#undef INT4_SUMS_64
#undef INT4_SUMS_32
#undef INT4_SUMS_16
#undef INT4_SUMS_8
#undef INT4_OUT_128
#undef INT4_OUT_64
#undef INT4_OUT_32
#undef INT4_OUT_16
#undef INT4_OUT_8

}  // namespace matmul_int4
