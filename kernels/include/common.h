// What every extension shares, on the CPU and on CUDA: refusing an input with a sentence, calling a template with
// the C++ type of a tensor's elements, and the shape of an answer. LibTorch's stable ABI only, so that one source
// builds against any torch from 2.10 on.
#pragma once

#include <stdexcept>
#include <string>

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/core/ScalarType.h>

namespace kernels {

using torch::stable::Tensor;

// The sentence alone, where STD_TORCH_CHECK would put this machine's path to the source before it.
inline void require(bool condition, const std::string& sentence) {
  if (!condition) {
    throw std::runtime_error(sentence);
  }
}

// Calls f with a value of the tensor's element type.
template <typename F>
void with_element_type(const Tensor& x, const F& f) {
  switch (x.scalar_type()) {
    case torch::headeronly::ScalarType::Float:
      return f(float{});
    case torch::headeronly::ScalarType::BFloat16:
      return f(torch::headeronly::BFloat16{});
    case torch::headeronly::ScalarType::Half:
      return f(torch::headeronly::Half{});
    default:
      require(false, std::string("the elements must be float32, bfloat16 or float16, not ") +
                         torch::headeronly::toString(x.scalar_type()));
  }
}

template <typename T>
const T* input(const Tensor& x) {
  return static_cast<const T*>(x.const_data_ptr());
}

template <typename T>
T* output(const Tensor& y) {
  return static_cast<T*>(y.mutable_data_ptr());
}

// What an operator gives for a tensor without data, as torch.compile asks: a contiguous tensor like x.
inline Tensor like(const Tensor& x) { return torch::stable::contiguous(torch::stable::empty_like(x)); }

}  // namespace kernels
