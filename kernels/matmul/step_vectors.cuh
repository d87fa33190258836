// Loads and stores of four neighbouring elements by one instruction, for the steps from step_vector_loads.cu on.
#pragma once

#include "step.cuh"

namespace matmul {

constexpr int kVector = 4;  // elements

// Loads four elements of an input as float32, or gives zeros.
template <typename T>
__device__ float4 load_four(const T* from, bool is_inside) {
  if (!is_inside) {
    return make_float4(0.0f, 0.0f, 0.0f, 0.0f);
  }
  const auto four = *reinterpret_cast<const kernels::Vector<T, kVector>*>(from);
  return make_float4(static_cast<float>(four.values[0]), static_cast<float>(four.values[1]),
                     static_cast<float>(four.values[2]), static_cast<float>(four.values[3]));
}

// Stores four sums to the output.
template <typename T>
__device__ void store_four(T* to, const float* four) {
  *reinterpret_cast<kernels::Vector<T, kVector>*>(to) = {
      {static_cast<T>(four[0]), static_cast<T>(four[1]), static_cast<T>(four[2]), static_cast<T>(four[3])}};
}

// Four elements of a row of a tile in shared memory, written, and read to registers.
__device__ inline void write_row(float* to, const float4& four) { *reinterpret_cast<float4*>(to) = four; }
__device__ inline void read_row(float* to, const float* from) {
  const float4 four = *reinterpret_cast<const float4*>(from);
  to[0] = four.x;
  to[1] = four.y;
  to[2] = four.z;
  to[3] = four.w;
}

// Four elements below each other, in rows of kPitch elements.
template <int kPitch>
__device__ void write_column(float* to, const float4& four) {
  to[0] = four.x;
  to[kPitch] = four.y;
  to[2 * kPitch] = four.z;
  to[3 * kPitch] = four.w;
}

}  // namespace matmul
