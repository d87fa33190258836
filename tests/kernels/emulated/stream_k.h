// What cuda_stream_k needs of the emulated multiprocessor beside packed.h. It stands in for stream_k_instructions.cuh.
#pragma once

#include "bulk.h"
#include "packed.h"

namespace matmul_int4 {

using kernels::stmatrix_x4_trans;

template <typename T, int kN>
void wgmma_of_rows(float (&d)[kN / 2], const uint32_t (&a)[4], uint64_t of_b, bool add) {
  wgmma_registers<T, kN>(d, a, of_b, add);
}

}  // namespace matmul_int4
