// Loops that the compiler turns into SIMD, on whatever CPU the library is loaded. The library is built for every CPU
// of its kind, so that it can be copied from host to host, and holds each loop three times: for AVX-512, for AVX2 and
// for what all CPUs of the kind have. Which of them runs is asked of the CPU. Function multiversioning, by hand because
// GCC's own (target_clones) does not reach into lambdas.
#pragma once

#include <cstdint>
#include <cstring>

#include <torch/csrc/stable/ops.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

// A function that has to be compiled into the loop that calls it, with that loop's instructions.
#define KERNELS_INLINE __attribute__((always_inline))

namespace kernels {

// Instruction sets.
struct Baseline {};
struct Avx2 {};
struct Avx512 {};
// Avx512, and products of bfloat16 pairs that are added to float32 (vdpbf16ps).
struct Avx512Bfloat16 {};

#if defined(__x86_64__)
#define KERNELS_AVX2 __attribute__((target("avx2,fma,f16c")))
#define KERNELS_AVX512 \
  __attribute__((target("avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,prefer-vector-width=512")))

#define KERNELS_AVX512_BFLOAT16                                                                     \
  __attribute__((target("avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,prefer-vector-width=512")))

inline bool has_avx2() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
}

inline bool has_avx512() {
  return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}

inline bool has_avx512_bfloat16() { return has_avx512() && __builtin_cpu_supports("avx512bf16"); }

// f, which has to be KERNELS_INLINE, compiled for one instruction set.
template <typename F>
KERNELS_AVX512_BFLOAT16 void with_avx512_bfloat16(const F& f, int64_t begin, int64_t end) {
  f(Avx512Bfloat16{}, begin, end);
}

template <typename F>
KERNELS_AVX512 void with_avx512(const F& f, int64_t begin, int64_t end) {
  f(Avx512{}, begin, end);
}

template <typename F>
KERNELS_AVX2 void with_avx2(const F& f, int64_t begin, int64_t end) {
  f(Avx2{}, begin, end);
}
#endif

// f(set, begin, end) for runs of 0 ... count, each a thread's, with the widest instruction set of this CPU; one for
// bfloat16 only where f is to multiply that. The threads are torch's own, as many as torch.get_num_threads() says; one
// has at least `grain` to do.
template <bool kBfloat16 = false, typename F>
void parallel_simd(int64_t count, int64_t grain, const F& f) {
  torch::stable::parallel_for(0, count, grain, [&](int64_t begin, int64_t end) {
#if defined(__x86_64__)
    if constexpr (kBfloat16) {
      if (has_avx512_bfloat16()) {
        return with_avx512_bfloat16(f, begin, end);
      }
    }
    if (has_avx512()) {
      return with_avx512(f, begin, end);
    }
    if (has_avx2()) {
      return with_avx2(f, begin, end);
    }
#endif
    f(Baseline{}, begin, end);
  });
}

// Sixteen float32 that are added and multiplied together: a register of AVX-512, two of AVX2, four of others. For
// what the compiler does not make of a loop by itself, since it may not reorder float32 sums.
using Lanes = float __attribute__((vector_size(64)));
constexpr int64_t kLanes = 16;

KERNELS_INLINE inline Lanes load(const float* from) {
  Lanes lanes;
  std::memcpy(&lanes, from, sizeof(lanes));
  return lanes;
}

KERNELS_INLINE inline void store(Lanes lanes, float* to) { std::memcpy(to, &lanes, sizeof(lanes)); }

// f(in[0]) + ... + f(in[count - 1]), where f takes Lanes and float. There are four sums side by side, so that an
// addition need not wait for the one before it.
template <typename F>
KERNELS_INLINE inline float sum_of(const float* in, int64_t count, const F& f) {
  Lanes a{}, b{}, c{}, d{};
  int64_t i = 0;
  for (; i + 4 * kLanes <= count; i += 4 * kLanes) {
    a += f(load(in + i));
    b += f(load(in + i + kLanes));
    c += f(load(in + i + 2 * kLanes));
    d += f(load(in + i + 3 * kLanes));
  }
  for (; i + kLanes <= count; i += kLanes) {
    a += f(load(in + i));
  }
  float rest[kLanes]{};
  for (int64_t lane = 0; i + lane < count; ++lane) {
    rest[lane] = f(in[i + lane]);
  }
  float sums[kLanes];
  store((a + b) + (c + d) + load(rest), sums);
  for (int64_t half = kLanes / 2; half > 0; half /= 2) {
    for (int64_t lane = 0; lane < half; ++lane) {
      sums[lane] += sums[lane + half];
    }
  }
  return sums[0];
}

}  // namespace kernels
