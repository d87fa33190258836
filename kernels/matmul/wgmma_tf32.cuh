// wgmma of float32 elements that lie along k in shared memory. The tensor cores read their first 19 bits: tf32. It
// compiles for sm_90a alone.
#pragma once

#include <cstdint>

#include "../include/wgmma.cuh"

namespace kernels {

#define MATMUL_SUMS_16(i)                                                                                            \
  "+f"(d[i]), "+f"(d[(i) + 1]), "+f"(d[(i) + 2]), "+f"(d[(i) + 3]), "+f"(d[(i) + 4]), "+f"(d[(i) + 5]),              \
      "+f"(d[(i) + 6]), "+f"(d[(i) + 7]), "+f"(d[(i) + 8]), "+f"(d[(i) + 9]), "+f"(d[(i) + 10]), "+f"(d[(i) + 11]), \
      "+f"(d[(i) + 12]), "+f"(d[(i) + 13]), "+f"(d[(i) + 14]), "+f"(d[(i) + 15])

// A warpgroup multiplies 64 rows of a with 128 columns of b, 8 elements of k, and adds to d where `add`.
__device__ inline void wgmma_tf32(float (&d)[64], uint64_t of_a, uint64_t of_b, bool add) {
  asm volatile(
      "{\n"
      ".reg .pred adds;\n"
      "setp.ne.b32 adds, %66, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n128k8.f32.tf32.tf32 {"
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
      "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
      "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "
      "%64, %65, adds, 1, 1;\n"
      "}"
      : MATMUL_SUMS_16(0), MATMUL_SUMS_16(16), MATMUL_SUMS_16(32), MATMUL_SUMS_16(48)
      : "l"(of_a), "l"(of_b), "r"(static_cast<int>(add)));
}

#undef MATMUL_SUMS_16

}  // namespace kernels
