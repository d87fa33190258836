// Which inputs a kernel over the rows of a matrix takes, the same on the CPU and on CUDA.
#pragma once

#include "common.h"

namespace kernels {

inline void check_matrix(const std::string& kernel, const Tensor& x) {
  require(x.dim() == 2, kernel + " takes a 2-D tensor, not one of " + std::to_string(x.dim()) + " dimensions");
  require(x.size(1) > 0, kernel + " needs at least one column");
}

// A weight or bias: one number for each column.
inline void check_parameter(const std::string& kernel, const std::string& name, const Tensor& parameter,
                            const Tensor& x) {
  require(parameter.dim() == 1 && parameter.size(0) == x.size(1) && parameter.scalar_type() == x.scalar_type() &&
              parameter.get_device_index() == x.get_device_index(),
          kernel + " needs a " + name + " with a number for each column, of the same dtype and on the same device");
}

}  // namespace kernels
