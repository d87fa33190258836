// The product of at most 8 rows on CUDA. Nothing but the reading of b counts: each thread keeps several loads of 16
// bytes in flight, and multiplies in float32.
//
// Where b is column-major (a linear layer's weight), a warp takes a column: its lanes read along k, side by side, and
// their sums come together by shuffles. Where b is row-major, a block takes a strip of columns: a thread owns 8 (or 4)
// neighbouring columns of a row, the threads above each other take different rows, and their sums come together by
// shuffles and in shared memory. Narrow strips make several blocks per multiprocessor, whose loads fill each other's gaps.
#include <algorithm>
#include <type_traits>

#include "../include/common.cuh"

namespace matmul {

constexpr int kMostRows = 8;
constexpr int kLoadsInFlight = 8;  // of 16 bytes, a thread

// A block's most threads: the sums of 8 rows take more than the 128 registers that each of 512 threads can have.
template <int kRows>
constexpr int kMostThreads = kRows > 4 ? 256 : 512;

// Threads whose sums of a strip that is kAcross threads wide lie in one slot.
template <int kAcross>
constexpr int kSlot = kAcross < 32 ? 32 : kAcross;

template <typename T>
using Wide = kernels::Vector<T, kernels::kVectorWidth<T>>;

// The m rows of a, one after the other. Kernels take 1, 4 or 8: what is past the last is the last once more, and its
// sums are not stored.
template <typename T>
struct Rows {
  const T* a;
  int64_t m;
  int64_t k;

  __device__ const T* row(int index) const { return a + min(static_cast<int64_t>(index), m - 1) * k; }
};

// Sums over a warp; every lane has them.
__device__ inline float warp_sum(float value) {
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) {
    value += __shfl_xor_sync(0xffffffffu, value, distance);
  }
  return value;
}

// Adds the products of `wide`, elements of b, with those of each row of a at the same places.
template <typename T, int kRows>
__device__ void multiply_along(float (&sums)[kRows], const Wide<T>& wide, const Rows<T>& a, int64_t at) {
#pragma unroll
  for (int row = 0; row < kRows; ++row) {
    const Wide<T> of_a = *reinterpret_cast<const Wide<T>*>(a.row(row) + at);
#pragma unroll
    for (int i = 0; i < kernels::kVectorWidth<T>; ++i) {
      sums[row] = fmaf(static_cast<float>(of_a.values[i]), static_cast<float>(wide.values[i]), sums[row]);
    }
  }
}

// A warp a column of b, which is n rows of k elements in memory. kVectors: rows of both are aligned to 16 bytes.
template <typename T, int kRows, bool kVectors>
__global__ void __launch_bounds__(kMostThreads<kRows>) along_columns(const T* a, const T* b, T* out, int64_t m, int64_t n, int64_t k, int64_t b_column) {
  constexpr int kWidth = kernels::kVectorWidth<T>;
  const int lane = threadIdx.x % 32;
  const int64_t column = static_cast<int64_t>(blockIdx.x) * (blockDim.x / 32) + threadIdx.x / 32;
  if (column >= n) {
    return;  // a whole warp
  }
  const T* const of_b = b + column * b_column;
  const Rows<T> rows{a, m, k};
  const uint64_t policy = kernels::create_policy<kernels::EvictionPriority::kEvictFirst>();
  float sums[kRows] = {};
  int64_t done = 0;
  if constexpr (kVectors) {
    constexpr int64_t kStep = int64_t{32} * kWidth;
    for (; done + kLoadsInFlight * kStep <= k; done += kLoadsInFlight * kStep) {
      Wide<T> loaded[kLoadsInFlight];
#pragma unroll
      for (int i = 0; i < kLoadsInFlight; ++i) {
        loaded[i] = kernels::load(reinterpret_cast<const Wide<T>*>(of_b + done + i * kStep + lane * kWidth), policy);
      }
#pragma unroll
      for (int i = 0; i < kLoadsInFlight; ++i) {
        multiply_along<T, kRows>(sums, loaded[i], rows, done + i * kStep + lane * kWidth);
      }
    }
    for (; done + kStep <= k; done += kStep) {
      const auto wide = kernels::load(reinterpret_cast<const Wide<T>*>(of_b + done + lane * kWidth), policy);
      multiply_along<T, kRows>(sums, wide, rows, done + lane * kWidth);
    }
  }
  for (int64_t i = done + lane; i < k; i += 32) {
    const float value = static_cast<float>(of_b[i]);
#pragma unroll
    for (int row = 0; row < kRows; ++row) {
      sums[row] = fmaf(static_cast<float>(rows.row(row)[i]), value, sums[row]);
    }
  }
#pragma unroll
  for (int row = 0; row < kRows; ++row) {
    const float total = warp_sum(sums[row]);
    if (lane == 0 && row < m) {
      out[row * n + column] = static_cast<T>(total);
    }
  }
}

