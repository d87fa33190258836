// Copies matrices whose rows begin anywhere to rows that begin at multiples of 128 bytes, as TMA and its lines in L2 want
// them: both inputs of a product by one launch.
#pragma once

#include <cstdint>

#include "../include/async.cuh"
#include "../include/common.cuh"

namespace matmul {

// A matrix of rows of neighbouring elements, and where it is copied to. Strides are elements from row to row.
struct RowsCopy {
  const void* from;
  void* to;
  int64_t rows;
  int64_t columns;
  int64_t from_stride;
  int64_t to_stride;
};

constexpr int kCopyThreads = 256;
constexpr int kCopiedWords = 8;  // of 4 bytes, that a thread has under way

template <typename T>
constexpr int kOfWord = 4 / sizeof(T);

template <typename T>
int64_t words(const RowsCopy& of) {
  return of.rows * kernels::ceil_div(of.columns, int64_t{kOfWord<T>});
}

template <typename T>
int64_t copying_blocks(const RowsCopy& of) {
  return kernels::ceil_div(words<T>(of), int64_t{kCopyThreads} * kCopiedWords);
}

// The first `blocks_of_first` blocks copy `first`, the others `second`. T has the elements' size. A row's last word is
// filled up with zeros.
template <typename T>
__global__ void __launch_bounds__(kCopyThreads) copy_to_aligned_rows(const RowsCopy first, const RowsCopy second,
                                                                      unsigned blocks_of_first) {
  kernels::launch_dependent_grids();
  const bool is_first = blockIdx.x < blocks_of_first;
  const RowsCopy of = is_first ? first : second;
  const unsigned block = is_first ? blockIdx.x : blockIdx.x - blocks_of_first;
  const auto words_of_row = static_cast<unsigned>((of.columns + kOfWord<T> - 1) / kOfWord<T>);
  const unsigned total = static_cast<unsigned>(of.rows) * words_of_row;
  const unsigned begin = block * (kCopyThreads * kCopiedWords) + threadIdx.x;
  const auto* const from = static_cast<const T*>(of.from);
  uint32_t loaded[kCopiedWords];
#pragma unroll
  for (int i = 0; i < kCopiedWords; ++i) {
    const unsigned at = begin + i * kCopyThreads;
    loaded[i] = 0;
    if (at < total) {
      const int64_t column = int64_t{at % words_of_row} * kOfWord<T>;
      const T* const word = from + at / words_of_row * of.from_stride + column;
#pragma unroll
      for (int j = 0; j < kOfWord<T>; ++j) {
        if (column + j < of.columns) {
          loaded[i] |= static_cast<uint32_t>(word[j]) << (8 * sizeof(T) * j);
        }
      }
    }
  }
#pragma unroll
  for (int i = 0; i < kCopiedWords; ++i) {
    const unsigned at = begin + i * kCopyThreads;
    if (at < total) {
      reinterpret_cast<uint32_t*>(static_cast<T*>(of.to) + at / words_of_row * of.to_stride)[at % words_of_row] = loaded[i];
    }
  }
}

// Launches the copies; a matrix without rows is none.
template <typename T>
void launch_copies(const RowsCopy& first, const RowsCopy& second, cudaStream_t stream) {
  kernels::require(words<T>(first) <= UINT32_MAX / 2 && words<T>(second) <= UINT32_MAX / 2,
                   "matrices whose rows begin at no multiple of 16 bytes may have 8 GB each");
  const dim3 grid(static_cast<unsigned>(copying_blocks<T>(first) + copying_blocks<T>(second)));
  copy_to_aligned_rows<T>
      <<<grid, kCopyThreads, 0, stream>>>(first, second, static_cast<unsigned>(copying_blocks<T>(first)));
  kernels::record_launch("copy_to_aligned_rows", "a thread eight words", grid, dim3(kCopyThreads));
}

}  // namespace matmul
