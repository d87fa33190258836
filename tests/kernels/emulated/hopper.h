// Enough of Hopper's multiprocessors, on a CPU, to run a kernel of warp-specialized warpgroups, a cluster at a time: TMA,
// mbarriers, named barriers, wgmma by its matrix descriptors, stmatrix, shuffles, a cluster's barrier, and copies from
// block to block. It stands in for common.cuh, tma.cuh and wgmma.cuh.
//
// Threads are fibers. One runs until it has to wait; which runs next is random. What is asynchronous on the GPU is done
// as early or as late as the instructions allow: copies at once or when nothing else can run, wgmmas when they are
// started or when they are waited for. So a buffer that is given back too early, a register that is used too early and
// a barrier whose counts are wrong show as wrong numbers or as threads that wait for ever.
#pragma once

#include <setjmp.h>
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
  unsigned x, y;
};
inline Index threadIdx, blockIdx, gridDim;

struct uint4 {
  uint32_t x, y, z, w;
};
inline uint4 make_uint4(uint32_t x, uint32_t y, uint32_t z, uint32_t w) { return {x, y, z, w}; }
struct uint2 {
  uint32_t x, y;
};
inline uint2 make_uint2(uint32_t x, uint32_t y) { return {x, y}; }
struct float2 {
  float x, y;
};
inline float2 make_float2(float x, float y) { return {x, y}; }
struct float4 {
  float x, y, z, w;
};
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
using std::max;
using std::min;

// A batch of heads, (w, z, y, x), x the fastest; strides in elements of 2 bytes. A matrix has sizes of 1 for z and w.
// With box_words it is a matrix of 32-bit words instead, whose boxes have rows of so many, as they lie; `data` points to
// the words, and sizes and strides count them.
struct CUtensorMap {
  const uint16_t* data;
  int sizes[4];
  int64_t strides[4];
  int box_rows;
  int box_words = 0;

  int row_bytes() const { return box_words > 0 ? box_words * 4 : 128; }
};

namespace emulated {

constexpr int kSharedBytes = 227 * 1024;  // that a block may have
constexpr uint32_t kSharedBase = 0x410;  // not where the swizzle begins: the kernel has to round up

[[noreturn]] inline void fail(const char* sentence) {
  std::printf("%s\n", sentence);
  std::exit(1);
}

constexpr size_t kStackBytes = 256 * 1024;

struct Fiber {
  ucontext_t begins;
  jmp_buf goes_on;  // swapcontext would ask the system for the signal mask at each turn
  bool has_begun = false;
  std::unique_ptr<char[]> stack{new char[kStackBytes]};  // not set to zero: most of its pages are never touched
  std::function<bool()> may_go;  // what it waits for
  bool is_done = false;
  int cluster_generation = 0;  // of the cluster's barrier, when it arrived
  int stores = 0;              // that have not read shared memory yet
};

struct Mbarrier {
  int arrivals = 0;
  int pending = 0;
  int bytes = 0;
  int phase = 0;

