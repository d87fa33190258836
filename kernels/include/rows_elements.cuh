// The elements of a row that a thread takes, in registers or in shared memory: reading them, going over them, and
// writing the answer for them.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "common.cuh"

namespace kernels {

template <typename T>
struct Matrix {
  const T* x;          // rows row_stride elements apart
  T* y;                // contiguous
  int64_t rows;
  int64_t columns;
  int64_t row_stride;
};

// Elements of a row in a thread's registers: K packs of V elements and, where rows may begin or end inside a pack
// (kEdges), one of the few elements before the first whole pack or after the last.
template <int V, int K, bool kEdges>
struct Chunk {
  float values[K][V];
  float edge;
  int packs;  // the first of the K that lie in the row; the rest hold kFill
  bool has_edge;

  // Calls f with every value, also with those outside of the row.
  template <typename F>
  __device__ __forceinline__ void each(const F& f) {
#pragma unroll
    for (auto& pack : values) {
#pragma unroll
      for (float& value : pack) {
        f(value);
      }
    }
    if constexpr (kEdges) {
      f(edge);
    }
  }

  // Calls f with the values that lie in the row. All lanes of a warp come here together.
  template <typename F>
  __device__ __forceinline__ void each_in_row(const F& f) {
    if (__all_sync(0xffffffffu, packs == K)) {
      each_of_packs(f, [](int) { return true; });
    } else {
      each_of_packs(f, [&](int k) { return k < packs; });
    }
    if constexpr (kEdges) {
      if (has_edge) {
        f(edge);
      }
    }
  }

  template <typename F, typename G>
  __device__ __forceinline__ void each_of_packs(const F& f, const G& in_row) {
#pragma unroll
    for (int k = 0; k < K; ++k) {
      if (in_row(k)) {
#pragma unroll
        for (float& value : values[k]) {
          f(value);
        }
      }
    }
  }

  __device__ int count() const { return packs * V + (kEdges && has_edge ? 1 : 0); }

  __device__ float maximum() const {
    float maximum = kEdges ? edge : -INFINITY;
#pragma unroll
    for (const auto& pack : values) {
#pragma unroll
      for (const float value : pack) {
        maximum = fmaxf(maximum, value);
      }
    }
    return maximum;
  }

  // One of the values, if there are any.
  __device__ float first() const { return values[0][0]; }

  // Calls f with the number of each pack that lies in the row and its values.
  template <typename F>
  __device__ __forceinline__ void each_pack(const F& f) const {
#pragma unroll
    for (int k = 0; k < K; ++k) {
      if (k < packs) {
        f(k, values[k]);
      }
    }
  }
};

// Two 16-bit floats, as CUDA's own types.
template <typename T>
struct PairOf;
template <>
struct PairOf<c10::BFloat16> {
  using Type = __nv_bfloat162;
  __device__ static Type lowest() { return __float2bfloat162_rn(-INFINITY); }
  __device__ static float2 floats(Type pair) { return __bfloat1622float2(pair); }
};
template <>
struct PairOf<c10::Half> {
  using Type = __half2;
  __device__ static Type lowest() { return __float2half2_rn(-INFINITY); }
  __device__ static float2 floats(Type pair) { return __half22float2(pair); }
};

// Elements of a row in shared memory: a thread's own packs, `step` apart. Only the edge is in a register. Values are
// handed out as copies.
template <typename T, int V, bool kEdges>
struct Staged {
  const Pack<T, V>* from;
  int packs;
  int step;
  float edge;
  bool has_edge;

  __device__ void get(int k, float (&values)[V]) const {
    const Pack<T, V> pack = from[k * step];
#pragma unroll
    for (int j = 0; j < V; ++j) {
      values[j] = static_cast<float>(pack.values[j]);
    }
  }

  template <typename F>
  __device__ __forceinline__ void each_pack(const F& f) const {
#pragma unroll 4
    for (int k = 0; k < packs; ++k) {
      float values[V];
      get(k, values);
      f(k, values);
    }
  }

