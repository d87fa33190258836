// Enough of a Hopper multiprocessor, on a CPU, to run a kernel of warp-specialized warpgroups: TMA, mbarriers, named
// barriers, wgmma by its matrix descriptors, shuffles. It stands in for common.cuh, tma.cuh and wgmma.cuh.
//
// Threads are fibers. One runs until it has to wait; which runs next is random. What is asynchronous on the GPU is done
// as early or as late as the instructions allow: copies at once or when nothing else can run, wgmmas when they are
// started or when they are waited for. So a buffer that is given back too early, a register that is used too early and
// a barrier whose counts are wrong show as wrong numbers or as threads that wait for ever.
#pragma once

#include <ucontext.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <vector>

#define __device__
#define __global__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __grid_constant__
#define __shared__
#define __CUDA_ARCH_FEAT_SM90_ALL

struct Index {
  unsigned x;
};
inline Index threadIdx, blockIdx, gridDim;

struct uint4 {
  uint32_t x, y, z, w;
};
inline uint4 make_uint4(uint32_t x, uint32_t y, uint32_t z, uint32_t w) { return {x, y, z, w}; }

// A batch of heads, (w, z, y, x), x the fastest; strides in elements of 2 bytes.
struct CUtensorMap {
  const uint16_t* data;
  int sizes[4];
  int64_t strides[4];
  int box_rows;
};

namespace emulated {

constexpr int kSharedBytes = 227 * 1024;  // that a block may have
constexpr uint32_t kSharedBase = 0x410;  // not where the swizzle begins: the kernel has to round up

[[noreturn]] inline void fail(const char* sentence) {
  std::printf("%s\n", sentence);
  std::exit(1);
}

struct Fiber {
  ucontext_t context;
  std::vector<char> stack = std::vector<char>(256 * 1024);
  std::function<bool()> may_go;  // what it waits for
  bool is_done = false;
};

struct Mbarrier {
  int arrivals = 0;
  int pending = 0;
  int bytes = 0;
  int phase = 0;

  void complete_if_all_is_there() {
    if (pending < 0 || bytes < 0) {
      fail("more arrivals or bytes at an mbarrier than it expects");
    }
    if (pending == 0 && bytes == 0) {
      phase ^= 1;
      pending = arrivals;
    }
  }
};

struct NamedBarrier {
  int there = 0;
  int threads = 0;
  int generation = 0;
};

// One lane's part of a wgmma, or what lanes exchange.
struct WarpOperation {
  std::function<void(int lane)> by_lane[32];
};

struct Warp {
  int there = 0;
  int generation = 0;
  uint32_t exchanged[32];
  std::shared_ptr<WarpOperation> operation;
  std::vector<std::shared_ptr<WarpOperation>> started;             // since the last group
  std::deque<std::vector<std::shared_ptr<WarpOperation>>> groups;  // under way
};

// A block at work.
struct Block {
  std::vector<std::unique_ptr<Fiber>> fibers;
  std::vector<Warp> warps;
  std::map<const void*, Mbarrier> mbarriers;
  std::map<int, NamedBarrier> named;
  std::deque<std::function<void()>> copies;
  NamedBarrier all;
  ucontext_t scheduler;
  Fiber* running = nullptr;
  std::mt19937 random;
  bool copies_late = false;
  bool wgmma_late = false;
  std::function<void()> kernel;
};
inline Block* block = nullptr;

inline void wait_until(std::function<bool()> may_go) {
  while (!may_go()) {
    Fiber* const self = block->running;
    self->may_go = may_go;
    swapcontext(&self->context, &block->scheduler);
  }
}

inline int thread() { return static_cast<int>(threadIdx.x); }
inline int lane() { return thread() % 32; }
inline Warp& warp() { return block->warps[static_cast<size_t>(thread() / 32)]; }

// Where all lanes of a warp meet; the last one does what is to be done once.
inline void meet(const std::function<void()>& last_does) {
  Warp& of = warp();
  const int generation = of.generation;
  if (++of.there == 32) {
    last_does();
    of.there = 0;
    ++of.generation;
  } else {
    wait_until([&of, generation] { return of.generation != generation; });
  }
}
inline void meet() {
  meet([] {});
}

inline void start() {
  block->kernel();
  block->running->is_done = true;
  swapcontext(&block->running->context, &block->scheduler);
}

inline void run_copy() {
  const size_t which = block->random() % block->copies.size();
  const auto copy = block->copies[which];
  block->copies.erase(block->copies.begin() + static_cast<std::ptrdiff_t>(which));
  copy();
}

// Runs a kernel's block to its end.
inline void run_block(unsigned index, unsigned grid, int threads, unsigned seed, std::function<void()> kernel) {
  Block here;
  block = &here;
  here.random.seed(seed * 7919 + index);
  here.copies_late = seed & 1;
  here.wgmma_late = seed & 2;
  here.kernel = std::move(kernel);
  here.warps.resize(static_cast<size_t>(threads / 32));
  blockIdx.x = index;
  gridDim.x = grid;
  for (int i = 0; i < threads; ++i) {
    auto fiber = std::make_unique<Fiber>();
    getcontext(&fiber->context);
    fiber->context.uc_stack.ss_sp = fiber->stack.data();
    fiber->context.uc_stack.ss_size = fiber->stack.size();
    fiber->context.uc_link = nullptr;
    makecontext(&fiber->context, start, 0);
    here.fibers.push_back(std::move(fiber));
  }
  std::vector<int> order;
  for (int i = 0; i < threads; ++i) {
    order.push_back(i);
  }
  for (;;) {
    bool any_ran = false;
    bool all_done = true;
    std::shuffle(order.begin(), order.end(), here.random);
    for (const int i : order) {
      Fiber* const fiber = here.fibers[static_cast<size_t>(i)].get();
      if (fiber->is_done) {
        continue;
      }
      all_done = false;
      if (fiber->may_go && !fiber->may_go()) {
        continue;
      }
      any_ran = true;
      here.running = fiber;
      threadIdx.x = static_cast<unsigned>(i);
      swapcontext(&here.scheduler, &fiber->context);
    }
    if (all_done) {
      break;
    }
    if (!any_ran) {
      if (here.copies.empty()) {
        fail("every thread waits for ever");
      }
      run_copy();
    }
  }
  if (!here.copies.empty()) {
    fail("a block ended before its copies");
  }
  for (const auto& [which, barrier] : here.named) {
    if (barrier.there != 0) {
      fail("a block ended with a named barrier halfway");
    }
  }
  block = nullptr;
}

}  // namespace emulated

