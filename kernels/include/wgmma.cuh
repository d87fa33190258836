// Wrappers of the PTX instructions by which Hopper multiplies matrices: wgmma, setmaxnreg, stmatrix, barriers of
// warpgroups. See the PTX ISA; each wrapper has the name of its instruction, or the name that CUTLASS gives it. They
// compile for sm_90a alone.
#pragma once

#include <cstdint>

namespace kernels {

// A barrier of one warpgroup; 0 is __syncthreads()'s.
__device__ inline void warpgroup_barrier(int which) {
  asm volatile("bar.sync %0, 128;" : : "r"(which + 1) : "memory");
}

// A named barrier (0 is __syncthreads()'s) completes when `threads` threads are there. Those that sync wait for it,
// those that arrive go on.
__device__ inline void named_barrier_sync(int which, int threads) {
  asm volatile("bar.sync %0, %1;" : : "r"(which), "r"(threads) : "memory");
}
__device__ inline void named_barrier_arrive(int which, int threads) {
  asm volatile("bar.arrive %0, %1;" : : "r"(which), "r"(threads) : "memory");
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

// Keeps the compiler from moving other uses of these registers across this place: around the instructions that start
// and await wgmmas, of which it knows no operands. CUTLASS calls it warpgroup_fence_operand().
template <int kCount>
__device__ inline void fence_registers(float (&registers)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    asm volatile("" : "+f"(registers[i]) : : "memory");
  }
}
template <int kCount>
__device__ inline void fence_registers(uint32_t (&registers)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    asm volatile("" : "+r"(registers[i]) : : "memory");
  }
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

// A thread's sums as operands, and their numbers in the instruction.
#define KERNELS_SUMS_8(d, i)                                                                              \
  "+f"(d[i]), "+f"(d[(i) + 1]), "+f"(d[(i) + 2]), "+f"(d[(i) + 3]), "+f"(d[(i) + 4]), "+f"(d[(i) + 5]), \
      "+f"(d[(i) + 6]), "+f"(d[(i) + 7])
#define KERNELS_SUMS_16(d, i) KERNELS_SUMS_8(d, i), KERNELS_SUMS_8(d, (i) + 8)
#define KERNELS_SUMS_OF_32(d) KERNELS_SUMS_16(d, 0), KERNELS_SUMS_16(d, 16)
#define KERNELS_SUMS_OF_48(d) KERNELS_SUMS_OF_32(d), KERNELS_SUMS_16(d, 32)
#define KERNELS_SUMS_OF_64(d) KERNELS_SUMS_OF_48(d), KERNELS_SUMS_16(d, 48)
#define KERNELS_SUMS_OF_80(d) KERNELS_SUMS_OF_64(d), KERNELS_SUMS_16(d, 64)
#define KERNELS_SUMS_OF_88(d) KERNELS_SUMS_OF_80(d), KERNELS_SUMS_8(d, 80)
#define KERNELS_SUMS_OF_96(d) KERNELS_SUMS_OF_88(d), KERNELS_SUMS_8(d, 88)
#define KERNELS_SUMS_OF_112(d) KERNELS_SUMS_OF_96(d), KERNELS_SUMS_16(d, 96)
#define KERNELS_SUMS_OF_128(d) KERNELS_SUMS_OF_112(d), KERNELS_SUMS_16(d, 112)
#define KERNELS_NUMBERS_16 \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
#define KERNELS_NUMBERS_32 \
  KERNELS_NUMBERS_16 ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define KERNELS_NUMBERS_48 \
  KERNELS_NUMBERS_32 ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47"
#define KERNELS_NUMBERS_64 \
  KERNELS_NUMBERS_48 ", %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define KERNELS_NUMBERS_80 \
  KERNELS_NUMBERS_64 ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79"
#define KERNELS_NUMBERS_88 \
  KERNELS_NUMBERS_80 ", %80, %81, %82, %83, %84, %85, %86, %87"
#define KERNELS_NUMBERS_96 \
  KERNELS_NUMBERS_88 ", %88, %89, %90, %91, %92, %93, %94, %95"
#define KERNELS_NUMBERS_112 \
  KERNELS_NUMBERS_96 ", %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111"
#define KERNELS_NUMBERS_128 \
  KERNELS_NUMBERS_112 ", %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"

// d = a b, or d += a b where `adds`. Elements of 2 bytes: a transposed operand is MN-major in shared memory.
#define KERNELS_WGMMA_16(n, sums, da, db, adds, scale, type)                                                       \
  asm volatile(                                                                                                    \
      "{\n"                                                                                                        \
      ".reg .pred adds;\n"                                                                                         \
      "setp.ne.b32 adds, %" adds ", 0;\n"                                                                          \
      "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32." type "." type " {" KERNELS_NUMBERS_##sums "}, %" da ", %" db \
      ", adds, 1, 1, " scale ";\n"                                                                                 \
      "}"                                                                                                          \
      : KERNELS_SUMS_OF_##sums(d)                                                                                  \
      : "l"(of_a), "l"(of_b), "r"(static_cast<int>(add)), "n"(static_cast<int>(kATransposed)),                     \
        "n"(static_cast<int>(kBTransposed)))
// The same with a's elements in registers.
#define KERNELS_WGMMA_RS(n, sums, a0, a1, a2, a3, db, adds, scale, type)                                            \
  asm volatile(                                                                                                    \
      "{\n"                                                                                                        \
      ".reg .pred adds;\n"                                                                                         \
      "setp.ne.b32 adds, %" adds ", 0;\n"                                                                          \
      "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32." type "." type " {" KERNELS_NUMBERS_##sums "}, {%" a0 ", %" a1 \
      ", %" a2 ", %" a3 "}, %" db ", adds, 1, 1, " scale ";\n"                                                     \
      "}"                                                                                                          \
      : KERNELS_SUMS_OF_##sums(d)                                                                                  \
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(of_b), "r"(static_cast<int>(add)),                         \
        "n"(static_cast<int>(kBTransposed)))
// Elements of 1 byte, which are always K-major.
#define KERNELS_WGMMA_8(n, sums, da, db, adds)                                                                     \
  asm volatile(                                                                                                    \
      "{\n"                                                                                                        \
      ".reg .pred adds;\n"                                                                                         \
      "setp.ne.b32 adds, %" adds ", 0;\n"                                                                          \
      "wgmma.mma_async.sync.aligned.m64n" #n "k32.f32.e4m3.e4m3 {" KERNELS_NUMBERS_##sums "}, %" da ", %" db        \
      ", adds, 1, 1;\n"                                                                                            \
      "}"                                                                                                          \
      : KERNELS_SUMS_OF_##sums(d)                                                                                  \
      : "l"(of_a), "l"(of_b), "r"(static_cast<int>(add)))

enum class Element { kBFloat16, kFloat16, kFloat8 };

// Two numbers as neighbouring elements of 2 bytes, the first in the lower half.
template <Element kElement>
__device__ inline uint32_t rounded_pair(float first, float second) {
  static_assert(kElement != Element::kFloat8, "elements of 2 bytes");
  uint32_t pair;
  if constexpr (kElement == Element::kFloat16) {
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(second), "f"(first));
  } else {
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(second), "f"(first));
  }
  return pair;
}

