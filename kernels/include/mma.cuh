// Wrappers of the PTX instructions by which a warp multiplies small matrices (sm_80): cp.async, ldmatrix, mma. See the
// PTX ISA; each wrapper has the name of its instruction.
#pragma once

#include <cstdint>
#include <type_traits>

#include "async.cuh"
#include "common.cuh"

namespace kernels {

// Starts a copy of 16 bytes from global to shared memory. With `is_inside` false, zeros arrive and nothing is read.
__device__ inline void cp_async_or_zeros(void* to, const void* from, bool is_inside) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
               :
               : "r"(shared_address(to)), "l"(from), "r"(is_inside ? 16 : 0)
               : "memory");
}
// Makes a group of this thread's copies since its last group; there may be none.
__device__ inline void cp_async_commit_group() { asm volatile("cp.async.commit_group;" : : : "memory"); }
// Waits until all but the last `kPending` groups of this thread are done. Their data is visible to this thread only.
template <int kPending>
__device__ inline void cp_async_wait_group() {
  asm volatile("cp.async.wait_group %0;" : : "n"(kPending) : "memory");
}

// A warp loads four 8 x 8 matrices of 16-bit elements: lane l has the address of row l % 8 of matrix l / 8, and gets of
// each matrix the elements 2 (l % 4) and the next of row l / 4.
__device__ inline void ldmatrix_x4(uint32_t (&to)[4], const void* from) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(shared_address(from))
               : "memory");
}
// The same of the transposed matrices.
__device__ inline void ldmatrix_x4_trans(uint32_t (&to)[4], const void* from) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(shared_address(from))
               : "memory");
}

// sums += a b, of a 16 x 16 a and a 16 x 8 b. Lane l has, with r = l / 4 and c = 2 (l % 4), pairs of neighbours:
//   a     rows r, r + 8, r, r + 8, at columns c, c, c + 8, c + 8
//   b     of column r the rows c and c + 8
//   sums  of rows r and r + 8 the columns c and c + 1
template <typename T>
__device__ inline void mma_m16n8k16(float (&sums)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  if constexpr (std::is_same_v<T, torch::headeronly::BFloat16>) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  } else {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
}

}  // namespace kernels
