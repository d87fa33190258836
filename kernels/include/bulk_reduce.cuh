// Wrappers of the PTX instructions by which Hopper's copy engine adds shared memory to global memory (PTX ISA,
// "cp.reduce.async.bulk"), and by which blocks do so in turns. They compile for sm_90 and newer.
#pragma once

#include <cstdint>

#include "async.cuh"

namespace kernels {

// One thread starts the addition of a multiple of 16 bytes of float32 in shared memory to global memory. Each addition
// is atomic; their order is not told. Threads that wrote the shared memory call fence_proxy_async() before.
__device__ inline void bulk_reduce_add(float* to, const float* from, int bytes) {
  asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;"
               :
               : "l"(to), "r"(shared_address(from)), "r"(bytes)
               : "memory");
}

// Waits until the number in global memory is `turn`. What was added by the copy engine before next_turn() made it so is
// added before what this thread starts after.
__device__ inline void wait_for_turn(const int* number, int turn) {
  int seen;
  do {
    asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(seen) : "l"(number) : "memory");
  } while (seen != turn);
  asm volatile("fence.proxy.async.global;" : : : "memory");
}

// Adds 1 to a number in global memory, after all that this thread has done. It has called bulk_wait_group_all() before.
__device__ inline void next_turn(int* number) {
  asm volatile("fence.proxy.async.global;" : : : "memory");
  asm volatile("red.release.gpu.global.add.s32 [%0], 1;" : : "l"(number) : "memory");
}

}  // namespace kernels
