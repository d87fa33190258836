// Which inputs softmax takes, the same on the CPU and on CUDA.
#pragma once

#include "../include/common.h"

namespace softmax {

inline void check(const kernels::Tensor& x) {
  kernels::require(x.dim() == 2,
                   "softmax takes a 2-D tensor, not one of " + std::to_string(x.dim()) + " dimensions");
  kernels::require(x.size(1) > 0, "softmax needs at least one column: nothing sums to one in an empty row");
}

}  // namespace softmax
