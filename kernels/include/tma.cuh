// Tensor copies by Hopper's tensor memory accelerator (TMA): the driver's function that describes a tensor, and wrappers
// of the PTX instructions that copy boxes of it and of those that a pipeline of copies waits by. See the PTX ISA; each
// wrapper has the name of its instruction, or the name that CUTLASS gives it. They compile for sm_90 and newer.
#pragma once

#include <cstdint>

#include <cuda.h>
#include <cudaTypedefs.h>

#include "async.cuh"
#include "common.cuh"

namespace kernels {

// The block's dynamic shared memory, from a multiple of `kAlignment` bytes on. All blocks of a cluster have the same
// addresses, and rounding up leaves them the same.
template <int kAlignment>
__device__ unsigned char* dynamic_shared_memory() {
  extern __shared__ unsigned char shared_memory[];
  return shared_memory + (kAlignment - shared_address(shared_memory) % kAlignment) % kAlignment;
}

// The driver's function that describes a matrix to TMA, found at run time: no library is linked for it.
inline PFN_cuTensorMapEncodeTiled_v12000 tensor_map_encoder() {
  static const auto found = [] {
    void* function = nullptr;
    cudaDriverEntryPointQueryResult result{};
#if CUDART_VERSION >= 12050
    const cudaError_t error = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000,
                                                               cudaEnableDefault, &result);
#else
    const cudaError_t error = cudaGetDriverEntryPoint("cuTensorMapEncodeTiled", &function, cudaEnableDefault, &result);
#endif
    require(error == cudaSuccess && result == cudaDriverEntryPointSuccess, "TMA needs a driver for CUDA 12 or newer");
    return reinterpret_cast<PFN_cuTensorMapEncodeTiled_v12000>(function);
  }();
  return found;
}

// An mbarrier whose phase completes after `arrivals` arrivals, and the bytes that were expected, if any.
__device__ inline void mbarrier_init(uint64_t* barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" : : "r"(shared_address(barrier)), "r"(arrivals) : "memory");
}

// Arrives at the barrier that has this address in block `rank` of the cluster.
//
// Without semantics for the cluster, as CUTLASS's ClusterBarrier::arrive: what the other block waits for are reads of
// shared memory by wgmma, and these are over. `.release.cluster` would compile to a MEMBAR of the whole GPU in each
// step, which takes as long as reading memory does.
__device__ inline void mbarrier_arrive_cluster(uint64_t* barrier, int rank) {
  asm volatile(
      "{\n"
      ".reg .b32 remote;\n"
      "mapa.shared::cluster.u32 remote, %0, %1;\n"
      "mbarrier.arrive.shared::cluster.b64 _, [remote];\n"
      "}"
      :
      : "r"(shared_address(barrier)), "r"(rank)
      : "memory");
}

__device__ inline int cluster_rank() {
  uint32_t rank;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return static_cast<int>(rank);
}

__device__ inline void prefetch_tensor_map(const CUtensorMap* map) {
  asm volatile("prefetch.tensormap [%0];" : : "l"(map) : "memory");
}

// One thread starts the copy of a box of a matrix, from column x and row y on, to shared memory. Its bytes come off the
// transaction count of `barrier`. Elements outside of the matrix arrive as zeros, and count, too. In all tensor copies
// x is at a multiple of 16 bytes: any other x is an illegal instruction (triton-lang/triton#7385).
__device__ inline void tma_load(void* to, const CUtensorMap* map, int x, int y, uint64_t* barrier) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];"
      :
      : "r"(shared_address(to)), "l"(map), "r"(x), "r"(y), "r"(shared_address(barrier))
      : "memory");
}

// The same for a tensor of four dimensions: the box's first element is (x, y, z, w), x the fastest.
__device__ inline void tma_load(void* to, const CUtensorMap* map, int x, int y, int z, int w, uint64_t* barrier) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4, %5}], "
      "[%6];"
      :
      : "r"(shared_address(to)), "l"(map), "r"(x), "r"(y), "r"(z), "r"(w), "r"(shared_address(barrier))
      : "memory");
}

// A copy of a box of a matrix to this address in each block of the cluster whose bit is set, with the barrier at
// this address there.
__device__ inline void tma_load_multicast(void* to, const CUtensorMap* map, int x, int y, uint64_t* barrier,
                                          uint16_t blocks) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster "
      "[%0], [%1, {%2, %3}], [%4], %5;"
      :
      : "r"(shared_address(to)), "l"(map), "r"(x), "r"(y), "r"(shared_address(barrier)), "h"(blocks)
      : "memory");
}

// One thread starts the copy of a box from shared memory to a matrix; what is outside of it is left out. Threads that
// wrote the shared memory call fence_proxy_async() before.
__device__ inline void tma_store(const CUtensorMap* map, const void* from, int x, int y) {
  asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%0, {%1, %2}], [%3];"
               :
               : "l"(map), "r"(x), "r"(y), "r"(shared_address(from))
               : "memory");
}

// One thread starts a copy of a multiple of 16 bytes of its block's shared memory to the address that `to` has in block
// `rank` of the cluster. The copy takes its bytes off the transaction count of the barrier that has this address there.
// Threads that wrote the shared memory call fence_proxy_async() before.
__device__ inline void bulk_copy_cluster(void* to, const void* from, int bytes, uint64_t* barrier, int rank) {
  asm volatile(
      "{\n"
      ".reg .b32 remote, remote_barrier;\n"
      "mapa.shared::cluster.u32 remote, %0, %4;\n"
      "mapa.shared::cluster.u32 remote_barrier, %3, %4;\n"
      "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [remote], [%1], %2, [remote_barrier];\n"
      "}"
      :
      : "r"(shared_address(to)), "r"(shared_address(from)), "r"(bytes), "r"(shared_address(barrier)), "r"(rank)
      : "memory");
}

// Waits until all bulk groups of this thread are written.
__device__ inline void bulk_wait_group_all() { asm volatile("cp.async.bulk.wait_group 0;" : : : "memory"); }

}  // namespace kernels
