// Copies and messages that run while threads go on: from device memory to shared memory (sm_80), back, and from block
// to block of a cluster (sm_90). Instructions that CUDA C++ has no name for; PTX ISA, "Asynchronous operations".
#pragma once

#include <cstdint>

#include "common.cuh"

namespace kernels {

__device__ inline uint32_t shared_address(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

// Starts to copy 16 bytes to shared memory, past the registers and L1.
__device__ inline void copy_async(uint4* to, const uint4* from, uint64_t policy) {
  asm volatile("cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2;"
               :
               : "r"(shared_address(to)), "l"(from), "l"(policy)
               : "memory");
}

// Until what this thread copies is there, for this thread.
__device__ inline void wait_for_copies() { asm volatile("cp.async.wait_all;" : : : "memory"); }

// A launch that was told to may begin when all blocks of the one before it have said so (sm_90, programmatic dependent
// launch). It sees what that one wrote after it has waited for its end. Elsewhere launches follow each other.
__device__ inline void let_next_launch_begin() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" : : : "memory");
#endif
}
__device__ inline void wait_for_launch_before() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" : : : "memory");
#endif
}

#if __CUDA_ARCH__ >= 900

// A barrier in shared memory that a phase passes when one thread has arrived, and the bytes are there that it said to
// expect, if any.
__device__ inline void init_barrier(uint64_t* barrier) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" : : "r"(shared_address(barrier)) : "memory");
}

// By the thread that made it, before it arrives at the cluster.
__device__ inline void show_barrier_to_cluster() { asm volatile("fence.mbarrier_init.release.cluster;" : : : "memory"); }

// All threads of a cluster wait for each other. Relaxed: it shows others nothing but show_barrier_to_cluster(); the second
// shows all that a thread has written.
__device__ inline void arrive_at_cluster() { asm volatile("barrier.cluster.arrive.relaxed.aligned;" : : : "memory"); }
__device__ inline void arrive_and_show() { asm volatile("barrier.cluster.arrive.release.aligned;" : : : "memory"); }
__device__ inline void wait_for_cluster() { asm volatile("barrier.cluster.wait.acquire.aligned;" : : : "memory"); }

__device__ inline void expect_bytes(uint64_t* barrier, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;"
               :
               : "r"(shared_address(barrier)), "r"(bytes)
               : "memory");
}

__device__ inline void arrive(uint64_t* barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" : : "r"(shared_address(barrier)) : "memory");
}

// Until a phase has passed, the first of parity 0, the next of 1, and so on. Acquires for the block, as CUTLASS does where
// other blocks write here: for the cluster it would invalidate L1 besides, by which shared memory does not come.
__device__ inline void wait_for_phase(uint64_t* barrier, int parity) {
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

// By one thread: starts to copy a multiple of 16 bytes to shared memory, and counts them at `barrier`; past the
// registers, L1 and the queue of loads and stores.
__device__ inline void copy_in(void* to, const void* from, int bytes, uint64_t* barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
               :
               : "r"(shared_address(to)), "l"(from), "r"(bytes), "r"(shared_address(barrier))
               : "memory");
}

// The same from shared memory, where other threads may have written after each has said so.
__device__ inline void copy_out(void* to, const void* from, int bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;"
               :
               : "l"(to), "r"(shared_address(from)), "r"(bytes)
               : "memory");
}
// What this thread has copied out since the last time, if anything, is a group.
__device__ inline void end_group() { asm volatile("cp.async.bulk.commit_group;" : : : "memory"); }
__device__ inline void show_to_copies() { asm volatile("fence.proxy.async.shared::cta;" : : : "memory"); }

// Until all but the last `kLeft` of this thread's groups have read what they copy.
template <int kLeft>
__device__ inline void wait_until_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;" : : "n"(kLeft) : "memory");
}

// Adds to a number that the threads of a block share, and returns what it was. A thread sees what those had written that
// added before it.
__device__ inline int add_shared(int* to, int value) {
  int before;
  asm volatile("atom.acq_rel.cta.shared::cta.add.u32 %0, [%1], %2;"
               : "=r"(before)
               : "r"(shared_address(to)), "r"(value)
               : "memory");
  return before;
}

// Writes to where `to` is in another block of the cluster, and counts the bytes at its `barrier`.
__device__ inline void send(float* to, float value, uint64_t* barrier, int block) {
  asm volatile(
      "{\n"
      ".reg .b32 there, counted;\n"
      "mapa.shared::cluster.u32 there, %0, %3;\n"
      "mapa.shared::cluster.u32 counted, %2, %3;\n"
      "st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [there], %1, [counted];\n"
      "}"
      :
      : "r"(shared_address(to)), "r"(__float_as_uint(value)), "r"(shared_address(barrier)), "r"(block)
      : "memory");
}

#endif

}  // namespace kernels
