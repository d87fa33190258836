// The affine parameters of an operation, its weight and its bias, one number for each column: loading them, ahead of
// their use, and storing a fragment's results with them.
#pragma once

#include <cstdint>

#include "row_fragment.cuh"

namespace kernels {

// Loads 16 bytes from an address that is aligned to an element only: the aligned 16 bytes on either side, shifted. What
// lies before `from` belongs to the same allocation, which begins at a multiple of 16 bytes. At least 16 bytes must
// follow.
template <typename T>
__device__ uint4 load_unaligned(const T* from) {
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

// Loads N neighbouring weights or biases. They are read again for every row, so they stay in the caches. No kernel
// writes them, so the compiler may move these loads before earlier stores. kHint: with an L2 policy.
// kWrittenByLastGrid: the grid before this one writes them (realigned_parameters.cuh). They are not read-only then, and
// the load has to stay behind wait_on_dependent_grids(); the assembler moves read-only loads to before it.
template <bool kAligned, bool kHint, bool kWrittenByLastGrid, typename T, int N>
__device__ RawVector<T, N> load_parameters(const T* from, uint64_t policy) {
  static_assert(!kWrittenByLastGrid || (kAligned && N * sizeof(T) == 16));
  if constexpr (kWrittenByLastGrid) {
    uint4 raw;
    if constexpr (kHint) {
      asm volatile("ld.global.L2::cache_hint.v4.u32 {%0, %1, %2, %3}, [%4], %5;"
                   : "=r"(raw.x), "=r"(raw.y), "=r"(raw.z), "=r"(raw.w)
                   : "l"(from), "l"(policy));
    } else {
      asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                   : "=r"(raw.x), "=r"(raw.y), "=r"(raw.z), "=r"(raw.w)
                   : "l"(from));
    }
    return raw;
  } else if constexpr (kAligned && kHint && N * sizeof(T) == 16) {
    uint4 raw;
    asm("ld.global.nc.L2::cache_hint.v4.u32 {%0, %1, %2, %3}, [%4], %5;"
        : "=r"(raw.x), "=r"(raw.y), "=r"(raw.z), "=r"(raw.w)
        : "l"(from), "l"(policy));
    return raw;
  } else if constexpr (kAligned || N == 1) {
    return __ldg(reinterpret_cast<const RawVector<T, N>*>(from));
  } else {
    return load_unaligned(from);
  }
}

template <typename T>
struct AffinePointers {
  const T* weight;
  const T* bias;
};

template <typename T, typename Op>
__host__ __device__ AffinePointers<T> affine_pointers(const Op& op) {
  AffinePointers<T> pointers{};
  if constexpr (Op::kHasWeight) {
    pointers.weight = op.weight;
  }
  if constexpr (Op::kHasBias) {
    pointers.bias = op.bias;
  }
  return pointers;
}

// Whether the parameters were copied so that those of every row's vectors are aligned (realigned_parameters.cuh). Where
// rows need no alignment peel, they are aligned anyway.
template <typename Op>
constexpr bool kRealigned = false;
template <typename Op, bool kPeel>
constexpr bool kParametersAligned = !kPeel || kRealigned<Op>;

// Whether the last vector of a row is peeled too. Its parameters may be the last of their allocation, and
// load_unaligned() would read beyond them.
template <typename Op, bool kPeel>
constexpr bool kPeelLast = Op::kHasWeight && !kParametersAligned<Op, kPeel>;

// The parameters of the vectors of a row whose first vector begins at column `head`.
template <typename T, typename Op>
__device__ AffinePointers<T> affine_pointers_of_vectors(const Op& op, int head) {
  if constexpr (kRealigned<Op>) {
    return op.pointers_at(head);
  } else {
    return affine_pointers<T>(op);
  }
}

// Weight and bias of N neighbouring columns, if the operation has these.
template <typename Op, typename T, int N>
struct AffineParameters {
  RawVector<T, N> weight;
  RawVector<T, N> bias;

  template <bool kAligned, bool kHint, typename Index>
  __device__ void load(const AffinePointers<T>& from, Index column, uint64_t policy) {
    constexpr bool kWrittenByLastGrid = kAligned && kRealigned<Op>;
    if constexpr (Op::kHasWeight) {
      weight = load_parameters<kAligned, kHint, kWrittenByLastGrid, T, N>(from.weight + column, policy);
    }
    if constexpr (Op::kHasBias) {
      bias = load_parameters<kAligned, kHint, kWrittenByLastGrid, T, N>(from.bias + column, policy);
    }
  }

  // Keeps 16-bit parameters as raw bits: the compiler would hoist their conversion out of the loop over rows, into
  // twice the registers.
  __device__ void keep_packed() {
    if constexpr (sizeof(T) == 2) {
      if constexpr (Op::kHasWeight) {
        optimization_barrier(weight);
      }
      if constexpr (Op::kHasBias) {
        optimization_barrier(bias);
      }
    }
  }

  // The outputs of these columns.
  __device__ Vector<T, N> apply(const float (&values)[N], const Op& op,
                                const typename Op::Statistics& statistics) const {
    float weights[N];
    float biases[N];
    if constexpr (Op::kHasWeight) {
      unpack<T, N>(weight, weights);
    }
    if constexpr (Op::kHasBias) {
      unpack<T, N>(bias, biases);
    }
    Vector<T, N> outputs;
#pragma unroll
    for (int j = 0; j < N; ++j) {
      outputs.values[j] = static_cast<T>(
          op.apply(values[j], Op::kHasWeight ? weights[j] : 1.0f, Op::kHasBias ? biases[j] : 0.0f, statistics));
    }
    return outputs;
  }
};

// A ring of the parameters of the next kPrefetched vectors that a thread will store. The first are loaded while the row
// itself is still on its way. With kPrefetched == 0 parameters are loaded when they are used.
template <typename Op, typename T, int V, int kPrefetched, bool kHint>
struct AffinePrefetch {
  const AffinePointers<T> from;
  const uint64_t policy;
  AffineParameters<Op, T, V> ring[kPrefetched > 0 ? kPrefetched : 1];

