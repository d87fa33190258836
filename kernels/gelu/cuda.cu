// gelu (tanh form) on CUDA: the elementwise kernel of ../include/elementwise.cuh with the formula of formula.h.
//
// An exponential, a division and a handful of multiplications for two memory accesses: DRAM bandwidth is
// the limit. The 16-bit types move half the bytes for the same arithmetic, so they are the first to feel it.
#include "../include/elementwise.cuh"
#include "formula.h"

namespace gelu {

struct Gelu {
  __host__ __device__ float operator()(float value) const { return gelu(value); }
};

kernels::Tensor cuda(const kernels::Tensor& x, int64_t block_size, int64_t num_warps) {
  return kernels::elementwise_cuda("gelu::cuda", x, block_size, num_warps, Gelu{});
}

kernels::Tensor meta(const kernels::Tensor& x, int64_t, int64_t) { return kernels::like(x); }

}  // namespace gelu

STABLE_TORCH_LIBRARY_FRAGMENT(gelu, m) { m.def("cuda(Tensor x, int block_size, int num_warps) -> Tensor"); }
STABLE_TORCH_LIBRARY_IMPL(gelu, Meta, m) { m.impl("cuda", TORCH_BOX(&gelu::meta)); }
STABLE_TORCH_LIBRARY_IMPL(gelu, CUDA, m) { m.impl("cuda", TORCH_BOX(&gelu::cuda)); }
