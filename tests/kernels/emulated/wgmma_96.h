// What attention's tiles of 96 columns need of the emulated multiprocessor beside hopper.h. It stands in for
// wgmma_96.cuh.
#pragma once

#include "hopper.h"

namespace kernels {

template <Element kElement, bool kBTransposed>
void wgmma_96(float (&d)[48], const uint32_t* a, uint64_t of_b, bool add) {
  wgmma<kElement, 96, kBTransposed>(d, a, of_b, add);
}

template <Element kElement, bool kATransposed, bool kBTransposed>
void wgmma_112(float (&d)[56], uint64_t of_a, uint64_t of_b, bool add) {
  wgmma<kElement, 112, kATransposed, kBTransposed>(d, of_a, of_b, add);
}

}  // namespace kernels