// Two operands in shared memory (SS): a warpgroup multiplies 64 rows of a with kN columns of b, 32 bytes of k. It has
// kN / 2 sums per thread.
template <Element kElement, int kN, bool kATransposed, bool kBTransposed>
__device__ inline void wgmma(float (&d)[kN / 2], uint64_t of_a, uint64_t of_b, bool add) {
  static_assert(kElement != Element::kFloat8 || (!kATransposed && !kBTransposed), "float8 is K-major");
  static_assert(kElement != Element::kFloat8 || kN == 64 || kN == 128 || kN == 256,
                "float8's tiles are 64, 128 or 256 columns wide");
  if constexpr (kN == 64) {
    if constexpr (kElement == Element::kBFloat16) {
      KERNELS_WGMMA_16(64, 32, "32", "33", "34", "%35, %36", "bf16");
    } else if constexpr (kElement == Element::kFloat16) {
      KERNELS_WGMMA_16(64, 32, "32", "33", "34", "%35, %36", "f16");
    } else {
      KERNELS_WGMMA_8(64, 32, "32", "33", "34");
    }
  } else if constexpr (kN == 128) {
    if constexpr (kElement == Element::kBFloat16) {
      KERNELS_WGMMA_16(128, 64, "64", "65", "66", "%67, %68", "bf16");
    } else if constexpr (kElement == Element::kFloat16) {
      KERNELS_WGMMA_16(128, 64, "64", "65", "66", "%67, %68", "f16");
    } else {
      KERNELS_WGMMA_8(128, 64, "64", "65", "66");
    }
  } else if constexpr (kN == 160) {
    if constexpr (kElement == Element::kBFloat16) {
      KERNELS_WGMMA_16(160, 80, "80", "81", "82", "%83, %84", "bf16");
    } else {
      KERNELS_WGMMA_16(160, 80, "80", "81", "82", "%83, %84", "f16");
    }
  } else if constexpr (kN == 176) {
    if constexpr (kElement == Element::kBFloat16) {
      KERNELS_WGMMA_16(176, 88, "88", "89", "90", "%91, %92", "bf16");
    } else {
      KERNELS_WGMMA_16(176, 88, "88", "89", "90", "%91, %92", "f16");
    }
  } else if constexpr (kN == 192) {
    if constexpr (kElement == Element::kBFloat16) {
      KERNELS_WGMMA_16(192, 96, "96", "97", "98", "%99, %100", "bf16");
    } else {
      KERNELS_WGMMA_16(192, 96, "96", "97", "98", "%99, %100", "f16");
    }
  } else {
    static_assert(kN == 256, "a width that is listed here");
    if constexpr (kElement == Element::kBFloat16) {
      KERNELS_WGMMA_16(256, 128, "128", "129", "130", "%131, %132", "bf16");
    } else if constexpr (kElement == Element::kFloat16) {
      KERNELS_WGMMA_16(256, 128, "128", "129", "130", "%131, %132", "f16");
    } else {
      KERNELS_WGMMA_8(256, 128, "128", "129", "130");
    }
  }
}

