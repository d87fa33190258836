// What the products with packed weights need beside hopper.h: two types, the load from another block, the four-bit
// weights' arithmetic, and wgmma with weights from registers and with sparse ones. It stands in for distributed_load.cuh,
// weights.cuh, wgmma_registers.cuh and wgmma_sparse.cuh.
#pragma once

#include <type_traits>

#include "hopper.h"

namespace torch::headeronly {
struct BFloat16 {
  uint16_t bits;
};
struct Half {
  uint16_t bits;
};
}  // namespace torch::headeronly

namespace emulated {

template <typename T>
constexpr kernels::Element kElement =
    std::is_same_v<T, torch::headeronly::BFloat16> ? kernels::Element::kBFloat16 : kernels::Element::kFloat16;

// A matrix in slabs of 64 columns, and one of words.
inline CUtensorMap slabs(const void* data, int rows, int columns, int box_rows) {
  return {static_cast<const uint16_t*>(data), {columns, rows, 1, 1}, {1, columns, 0, 0}, box_rows};
}
inline CUtensorMap words(const void* data, int rows, int columns, int box_rows, int box_words) {
  return {static_cast<const uint16_t*>(data), {columns, rows, 1, 1}, {1, columns, 0, 0}, box_rows, box_words};
}

// Runs `blocks` blocks at the same time, the first of the grid's index `first`. They may write so many bytes of shared
// memory, in which nothing is yet.
inline void run_together(int first, int grid, int blocks, int threads, int shared_bytes, unsigned seed,
                         const std::function<void()>& kernel) {
  const std::vector<unsigned char> nothing(kSharedBytes, 0xFF);  // NaN
  std::vector<std::vector<unsigned char>> shared(static_cast<size_t>(blocks), nothing);
  std::vector<unsigned char*> memories;
  for (auto& memory : shared) {
    memories.push_back(memory.data());
  }
  run_cluster(static_cast<unsigned>(first), static_cast<unsigned>(grid), memories, threads, seed, kernel);
  for (const auto& memory : shared) {
    if (!std::equal(memory.begin() + shared_bytes, memory.end(), nothing.begin())) {
      fail("the kernel writes past the shared memory that it asks for");
    }
  }
}

// What a wgmma that is under way holds of its registers.
template <typename T>
const T* kept(const T& registers) {
  static std::deque<T> every;
  every.push_back(registers);
  return &every.back();
}

}  // namespace emulated

namespace kernels {

inline void cluster_arrive() { cluster_arrive_relaxed(); }

inline float4 load_of_block(uint32_t address, int rank) {
  float4 value;
  emulated::as_block(rank, [&] { std::memcpy(&value, shared_pointer(address), 16); });
  return value;
}

}  // namespace kernels

namespace matmul_int4 {

constexpr int kTileK = 128;

struct ScaleAndZero {
  uint16_t scale;
  uint16_t zero;
};
inline ScaleAndZero spread(uint32_t pair) {
  return {static_cast<uint16_t>(pair), static_cast<uint16_t>(pair >> 16)};
}

template <typename T, int kPlace>
uint32_t dequantised(uint32_t word, const ScaleAndZero& by) {
  constexpr auto kElement = emulated::kElement<T>;
  const auto weight = [&](uint32_t q) {
    return (static_cast<float>(q & 15) - 8) * kernels::widened<kElement>(by.scale) + kernels::widened<kElement>(by.zero);
  };
  return kernels::rounded_pair<kElement>(weight(word >> 4 * kPlace), weight(word >> (4 * kPlace + 16)));
}

template <typename T, int kN>
void wgmma_registers(float (&d)[kN / 2], const uint32_t (&a)[4], uint64_t of_b, bool add) {
  const auto* const of_a = emulated::kept(std::array<uint32_t, 4>{a[0], a[1], a[2], a[3]});
  kernels::wgmma<emulated::kElement<T>, kN, false>(d, of_a->data(), of_b, add);
}

}  // namespace matmul_int4

namespace matmul_sparse {

// PTX ISA, "wgmma.mma_async.sp": of a row of a, eight groups of four columns, two threads of a quad have the places, four
// groups each, those of the row 8 below in the upper half of their words.
template <typename T, int kN, int kSelector>
void wgmma_sparse(float (&d)[kN / 2], uint64_t of_a, uint64_t of_b, uint32_t metadata, bool add) {
  constexpr auto kElement = emulated::kElement<T>;
  float* const sums = d;
  const int warp_of_group = emulated::thread() / 32 % 4;
  const int quad = emulated::lane() / 4 * 4;
  const uint32_t first = exchange(metadata, quad + 2 * kSelector);
  const uint32_t second = exchange(metadata, quad + 2 * kSelector + 1);
  kernels::start_wgmma([=](int lane) {
    for (int i = 0; i < kN / 2; ++i) {
      float sum = add ? sums[i] : 0.0f;
      for (int kept = 0; kept < 16; ++kept) {
        const int group = kept / 2;
        const uint32_t word = (group < 4 ? first : second) >> 16 * (i / 2 % 2);
        const int place = static_cast<int>(word >> (4 * (group % 4) + 2 * (kept % 2)) & 3);
        sum += kernels::operand<kElement, false>(of_a, kernels::row_of(warp_of_group, lane, i), kept) *
               kernels::operand<kElement, false>(of_b, kernels::column_of(lane, i), 4 * group + place);
      }
      sums[i] = sum;
    }
  });
}

}  // namespace matmul_sparse
