// Wrappers of the PTX instructions by which Hopper multiplies matrices: wgmma, setmaxnreg, stmatrix. See the PTX ISA; each
// wrapper has the name of its instruction, or the name that CUTLASS gives it. They compile for sm_90a alone.
#pragma once

#include <cstdint>

namespace kernels {

// A barrier of one warpgroup; 0 is __syncthreads()'s.
__device__ inline void warpgroup_barrier(int which) {
  asm volatile("bar.sync %0, 128;" : : "r"(which + 1) : "memory");
}

// A warpgroup gives up registers, or takes those that others gave up; the number is for each of its threads.
template <int kRegisters>
__device__ inline void setmaxnreg_dec() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" : : "n"(kRegisters));
}
template <int kRegisters>
__device__ inline void setmaxnreg_inc() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" : : "n"(kRegisters));
}

// Stores four 8 x 8 matrices of 16-bit elements: lane l has the address of row l % 8 of matrix l / 8.
__device__ inline void stmatrix_x4(uint32_t to, uint32_t first, uint32_t second, uint32_t third, uint32_t fourth) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};"
               :
               : "r"(to), "r"(first), "r"(second), "r"(third), "r"(fourth)
               : "memory");
}

// Before the first wgmma, and between other accesses of the same registers and a wgmma.
__device__ inline void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" : : : "memory"); }
// Makes a group of the wgmmas that were started since the last group.
__device__ inline void wgmma_commit_group() { asm volatile("wgmma.commit_group.sync.aligned;" : : : "memory"); }
// Waits until all but the last `kPending` groups are done.
template <int kPending>
__device__ inline void wgmma_wait_group() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" : : "n"(kPending) : "memory");
}

#define KERNELS_OUT_8(d, i)                                                                               \
  "+f"(d[i]), "+f"(d[(i) + 1]), "+f"(d[(i) + 2]), "+f"(d[(i) + 3]), "+f"(d[(i) + 4]), "+f"(d[(i) + 5]), \
      "+f"(d[(i) + 6]), "+f"(d[(i) + 7])
#define KERNELS_OUT_32(d, i) \
  KERNELS_OUT_8(d, i), KERNELS_OUT_8(d, (i) + 8), KERNELS_OUT_8(d, (i) + 16), KERNELS_OUT_8(d, (i) + 24)
#define KERNELS_OUT_64(d) KERNELS_OUT_32(d, 0), KERNELS_OUT_32(d, 32)
#define KERNELS_OUT_128(d) KERNELS_OUT_64(d), KERNELS_OUT_32(d, 64), KERNELS_OUT_32(d, 96)
#define KERNELS_REGISTERS_64 \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, " \
  "%21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, " \
  "%40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, " \
  "%59, %60, %61, %62, %63"
#define KERNELS_REGISTERS_128 \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, " \
  "%21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, " \
  "%40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, " \
  "%59, %60, %61, %62, %63, %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, " \
  "%78, %79, %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, %96, " \
  "%97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, %112, " \
  "%113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"

// d = a b, or d += a b where `adds`. Elements of 2 bytes: a transposed operand is MN-major in shared memory.
#define KERNELS_WGMMA_16(n, outputs, da, db, adds, scale, type)                                                    \
  asm volatile(                                                                                                   \
      "{\n"                                                                                                       \
      ".reg .pred adds;\n"                                                                                        \
      "setp.ne.b32 adds, %" adds ", 0;\n"                                                                         \
      "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32." type "." type " {" KERNELS_REGISTERS_##outputs "}, %" da    \
      ", %" db ", adds, 1, 1, " scale ";\n"                                                                       \
      "}"                                                                                                         \
      : KERNELS_OUT_##outputs(d)                                                                                   \
      : "l"(of_a), "l"(of_b), "r"(static_cast<int>(add)), "n"(static_cast<int>(kATransposed)),                    \
        "n"(static_cast<int>(kBTransposed)))
// Elements of 1 byte, which are always K-major.
#define KERNELS_WGMMA_8(n, outputs, da, db, adds)                                                                  \
  asm volatile(                                                                                                   \
      "{\n"                                                                                                       \
      ".reg .pred adds;\n"                                                                                        \
      "setp.ne.b32 adds, %" adds ", 0;\n"                                                                         \
      "wgmma.mma_async.sync.aligned.m64n" #n "k32.f32.e4m3.e4m3 {" KERNELS_REGISTERS_##outputs "}, %" da ", %" db  \
      ", adds, 1, 1;\n"                                                                                           \
      "}"                                                                                                         \
      : KERNELS_OUT_##outputs(d)                                                                                   \
      : "l"(of_a), "l"(of_b), "r"(static_cast<int>(add)))

enum class Element { kBFloat16, kFloat16, kFloat8 };

// A warpgroup multiplies 64 rows of a with kBlockN columns of b, 32 bytes of k. It has kBlockN / 2 sums a thread.
template <Element kElement, int kBlockN, bool kATransposed, bool kBTransposed>
__device__ inline void wgmma(float (&d)[kBlockN / 2], uint64_t of_a, uint64_t of_b, bool add) {
  static_assert(kElement != Element::kFloat8 || (!kATransposed && !kBTransposed), "float8 is K-major");
  if constexpr (kBlockN == 256) {
    if constexpr (kElement == Element::kBFloat16) {
      KERNELS_WGMMA_16(256, 128, "128", "129", "130", "%131, %132", "bf16");
    } else if constexpr (kElement == Element::kFloat16) {
      KERNELS_WGMMA_16(256, 128, "128", "129", "130", "%131, %132", "f16");
    } else {
      KERNELS_WGMMA_8(256, 128, "128", "129", "130");
    }
  } else {
    static_assert(kBlockN == 128, "a tile is 128 or 256 columns wide");
    if constexpr (kElement == Element::kBFloat16) {
      KERNELS_WGMMA_16(128, 64, "64", "65", "66", "%67, %68", "bf16");
    } else if constexpr (kElement == Element::kFloat16) {
      KERNELS_WGMMA_16(128, 64, "64", "65", "66", "%67, %68", "f16");
    } else {
      KERNELS_WGMMA_8(128, 64, "64", "65", "66");
    }
  }
}

#undef KERNELS_WGMMA_8
#undef KERNELS_WGMMA_16
#undef KERNELS_REGISTERS_128
#undef KERNELS_REGISTERS_64
#undef KERNELS_OUT_128
#undef KERNELS_OUT_64
#undef KERNELS_OUT_32
#undef KERNELS_OUT_8

}  // namespace kernels