  template <typename F>
  __device__ __forceinline__ void each_in_row(const F& f) const {
    each_pack([&](int, float(&values)[V]) {
#pragma unroll
      for (float& value : values) {
        f(value);
      }
    });
    if constexpr (kEdges) {
      if (has_edge) {
        float value = edge;
        f(value);
      }
    }
  }

  template <typename F>
  __device__ __forceinline__ void each(const F& f) const {
    each_in_row(f);
  }

  __device__ int count() const { return packs * V + (kEdges && has_edge ? 1 : 0); }

  // Of 16-bit elements two at a time.
  __device__ float maximum() const {
    float maximum = kEdges ? edge : -INFINITY;
    if constexpr (sizeof(T) == 2) {
      using Pair = typename PairOf<T>::Type;
      Pair pair = PairOf<T>::lowest();
#pragma unroll 4
      for (int k = 0; k < packs; ++k) {
        const Pack<Pair, V / 2> pack = reinterpret_cast<const Pack<Pair, V / 2>&>(from[k * step]);
#pragma unroll
        for (int j = 0; j < V / 2; ++j) {
          pair = __hmax2(pair, pack.values[j]);
        }
      }
      const float2 both = PairOf<T>::floats(pair);
      return fmaxf(maximum, fmaxf(both.x, both.y));
    } else {
      each_pack([&](int, const float(&values)[V]) {
#pragma unroll
        for (const float value : values) {
          maximum = fmaxf(maximum, value);
        }
      });
      return maximum;
    }
  }

  __device__ float first() const { return packs > 0 ? static_cast<float>(from[0].values[0]) : 0.0f; }
};

// A row cut into packs that start at multiples of their size: `head` elements, `packs` packs, the tail.
struct Cut {
  int64_t head;
  int64_t packs;
  int64_t edges;  // elements in head and tail, fewer than two packs
};

template <typename T, int V, bool kEdges>
__device__ Cut cut(const T* row, int64_t columns) {
  int64_t head = 0;
  if constexpr (kEdges) {
    const auto misplaced = static_cast<int64_t>(reinterpret_cast<std::uintptr_t>(row) / sizeof(T) % V);
    head = min(misplaced == 0 ? int64_t{0} : V - misplaced, columns);
  }
  const int64_t packs = (columns - head) / V;
  return {head, packs, columns - packs * V};
}

// The places of a thread's chunk: packs first, first + step, ... below end; the edge is element `edge` of
// those in head and tail. Index is as wide as the rows at hand need.
template <typename Index>
struct Place {
  Index first;
  Index end;
  Index step;
  Index edge;
};

template <int V>
__device__ int64_t edge_column(const Cut& cut, int64_t edge) {
  return edge < cut.head ? edge : edge + cut.packs * V;
}

template <Caching caching, typename Op, int V, int K, bool kEdges, typename T, typename Index>
__device__ Chunk<V, K, kEdges> read(const T* row, const Cut& cut, const Place<Index>& place) {
  Chunk<V, K, kEdges> chunk;
  const auto* from = reinterpret_cast<const Pack<T, V>*>(row + cut.head) + place.first;
  Pack<T, V> packs[K];
  chunk.packs = 0;
#pragma unroll
  for (int k = 0; k < K; ++k) {
    if (place.first + k * place.step < place.end) {
      packs[k] = load<caching>(from + k * place.step);
      chunk.packs = k + 1;
    }
  }
  chunk.has_edge = kEdges && place.edge < cut.edges;
  chunk.edge = chunk.has_edge ? static_cast<float>(row[edge_column<V>(cut, place.edge)]) : Op::kFill;
#pragma unroll
  for (int k = 0; k < K; ++k) {
#pragma unroll
    for (int j = 0; j < V; ++j) {
      chunk.values[k][j] = k < chunk.packs ? static_cast<float>(packs[k].values[j]) : Op::kFill;
    }
  }
  return chunk;
}

// 16 bytes from wherever an element may begin: the aligned 16 bytes on either side, shifted. What is read beside the
// elements shares its 16 bytes with one of them, and so its allocation.
template <typename T>
__device__ Pack<T, kWidest<T>> load_across(const T* from) {
  const auto address = reinterpret_cast<std::uintptr_t>(from);
  const auto shift = static_cast<unsigned>(address % 16);
  const auto* aligned = reinterpret_cast<const uint4*>(address - shift);
  const uint4 low = aligned[0];
  const uint4 high = shift == 0 ? low : aligned[1];
  unsigned words[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
  if (shift & 8) {
#pragma unroll
    for (int i = 0; i < 6; ++i) {
      words[i] = words[i + 2];
    }
  }
  if (shift & 4) {
#pragma unroll
    for (int i = 0; i < 5; ++i) {
      words[i] = words[i + 1];
    }
  }
  if (shift & 2) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      words[i] = __funnelshift_r(words[i], words[i + 1], 16);
    }
  }
  Pack<T, kWidest<T>> pack;
  memcpy(&pack, words, sizeof(pack));
  return pack;
}

