// A load from another block's shared memory (PTX ISA, "mapa" and "ld.shared::cluster"). It compiles for sm_90 and newer.
#pragma once

#include <cstdint>

#include "common.cuh"

namespace kernels {

// Four float32 numbers at this address of the shared memory of block `rank` of the cluster.
__device__ inline float4 load_of_block(uint32_t address, int rank) {
  float4 value;
  asm volatile(
      "{\n"
      ".reg .b32 remote;\n"
      "mapa.shared::cluster.u32 remote, %4, %5;\n"
      "ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [remote];\n"
      "}"
      : "=f"(value.x), "=f"(value.y), "=f"(value.z), "=f"(value.w)
      : "r"(address), "r"(rank)
      : "memory");
  return value;
}

}  // namespace kernels
