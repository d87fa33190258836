// What attention's backward pass needs of the emulated multiprocessor beside hopper.h: bulk copies, additions by the
// copy engine, and instructions of tiles of 80 queries. It stands in for bulk_reduce.cuh, wgmma_80.cuh, and async.cuh's
// bulk copies.
#pragma once

#include "hopper.h"

inline int atomicAdd(int* to, int term) {
  const int before = *to;
  *to += term;
  return before;
}

namespace kernels {

inline void check_bulk(const void* global, uint32_t address, int bytes) {
  if (bytes % 16 != 0 || address % 16 != 0 || reinterpret_cast<uintptr_t>(global) % 16 != 0) {
    emulated::fail("a bulk copy is of no multiple of 16 bytes");
  }
  if (address + static_cast<uint32_t>(bytes) > emulated::kSharedBase + emulated::kSharedBytes) {
    emulated::fail("a copy goes past the end of shared memory");
  }
}

inline void bulk_load(void* to, const void* from, int bytes, uint64_t* barrier) {
  const uint32_t address = shared_address(to);
  const uint32_t of_barrier = shared_address(barrier);
  const int own = emulated::block->rank;
  check_bulk(from, address, bytes);
  emulated::start_copy([=] {
    emulated::as_block(own, [=] {
      std::memcpy(shared_pointer(address), from, static_cast<size_t>(bytes));
      emulated::Mbarrier& at = mbarrier_at(same_barrier(of_barrier));
      at.bytes -= bytes;
      at.complete_if_all_is_there();
    });
  });
}

// It reads shared memory as late as the thread lets it, where copies are late.
inline void bulk_reduce_add(float* to, const float* from, int bytes) {
  const uint32_t address = shared_address(from);
  const int own = emulated::block->rank;
  emulated::Fiber* const thread = emulated::running;
  check_bulk(to, address, bytes);
  ++thread->stores;
  const auto add = [=] {
    emulated::as_block(own, [=] {
      for (int i = 0; i < bytes / 4; ++i) {
        float term;
        std::memcpy(&term, shared_pointer(address + static_cast<uint32_t>(i) * 4), 4);
        to[i] += term;
      }
    });
    --thread->stores;
  };
  if (emulated::cluster->copies_late) {
    emulated::cluster->stores.push_back(add);
  } else {
    add();
  }
}

// Lane l has the address of column l % 8 of matrix l / 8, and a pair of elements of row l / 4 of each matrix.
inline void stmatrix_x4_trans(uint32_t to, uint32_t first, uint32_t second, uint32_t third, uint32_t fourth) {
  const uint32_t pairs[] = {first, second, third, fourth};
  for (int matrix = 0; matrix < 4; ++matrix) {
    for (int i = 0; i < 2; ++i) {
      const uint32_t column = exchange(to, matrix * 8 + emulated::lane() % 4 * 2 + i);
      const auto element = static_cast<uint16_t>(pairs[matrix] >> i * 16);
      std::memcpy(shared_pointer(column + static_cast<uint32_t>(emulated::lane() / 4 * 2)), &element, 2);
    }
  }
}
template <Element kElement, bool kATransposed, bool kBTransposed>
void wgmma_80(float (&d)[40], uint64_t of_a, uint64_t of_b, bool add) {
  wgmma<kElement, 80, kATransposed, kBTransposed>(d, of_a, of_b, add);
}

inline void bulk_wait_group_all() { bulk_wait_group_read<0>(); }

// Blocks run one after the other: one that waits for a later block's turn waits for ever.
inline void wait_for_turn(const int* number, int turn) {
  emulated::wait_until([number, turn] { return *number == turn; });
}
inline void next_turn(int* number) { ++*number; }

}  // namespace kernels
