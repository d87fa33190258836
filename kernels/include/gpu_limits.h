// Numbers that every CUDA kernel here goes by. Plain C++, so that code that plans launches compiles without CUDA.
#pragma once

#include <cstdint>

namespace kernels {

constexpr int kThreadsPerWarp = 32;
constexpr int kMaxWarps = 32;  // of a block
constexpr int kMaxThreads = kMaxWarps * kThreadsPerWarp;

// Blocks of a cluster: what every GPU with clusters takes, and what sm_90 and sm_100 take where a kernel asks for it.
constexpr int kPortableClusterSize = 8;
constexpr int kMaxClusterSize = 16;

inline int64_t ceil_div(int64_t value, int64_t by) { return (value + by - 1) / by; }

}  // namespace kernels