  void complete_if_all_is_there() {
    // Another block's copy may be done before this block expects it.
    if (pending < 0 || (pending == 0 && bytes < 0)) {
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
  unsigned index = 0;
  int rank = 0;  // in its cluster
  unsigned char* memory = nullptr;
  std::vector<std::unique_ptr<Fiber>> fibers;
  std::vector<Warp> warps;
  std::map<const void*, Mbarrier> mbarriers;
  std::map<int, NamedBarrier> named;
  NamedBarrier all;

  bool is_done() const {
    return std::all_of(fibers.begin(), fibers.end(), [](const auto& fiber) { return fiber->is_done; });
  }
};

// The blocks of a cluster, which run at the same time, and what they have started.
struct Cluster {
  std::vector<std::unique_ptr<Block>> blocks;
  NamedBarrier all;
  std::deque<std::function<void()>> copies;
  std::deque<std::function<void()>> stores;  // to device memory, for which nobody waits before their memory's next use
  jmp_buf scheduler;
  std::mt19937 random;
  bool copies_late = false;
  bool wgmma_late = false;
  int behind = -1;  // a warp of each block that goes on only when no other can
  std::function<void()> kernel;
};
inline Cluster* cluster = nullptr;
inline Block* block = nullptr;    // whose thread runs
inline Fiber* running = nullptr;  // that thread

// Does something as a block of the cluster that has not ended.
inline void as_block(int rank, const std::function<void()>& does) {
  Block* const self = block;
  block = cluster->blocks[static_cast<size_t>(rank)].get();
  if (block->is_done()) {
    fail("a block's shared memory is used after its end");
  }
  does();
  block = self;
}

// A turn of the thread `running`, and its end.
inline void let_run() {
  if (_setjmp(cluster->scheduler) == 0) {
    if (running->has_begun) {
      _longjmp(running->goes_on, 1);
    }
    running->has_begun = true;
    setcontext(&running->begins);
  }
}
inline void let_others_run() {
  if (_setjmp(running->goes_on) == 0) {
    _longjmp(cluster->scheduler, 1);
  }
}

inline void wait_until(std::function<bool()> may_go) {
  while (!may_go()) {
    running->may_go = may_go;
    let_others_run();
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
  cluster->kernel();
  running->is_done = true;
  let_others_run();
}

// One of those that are late, the stores last.
inline void run_copy() {
  auto& from = cluster->copies.empty() ? cluster->stores : cluster->copies;
  const size_t which = cluster->random() % from.size();
  const auto copy = from[which];
  from.erase(from.begin() + static_cast<std::ptrdiff_t>(which));
  copy();
}

inline void start_copy(std::function<void()> copy) {
  if (cluster->copies_late) {
    cluster->copies.push_back(std::move(copy));
  } else {
    copy();
  }
}

// Runs the blocks of a cluster to their end, the first of the grid's index `first`, in these shared memories.
inline void run_cluster(unsigned first, unsigned grid, const std::vector<unsigned char*>& memories, int threads,
                        unsigned seed, std::function<void()> kernel) {
  Cluster here;
  cluster = &here;
  here.random.seed(seed * 7919 + first);
  here.copies_late = seed & 1;
  here.wgmma_late = seed & 2;
  const bool warps_fall_behind = seed & 4;
  here.kernel = std::move(kernel);
  gridDim.x = grid;
  std::vector<std::pair<Block*, int>> order;
  for (unsigned char* const memory : memories) {
    auto made = std::make_unique<Block>();
    made->rank = static_cast<int>(here.blocks.size());
    made->index = first + static_cast<unsigned>(made->rank);
    made->memory = memory;
    made->warps.resize(static_cast<size_t>(threads / 32));
    for (int i = 0; i < threads; ++i) {
      auto fiber = std::make_unique<Fiber>();
      getcontext(&fiber->begins);
      fiber->begins.uc_stack.ss_sp = fiber->stack.get();
      fiber->begins.uc_stack.ss_size = kStackBytes;
      fiber->begins.uc_link = nullptr;
      makecontext(&fiber->begins, start, 0);
      made->fibers.push_back(std::move(fiber));
      order.emplace_back(made.get(), i);
    }
    here.blocks.push_back(std::move(made));
  }
  for (;;) {
    bool any_ran = false;
    bool all_done = true;
    std::shuffle(order.begin(), order.end(), here.random);
    if (warps_fall_behind && here.random() % 16 == 0) {
      here.behind = static_cast<int>(here.random() % static_cast<unsigned>(threads / 32));
    }
    for (const auto& [of, i] : order) {
      Fiber* const fiber = of->fibers[static_cast<size_t>(i)].get();
      if (fiber->is_done) {
        continue;
      }
      all_done = false;
      if (i / 32 == here.behind) {
        continue;
      }
      if (fiber->may_go && !fiber->may_go()) {
        continue;
      }
      any_ran = true;
      block = of;
      running = fiber;
      blockIdx.x = of->index;
      threadIdx.x = static_cast<unsigned>(i);
      let_run();
    }
    if (all_done) {
      break;
    }
    if (!any_ran) {
      if (here.behind >= 0) {
        here.behind = -1;
        continue;
      }
      if (here.copies.empty() && here.stores.empty()) {
        fail("every thread waits for ever");
      }
      run_copy();
    }
  }
  if (!here.copies.empty() || !here.stores.empty()) {
    fail("a block ended before its copies");
  }
  if (here.all.there != 0) {
    fail("a cluster ended with its barrier halfway");
  }
  for (const auto& one : here.blocks) {
    for (const auto& [which, barrier] : one->named) {
      if (barrier.there != 0) {
        fail("a block ended with a named barrier halfway");
      }
    }
  }
  cluster = nullptr;
  block = nullptr;
}

}  // namespace emulated

namespace attention {
inline unsigned char shared_memory[emulated::kSharedBytes];
}

namespace emulated {

// A block that is a cluster of its own.
inline void run_block(unsigned index, unsigned grid, int threads, unsigned seed, std::function<void()> kernel) {
  run_cluster(index, grid, {attention::shared_memory}, threads, seed, std::move(kernel));
}

}  // namespace emulated

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

// The upper of two words and the lower, shifted down; the lower 32 bits.
inline uint32_t __funnelshift_r(uint32_t low, uint32_t high, unsigned shift) {
  return static_cast<uint32_t>((uint64_t{high} << 32 | low) >> (shift & 31));
}

// Return the bytes of two words that the selector's four digits number; the first word has bytes 0 to 3.
inline uint32_t __byte_perm(uint32_t low, uint32_t high, uint32_t selector) {
  uint32_t result = 0;
  for (int i = 0; i < 4; ++i) {
    const auto byte = static_cast<uint32_t>((uint64_t{high} << 32 | low) >> (selector >> i * 4 & 7) * 8 & 0xFF);
    result |= byte << i * 8;
  }
  return result;
}

namespace kernels {

template <typename T, int N>
struct alignas(N * sizeof(T)) Vector {
  T values[N];
};
enum class EvictionPriority { kEvictNormal, kEvictFirst, kEvictLast };
template <EvictionPriority>
uint64_t create_policy() {
  return 0;
}
template <typename T>
void check_alignment(const T* at) {
  if (reinterpret_cast<uintptr_t>(at) % sizeof(T) != 0) {
    emulated::fail("a vector begins at no multiple of its size");
  }
}
template <typename T, int N>
Vector<T, N> load(const Vector<T, N>* from, uint64_t) {
  check_alignment(from);
  Vector<T, N> vector;
  std::memcpy(&vector, static_cast<const void*>(from), sizeof(vector));
  return vector;
}
template <typename T, int N>
void store(Vector<T, N>* to, const Vector<T, N>& vector, uint64_t) {
  check_alignment(to);
  std::memcpy(static_cast<void*>(to), &vector, sizeof(vector));
}

enum class Element { kBFloat16, kFloat16, kFloat8 };

inline uint32_t shared_address(const void* pointer) {
  return static_cast<uint32_t>(static_cast<const unsigned char*>(pointer) - emulated::block->memory) +
         emulated::kSharedBase;
}
inline unsigned char* shared_pointer(uint32_t address) {
  return emulated::block->memory + (address - emulated::kSharedBase);
}

inline float exp2_(float x) { return std::exp2(x); }
inline float reciprocal(float x) { return 1.0f / x; }

inline uint16_t load_of_line(const uint16_t* from) { return *from; }
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

// An address of this block's shared memory in that of the block whose turn it is.
inline uint64_t* same_barrier(uint32_t address) { return reinterpret_cast<uint64_t*>(shared_pointer(address)); }

inline bool is_as_tma_takes_it(const CUtensorMap& map, int x) {
  const int per_16_bytes = map.box_words > 0 ? 4 : 8;
  return reinterpret_cast<uintptr_t>(map.data) % 16 == 0 && x % per_16_bytes == 0 &&
         std::all_of(map.strides + 1, map.strides + 4, [&](int64_t stride) { return stride % per_16_bytes == 0; });
}

inline void check_box(uint32_t address, const CUtensorMap* map, int x, int alignment) {
  if (!is_as_tma_takes_it(*map, x)) {
    emulated::fail("a tensor, its rows or a box begin at no multiple of 16 bytes");
  }
  if (address % alignment != 0) {
    emulated::fail("a tile begins where the swizzle does not, or at no multiple of 128 bytes");
  }
  if (address + static_cast<uint32_t>(map->box_rows * map->row_bytes()) > emulated::kSharedBase + emulated::kSharedBytes) {
    emulated::fail("a copy goes past the end of shared memory");
  }
}

// Calls f with each element of a box of 64 elements of box_rows rows: where it is in shared memory, with the 128-byte
// swizzle, and in the tensor, or null where it is outside.
template <typename F>
void each_of_box(uint32_t address, const CUtensorMap& map, int x, int y, int z, int w, const F& f) {
  for (int row = 0; row < map.box_rows; ++row) {
    for (int column = 0; column < 64; ++column) {
      const bool is_inside = x + column < map.sizes[0] && y + row < map.sizes[1] && y + row >= 0 && z < map.sizes[2] &&
                             w < map.sizes[3];
      const uint32_t at = address + static_cast<uint32_t>(row * 128 + column * 2);
      f(shared_pointer(at ^ ((at >> 7 & 7) << 4)),
        is_inside ? map.data + (x + column) * map.strides[0] + (y + row) * map.strides[1] + z * map.strides[2] +
                        w * map.strides[3]
                  : nullptr);
    }
  }
}

inline void copy_words(uint32_t address, const CUtensorMap& map, int x, int y) {
  for (int row = 0; row < map.box_rows; ++row) {
    for (int column = 0; column < map.box_words; ++column) {
      uint32_t word = 0;
      if (x + column < map.sizes[0] && y + row < map.sizes[1]) {
        std::memcpy(&word, map.data + 2 * ((x + column) * map.strides[0] + (y + row) * map.strides[1]), 4);
      }
      std::memcpy(shared_pointer(address + static_cast<uint32_t>((row * map.box_words + column) * 4)), &word, 4);
    }
  }
}

// To the blocks whose bits are set. The map is the kernel's argument, and here on the stack of a thread, which may end
// before its copies.
inline void copy_box(void* to, const CUtensorMap* of, int x, int y, int z, int w, uint64_t* barrier, unsigned blocks) {
  const CUtensorMap map = *of;
  const uint32_t address = shared_address(to);
  const uint32_t of_barrier = shared_address(barrier);
  check_box(address, of, x, map.box_words > 0 ? 128 : 1024);
  for (int rank = 0; rank < static_cast<int>(emulated::cluster->blocks.size()); ++rank) {
    if ((blocks >> rank & 1) == 0) {
      continue;
    }
    emulated::start_copy([=] {
      emulated::as_block(rank, [=] {
        if (map.box_words > 0) {
          copy_words(address, map, x, y);
        } else {
          each_of_box(address, map, x, y, z, w, [](unsigned char* here, const uint16_t* there) {
            const uint16_t bits = there == nullptr ? uint16_t{0} : *there;
            std::memcpy(here, &bits, 2);
          });
        }
        emulated::Mbarrier& at = mbarrier_at(same_barrier(of_barrier));
        at.bytes -= map.box_rows * map.row_bytes();
        at.complete_if_all_is_there();
      });
    });
  }
}
inline void tma_load(void* to, const CUtensorMap* map, int x, int y, int z, int w, uint64_t* barrier) {
  copy_box(to, map, x, y, z, w, barrier, 1u << emulated::block->rank);
}
inline void tma_load(void* to, const CUtensorMap* map, int x, int y, uint64_t* barrier) {
  copy_box(to, map, x, y, 0, 0, barrier, 1u << emulated::block->rank);
}
inline void tma_load_multicast(void* to, const CUtensorMap* map, int x, int y, uint64_t* barrier, uint16_t blocks) {
  copy_box(to, map, x, y, 0, 0, barrier, blocks);
}

// Stores read shared memory as late as the thread lets them, where copies are late.
inline void tma_store(const CUtensorMap* of, const void* from, int x, int y) {
  const CUtensorMap map = *of;
  const uint32_t address = shared_address(from);
  const int rank = emulated::block->rank;
  emulated::Fiber* const thread = emulated::running;
  check_box(address, of, x, 128);
  if (of->sizes[0] % 8 != 0 && x + 64 > of->sizes[0]) {
    emulated::fail("a store ends between multiples of 16 bytes, and writes past the end of a row");
  }
  ++thread->stores;
  const auto store = [=] {
    emulated::as_block(rank, [=] {
      each_of_box(address, map, x, y, 0, 0, [](const unsigned char* here, const uint16_t* there) {
        if (there != nullptr) {
          std::memcpy(const_cast<uint16_t*>(there), here, 2);
        }
      });
    });
    --thread->stores;
  };
  if (emulated::cluster->copies_late) {
    emulated::cluster->stores.push_back(store);
  } else {
    store();
  }
}
inline void bulk_commit_group() {}
template <int kPending>
void bulk_wait_group_read() {
  static_assert(kPending == 0);
  emulated::Fiber* const thread = emulated::running;
  emulated::wait_until([thread] { return thread->stores == 0; });
}
inline void fence_proxy_async() {}

// Clusters

inline int cluster_rank() { return emulated::block->rank; }
inline void cluster_arrive_relaxed() {
  emulated::NamedBarrier& all = emulated::cluster->all;
  emulated::running->cluster_generation = all.generation;
  const auto& blocks = emulated::cluster->blocks;
  if (++all.there == static_cast<int>(blocks.size() * blocks.front()->fibers.size())) {
    all.there = 0;
    ++all.generation;
  }
}
inline void cluster_wait() {
  const int generation = emulated::running->cluster_generation;
  emulated::NamedBarrier& all = emulated::cluster->all;
  emulated::wait_until([&all, generation] { return all.generation != generation; });
}
inline void mbarrier_arrive_cluster(uint64_t* barrier, int rank) {
  const uint32_t address = shared_address(barrier);
  emulated::as_block(rank, [address] { mbarrier_arrive(same_barrier(address)); });
}
inline void bulk_copy_cluster(void* to, const void* from, int bytes, uint64_t* barrier, int rank) {
  const uint32_t address = shared_address(to);
  const uint32_t of_barrier = shared_address(barrier);
  const int own = emulated::block->rank;
  if (bytes % 16 != 0 || address % 16 != 0 || shared_address(from) % 16 != 0) {
    emulated::fail("a bulk copy is of no multiple of 16 bytes");
  }
  emulated::start_copy([=] {
    emulated::as_block(own, [] {});  // it is still there to be read
    emulated::as_block(rank, [=] {
      std::memcpy(shared_pointer(address), from, static_cast<size_t>(bytes));
      emulated::Mbarrier& at = mbarrier_at(same_barrier(of_barrier));
      at.bytes -= bytes;
      at.complete_if_all_is_there();
    });
  });
}
inline void launch_dependent_grids() {}
inline void wait_on_dependent_grids() {}

// The block's shared memory.
template <int kAlignment>
unsigned char* dynamic_shared_memory() {
  const uint32_t past = emulated::kSharedBase % kAlignment;
  return emulated::block->memory + (past == 0 ? 0 : kAlignment - past);
}

// Named barriers and registers

// Lane l has the address of row l % 8 of matrix l / 8, and a pair of elements of row l / 4 of each matrix.
inline void stmatrix_x4(uint32_t to, uint32_t first, uint32_t second, uint32_t third, uint32_t fourth) {
  const uint32_t pairs[] = {first, second, third, fourth};
  for (int matrix = 0; matrix < 4; ++matrix) {
    const uint32_t row = exchange(to, matrix * 8 + emulated::lane() / 4);
    std::memcpy(shared_pointer(row + static_cast<uint32_t>(emulated::lane() % 4 * 4)), &pairs[matrix], 4);
  }
}

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
inline void warpgroup_barrier(int which) { named_barrier_sync(which + 1, 128); }
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
  if (descriptor >> 49 != 1 << 13) {
    emulated::fail("an operand with a base offset, or without the 128-byte swizzle");
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
    if (!emulated::cluster->wgmma_late) {
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