// A block a strip of kColumns columns of a row-major b. Thread t owns the kWidth columns from (t % across) * kWidth of
// every rows_at_once-th row, from t / across. kWidth is 1 where rows are not aligned.
//
// The lanes of a warp that own the same columns add up their sums by shuffles, the warps in shared memory, where a slot
// holds the sums of 32 threads, or of those that are side by side where these are more.
template <typename T, int kRows, int kColumns, int kWidth>
__global__ void __launch_bounds__(kMostThreads<kRows>) down_rows(const T* a, const T* b, T* out, int64_t m, int64_t n, int64_t k, int64_t b_row) {
  extern __shared__ float sums_of_slots[];  // [slots][kRows][kColumns]
  using Piece = kernels::Vector<T, kWidth>;
  constexpr int kAcross = kColumns / kWidth;
  constexpr int kDeep = kRows * kWidth > 32 ? kLoadsInFlight / 2 : kLoadsInFlight;
  const int rows_at_once = static_cast<int>(blockDim.x) / kAcross;
  const int depth = static_cast<int>(threadIdx.x) / kAcross;
  const int own = static_cast<int>(threadIdx.x) % kAcross * kWidth;
  const int64_t column = static_cast<int64_t>(blockIdx.x) * kColumns + own;
  const uint64_t policy = kernels::create_policy<kernels::EvictionPriority::kEvictFirst>();
  const Rows<T> rows{a, m, k};
  float sums[kRows][kWidth] = {};
  const auto multiply = [&](const Piece& piece, int64_t at) {
#pragma unroll
    for (int row = 0; row < kRows; ++row) {
      const float of_a = static_cast<float>(rows.row(row)[at]);
#pragma unroll
      for (int i = 0; i < kWidth; ++i) {
        sums[row][i] = fmaf(of_a, static_cast<float>(piece.values[i]), sums[row][i]);
      }
    }
  };
  // n is a multiple of kWidth, so that a piece is inside or outside as a whole.
  if (column < n) {
    const auto* const from = b + column;
    int64_t at = depth;
    for (; at + (kDeep - 1) * rows_at_once < k; at += kDeep * rows_at_once) {
      Piece loaded[kDeep];
#pragma unroll
      for (int i = 0; i < kDeep; ++i) {
        loaded[i] = kernels::load(reinterpret_cast<const Piece*>(from + (at + i * rows_at_once) * b_row), policy);
      }
#pragma unroll
      for (int i = 0; i < kDeep; ++i) {
        multiply(loaded[i], at + i * rows_at_once);
      }
    }
    for (; at < k; at += rows_at_once) {
      multiply(kernels::load(reinterpret_cast<const Piece*>(from + at * b_row), policy), at);
    }
  }
  constexpr int kSlotThreads = kSlot<kAcross>;
  float* const slot = sums_of_slots + threadIdx.x / kSlotThreads * kRows * kColumns;
#pragma unroll
  for (int row = 0; row < kRows; ++row) {
#pragma unroll
    for (int i = 0; i < kWidth; ++i) {
      float total = sums[row][i];
#pragma unroll
      for (int distance = kAcross; distance < 32; distance *= 2) {
        total += __shfl_xor_sync(0xffffffffu, total, distance);
      }
      if (kAcross >= 32 || threadIdx.x % 32 < kAcross) {
        slot[row * kColumns + own + i] = total;
      }
    }
  }
  __syncthreads();
  // A thread an element of the output.
  const int slots = static_cast<int>(blockDim.x) / kSlotThreads;
  for (int element = threadIdx.x; element < kRows * kColumns; element += blockDim.x) {
    const int row = element / kColumns;
    const int64_t to = static_cast<int64_t>(blockIdx.x) * kColumns + element % kColumns;
    if (to < n && row < m) {
      float total = 0.0f;
      for (int i = 0; i < slots; ++i) {
        total += sums_of_slots[i * kRows * kColumns + element];
      }
      out[row * n + to] = static_cast<T>(total);
    }
  }
}

template <typename T>
struct Operands {
  const T* a;
  const T* b;
  T* out;
  int64_t m;
  int64_t n;
  int64_t k;
  int64_t b_step;  // between b's columns where it is column-major, else between its rows
  bool vectors;
};

template <typename T, int kRows>
void launch_along_columns(const Operands<T>& of, unsigned threads, cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>(kernels::ceil_div(of.n, threads / 32)));
  auto* const function = of.vectors ? along_columns<T, kRows, true> : along_columns<T, kRows, false>;
  function<<<grid, threads, 0, stream>>>(of.a, of.b, of.out, of.m, of.n, of.k, of.b_step);
  kernels::record_launch("along_columns", "a warp a column", grid, dim3(threads));
}

