// The wrapper of the PTX instruction by which Hopper's copy engine adds shared memory to global memory. PTX ISA,
// "cp.reduce.async.bulk". It compiles for sm_90 and newer.
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

}  // namespace kernels