  // `matrix` is the eviction priority of the rows, which are touched once; the parameters get the next higher one.
  __device__ AffinePrefetch(const AffinePointers<T>& pointers, EvictionPriority matrix)
      : from(pointers), policy(make_policy_for_reused(matrix)) {}

  // Loads those of a thread's first vectors, K at most; `column` is where the slice's vectors begin.
  template <bool kAligned, int K, typename Index>
  __device__ void prefetch(Index column, const ThreadSlice<Index>& slice) {
#pragma unroll
    for (int k = 0; k < (K < kPrefetched ? K : kPrefetched); ++k) {
      const Index vector = slice.first + k * slice.step;
      if (vector < slice.end) {
        ring[k].template load<kAligned, kHint>(from, column + vector * V, policy);
      }
    }
  }

  // The outputs of the thread's kth vector, which is number `vector` of the slice; k is a constant once loops are
  // unrolled. Then loads ahead, if there are `more`.
  template <bool kAligned, typename Index>
  __device__ Vector<T, V> apply(int k, const float (&values)[V], const Op& op,
                                const typename Op::Statistics& statistics, Index column,
                                const ThreadSlice<Index>& slice, Index vector, bool more) {
    if constexpr (kPrefetched == 0) {
      ring[0].template load<kAligned, kHint>(from, column + vector * V, policy);
      return ring[0].apply(values, op, statistics);
    } else {
      auto& parameters = ring[k % kPrefetched];
      const Vector<T, V> outputs = parameters.apply(values, op, statistics);
      const Index next = vector + kPrefetched * slice.step;
      if (more && next < slice.end) {
        parameters.template load<kAligned, kHint>(from, column + next * V, policy);
      }
      return outputs;
    }
  }
};

// Stores the output of a thread's scalar, if it has one.
template <typename Op, int V, typename T, typename Index, typename Fragment>
__device__ void store_scalar(T* row, const AlignmentPeel<Index>& peel, Index scalar, const Fragment& fragment,
                             const Op& op, const typename Op::Statistics& statistics) {
  if (fragment.has_scalar) {
    const Index column = scalar_column<V>(peel, scalar);
    const float values[1] = {fragment.scalar};
    AffineParameters<Op, T, 1> affine;
    affine.template load<false, false>(affine_pointers<T>(op), column, 0);
    row[column] = affine.apply(values, op, statistics).values[0];
  }
}

// Stores the outputs of a fragment in registers.
template <typename Op, int K, bool kPeel, typename T, int V, int kPrefetched, bool kHint, typename Index,
          typename Fragment>
__device__ void store_fragment(T* row, const AlignmentPeel<Index>& peel, const ThreadSlice<Index>& slice,
                               uint64_t policy, const Fragment& fragment,
                               AffinePrefetch<Op, T, V, kPrefetched, kHint>& affine, const Op& op,
                               const typename Op::Statistics& statistics) {
  auto* const to = reinterpret_cast<Vector<T, V>*>(row + peel.head) + slice.first;
#pragma unroll
  for (int k = 0; k < K; ++k) {
    if (k < fragment.vectors) {
      const Index vector = slice.first + k * slice.step;
      float values[V];
      fragment.get_vector(k, values);
      store(to + k * slice.step,
            affine.template apply<kParametersAligned<Op, kPeel>>(k, values, op, statistics, peel.head, slice, vector,
                                                                 k + kPrefetched < K),
            policy);
    }
  }
  if constexpr (kPeel) {
    store_scalar<Op, V>(row, peel, slice.scalar, fragment, op, statistics);
  }
}

// Stores the outputs of a fragment in shared memory; `column` is where the block's vectors begin.
template <typename Op, bool kPeel, typename T, int V, int kPrefetched, bool kHint>
__device__ void store_fragment(T* row, const AlignmentPeel<int>& peel, int column, uint64_t policy,
                               const SharedFragment<T, V, kPeel>& fragment,
                               AffinePrefetch<Op, T, V, kPrefetched, kHint>& affine, const Op& op,
                               const typename Op::Statistics& statistics) {
  // Vectors that are read from shared memory before the first is used.
  constexpr int kBatch = !Op::kHasWeight ? 8 : kPrefetched > 0 ? kPrefetched : 4;
  const ThreadSlice<int>& slice = fragment.slice;
  auto* const to = reinterpret_cast<Vector<T, V>*>(row + column);
  for (int first = slice.first; first < slice.end; first += kBatch * slice.step) {
    RawVector<T, V> batch[kBatch];
#pragma unroll
    for (int k = 0; k < kBatch; ++k) {
      if (first + k * slice.step < slice.end) {
        batch[k] = fragment.vectors[first + k * slice.step];
      }
    }
#pragma unroll
    for (int k = 0; k < kBatch; ++k) {
      const int vector = first + k * slice.step;
      if (vector < slice.end) {
        float values[V];
        unpack<T, V>(batch[k], values);
        store(to + vector,
              affine.template apply<kParametersAligned<Op, kPeel>>(k, values, op, statistics, column, slice, vector,
                                                                   true),
              policy);
      }
    }
  }
  if constexpr (kPeel) {
    store_scalar<Op, V>(row, peel, slice.scalar, fragment, op, statistics);
  }
}

}  // namespace kernels
