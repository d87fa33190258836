// The weight and the bias of the elements of a row, and writing the answer for these.
#pragma once

#include <cstdint>

#include "rows_elements.cuh"

namespace kernels {

// 16 bytes from wherever an element may begin: the aligned 16 bytes on either side, shifted. What is read before the
// elements lies in their allocation, which begins at a multiple of 16 bytes. Behind them there have to be as many.
template <typename T>
__device__ uint4 load_across(const T* from) {
  const auto address = reinterpret_cast<std::uintptr_t>(from);
  const auto shift = static_cast<unsigned>(address % 16);
  const auto* aligned = reinterpret_cast<const uint4*>(address - shift);
  const uint4 low = __ldg(aligned);
  const uint4 high = shift == 0 ? low : __ldg(aligned + 1);
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
  if constexpr (sizeof(T) == 2) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      words[i] = __funnelshift_r(words[i], words[i + 1], 8 * (shift & 2));
    }
  }
  return {words[0], words[1], words[2], words[3]};
}

// N neighbouring elements of a row's weight or bias. Every row uses them again, so they stay in the caches; no kernel
// writes them, so that the compiler may load them before it has stored what comes before. With kPolicy L2 is told to
// keep them. With kWritten the launch before this one writes them: they are not read-only then, and are loaded where the
// program says, after the wait for that launch. (The assembler moves read-only loads to before it.)
template <bool kAligned, bool kPolicy, bool kWritten, typename T, int N>
__device__ Bits<T, N> parameters(const T* from, uint64_t policy) {
  static_assert(!kWritten || (kAligned && N * sizeof(T) == 16));
  if constexpr (kWritten) {
    uint4 bits;
    if constexpr (kPolicy) {
      asm volatile("ld.global.L2::cache_hint.v4.u32 {%0, %1, %2, %3}, [%4], %5;"
                   : "=r"(bits.x), "=r"(bits.y), "=r"(bits.z), "=r"(bits.w)
                   : "l"(from), "l"(policy));
    } else {
      asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                   : "=r"(bits.x), "=r"(bits.y), "=r"(bits.z), "=r"(bits.w)
                   : "l"(from));
    }
    return bits;
  } else if constexpr (kAligned && kPolicy && N * sizeof(T) == 16) {
    uint4 bits;
    asm("ld.global.nc.L2::cache_hint.v4.u32 {%0, %1, %2, %3}, [%4], %5;"
        : "=r"(bits.x), "=r"(bits.y), "=r"(bits.z), "=r"(bits.w)
        : "l"(from), "l"(policy));
    return bits;
  } else if constexpr (kAligned || N == 1) {
    return __ldg(reinterpret_cast<const Bits<T, N>*>(from));
  } else {
    return load_across(from);
  }
}

// Where the columns of a row find their weight and bias.
template <typename T>
struct Parameters {
  const T* weight;
  const T* bias;
};

template <typename T, typename Op>
__host__ __device__ Parameters<T> parameters_of(const Op& op) {
  Parameters<T> of{};
  if constexpr (Op::kWeight) {
    of.weight = op.weight;
  }
  if constexpr (Op::kBias) {
    of.bias = op.bias;
  }
  return of;
}

// Whether an operation's parameters lie as the packs of every row do (rows_shifted.cuh). Where rows have no edges, all
// do.
template <typename Op>
constexpr bool kShifted = false;
template <typename Op, bool kEdges>
constexpr bool kParametersAligned = !kEdges || kShifted<Op>;

// Whether the last whole pack of a row is taken element by element: its parameters may be the last ones there are, and
// 16 bytes of these that lie anywhere are not read without what lies behind them.
template <typename Op, bool kEdges>
constexpr bool kSpareLast = Op::kWeight && !kParametersAligned<Op, kEdges>;

// Where the columns of a row's packs find theirs; `head` is where the first of these begins.
template <typename T, typename Op>
__device__ Parameters<T> parameters_of_packs(const Op& op, int head) {
  if constexpr (kShifted<Op>) {
    return op.beginning_at(head);
  } else {
    return parameters_of<T>(op);
  }
}

// What an operation has for N neighbouring columns: their weight and bias, if it has these.
template <typename Op, typename T, int N>
struct Factors {
  Bits<T, N> weight;
  Bits<T, N> bias;

  template <bool kAligned, bool kPolicy, typename Index>
  __device__ void load(const Parameters<T>& of, Index column, uint64_t policy) {
    if constexpr (Op::kWeight) {
      weight = parameters<kAligned, kPolicy, kAligned && kShifted<Op>, T, N>(of.weight + column, policy);
    }
    if constexpr (Op::kBias) {
      bias = parameters<kAligned, kPolicy, kAligned && kShifted<Op>, T, N>(of.bias + column, policy);
    }
  }

  // Keeps those of 16 bits as they are: the compiler would convert them once for all rows, into twice the registers.
  __device__ void pin() {
    if constexpr (sizeof(T) == 2) {
      if constexpr (Op::kWeight) {
        forget(weight);
      }
      if constexpr (Op::kBias) {
        forget(bias);
      }
    }
  }

