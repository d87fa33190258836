// Copies of weight and bias for rows that begin anywhere within 16 bytes: one for each alignment that the first vector
// of a row may have, so that the vectors of every row find theirs at multiples of 16 bytes. Without the copies, 16
// bytes of them take two loads and a shift, for every row again.
#pragma once

#include <cstdint>
#include <type_traits>

#include "affine_parameters.cuh"
#include "async.cuh"

namespace kernels {

// An operation with such copies: kVectorWidth<T> of the weight, then as many of the bias. Copy i begins with element i.
template <typename T, typename Op>
struct RealignedParameters : Op {
  static_assert(std::is_same_v<Op, typename Op::Recompute>);
  using Recompute = RealignedParameters;

  const T* copies;
  int64_t length;  // of a copy, a whole number of vectors

  // Such that column `head` of a row is at the beginning of a copy.
  __device__ AffinePointers<T> pointers_at(int head) const {
    const T* const weight = copies + head * length - head;
    return {weight, weight + kVectorWidth<T> * length};
  }
};
template <typename T, typename Op>
constexpr bool kRealigned<RealignedParameters<T, Op>> = true;

// A thread writes a vector of a copy. blockIdx.y is the copy's number, blockIdx.z whether it is the weight's or the
// bias's. The dependent grid may start meanwhile (sm_90); it waits before it loads what is written here.
template <typename T>
__global__ void realign_parameters(const AffinePointers<T> from, T* copies, int64_t columns, int64_t length) {
  launch_dependent_grids();
  const int64_t begin = blockIdx.y;
  const int64_t column = (int64_t{blockIdx.x} * blockDim.x + threadIdx.x) * kVectorWidth<T>;
  const T* const source = (blockIdx.z == 0 ? from.weight : from.bias) + begin + column;
  T* const to = copies + (blockIdx.z * kVectorWidth<T> + begin) * length + column;
  const int64_t left = columns - begin - column;
  if (left >= 2 * kVectorWidth<T>) {
    *reinterpret_cast<uint4*>(to) = load_unaligned(source);
  } else {
    for (int i = 0; i < kVectorWidth<T> && i < left; ++i) {
      to[i] = source[i];
    }
  }
}

// Launches the copies for an operation, into memory that `copies` keeps.
template <typename T, typename Op>
RealignedParameters<T, Op> realigned(const Op& op, const Tensor& x, Tensor& copies, cudaStream_t stream) {
  constexpr int kThreads = 128;
  constexpr int kTensors = Op::kHasBias ? 2 : 1;
  const int64_t columns = x.size(1);
  const int64_t vectors = ceil_div(columns, kVectorWidth<T>);
  const int64_t length = vectors * kVectorWidth<T>;
  copies = torch::stable::new_empty(x, {kTensors * kVectorWidth<T> * length});
  const dim3 grid(static_cast<unsigned>(ceil_div(vectors, kThreads)), kVectorWidth<T>, kTensors);
  realign_parameters<T><<<grid, kThreads, 0, stream>>>(affine_pointers<T>(op), output<T>(copies), columns, length);
  record_launch("realign_parameters", "copy", grid, kThreads);
  return {op, input<T>(copies), length};
}

}  // namespace kernels
