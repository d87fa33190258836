// gelu (tanh form) on CUDA: the elementwise kernel of ../include/elementwise.cuh.
//
// 0.5 x (1 + tanh(u)) with u = sqrt(2/pi) (x + 0.044715 x^3), written as x / (1 + exp(-2u)): the same function, without
// the cancellation in 1 + tanh(u) where u is negative. The exponential and the quotient are the hardware's own
// approximations, one instruction of its special unit each: with expf and an exact division, arithmetic was the limit
// for the 16-bit types. Now DRAM bandwidth is.
#include "../include/elementwise.cuh"

namespace gelu {

struct Gelu {
  // A large -x overflows exp to infinity and gives -0; -infinity gives NaN, as the formula does in float64.
  __device__ float operator()(float x) const {
    constexpr float kFirst = -2.302208198144325f;   // -2 sqrt(2 / pi) log2(e)
    constexpr float kThird = -0.1029432395800235f;  // that times 0.044715
    return __fdividef(x, 1.0f + kernels::exp2_(x * (kFirst + kThird * x * x)));
  }
};

kernels::Tensor cuda(const kernels::Tensor& x, int64_t block_size, int64_t num_warps) {
  return kernels::elementwise_cuda("gelu::cuda", x, block_size, num_warps, Gelu{});
}

kernels::Tensor meta(const kernels::Tensor& x, int64_t, int64_t) { return kernels::like(x); }

}  // namespace gelu

STABLE_TORCH_LIBRARY_FRAGMENT(gelu, m) { m.def("cuda(Tensor x, int block_size, int num_warps) -> Tensor"); }
STABLE_TORCH_LIBRARY_IMPL(gelu, Meta, m) { m.impl("cuda", TORCH_BOX(&gelu::meta)); }
STABLE_TORCH_LIBRARY_IMPL(gelu, CUDA, m) { m.impl("cuda", TORCH_BOX(&gelu::cuda)); }
