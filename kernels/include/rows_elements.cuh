// The elements of a row that a thread takes, in registers or in shared memory: reading them, and going over them.
#pragma once

#include <cmath>
#include <cstdint>
#include <type_traits>

#include "bits.cuh"

namespace kernels {

template <typename T>
struct Matrix {
  const T* x;          // rows row_stride elements apart
  T* y;                // contiguous
  int64_t rows;
  int64_t columns;
  int64_t row_stride;
  Caching caching;     // of x and y
};

// Elements of a row in a thread's registers: K packs of V elements and, where rows may begin or end inside a pack
// (kEdges), one of the few elements before the first whole pack or after the last. Converted to floats, they may be
// replaced; as they are in memory, elements of 16 bits take half the registers, and are handed out as copies.
template <typename T, int V, int K, bool kEdges, bool kConverted>
struct Chunk {
  std::conditional_t<kConverted, float[V], Bits<T, V>> stored[K];
  float edge;
  int packs;  // the first of the K that lie in the row; the rest are filled
  bool has_edge;

  // Calls f with every value, also with those outside of the row, and its place among a thread's.
  template <typename F>
  __device__ __forceinline__ void each(const F& f) {
#pragma unroll
    for (int k = 0; k < K; ++k) {
      of_pack(stored[k], k, f);
    }
    if constexpr (kEdges) {
      f(edge, 0);
    }
  }

  // Calls f with the values that lie in the row.
  template <typename F>
  __device__ __forceinline__ void each_in_row(const F& f) const {
#pragma unroll
    for (int k = 0; k < K; ++k) {
      if (k < packs) {
        of_pack(stored[k], k, f);
      }
    }
    if constexpr (kEdges) {
      if (has_edge) {
        f(edge, 0);
      }
    }
  }

  // Calls f with some of the values that lie in the row, and returns how many: the first pack.
  template <typename F>
  __device__ __forceinline__ int some(const F& f) const {
    if (packs == 0) {
      return 0;
    }
    of_pack(stored[0], 0, f);
    return V;
  }

  __device__ int count() const { return packs * V + (kEdges && has_edge ? 1 : 0); }

  __device__ float maximum() const {
    float maximum = kEdges ? edge : -INFINITY;
#pragma unroll
    for (const auto& pack : stored) {
      of_pack(pack, 0, [&](float value, int) { maximum = fmaxf(maximum, value); });
    }
    return maximum;
  }

  // One of the values, if there are any.
  __device__ float first() const {
    float values[V];
    take(0, values);
    return kEdges && packs == 0 ? edge : values[0];
  }

  __device__ __forceinline__ void put(int k, const Bits<T, V>& bits) {
    if constexpr (kConverted) {
      unpack<T, V>(bits, stored[k]);
    } else {
      stored[k] = bits;
    }
  }

  __device__ __forceinline__ void take(int k, float (&values)[V]) const {
    of_pack(stored[k], 0, [&](float value, int j) { values[j] = value; });
  }

 private:
  template <typename Stored, typename F>
  __device__ __forceinline__ static void of_pack(Stored& pack, int k, const F& f) {
    if constexpr (kConverted) {
#pragma unroll
      for (int j = 0; j < V; ++j) {
        f(pack[j], k * V + j);
      }
    } else {
      float values[V];
      unpack<T, V>(pack, values);
#pragma unroll
      for (int j = 0; j < V; ++j) {
        f(values[j], k * V + j);
      }
    }
  }
};

// The places of a thread's chunk: packs first, first + step, ... below end; the edge is element `edge` of those in
// head and tail.
template <typename Index>
struct Place {
  Index first;
  Index end;
  Index step;
  Index edge;
};

// Elements of a row in shared memory, where its block has `packs`, and this thread those of `place`. Only the edge is in
// a register. Values are handed out as copies.
template <typename T, int V, bool kEdges>
struct Staged {
  const Bits<T, V>* packs;
  Place<int> place;
  float edge;
  bool has_edge;

