// A thread's fragment of a row: how a row is cut into vectors of 16 bytes, how a thread loads its elements into
// registers, and how it goes over those that it has in registers or in shared memory.
#pragma once

#include <cmath>
#include <cstdint>
#include <type_traits>

#include "vector_types.cuh"

namespace kernels {

template <typename T>
struct Matrix {
  const T* x;  // rows row_stride elements apart
  T* y;        // contiguous
  int64_t rows;
  int64_t columns;
  int64_t row_stride;
  EvictionPriority eviction;  // of x and y
};

// The alignment peel of a row: an unaligned head, vectors at multiples of their size, an unaligned tail. The elements
// of head and tail are the row's scalars: each is loaded and stored by itself, by a thread of its own. Index is as wide
// as the rows at hand need.
template <typename Index>
struct AlignmentPeel {
  Index head;     // elements before the first vector
  Index vectors;
  Index scalars;  // elements in head and tail
};

// Without kPeel the row begins with a vector and ends with one. With kPeelLastVector the tail has the last vector too.
template <typename T, int V, bool kPeel, bool kPeelLastVector, typename Index>
__device__ AlignmentPeel<Index> peel(const T* row, Index columns) {
  constexpr int kLog2Width = V == 8 ? 3 : V == 4 ? 2 : 0;
  static_assert(1 << kLog2Width == V);
  Index head = 0;
  if constexpr (kPeel) {
    const auto misaligned = static_cast<int>(reinterpret_cast<std::uintptr_t>(row) / sizeof(T)) & (V - 1);
    head = min(static_cast<Index>((V - misaligned) & (V - 1)), columns);
  }
  Index vectors = (columns - head) >> kLog2Width;
  if constexpr (kPeelLastVector) {
    vectors = max(vectors, Index{1}) - 1;
  }
  return {head, vectors, columns - (vectors << kLog2Width)};
}

template <int V, typename Index>
__device__ Index scalar_column(const AlignmentPeel<Index>& peel, Index scalar) {
  return scalar < peel.head ? scalar : scalar + peel.vectors * V;
}

// What a thread takes of a row: the vectors first, first + step, ... below end, and the scalar of that number, if there
// is one.
template <typename Index>
struct ThreadSlice {
  Index first;
  Index end;
  Index step;
  Index scalar;
};

// Calls f(value, i) with each value of a vector, raw or converted; i counts from `index`.
template <typename T, int V, typename Stored, typename F>
__device__ __forceinline__ void visit_vector(Stored& vector, int index, const F& f) {
  if constexpr (std::is_array_v<Stored>) {
#pragma unroll
    for (int j = 0; j < V; ++j) {
      f(vector[j], index + j);
    }
  } else {
    float values[V];
    unpack<T, V>(vector, values);
#pragma unroll
    for (int j = 0; j < V; ++j) {
      f(values[j], index + j);
    }
  }
}

// A fragment offers an operation:
//   for_each(f)           f(value, i) for every value, padding included; i is the place among the thread's values
//   for_each_in_row(f)    the same without padding
//   sample_vector(f)      f for the first vector's values, and returns how many there are
//   count()               values without padding
//   maximum()             of all values
//   first()               one of the values, if there are any

// In registers: K vectors of V elements, and with kPeel a scalar. Converted (kFloats), the operation may replace them.
// Raw, elements of 16 bits take half the registers, and f is given copies.
template <typename T, int V, int K, bool kPeel, bool kFloats>
struct RegisterFragment {
  std::conditional_t<kFloats, float[V], RawVector<T, V>> stored[K];
  float scalar;
  int vectors;  // the first of the K, those in the row; the others are padding
  bool has_scalar;

  template <typename F>
  __device__ __forceinline__ void for_each(const F& f) {
#pragma unroll
    for (int k = 0; k < K; ++k) {
      visit_vector<T, V>(stored[k], k * V, f);
    }
    if constexpr (kPeel) {
      f(scalar, 0);
    }
  }

  template <typename F>
  __device__ __forceinline__ void for_each_in_row(const F& f) const {
#pragma unroll
    for (int k = 0; k < K; ++k) {
      if (k < vectors) {
        visit_vector<T, V>(stored[k], k * V, f);
      }
    }
    if constexpr (kPeel) {
      if (has_scalar) {
        f(scalar, 0);
      }
    }
  }

  template <typename F>
  __device__ __forceinline__ int sample_vector(const F& f) const {
    if (vectors == 0) {
      return 0;
    }
    visit_vector<T, V>(stored[0], 0, f);
    return V;
  }

  __device__ int count() const { return vectors * V + (kPeel && has_scalar ? 1 : 0); }

