// Wrappers of PTX's asynchronous instructions: cp.async (sm_80), and on sm_90 bulk copies (cp.async.bulk), mbarriers,
// cluster barriers, st.async to distributed shared memory, and programmatic dependent launch. See the PTX ISA,
// "Asynchronous operations". Each wrapper has the name of its instruction, or the name that CUTLASS gives it.
#pragma once

#include <cstdint>

#include "common.cuh"

namespace kernels {

__device__ inline uint32_t shared_address(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

// Starts a copy of 16 bytes from global to shared memory that passes neither through registers nor through L1.
__device__ inline void cp_async(uint4* to, const uint4* from, uint64_t policy) {
  asm volatile("cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2;"
               :
               : "r"(shared_address(to)), "l"(from), "l"(policy)
               : "memory");
}

// Waits until all cp.async of this thread are done. Their data is visible to this thread only.
__device__ inline void cp_async_wait_all() { asm volatile("cp.async.wait_all;" : : : "memory"); }

// Programmatic dependent launch (sm_90). A dependent grid may start once all blocks of this grid have called
// launch_dependent_grids(). It sees what this grid wrote after its own wait_on_dependent_grids(). Before sm_90 a grid
// starts after the end of the one before it, and both do nothing.
__device__ inline void launch_dependent_grids() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" : : : "memory");
#endif
}
__device__ inline void wait_on_dependent_grids() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" : : : "memory");
#endif
}

#if __CUDA_ARCH__ >= 900

// An mbarrier in shared memory with an arrival count of one: a phase completes when one thread has arrived and the
// transaction count that it expects, if any, has come down to zero.
__device__ inline void mbarrier_init(uint64_t* barrier) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" : : "r"(shared_address(barrier)) : "memory");
}

// Makes this thread's mbarrier_init() visible to the cluster. Call it before the thread arrives at the cluster's
// barrier.
__device__ inline void fence_mbarrier_init() { asm volatile("fence.mbarrier_init.release.cluster;" : : : "memory"); }

// The cluster's barrier. A relaxed arrival makes nothing visible but what fence_mbarrier_init() covers. The other one
// has release semantics: it makes visible all that the thread has written.
__device__ inline void cluster_arrive_relaxed() {
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" : : : "memory");
}
__device__ inline void cluster_arrive() { asm volatile("barrier.cluster.arrive.release.aligned;" : : : "memory"); }
__device__ inline void cluster_wait() { asm volatile("barrier.cluster.wait.acquire.aligned;" : : : "memory"); }

// Arrives, and adds `bytes` to the transaction count of the current phase.
__device__ inline void mbarrier_arrive_expect_tx(uint64_t* barrier, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;"
               :
               : "r"(shared_address(barrier)), "r"(bytes)
               : "memory");
}

__device__ inline void mbarrier_arrive(uint64_t* barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" : : "r"(shared_address(barrier)) : "memory");
}

// Waits until the phase of this parity has completed. The first phase has parity 0, the second 1, the third 0 again.
// The wait has acquire semantics for the block (.cta), as in CUTLASS, also where other blocks write here by st.async:
// acquire semantics for the cluster would invalidate L1 too, and shared memory does not pass through L1.
__device__ inline void mbarrier_wait_parity(uint64_t* barrier, int parity) {
  asm volatile(
      "{\n"
      ".reg .pred passed;\n"
      "again%=:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 passed, [%0], %1;\n"
      "@!passed bra again%=;\n"
      "}"
      :
      : "r"(shared_address(barrier)), "r"(parity)
      : "memory");
}

// One thread starts a bulk copy of a multiple of 16 bytes from global to shared memory. The copy takes its bytes off
// the transaction count of `barrier`. It passes neither through registers, nor L1, nor the load/store queue.
__device__ inline void bulk_load(void* to, const void* from, int bytes, uint64_t* barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
               :
               : "r"(shared_address(to)), "l"(from), "r"(bytes), "r"(shared_address(barrier))
               : "memory");
}

// The same from shared to global memory. Threads that wrote the shared memory call fence_proxy_async() before.
__device__ inline void bulk_store(void* to, const void* from, int bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;"
               :
               : "l"(to), "r"(shared_address(from)), "r"(bytes)
               : "memory");
}
// Makes one bulk group of the bulk stores that this thread has started since its last group, if any.
__device__ inline void bulk_commit_group() { asm volatile("cp.async.bulk.commit_group;" : : : "memory"); }
// Orders this thread's accesses of shared memory before bulk copies, which go through the asynchronous proxy.
__device__ inline void fence_proxy_async() { asm volatile("fence.proxy.async.shared::cta;" : : : "memory"); }

// Waits until all but the last `kPending` bulk groups of this thread have read their shared memory.
template <int kPending>
__device__ inline void bulk_wait_group_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;" : : "n"(kPending) : "memory");
}

// Atomic add in shared memory with acquire and release semantics for the block. Returns the value before.
__device__ inline int shared_atomic_add(int* to, int value) {
  int before;
  asm volatile("atom.acq_rel.cta.shared::cta.add.u32 %0, [%1], %2;"
               : "=r"(before)
               : "r"(shared_address(to)), "r"(value)
               : "memory");
  return before;
}

// st.async: writes 4 bytes to the shared memory of block `rank` of the cluster, at the address that `to` has there, and
// takes them off the transaction count of that block's `barrier`.
__device__ inline void st_async(float* to, float value, uint64_t* barrier, int rank) {
  asm volatile(
      "{\n"
      ".reg .b32 remote, remote_barrier;\n"
      "mapa.shared::cluster.u32 remote, %0, %3;\n"
      "mapa.shared::cluster.u32 remote_barrier, %2, %3;\n"
      "st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [remote], %1, [remote_barrier];\n"
      "}"
      :
      : "r"(shared_address(to)), "r"(__float_as_uint(value)), "r"(shared_address(barrier)), "r"(rank)
      : "memory");
}

#endif

}  // namespace kernels