// N neighbouring elements of a row's weight or bias; every row uses them again, so they stay in the caches.
template <bool kAligned, typename T, int N>
__device__ Pack<T, N> parameters(const T* all, int64_t column) {
  if constexpr (kAligned || N == 1) {
    return load<Caching::kNormal>(reinterpret_cast<const Pack<T, N>*>(all + column));
  } else {
    return load_across(all + column);
  }
}

// What an operation has for N neighbouring columns: their weight and bias, if it has these.
template <typename Op, typename T, int N>
struct Factors {
  Pack<T, N> weight;
  Pack<T, N> bias;

  template <bool kAligned>
  __device__ static Factors at(const Op& op, int64_t column) {
    Factors factors;
    if constexpr (Op::kWeight) {
      factors.weight = parameters<kAligned, T, N>(op.weight, column);
    }
    if constexpr (Op::kBias) {
      factors.bias = parameters<kAligned, T, N>(op.bias, column);
    }
    return factors;
  }

  __device__ Pack<T, N> answer(const float (&values)[N], const Op& op, const typename Op::Row& about) const {
    Pack<T, N> pack;
#pragma unroll
    for (int j = 0; j < N; ++j) {
      const float w = Op::kWeight ? static_cast<float>(weight.values[j]) : 1.0f;
      const float b = Op::kBias ? static_cast<float>(bias.values[j]) : 0.0f;
      pack.values[j] = static_cast<T>(op.result(values[j], w, b, about));
    }
    return pack;
  }
};

// The answer for a thread's edge, if it has one.
template <typename Op, int V, typename T, typename Elements>
__device__ void write_edge(T* row, const Cut& cut, int64_t edge, const Elements& elements, const Op& op,
                           const typename Op::Row& about) {
  if (elements.has_edge) {
    const int64_t column = edge_column<V>(cut, edge);
    const float values[1] = {elements.edge};
    row[column] = Factors<Op, T, 1>::template at<false>(op, column).answer(values, op, about).values[0];
  }
}

// The answer for a thread's elements, a Chunk or Staged.
template <typename Op, typename T, int V, bool kEdges, typename Index, typename Elements>
__device__ void write(T* row, const Cut& cut, const Place<Index>& place, const Elements& elements, const Op& op,
                      const typename Op::Row& about) {
  auto* to = reinterpret_cast<Pack<T, V>*>(row + cut.head) + place.first;
  elements.each_pack([&](int k, const float(&values)[V]) {
    const int64_t column = cut.head + static_cast<int64_t>(place.first + k * place.step) * V;
    const auto factors = Factors<Op, T, V>::template at<!kEdges>(op, column);
    store<kTouchedOnce>(to + k * place.step, factors.answer(values, op, about));
  });
  if constexpr (kEdges) {
    write_edge<Op, V>(row, cut, place.edge, elements, op, about);
  }
}

}  // namespace kernels
