// What the files step_*.cu share: their input and output, and the operator around a kernel. Each of them is one step on
// the way from cuda_tiled to cuda_wgmma, and takes one idea more than the step before.
#pragma once

#include <string>
#include <type_traits>

#include "../include/common.cuh"

namespace matmul {

using BFloat16 = torch::headeronly::BFloat16;
using Half = torch::headeronly::Half;

// out = a b. a has m rows of k elements, b has k rows of n, out has m rows of n; all begin at multiples of 16 bytes and
// have their rows one behind the other.
template <typename T>
struct Product {
  const T* a;
  const T* b;
  T* out;
  int m;
  int n;
  int k;
};

// The grid of blocks that compute block_m x block_n elements of the output each.
inline dim3 grid_of(int m, int n, int block_m, int block_n) {
  const int64_t below = kernels::ceil_div(m, block_m);
  kernels::require(below <= 65535, "a grid has at most 65535 blocks below each other: m must be at most " +
                                       std::to_string(int64_t{65535} * block_m) + ", not " + std::to_string(m));
  return dim3(static_cast<unsigned>(kernels::ceil_div(n, block_n)), static_cast<unsigned>(below));
}

// The block's dynamic shared memory.
__device__ inline unsigned char* block_memory() {
  extern __shared__ uint4 of_block[];
  return reinterpret_cast<unsigned char*>(of_block);
}

// x itself, or a copy: row by row without gaps, from a multiple of 16 bytes on.
inline kernels::Tensor packed(const kernels::Tensor& x) {
  const kernels::Tensor rows = torch::stable::contiguous(x);
  return kernels::aligned_to_16(rows.const_data_ptr()) ? rows : torch::stable::clone(rows);
}

inline kernels::Tensor empty_product(const kernels::Tensor& a, const kernels::Tensor& b) {
  return torch::stable::new_empty(a, {a.size(0), b.size(1)});
}

// Calls launch with the product of a and b, whose elements are one of Ts. n and k are multiples of `unit`.
template <typename... Ts, typename Launch>
kernels::Tensor step(const std::string& operation, int unit, const kernels::Tensor& a, const kernels::Tensor& b,
                     const Launch& launch) {
  kernels::require(a.dim() == 2 && b.dim() == 2 && a.size(1) == b.size(0) && a.scalar_type() == b.scalar_type() &&
                       a.get_device_index() == b.get_device_index(),
                   operation + " takes an m x k and a k x n tensor of one dtype on one device");
  const int64_t m = a.size(0), n = b.size(1), k = a.size(1);
  kernels::require(n % unit == 0 && k % unit == 0, operation + " takes n and k that are multiples of " +
                                                       std::to_string(unit) + ", not " + std::to_string(n) + " and " +
                                                       std::to_string(k));
  kernels::require(m < INT32_MAX / 2 && n < INT32_MAX / 2 && k < INT32_MAX / 2,
                   operation + " takes fewer than 2**30 rows and columns");
  const torch::stable::accelerator::DeviceGuard guard(a.get_device_index());
  const kernels::Tensor left = packed(a), right = packed(b);
  const kernels::Tensor result = empty_product(left, right);
  if (result.numel() == 0) {
    return result;
  }
  kernels::with_element_type(left, [&](auto element) {
    using T = decltype(element);
    if constexpr ((std::is_same_v<T, Ts> || ...)) {
      launch(Product<T>{kernels::input<T>(left), kernels::input<T>(right), kernels::output<T>(result),
                        static_cast<int>(m), static_cast<int>(n), static_cast<int>(k)},
             kernels::current_stream(left));
    } else {
      kernels::require(false, operation + " takes no " + torch::headeronly::toString(left.scalar_type()));
    }
  });
  kernels::check_launched(operation.c_str());
  return result;
}

}  // namespace matmul

// Defines the operator torch.ops.matmul.<name>(a, b), which calls matmul::launch for the types of elements that are
// listed last.
#define MATMUL_STEP(name, unit, ...)                                                                              \
  namespace matmul {                                                                                              \
  kernels::Tensor name(const kernels::Tensor& a, const kernels::Tensor& b) {                                      \
    return step<__VA_ARGS__>("matmul::" #name, unit, a, b,                                                        \
                             [](const auto& of, cudaStream_t stream) { launch(of, stream); });                    \
  }                                                                                                               \
  }                                                                                                               \
  STABLE_TORCH_LIBRARY_FRAGMENT(matmul, m) { m.def(#name "(Tensor a, Tensor b) -> Tensor"); }                     \
  STABLE_TORCH_LIBRARY_IMPL(matmul, Meta, m) { m.impl(#name, TORCH_BOX(&matmul::empty_product)); }                \
  STABLE_TORCH_LIBRARY_IMPL(matmul, CUDA, m) { m.impl(#name, TORCH_BOX(&matmul::name)); }