// The first operand in registers (RS): of its 64 x 16 elements of 2 bytes, thread t of the warpgroup has rows
// t / 32 * 16 + t % 32 / 4 (registers 0 and 2) and 8 further down (1 and 3), columns t % 4 * 2 and the next (0 and 1)
// and 8 further right (2 and 3). PTX ISA, "Register Fragments for wgmma.mma_async.m64nNk16". The registers stay as they
// are until the wgmma is done.
template <Element kElement, int kN, bool kBTransposed>
__device__ inline void wgmma(float (&d)[kN / 2], const uint32_t* a, uint64_t of_b, bool add) {
  static_assert(kElement != Element::kFloat8, "elements of 2 bytes");
  if constexpr (kN == 64) {
    if constexpr (kElement == Element::kBFloat16) {
      KERNELS_WGMMA_RS(64, 32, "32", "33", "34", "35", "36", "37", "%38", "bf16");
    } else {
      KERNELS_WGMMA_RS(64, 32, "32", "33", "34", "35", "36", "37", "%38", "f16");
    }
  } else {
    static_assert(kN == 128, "a width that is listed here");
    if constexpr (kElement == Element::kBFloat16) {
      KERNELS_WGMMA_RS(128, 64, "64", "65", "66", "67", "68", "69", "%70", "bf16");
    } else {
      KERNELS_WGMMA_RS(128, 64, "64", "65", "66", "67", "68", "69", "%70", "f16");
    }
  }
}

#undef KERNELS_WGMMA_8
#undef KERNELS_WGMMA_RS
#undef KERNELS_WGMMA_16
#undef KERNELS_NUMBERS_128
#undef KERNELS_NUMBERS_112
#undef KERNELS_NUMBERS_96
#undef KERNELS_NUMBERS_88
#undef KERNELS_NUMBERS_80
#undef KERNELS_NUMBERS_64
#undef KERNELS_NUMBERS_48
#undef KERNELS_NUMBERS_32
#undef KERNELS_NUMBERS_16
#undef KERNELS_SUMS_OF_128
#undef KERNELS_SUMS_OF_112
#undef KERNELS_SUMS_OF_96
#undef KERNELS_SUMS_OF_88
#undef KERNELS_SUMS_OF_80
#undef KERNELS_SUMS_OF_64
#undef KERNELS_SUMS_OF_48
#undef KERNELS_SUMS_OF_32
#undef KERNELS_SUMS_16
#undef KERNELS_SUMS_8

}  // namespace kernels
