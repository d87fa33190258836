// The matrix product on the CPU, after Goto and van de Geijn, "Anatomy of high-performance matrix multiplication",
// 2008. A thread takes blocks of the output. It keeps a block's float32 sums and a panel of b in L2, the panel made
// float32 and copied into strips, so that the innermost loop reads it in order, and a strip of rows of a in L1. The
// innermost loop adds the products of a few rows and a strip to sums in registers: each number that is loaded is used
// several times there, so that multiplying is the limit. The multiplications are float32's, except where the CPU has
// vdpbf16ps: that adds the products of two bfloat16 pairs to a float32, twice as many a cycle. It takes subnormal
// numbers as zeros.
#include <algorithm>
#include <vector>

#include "../include/pieces.h"

namespace {

using kernels::kLanes;
using kernels::Lanes;
using torch::headeronly::BFloat16;

// A block of the output, and how many products are added at a time.
constexpr int64_t kRows = 192;
constexpr int64_t kColumns = 256;
constexpr int64_t kDepth = 192;

// The sums in registers: rows, and Lanes in a row. AVX-512 has 32 registers of a Lanes, AVX2 16 of half a one, others
// 16 or more of a quarter; two or three are for a strip of b and a number of a.
template <typename Set>
constexpr int64_t kTileRows = 2;
template <typename Set>
constexpr int64_t kTileLanes = 1;
template <>
constexpr int64_t kTileRows<kernels::Avx2> = 6;
template <>
constexpr int64_t kTileRows<kernels::Avx512> = 12;
template <>
constexpr int64_t kTileLanes<kernels::Avx512> = 2;
template <>
constexpr int64_t kTileRows<kernels::Avx512Bfloat16> = kTileRows<kernels::Avx512>;
template <>
constexpr int64_t kTileLanes<kernels::Avx512Bfloat16> = kTileLanes<kernels::Avx512>;

// What a set multiplies: numbers of one depth, or a word of two bfloat16 of neighbouring depths, the first in its low
// half.
template <typename Set>
struct Factor {
  using Type = float;
  static constexpr int64_t kDepths = 1;
};
template <>
struct Factor<kernels::Avx512Bfloat16> {
  using Type = uint32_t;
  static constexpr int64_t kDepths = 2;
};
static_assert(kDepth % Factor<kernels::Avx512Bfloat16>::kDepths == 0);

// How many factors a range of depths makes; zeros fill the last one.
template <typename Set>
constexpr int64_t factors_of(int64_t depth) {
  return (depth + Factor<Set>::kDepths - 1) / Factor<Set>::kDepths;
}

template <typename T>
struct Matrix {
  const T* elements;
  int64_t row_stride;
  int64_t column_stride;

  const T* at(int64_t row, int64_t column) const { return elements + row * row_stride + column * column_stride; }
};

// Rows and columns of a block, from first to before last.
struct Range {
  int64_t first;
  int64_t last;