  // Calls f with each of the thread's packs. Four are read before the first is used.
  template <typename F>
  __device__ __forceinline__ void each_pack(const F& f) const {
    int i = place.first;
    for (; i + 3 * place.step < place.end; i += 4 * place.step) {
      Bits<T, V> some[4];
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        some[k] = packs[i + k * place.step];
      }
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        f(some[k]);
      }
    }
    for (; i < place.end; i += place.step) {
      f(packs[i]);
    }
  }

  template <typename F>
  __device__ __forceinline__ void each_in_row(const F& f) const {
    each_pack([&](const Bits<T, V>& pack) { of_pack(pack, f); });
    if constexpr (kEdges) {
      if (has_edge) {
        float value = edge;
        f(value, 0);
      }
    }
  }

  template <typename F>
  __device__ __forceinline__ void each(const F& f) const {
    each_in_row(f);
  }

  template <typename F>
  __device__ __forceinline__ int some(const F& f) const {
    if (place.first >= place.end) {
      return 0;
    }
    of_pack(packs[place.first], f);
    return V;
  }

  template <typename F>
  __device__ __forceinline__ static void of_pack(const Bits<T, V>& pack, const F& f) {
    float values[V];
    unpack<T, V>(pack, values);
#pragma unroll
    for (int j = 0; j < V; ++j) {
      f(values[j], j);
    }
  }

  __device__ int count() const {
    const int own = place.first < place.end ? (place.end - place.first + place.step - 1) / place.step : 0;
    return own * V + (kEdges && has_edge ? 1 : 0);
  }

  // Of 16-bit elements two at a time.
  __device__ float maximum() const {
    Bits<T, V> most = filled<T, V, true>();
    each_pack([&](const Bits<T, V>& pack) { take_maximum<T>(most, pack); });
    float maximum = kEdges ? edge : -INFINITY;
    of_pack(most, [&](float value, int) { maximum = fmaxf(maximum, value); });
    return maximum;
  }

  __device__ static float first_of(const Bits<T, V>& pack) {
    float values[V];
    unpack<T, V>(pack, values);
    return values[0];
  }

  __device__ float first() const { return place.first < place.end ? first_of(packs[place.first]) : edge; }
};

// A row cut into packs that start at multiples of their size: `head` elements, `packs` packs, the tail. Index is as
// wide as the rows at hand need.
template <typename Index>
struct Cut {
  Index head;
  Index packs;
  Index edges;  // elements in head and tail, no more than kMostEdges
};

// Elements in the head and the tail of a row. With kSpare the tail has the last whole pack, too.
template <int V, bool kSpare>
constexpr int kMostEdges = 2 * (V - 1) + (kSpare ? V : 0);

template <typename T, int V, bool kEdges, bool kSpare, typename Index>
__device__ Cut<Index> cut(const T* row, Index columns) {
  constexpr int kLog2 = V == 8 ? 3 : V == 4 ? 2 : 0;
  static_assert(1 << kLog2 == V);
  Index head = 0;
  if constexpr (kEdges) {
    const auto misplaced = static_cast<int>(reinterpret_cast<std::uintptr_t>(row) / sizeof(T)) & (V - 1);
    head = min(static_cast<Index>((V - misplaced) & (V - 1)), columns);
  }
  Index packs = (columns - head) >> kLog2;
  if constexpr (kSpare) {
    packs = max(packs, Index{1}) - 1;
  }
  return {head, packs, columns - (packs << kLog2)};
}

template <int V, typename Index>
__device__ Index edge_column(const Cut<Index>& cut, Index edge) {
  return edge < cut.head ? edge : edge + cut.packs * V;
}

// Whether an operation's elements are converted when they arrive: those that it may replace, and floats anyway.
template <typename Op, typename T>
constexpr bool kConverted = sizeof(T) > 2 || !std::is_same_v<Op, typename Op::Unchanged>;

template <typename Op, int V, int K, bool kEdges, typename T, typename Index>
__device__ auto read(const T* row, const Cut<Index>& cut, const Place<Index>& place, uint64_t policy) {
  Chunk<T, V, K, kEdges, kConverted<Op, T>> chunk;
  const auto* from = reinterpret_cast<const Pack<T, V>*>(row + cut.head) + place.first;
  Bits<T, V> packs[K];
  chunk.packs = 0;
#pragma unroll
  for (int k = 0; k < K; ++k) {
    packs[k] = filled<T, V, Op::kFillLowest>();
    if (place.first + k * place.step < place.end) {
      packs[k] = load_bits(from + k * place.step, policy);
      chunk.packs = k + 1;
    }
  }
  chunk.has_edge = kEdges && place.edge < cut.edges;
  chunk.edge = chunk.has_edge      ? static_cast<float>(row[edge_column<V>(cut, place.edge)])
               : Op::kFillLowest ? -INFINITY
                                 : 0.0f;
#pragma unroll
  for (int k = 0; k < K; ++k) {
    chunk.put(k, packs[k]);
  }
  return chunk;
}

}  // namespace kernels
