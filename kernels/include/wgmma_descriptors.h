// How wgmma is told where an operand lies in shared memory: tiles of rows of 128 bytes with the 128-byte swizzle, as TMA
// writes them. Plain C++, so that a test compiles it without CUDA.
#pragma once

#include <cstdint>

#ifdef __CUDACC__
#define KERNELS_HOST_DEVICE __host__ __device__
#else
#define KERNELS_HOST_DEVICE
#endif

namespace kernels {

constexpr int kSwizzle = 128;    // bytes: of a row of every tile in shared memory, and of the swizzle's period
constexpr int kSwizzleRows = 8;  // after so many rows the swizzle begins again
constexpr int kSwizzleTile = kSwizzle * kSwizzleRows;

// Where TMA puts byte `byte` of row `row` of a tile whose rows are 128 bytes, with the 128-byte swizzle: within each 8
// rows, row r's pieces of 16 bytes change places with those r further by exclusive or. The tile begins at a multiple of
// 1024 bytes.
KERNELS_HOST_DEVICE inline int swizzled(int row, int byte) {
  return row * kSwizzle + (byte ^ (row % kSwizzleRows * 16));
}

// A matrix descriptor of wgmma. PTX ISA, "Asynchronous warpgroup level matrix shared memory layout", "Matrix descriptor
// format": addresses and offsets in units of 16 bytes, 14 bits each.
//   bits  0-13  the address where the operand begins
//   bits 16-29  the leading dimension byte offset
//   bits 32-45  the stride dimension byte offset
//   bits 49-51  the base offset: 0, since every tile begins at a multiple of 1024 bytes
//   bits 62-63  the swizzle: 1 for 128 bytes
KERNELS_HOST_DEVICE constexpr uint64_t matrix_descriptor(uint32_t address, uint32_t leading_bytes,
                                                         uint32_t stride_bytes) {
  return (uint64_t{address & 0x3FFFF} >> 4) | (uint64_t{leading_bytes >> 4} << 16) |
         (uint64_t{stride_bytes >> 4} << 32) | (uint64_t{1} << 62);
}

// An operand whose rows in shared memory go along k (K-major): 128 bytes of k a row, 8 rows of the swizzle's period
// after each other, so that 8 rows further is 1024 bytes further. The leading offset is not used. The instruction's 32
// bytes of k begin 32 bytes further in the row with each step: the hardware swizzles the address that results, whose
// bits for the row are the same.
KERNELS_HOST_DEVICE constexpr uint64_t k_major_descriptor(uint32_t tile, int step) {
  return matrix_descriptor(tile + static_cast<uint32_t>(step) * 32, 16, kSwizzleTile);
}

// An operand whose rows in shared memory go along m or n (MN-major), 64 elements of 2 bytes a row, a row for each k:
// `rows` of them are a slab. The leading offset goes to the next 64 elements of m or n, which is the next slab; the
// stride offset to the next 8 of k. An instruction takes 16 of k, so that each step begins 16 rows further.
KERNELS_HOST_DEVICE constexpr uint64_t mn_major_descriptor(uint32_t tile, int step, int rows) {
  return matrix_descriptor(tile + static_cast<uint32_t>(step) * 16 * kSwizzle, static_cast<uint32_t>(rows) * kSwizzle,
                           kSwizzleTile);
}

// The descriptor of an operand that begins so many bytes further, a multiple of 16. One addition, where a new descriptor
// takes four instructions.
KERNELS_HOST_DEVICE constexpr uint64_t further(uint64_t descriptor, int bytes) {
  return descriptor + static_cast<uint64_t>(bytes / 16);
}

}  // namespace kernels