  __device__ float maximum() const {
    float maximum = kPeel ? scalar : -INFINITY;
#pragma unroll
    for (const auto& vector : stored) {
      visit_vector<T, V>(vector, 0, [&](float value, int) { maximum = fmaxf(maximum, value); });
    }
    return maximum;
  }

  __device__ float first() const {
    float values[V];
    get_vector(0, values);
    return kPeel && vectors == 0 ? scalar : values[0];
  }

  __device__ __forceinline__ void set_vector(int k, const RawVector<T, V>& raw) {
    if constexpr (kFloats) {
      unpack<T, V>(raw, stored[k]);
    } else {
      stored[k] = raw;
    }
  }

  __device__ __forceinline__ void get_vector(int k, float (&values)[V]) const {
    visit_vector<T, V>(stored[k], 0, [&](float value, int j) { values[j] = value; });
  }
};

// In shared memory, where the block has `vectors` and this thread those of `slice`; the scalar is in a register. f is
// given copies. There is no padding.
template <typename T, int V, bool kPeel>
struct SharedFragment {
  const RawVector<T, V>* vectors;
  ThreadSlice<int> slice;
  float scalar;
  bool has_scalar;

  // Four vectors are read before the first is used.
  template <typename F>
  __device__ __forceinline__ void for_each_vector(const F& f) const {
    int i = slice.first;
    for (; i + 3 * slice.step < slice.end; i += 4 * slice.step) {
      RawVector<T, V> batch[4];
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        batch[k] = vectors[i + k * slice.step];
      }
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        f(batch[k]);
      }
    }
    for (; i < slice.end; i += slice.step) {
      f(vectors[i]);
    }
  }

  template <typename F>
  __device__ __forceinline__ void for_each_in_row(const F& f) const {
    for_each_vector([&](const RawVector<T, V>& vector) { visit_vector<T, V>(vector, 0, f); });
    if constexpr (kPeel) {
      if (has_scalar) {
        float value = scalar;
        f(value, 0);
      }
    }
  }

  template <typename F>
  __device__ __forceinline__ void for_each(const F& f) const {
    for_each_in_row(f);
  }

  template <typename F>
  __device__ __forceinline__ int sample_vector(const F& f) const {
    if (slice.first >= slice.end) {
      return 0;
    }
    visit_vector<T, V>(vectors[slice.first], 0, f);
    return V;
  }

  __device__ int count() const {
    const int own = slice.first < slice.end ? (slice.end - slice.first + slice.step - 1) / slice.step : 0;
    return own * V + (kPeel && has_scalar ? 1 : 0);
  }

  // 16-bit elements two at a time.
  __device__ float maximum() const {
    RawVector<T, V> maxima = padding<T, V, true>();
    for_each_vector([&](const RawVector<T, V>& vector) { elementwise_max<T>(maxima, vector); });
    float maximum = kPeel ? scalar : -INFINITY;
    visit_vector<T, V>(maxima, 0, [&](float value, int) { maximum = fmaxf(maximum, value); });
    return maximum;
  }

  __device__ float first() const {
    float value = scalar;
    if (slice.first < slice.end) {
      float values[V];
      unpack<T, V>(vectors[slice.first], values);
      value = values[0];
    }
    return value;
  }
};

// Whether the elements of an operation are converted when they arrive: those that it may replace, and float32 anyway.
template <typename Op, typename T>
constexpr bool kFloats = sizeof(T) > 2 || !std::is_same_v<Op, typename Op::Recompute>;

// All loads of a thread are in flight before the first is used.
template <typename Op, int V, int K, bool kPeel, typename T, typename Index>
__device__ auto load_fragment(const T* row, const AlignmentPeel<Index>& peel, const ThreadSlice<Index>& slice,
                              uint64_t policy) {
  RegisterFragment<T, V, K, kPeel, kFloats<Op, T>> fragment;
  const auto* from = reinterpret_cast<const Vector<T, V>*>(row + peel.head) + slice.first;
  RawVector<T, V> raw[K];
  fragment.vectors = 0;
#pragma unroll
  for (int k = 0; k < K; ++k) {
    raw[k] = padding<T, V, Op::kPadLowest>();
    if (slice.first + k * slice.step < slice.end) {
      raw[k] = load_raw(from + k * slice.step, policy);
      fragment.vectors = k + 1;
    }
  }
  fragment.has_scalar = kPeel && slice.scalar < peel.scalars;
  fragment.scalar = fragment.has_scalar ? static_cast<float>(row[scalar_column<V>(peel, slice.scalar)])
                    : Op::kPadLowest    ? -INFINITY
                                        : 0.0f;
#pragma unroll
  for (int k = 0; k < K; ++k) {
    fragment.set_vector(k, raw[k]);
  }
  return fragment;
}

}  // namespace kernels