  __device__ Pack<T, N> answer(const float (&values)[N], const Op& op, const typename Op::Row& about) const {
    float weights[N];
    float biases[N];
    if constexpr (Op::kWeight) {
      unpack<T, N>(weight, weights);
    }
    if constexpr (Op::kBias) {
      unpack<T, N>(bias, biases);
    }
    Pack<T, N> pack;
#pragma unroll
    for (int j = 0; j < N; ++j) {
      pack.values[j] = static_cast<T>(
          op.result(values[j], Op::kWeight ? weights[j] : 1.0f, Op::kBias ? biases[j] : 0.0f, about));
    }
    return pack;
  }
};

// The factors of the next `kAhead` packs that a thread will write. They are loaded before they are wanted, the first
// ones while the row itself is still under way. With none ahead, they are loaded as they are wanted.
template <typename Op, typename T, int V, int kAhead, bool kPolicy>
struct FactorsAhead {
  const Parameters<T> from;
  const uint64_t policy;
  Factors<Op, T, V> of[kAhead > 0 ? kAhead : 1];

  __device__ FactorsAhead(const Parameters<T>& parameters, Caching beside)
      : from(parameters), policy(policy_beside(beside)) {}

  // Those of a thread's first packs; `column` is where the packs of the place begin.
  template <bool kAligned, int K, typename Index>
  __device__ void start(Index column, const Place<Index>& place) {
#pragma unroll
    for (int k = 0; k < (K < kAhead ? K : kAhead); ++k) {
      const Index pack = place.first + k * place.step;
      if (pack < place.end) {
        of[k].template load<kAligned, kPolicy>(from, column + pack * V, policy);
      }
    }
  }

  // The answer for a pack, a thread's `k`th as the compiler knows; `more` may follow.
  template <bool kAligned, typename Index>
  __device__ Pack<T, V> answer(int k, const float (&values)[V], const Op& op, const typename Op::Row& about,
                               Index column, const Place<Index>& place, Index pack, bool more) {
    if constexpr (kAhead == 0) {
      of[0].template load<kAligned, kPolicy>(from, column + pack * V, policy);
      return of[0].answer(values, op, about);
    } else {
      const Pack<T, V> answer = of[k % kAhead].answer(values, op, about);
      const Index next = pack + kAhead * place.step;
      if (more && next < place.end) {
        of[k % kAhead].template load<kAligned, kPolicy>(from, column + next * V, policy);
      }
      return answer;
    }
  }
};

// The answer for a thread's edge, if it has one.
template <typename Op, int V, typename T, typename Index, typename Elements>
__device__ void write_edge(T* row, const Cut<Index>& cut, Index edge, const Elements& elements, const Op& op,
                           const typename Op::Row& about) {
  if (elements.has_edge) {
    const Index column = edge_column<V>(cut, edge);
    const float values[1] = {elements.edge};
    Factors<Op, T, 1> factors;
    factors.template load<false, false>(parameters_of<T>(op), column, 0);
    row[column] = factors.answer(values, op, about).values[0];
  }
}

// The answer for a thread's elements, in registers.
template <typename Op, int K, bool kEdges, typename T, int V, int kAhead, bool kPolicy, typename Index,
          typename Elements>
__device__ void write(T* row, const Cut<Index>& cut, const Place<Index>& place, uint64_t policy, const Elements& chunk,
                      FactorsAhead<Op, T, V, kAhead, kPolicy>& factors, const Op& op,
                      const typename Op::Row& about) {
  auto* const to = reinterpret_cast<Pack<T, V>*>(row + cut.head) + place.first;
#pragma unroll
  for (int k = 0; k < K; ++k) {
    if (k < chunk.packs) {
      const Index pack = place.first + k * place.step;
      float values[V];
      chunk.take(k, values);
      store(to + k * place.step,
            factors.template answer<kParametersAligned<Op, kEdges>>(k, values, op, about, cut.head, place, pack,
                                                                    k + kAhead < K),
            policy);
    }
  }
  if constexpr (kEdges) {
    write_edge<Op, V>(row, cut, place.edge, chunk, op, about);
  }
}

// The answer for a thread's elements, in shared memory. `column` is where the block's packs begin.
template <typename Op, bool kEdges, typename T, int V, int kAhead, bool kPolicy>
__device__ void write(T* row, const Cut<int>& cut, int column, uint64_t policy, const Staged<T, V, kEdges>& staged,
                      FactorsAhead<Op, T, V, kAhead, kPolicy>& factors, const Op& op, const typename Op::Row& about) {
  // Packs that are read from shared memory before the first is used.
  constexpr int kTogether = !Op::kWeight ? 8 : kAhead > 0 ? kAhead : 4;
  const Place<int>& place = staged.place;
  auto* const to = reinterpret_cast<Pack<T, V>*>(row + column);
  for (int first = place.first; first < place.end; first += kTogether * place.step) {
    Bits<T, V> packs[kTogether];
#pragma unroll
    for (int k = 0; k < kTogether; ++k) {
      if (first + k * place.step < place.end) {
        packs[k] = staged.packs[first + k * place.step];
      }
    }
#pragma unroll
    for (int k = 0; k < kTogether; ++k) {
      const int pack = first + k * place.step;
      if (pack < place.end) {
        float values[V];
        unpack<T, V>(packs[k], values);
        store(to + pack,
              factors.template answer<kParametersAligned<Op, kEdges>>(k, values, op, about, column, place, pack, true),
              policy);
      }
    }
  }
  if constexpr (kEdges) {
    write_edge<Op, V>(row, cut, place.edge, staged, op, about);
  }
}

}  // namespace kernels