namespace attention {
inline unsigned char shared_memory[emulated::kSharedBytes];
}

inline void __syncthreads() {
  emulated::NamedBarrier& all = emulated::block->all;
  const int generation = all.generation;
  if (++all.there == static_cast<int>(emulated::block->fibers.size())) {
    all.there = 0;
    ++all.generation;
  } else {
    emulated::wait_until([&all, generation] { return all.generation != generation; });
  }
}
inline void __syncwarp() { emulated::meet(); }

template <typename T>
T exchange(T x, int from) {
  static_assert(sizeof(T) == 4);
  emulated::Warp& of = emulated::warp();
  std::memcpy(&of.exchanged[emulated::lane()], &x, 4);
  emulated::meet();
  T result;
  std::memcpy(&result, &of.exchanged[from], 4);
  emulated::meet();
  return result;
}
template <typename T>
T __shfl_xor_sync(unsigned, T x, int other) {
  return exchange(x, emulated::lane() ^ other);
}
template <typename T>
T __shfl_sync(unsigned, T x, int lane) {
  return exchange(x, lane);
}

namespace kernels {

enum class Element { kBFloat16, kFloat16, kFloat8 };

inline uint32_t shared_address(const void* pointer) {
  return static_cast<uint32_t>(static_cast<const unsigned char*>(pointer) - attention::shared_memory) +
         emulated::kSharedBase;
}
inline unsigned char* shared_pointer(uint32_t address) {
  return attention::shared_memory + (address - emulated::kSharedBase);
}

inline float exp2_(float x) { return std::exp2(x); }
inline float reciprocal(float x) { return 1.0f / x; }

template <Element kElement>
float widened(uint16_t bits) {
  if constexpr (kElement == Element::kFloat16) {
    _Float16 x;
    std::memcpy(&x, &bits, 2);
    return static_cast<float>(x);
  } else {
    const uint32_t wide = uint32_t{bits} << 16;
    float x;
    std::memcpy(&x, &wide, 4);
    return x;
  }
}
template <Element kElement>
uint16_t rounded(float x) {
  if constexpr (kElement == Element::kFloat16) {
    const _Float16 narrow = static_cast<_Float16>(x);
    uint16_t bits;
    std::memcpy(&bits, &narrow, 2);
    return bits;
  } else {
    uint32_t wide;
    std::memcpy(&wide, &x, 4);
    return static_cast<uint16_t>(std::isnan(x) ? 0x7FFF : (wide + 0x7FFF + ((wide >> 16) & 1)) >> 16);
  }
}
template <Element kElement>
uint32_t rounded_pair(float first, float second) {
  return rounded<kElement>(first) | uint32_t{rounded<kElement>(second)} << 16;
}

// mbarriers and TMA

inline void mbarrier_init(uint64_t* barrier, int arrivals) {
  emulated::block->mbarriers[barrier] = {arrivals, arrivals, 0, 0};
}
inline emulated::Mbarrier& mbarrier_at(uint64_t* barrier) {
  const auto found = emulated::block->mbarriers.find(barrier);
  if (found == emulated::block->mbarriers.end()) {
    emulated::fail("an mbarrier that is not initialized");
  }
  return found->second;
}
inline void fence_mbarrier_init() {}
inline void prefetch_tensor_map(const CUtensorMap*) {}
inline void mbarrier_arrive(uint64_t* barrier) {
  emulated::Mbarrier& at = mbarrier_at(barrier);
  --at.pending;
  at.complete_if_all_is_there();
}
inline void mbarrier_arrive_expect_tx(uint64_t* barrier, int bytes) {
  emulated::Mbarrier& at = mbarrier_at(barrier);
  at.bytes += bytes;
  --at.pending;
  at.complete_if_all_is_there();
}
inline void mbarrier_wait_parity(uint64_t* barrier, int parity) {
  emulated::Mbarrier& at = mbarrier_at(barrier);
  emulated::wait_until([&at, parity] { return at.phase != parity; });
}

// A box of 64 elements of box_rows rows, with the 128-byte swizzle.
inline void tma_load(void* to, const CUtensorMap* map, int x, int y, int z, int w, uint64_t* barrier) {
  const uint32_t address = shared_address(to);
  if (address % 1024 != 0) {
    emulated::fail("a tile begins where the swizzle does not");
  }
  if (address + static_cast<uint32_t>(map->box_rows * 128) > emulated::kSharedBase + emulated::kSharedBytes) {
    emulated::fail("a copy goes past the end of shared memory");
  }
  const auto copy = [=] {
    for (int row = 0; row < map->box_rows; ++row) {
      for (int column = 0; column < 64; ++column) {
        const bool is_inside = x + column < map->sizes[0] && y + row < map->sizes[1] && y + row >= 0 &&
                               z < map->sizes[2] && w < map->sizes[3];
        const uint16_t bits =
            is_inside ? map->data[(x + column) * map->strides[0] + (y + row) * map->strides[1] + z * map->strides[2] +
                                  w * map->strides[3]]
                      : uint16_t{0};
        const uint32_t at = address + static_cast<uint32_t>(row * 128 + column * 2);
        std::memcpy(shared_pointer(at ^ ((at >> 7 & 7) << 4)), &bits, 2);
      }
    }
    emulated::Mbarrier& at = mbarrier_at(barrier);
    at.bytes -= map->box_rows * 128;
    at.complete_if_all_is_there();
  };
  if (emulated::block->copies_late) {
    emulated::block->copies.push_back(copy);
  } else {
    copy();
  }
}

// Named barriers and registers

inline void named_barrier_arrive(int which, int threads) {
  emulated::NamedBarrier& at = emulated::block->named[which];
  if (at.there != 0 && at.threads != threads) {
    emulated::fail("a named barrier is told different numbers of threads");
  }
  at.threads = threads;
  if (++at.there == threads) {
    at.there = 0;
    ++at.generation;
  }
}
inline void named_barrier_sync(int which, int threads) {
  emulated::NamedBarrier& at = emulated::block->named[which];
  const int generation = at.generation;
  named_barrier_arrive(which, threads);
  emulated::wait_until([&at, generation] { return at.generation != generation; });
}
template <int kRegisters>
void setmaxnreg_dec() {}
template <int kRegisters>
void setmaxnreg_inc() {}
template <typename T, int kCount>
void fence_registers(T (&)[kCount]) {}

// wgmma

inline void wgmma_fence() {}

inline uint32_t field(uint64_t descriptor, int bit) { return static_cast<uint32_t>(descriptor >> bit & 0x3FFF) << 4; }

// Element (mn, k) of an operand in shared memory, by PTX's canonical layouts for the 128-byte swizzle.
template <Element kElement, bool kIsMnMajor>
float operand(uint64_t descriptor, int mn, int k) {
  if (descriptor >> 62 != 1) {
    emulated::fail("an operand without the 128-byte swizzle");
  }
  uint32_t address = field(descriptor, 0);
  const uint32_t leading = field(descriptor, 16);
  const uint32_t stride = field(descriptor, 32);
  if (kIsMnMajor) {
    address += static_cast<uint32_t>(mn % 64 * 2 + k % 8 * 128) + static_cast<uint32_t>(mn / 64) * leading +
               static_cast<uint32_t>(k / 8) * stride;
  } else {
    address += static_cast<uint32_t>(mn % 8 * 128 + k * 2) + static_cast<uint32_t>(mn / 8) * stride;
  }
  address ^= (address >> 7 & 7) << 4;
  uint16_t bits;
  std::memcpy(&bits, shared_pointer(address), 2);
  return widened<kElement>(bits);
}

inline void start_wgmma(std::function<void(int)> lane_does) {
  emulated::Warp& of = emulated::warp();
  if (!of.operation) {
    of.operation = std::make_shared<emulated::WarpOperation>();
  }
  of.operation->by_lane[emulated::lane()] = std::move(lane_does);
  emulated::meet([&] { of.started.push_back(std::move(of.operation)); });
}
inline void run_all(std::vector<std::shared_ptr<emulated::WarpOperation>>& operations) {
  for (const auto& one : operations) {
    for (int lane = 0; lane < 32; ++lane) {
      one->by_lane[lane](lane);
    }
  }
  operations.clear();
}
inline void wgmma_commit_group() {
  emulated::Warp& of = emulated::warp();
  emulated::meet([&] {
    if (!emulated::block->wgmma_late) {
      run_all(of.started);
    }
    of.groups.push_back(std::move(of.started));
    of.started.clear();
  });
}
template <int kPending>
void wgmma_wait_group() {
  emulated::Warp& of = emulated::warp();
  emulated::meet([&] {
    while (of.groups.size() > kPending) {
      run_all(of.groups.front());
      of.groups.pop_front();
    }
  });
}

// Row and column of a thread's i-th sum: PTX ISA, "Register Fragments for wgmma.mma_async", matrix D.
inline int row_of(int warp_of_group, int lane, int i) { return warp_of_group * 16 + lane / 4 + i / 2 % 2 * 8; }
inline int column_of(int lane, int i) { return i / 4 * 8 + lane % 4 * 2 + i % 2; }

template <Element kElement, int kN, bool kATransposed, bool kBTransposed>
void wgmma(float (&d)[kN / 2], uint64_t of_a, uint64_t of_b, bool add) {
  float* const sums = d;
  const int warp_of_group = emulated::thread() / 32 % 4;
  start_wgmma([=](int lane) {
    for (int i = 0; i < kN / 2; ++i) {
      float sum = add ? sums[i] : 0.0f;
      for (int k = 0; k < 16; ++k) {
        sum += operand<kElement, kATransposed>(of_a, row_of(warp_of_group, lane, i), k) *
               operand<kElement, kBTransposed>(of_b, column_of(lane, i), k);
      }
      sums[i] = sum;
    }
  });
}

// The lanes of a quad have a row's elements of a: matrix A's fragment in the same section.
template <Element kElement, int kN, bool kBTransposed>
void wgmma(float (&d)[kN / 2], const uint32_t* a, uint64_t of_b, bool add) {
  float* const sums = d;
  // What the other lanes of the quad gave for the same instruction: their registers, read when it is run.
  auto quad = std::make_shared<std::array<const uint32_t*, 4>>();
  const int own = emulated::lane();
  const uintptr_t address = reinterpret_cast<uintptr_t>(a);
  for (int i = 0; i < 4; ++i) {
    const int from = own / 4 * 4 + i;
    const uint32_t low = exchange(static_cast<uint32_t>(address), from);
    const uint32_t high = exchange(static_cast<uint32_t>(address >> 32), from);
    (*quad)[static_cast<size_t>(i)] = reinterpret_cast<const uint32_t*>(uintptr_t{high} << 32 | low);
  }
  start_wgmma([=](int lane) {
    for (int i = 0; i < kN / 2; ++i) {
      float sum = add ? sums[i] : 0.0f;
      for (int k = 0; k < 16; ++k) {
        const uint32_t pair = (*quad)[static_cast<size_t>(k % 8 / 2)][k / 8 * 2 + i / 2 % 2];
        sum += widened<kElement>(static_cast<uint16_t>(k % 2 ? pair >> 16 : pair)) *
               operand<kElement, kBTransposed>(of_b, column_of(lane, i), k);
      }
      sums[i] = sum;
    }
  });
}

}  // namespace kernels
