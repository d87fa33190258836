// vector_add on CUDA as a lecture writes it first: a thread an element.
//
// Memory bandwidth is the limit, for one addition comes to three memory accesses.
#include "../include/common.cuh"

namespace vector_add {

using kernels::Tensor;

// Blocks are numbered by blockIdx, the threads of a block by threadIdx. The last block may reach past the end: its
// threads there do nothing.
template <typename T>
__global__ void add(const T* x, const T* y, T* out, int64_t elements) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i < elements) {
    out[i] = static_cast<T>(static_cast<float>(x[i]) + static_cast<float>(y[i]));
  }
}

Tensor cuda(const Tensor& left, const Tensor& right, int64_t threads) {
  kernels::require(threads >= 1 && threads <= 1024,
                   "a block has 1 to 1024 threads, not " + std::to_string(threads));
  const torch::stable::accelerator::DeviceGuard guard(left.get_device_index());
  const Tensor x = torch::stable::contiguous(left);
  const Tensor y = torch::stable::contiguous(right);
  const Tensor result = torch::stable::empty_like(x);
  kernels::with_element_type(x, [&](auto element) {
    using T = decltype(element);
    if (x.numel() == 0) {
      return;
    }
    const int64_t blocks = kernels::ceil_div(x.numel(), threads);
    kernels::require(blocks <= INT32_MAX,
                     "a launch has at most 2**31 - 1 blocks, this needs " + std::to_string(blocks));
    const dim3 grid(static_cast<unsigned>(blocks));
    const dim3 block(static_cast<unsigned>(threads));
    add<T><<<grid, block, 0, kernels::current_stream(x)>>>(kernels::input<T>(x), kernels::input<T>(y),
                                                           kernels::output<T>(result), x.numel());
    kernels::record_launch("add", "naive", grid, block);
    kernels::check_launched("vector_add::cuda");
  });
  return result;
}

Tensor meta(const Tensor& x, const Tensor&, int64_t) { return kernels::like(x); }

}  // namespace vector_add

STABLE_TORCH_LIBRARY_FRAGMENT(vector_add, m) { m.def("cuda(Tensor x, Tensor y, int threads) -> Tensor"); }
STABLE_TORCH_LIBRARY_IMPL(vector_add, Meta, m) { m.impl("cuda", TORCH_BOX(&vector_add::meta)); }
STABLE_TORCH_LIBRARY_IMPL(vector_add, CUDA, m) { m.impl("cuda", TORCH_BOX(&vector_add::cuda)); }