  int64_t size() const { return last - first; }
};

// A range of b as strips of a tile's columns: depth by depth, padded with zeros.
template <typename Set, typename T>
KERNELS_INLINE inline void pack_b(Set set, const Matrix<T>& b, Range depth, Range columns, float* panel) {
  constexpr int64_t kWidth = kTileLanes<Set> * kLanes;
  float room[kWidth];
  for (int64_t left = columns.first; left < columns.last; left += kWidth) {
    const int64_t count = std::min(kWidth, columns.last - left);
    for (int64_t k = depth.first; k < depth.last; ++k, panel += kWidth) {
      const float* const row = kernels::widen(set, b.at(k, left), b.column_stride, count, room);
      std::copy(row, row + count, panel);
      std::fill(panel + count, panel + kWidth, 0.0f);
    }
  }
}

// Rows of a, at most a tile's, as a strip: depth by depth, padded with zeros.
template <typename Set, typename T>
KERNELS_INLINE inline void pack_a(Set set, const Matrix<T>& a, Range rows, Range depth, float* strip) {
  float room[kDepth];
  std::fill(strip, strip + depth.size() * kTileRows<Set>, 0.0f);
  for (int64_t row = 0; row < rows.size(); ++row) {
    const T* const from = a.at(rows.first + row, depth.first);
    const float* const in = kernels::widen(set, from, a.column_stride, depth.size(), room);
    for (int64_t k = 0; k < depth.size(); ++k) {
      strip[k * kTileRows<Set> + row] = in[k];
    }
  }
}

using kernels::Avx512Bfloat16;

KERNELS_INLINE inline uint32_t pair(BFloat16 low, BFloat16 high) { return low.x | uint32_t{high.x} << 16; }

KERNELS_INLINE inline void pack_b(Avx512Bfloat16, const Matrix<BFloat16>& b, Range depth, Range columns,
                                  uint32_t* panel) {
  constexpr int64_t kWidth = kTileLanes<Avx512Bfloat16> * kLanes;
  for (int64_t left = columns.first; left < columns.last; left += kWidth) {
    const int64_t count = std::min(kWidth, columns.last - left);
    for (int64_t k = depth.first; k < depth.last; k += 2, panel += kWidth) {
      const BFloat16* const low = b.at(k, left);
      const bool has_high = k + 1 < depth.last;
      const BFloat16* const high = b.at(has_high ? k + 1 : k, left);
      if (b.column_stride == 1 && has_high) {
        for (int64_t i = 0; i < count; ++i) {
          panel[i] = pair(low[i], high[i]);
        }
      } else {
        for (int64_t i = 0; i < count; ++i) {
          panel[i] = pair(low[i * b.column_stride], has_high ? high[i * b.column_stride] : BFloat16(0.0f));
        }
      }
      std::fill(panel + count, panel + kWidth, 0u);
    }
  }
}

KERNELS_INLINE inline void pack_a(Avx512Bfloat16, const Matrix<BFloat16>& a, Range rows, Range depth, uint32_t* strip) {
  constexpr int64_t kHeight = kTileRows<Avx512Bfloat16>;
  std::fill(strip, strip + factors_of<Avx512Bfloat16>(depth.size()) * kHeight, 0u);
  for (int64_t row = 0; row < rows.size(); ++row) {
    uint32_t* to = strip + row;
    for (int64_t k = depth.first; k < depth.last; k += 2, to += kHeight) {
      const bool has_high = k + 1 < depth.last;
      *to = pair(*a.at(rows.first + row, k), has_high ? *a.at(rows.first + row, k + 1) : BFloat16(0.0f));
    }
  }
}

#if defined(__x86_64__)
// Adds the products of a strip of a and one of b to a tile of the block's sums.
KERNELS_AVX512_BFLOAT16 inline void multiply(Avx512Bfloat16, int64_t factors, const uint32_t* a, const uint32_t* b,
                                             float* sums) {
  constexpr int64_t kHeight = kTileRows<Avx512Bfloat16>;
  constexpr int64_t kWidth = kTileLanes<Avx512Bfloat16>;
  __m512 tile[kHeight][kWidth];
#pragma GCC unroll 12
  for (int64_t row = 0; row < kHeight; ++row) {
#pragma GCC unroll 2
    for (int64_t i = 0; i < kWidth; ++i) {
      tile[row][i] = _mm512_loadu_ps(sums + row * kColumns + i * kLanes);
    }
  }
  for (int64_t k = 0; k < factors; ++k, a += kHeight, b += kWidth * kLanes) {
    __m512bh strip[kWidth];
#pragma GCC unroll 2
    for (int64_t i = 0; i < kWidth; ++i) {
      strip[i] = (__m512bh)_mm512_loadu_si512(b + i * kLanes);
    }
#pragma GCC unroll 12
    for (int64_t row = 0; row < kHeight; ++row) {
      const __m512bh own = (__m512bh)_mm512_set1_epi32(static_cast<int>(a[row]));
#pragma GCC unroll 2
      for (int64_t i = 0; i < kWidth; ++i) {
        tile[row][i] = _mm512_dpbf16_ps(tile[row][i], own, strip[i]);
      }
    }
  }
#pragma GCC unroll 12
  for (int64_t row = 0; row < kHeight; ++row) {
#pragma GCC unroll 2
    for (int64_t i = 0; i < kWidth; ++i) {
      _mm512_storeu_ps(sums + row * kColumns + i * kLanes, tile[row][i]);
    }
  }
}
#endif

// Adds the products of a strip of a and one of b to a tile of the block's sums.
template <typename Set>
KERNELS_INLINE inline void multiply(Set, int64_t depth, const float* a, const float* b, float* sums) {
  constexpr int64_t kHeight = kTileRows<Set>;
  constexpr int64_t kWidth = kTileLanes<Set>;
  Lanes tile[kHeight][kWidth];
#pragma GCC unroll 12
  for (int64_t row = 0; row < kHeight; ++row) {
#pragma GCC unroll 2
    for (int64_t i = 0; i < kWidth; ++i) {
      tile[row][i] = kernels::load(sums + row * kColumns + i * kLanes);
    }
  }
  for (int64_t k = 0; k < depth; ++k, a += kHeight, b += kWidth * kLanes) {
#pragma GCC unroll 12
    for (int64_t row = 0; row < kHeight; ++row) {
#pragma GCC unroll 2
      for (int64_t i = 0; i < kWidth; ++i) {
        tile[row][i] += a[row] * kernels::load(b + i * kLanes);
      }
    }
  }
#pragma GCC unroll 12
  for (int64_t row = 0; row < kHeight; ++row) {
#pragma GCC unroll 2
    for (int64_t i = 0; i < kWidth; ++i) {
      kernels::store(tile[row][i], sums + row * kColumns + i * kLanes);
    }
  }
}

// A block of the output. `panel` has room for kDepth by kColumns, `sums` for kRows by kColumns.
template <typename Set, typename T>
KERNELS_INLINE inline void block(Set set, const Matrix<T>& a, const Matrix<T>& b, T* out, int64_t n, int64_t k,
                                 Range rows, Range columns, typename Factor<Set>::Type* panel, float* sums) {
  constexpr int64_t kHeight = kTileRows<Set>;
  constexpr int64_t kWidth = kTileLanes<Set> * kLanes;
  typename Factor<Set>::Type strip[kDepth / Factor<Set>::kDepths * kHeight];
  std::fill(sums, sums + kRows * kColumns, 0.0f);
  for (int64_t start = 0; start < k; start += kDepth) {
    const Range depth{start, std::min(start + kDepth, k)};
    const int64_t factors = factors_of<Set>(depth.size());
    pack_b(set, b, depth, columns, panel);
    for (int64_t top = rows.first; top < rows.last; top += kHeight) {
      pack_a(set, a, {top, std::min(top + kHeight, rows.last)}, depth, strip);
      for (int64_t left = 0; left < columns.size(); left += kWidth) {
        multiply(set, factors, strip, panel + left * factors, sums + (top - rows.first) * kColumns + left);
      }
    }
  }
  for (int64_t row = rows.first; row < rows.last; ++row) {
    const float* const from = sums + (row - rows.first) * kColumns;
    T* const to = out + row * n + columns.first;
    if constexpr (std::is_same_v<T, float>) {
      std::copy(from, from + columns.size(), to);
    } else {
      kernels::narrow(set, from, to, columns.size());
    }
  }
}

kernels::Tensor empty_product(const kernels::Tensor& a, const kernels::Tensor& b) {
  return torch::stable::new_empty(a, {a.size(0), b.size(1)});
}

kernels::Tensor matmul(const kernels::Tensor& a, const kernels::Tensor& b) {
  kernels::require(a.dim() == 2 && b.dim() == 2 && a.size(1) == b.size(0) && a.scalar_type() == b.scalar_type(),
                   "matmul::cpp takes an m x k and a k x n tensor of one dtype");
  const kernels::Tensor result = empty_product(a, b);
  const int64_t m = a.size(0);
  const int64_t n = b.size(1);
  const int64_t k = a.size(1);
  kernels::with_element_type(a, [&](auto element) {
    using T = decltype(element);
    const Matrix<T> from_a{kernels::input<T>(a), a.stride(0), a.stride(1)};
    const Matrix<T> from_b{kernels::input<T>(b), b.stride(0), b.stride(1)};
    T* const to = kernels::output<T>(result);
    const int64_t across = (n + kColumns - 1) / kColumns;
    const int64_t down = (m + kRows - 1) / kRows;
    constexpr bool kPairs = std::is_same_v<T, BFloat16>;
    kernels::parallel_simd<kPairs>(across * down, 1, [=](auto set, int64_t begin, int64_t end) KERNELS_INLINE {
      std::vector<typename Factor<decltype(set)>::Type> panel(kDepth * kColumns);
      std::vector<float> sums(kRows * kColumns);
      for (int64_t i = begin; i < end; ++i) {
        const int64_t top = i / across * kRows;
        const int64_t left = i % across * kColumns;
        block(set, from_a, from_b, to, n, k, {top, std::min(top + kRows, m)}, {left, std::min(left + kColumns, n)},
              panel.data(), sums.data());
      }
    });
  });
  return result;
}

}  // namespace

STABLE_TORCH_LIBRARY_FRAGMENT(matmul, m) { m.def("cpp(Tensor a, Tensor b) -> Tensor"); }
STABLE_TORCH_LIBRARY_IMPL(matmul, Meta, m) { m.impl("cpp", TORCH_BOX(&empty_product)); }
STABLE_TORCH_LIBRARY_IMPL(matmul, CPU, m) { m.impl("cpp", TORCH_BOX(&matmul)); }
