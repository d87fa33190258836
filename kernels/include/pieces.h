// Work on float32, whatever the elements are: a piece of a tensor is widened to float32, worked on in L1 by loops that
// know no other type, and rounded once. float32 itself is worked on where it lies.
#pragma once

#include <algorithm>
#include <type_traits>

#include "common.h"
#include "simd.h"

namespace kernels {

using torch::headeronly::Half;

// Elements of a piece: 4 KB as float32.
constexpr int64_t kPiece = 1024;

// Rows that are worth a thread of their own.
inline int64_t rows_per_thread(int64_t columns) { return std::max<int64_t>(1, (int64_t{1} << 14) / columns); }

// A set's own conversions of float16, as many at once as it takes: kHalves of them. Others have none.
template <typename Set>
constexpr int64_t kHalves = 0;

template <typename Set>
void widen_halves(Set, const Half*, float*) {}

template <typename Set>
void narrow_halves(Set, const float*, Half*) {}

#if defined(__x86_64__)
template <>
constexpr int64_t kHalves<Avx2> = 8;

KERNELS_AVX2 inline void widen_halves(Avx2, const Half* from, float* to) {
  _mm256_storeu_ps(to, _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from))));
}

KERNELS_AVX2 inline void narrow_halves(Avx2, const float* from, Half* to) {
  const __m128i rounded = _mm256_cvtps_ph(_mm256_loadu_ps(from), _MM_FROUND_TO_NEAREST_INT);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to), rounded);
}

template <>
constexpr int64_t kHalves<Avx512> = 16;

KERNELS_AVX512 inline void widen_halves(Avx512, const Half* from, float* to) {
  const __m256i halves = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
  _mm512_storeu_ps(to, _mm512_maskz_cvtph_ps(0xffff, halves));  // without a mask GCC 12 warns (bug 105593)
}

KERNELS_AVX512 inline void narrow_halves(Avx512, const float* from, Half* to) {
  const __m256i rounded = _mm512_maskz_cvtps_ph(0xffff, _mm512_loadu_ps(from), _MM_FROUND_TO_NEAREST_INT);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), rounded);
}
#endif

// `count` elements that are `stride` apart as float32: `room`, which they are written to, or where they lie if that
// is what they are.
template <typename Set, typename T>
KERNELS_INLINE inline const float* widen([[maybe_unused]] Set set, const T* from, int64_t stride, int64_t count,
                                         float* room) {
  if (stride != 1) {
    for (int64_t i = 0; i < count; ++i) {
      room[i] = static_cast<float>(from[i * stride]);
    }
    return room;
  }
  if constexpr (std::is_same_v<T, float>) {
    return from;
  } else if constexpr (std::is_same_v<T, Half> && kHalves<Set> > 0) {
    int64_t done = 0;
    for (; done + kHalves<Set> <= count; done += kHalves<Set>) {
      widen_halves(set, from + done, room + done);
    }
    if (done < count) {
      Half rest[kHalves<Set>]{};
      float wide[kHalves<Set>];
      std::copy(from + done, from + count, rest);
      widen_halves(set, rest, wide);
      std::copy(wide, wide + (count - done), room + done);
    }
    return room;
  } else {
    for (int64_t i = 0; i < count; ++i) {
      room[i] = static_cast<float>(from[i]);
    }
    return room;
  }
}

// Where to write float32 that `narrow` is to make elements of: the elements' own place if that is what they are.
template <typename T>
KERNELS_INLINE inline float* place(T* to, float* room) {
  if constexpr (std::is_same_v<T, float>) {
    return to;
  } else {
    return room;
  }
}

// What `place` was written to, rounded to nearest even into its elements.
template <typename Set, typename T>
KERNELS_INLINE inline void narrow([[maybe_unused]] Set set, [[maybe_unused]] const float* from, [[maybe_unused]] T* to,
                                  [[maybe_unused]] int64_t count) {
  if constexpr (std::is_same_v<T, Half> && kHalves<Set> > 0) {
    int64_t done = 0;
    for (; done + kHalves<Set> <= count; done += kHalves<Set>) {
      narrow_halves(set, from + done, to + done);
    }
    if (done < count) {
      float rest[kHalves<Set>]{};
      Half rounded[kHalves<Set>];
      std::copy(from + done, from + count, rest);
      narrow_halves(set, rest, rounded);
      std::copy(rounded, rounded + (count - done), to + done);
    }
  } else if constexpr (!std::is_same_v<T, float>) {
    for (int64_t i = 0; i < count; ++i) {
      to[i] = static_cast<T>(from[i]);
    }
  }
}

}  // namespace kernels
