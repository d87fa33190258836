// Weight and bias for rows that begin anywhere within 16 bytes: a copy of each for every place where a row's first whole
// pack may begin, so that the packs of all rows find theirs at multiples of 16 bytes. Otherwise 16 bytes of them take two
// loads and a shift, for every row again.
#pragma once

#include <cstdint>
#include <type_traits>

#include "async.cuh"
#include "rows_factors.cuh"

namespace kernels {

// An operation with such copies, kWidest<T> of the weight and then as many of the bias. Copy i begins with element i.
template <typename T, typename Op>
struct Shifted : Op {
  static_assert(std::is_same_v<Op, typename Op::Unchanged>);
  using Unchanged = Shifted;

  const T* copies;
  int64_t length;  // of a copy, a whole number of packs

  // So that the column `head` of a row is where a copy begins.
  __device__ Parameters<T> beginning_at(int head) const {
    const T* const weight = copies + head * length - head;
    return {weight, weight + kWidest<T> * length};
  }
};
template <typename T, typename Op>
constexpr bool kShifted<Shifted<T, Op>> = true;

// A thread writes a pack of a copy; blockIdx.y is where the copy begins, blockIdx.z whether it is of the bias. The next
// launch begins meanwhile (sm_90), and waits before it asks for what is written here.
template <typename T>
__global__ void copy_shifted(const Parameters<T> of, T* copies, int64_t columns, int64_t length) {
  let_next_launch_begin();
  const int64_t begins = blockIdx.y;
  const int64_t column = (int64_t{blockIdx.x} * blockDim.x + threadIdx.x) * kWidest<T>;
  const T* const from = (blockIdx.z == 0 ? of.weight : of.bias) + begins + column;
  T* const to = copies + (blockIdx.z * kWidest<T> + begins) * length + column;
  const int64_t left = columns - begins - column;
  if (left >= 2 * kWidest<T>) {
    *reinterpret_cast<uint4*>(to) = load_across(from);
  } else {
    for (int i = 0; i < kWidest<T> && i < left; ++i) {
      to[i] = from[i];
    }
  }
}

// Whether copies are worth it. They are a launch more, which takes about half a microsecond on an H200: with 4096 rows,
// layernorm of 1823 bfloat16 columns takes 11.9 us instead of 12.8 and of 50257 258 instead of 287, but rmsnorm of 781 5.4
// instead of 4.9. And they are written for each place where a row may begin: of few rows that would be more than the rows.
template <typename T>
bool worth_copying(const Tensor& x) {
  constexpr int64_t kElements = int64_t{1} << 22;
  constexpr int64_t kRowsPerCopy = 16;
  return x.numel() >= kElements && x.size(0) >= kRowsPerCopy * kWidest<T>;
}

// An operation with its copies, in memory that `memory` keeps.
template <typename T, typename Op>
Shifted<T, Op> with_copies(const Op& op, const Tensor& x, Tensor& memory, cudaStream_t stream) {
  constexpr int kThreads = 128;
  constexpr int kTensors = Op::kBias ? 2 : 1;
  const int64_t columns = x.size(1);
  const int64_t packs = ceil_div(columns, kWidest<T>);
  const int64_t length = packs * kWidest<T>;
  memory = torch::stable::new_empty(x, {kTensors * kWidest<T> * length});
  const dim3 grid(static_cast<unsigned>(ceil_div(packs, kThreads)), kWidest<T>, kTensors);
  copy_shifted<T><<<grid, kThreads, 0, stream>>>(parameters_of<T>(op), output<T>(memory), columns, length);
  record_launch("copy_shifted", "copy", grid, kThreads);
  return {op, input<T>(memory), length};
}

}  // namespace kernels