template <typename T, int kRows, int kColumns, int kWidth>
void launch_down_rows(const Operands<T>& of, unsigned threads, cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>(kernels::ceil_div(of.n, kColumns)));
  constexpr unsigned kThreads = kSlot<kColumns / kWidth>;
  threads = std::max(threads, kThreads);
  auto* const function = down_rows<T, kRows, kColumns, kWidth>;
  const size_t shared_bytes = sizeof(float) * kRows * kColumns * (threads / kThreads);
  kernels::require(cudaFuncSetAttribute(function, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                        static_cast<int>(shared_bytes)) == cudaSuccess,
                   "matmul::cuda_gemv needs " + std::to_string(shared_bytes) + " bytes of shared memory");
  function<<<grid, threads, shared_bytes, stream>>>(of.a, of.b, of.out, of.m, of.n, of.k, of.b_step);
  kernels::record_launch("down_rows", "a block a strip of columns", grid, dim3(threads), 1,
                         static_cast<int64_t>(shared_bytes));
}

template <typename T, int kRows>
void launch(const Operands<T>& of, bool is_column_major, int64_t columns, unsigned threads, cudaStream_t stream) {
  constexpr int kWidth = kernels::kVectorWidth<T>;
  kernels::require(threads <= kMostThreads<kRows>,
                   "matmul::cuda_gemv takes at most " + std::to_string(kMostThreads<kRows> / 32) + " warps with " +
                       std::to_string(of.m) + " rows of a, not " + std::to_string(threads / 32));
  if (is_column_major) {
    launch_along_columns<T, kRows>(of, threads, stream);
  } else if (!of.vectors) {
    launch_down_rows<T, kRows, 64, 1>(of, threads, stream);
  } else if (columns == 32) {
    launch_down_rows<T, kRows, 32, kWidth>(of, threads, stream);
  } else if (columns == 64) {
    launch_down_rows<T, kRows, 64, kWidth>(of, threads, stream);
  } else {
    launch_down_rows<T, kRows, 128, kWidth>(of, threads, stream);
  }
}

// Calls f with the smallest number of rows that a kernel is there for.
template <typename F>
void with_rows(int64_t rows, const F& f) {
  if (rows == 1) {
    f(std::integral_constant<int, 1>{});
  } else if (rows <= 4) {
    f(std::integral_constant<int, 4>{});
  } else {
    f(std::integral_constant<int, 8>{});
  }
}

kernels::Tensor cuda_gemv(const kernels::Tensor& a, const kernels::Tensor& b, int64_t columns, int64_t num_warps) {
  kernels::require(a.dim() == 2 && b.dim() == 2 && a.size(1) == b.size(0) && a.scalar_type() == b.scalar_type() &&
                       a.get_device_index() == b.get_device_index(),
                   "matmul::cuda_gemv takes an m x k and a k x n tensor of one dtype on one device");
  kernels::require(a.size(0) <= kMostRows,
                   "matmul::cuda_gemv takes at most 8 rows of a, not " + std::to_string(a.size(0)));
  kernels::require(columns == 32 || columns == 64 || columns == 128,
                   "columns must be 32, 64 or 128, not " + std::to_string(columns));
  kernels::check_launch_parameters(columns, num_warps);
  const torch::stable::accelerator::DeviceGuard guard(a.get_device_index());
  const bool is_column_major = b.stride(0) == 1 && b.stride(1) >= b.size(0);
  const kernels::Tensor left = torch::stable::contiguous(a);
  const kernels::Tensor right = is_column_major ? b : torch::stable::contiguous(b);
  const kernels::Tensor result = torch::stable::new_empty(left, {left.size(0), right.size(1)});
  if (result.numel() == 0) {
    return result;
  }
  kernels::with_element_type(left, [&](auto element) {
    using T = decltype(element);
    constexpr int kWidth = kernels::kVectorWidth<T>;
    Operands<T> of{kernels::input<T>(left), kernels::input<T>(right), kernels::output<T>(result),
                   left.size(0),            right.size(1),            left.size(1),
                   right.stride(is_column_major ? 1 : 0),             false};
    // Pieces along k lie beside those of a; pieces of a row lie above each other.
    of.vectors = kernels::aligned_to_16(of.b) && of.b_step % kWidth == 0 &&
                 (is_column_major ? kernels::aligned_to_16(of.a) && of.k % kWidth == 0 : of.n % kWidth == 0);
    with_rows(left.size(0), [&](auto rows) {
      launch<T, decltype(rows)::value>(of, is_column_major, columns, static_cast<unsigned>(num_warps) * 32,
                                       kernels::current_stream(left));
    });
    kernels::check_launched("matmul::cuda_gemv");
  });
  return result;
}

kernels::Tensor meta_gemv(const kernels::Tensor& a, const kernels::Tensor& b, int64_t, int64_t) {
  return torch::stable::new_empty(a, {a.size(0), b.size(1)});
}

}  // namespace matmul

STABLE_TORCH_LIBRARY_FRAGMENT(matmul, m) {
  m.def("cuda_gemv(Tensor a, Tensor b, int columns, int num_warps) -> Tensor");
}

STABLE_TORCH_LIBRARY_IMPL(matmul, Meta, m) { m.impl("cuda_gemv", TORCH_BOX(&matmul::meta_gemv)); }

STABLE_TORCH_LIBRARY_IMPL(matmul, CUDA, m) { m.impl("cuda_gemv", TORCH_BOX(&matmul::cuda_gemv)); }
