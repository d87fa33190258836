// The matrix product on CUDA as a first lecture writes it: a thread an element of the output, first from global
// memory alone, then with tiles of both inputs in shared memory, which cuts global loads by the side of a tile.
//
// Neither uses tensor cores. A product is one multiply-add in float32 for two loads, from L1 in the naive form and
// from shared memory in the tiled one: these loads are the limit, not the float32 units.
#include <algorithm>
#include <type_traits>

#include "../include/common.cuh"

namespace matmul {

constexpr int kNaiveSide = 16;
constexpr int64_t kMaxGridY = 65535;

// Neighbouring threads have neighbouring columns: their loads of b are side by side, and they share the load of a. A
// grid has at most 65535 blocks in y, so a block goes on to the next rows below that are free.
template <typename T>
__global__ void naive(const T* a, const T* b, T* out, int64_t m, int64_t n, int64_t k) {
  const int64_t column = static_cast<int64_t>(blockIdx.x) * kNaiveSide + threadIdx.x;
  if (column >= n) {
    return;
  }
  for (int64_t row = static_cast<int64_t>(blockIdx.y) * kNaiveSide + threadIdx.y; row < m;
       row += static_cast<int64_t>(gridDim.y) * kNaiveSide) {
    float total = 0.0f;
    for (int64_t i = 0; i < k; ++i) {
      total = fmaf(static_cast<float>(a[row * k + i]), static_cast<float>(b[i * n + column]), total);
    }
    out[row * n + column] = static_cast<T>(total);
  }
}

// A block of kTile x kTile threads steps through k by kTile: each thread loads one element of a and one of b, made
// float32, and then all read each other's. What is past the end is 0 in both, and adds 0 whatever the other holds.
// A warp reads one or two elements of a tile of a, and neighbouring ones of a tile of b: no two of one bank.
template <typename T, int kTile>
__global__ void __launch_bounds__(kTile* kTile)
    tiled(const T* a, const T* b, T* out, int64_t m, int64_t n, int64_t k) {
  __shared__ float tile_of_a[kTile][kTile];
  __shared__ float tile_of_b[kTile][kTile];
  const int x = threadIdx.x;
  const int y = threadIdx.y;
  const int64_t column = static_cast<int64_t>(blockIdx.x) * kTile + x;
  // All threads of a block stay for all steps, whether or not their element is inside: they load for the others.
  for (int64_t top = static_cast<int64_t>(blockIdx.y) * kTile; top < m;
       top += static_cast<int64_t>(gridDim.y) * kTile) {
    const int64_t row = top + y;
    float total = 0.0f;
    for (int64_t start = 0; start < k; start += kTile) {
      tile_of_a[y][x] = row < m && start + x < k ? static_cast<float>(a[row * k + start + x]) : 0.0f;
      tile_of_b[y][x] = start + y < k && column < n ? static_cast<float>(b[(start + y) * n + column]) : 0.0f;
      __syncthreads();
#pragma unroll
      for (int i = 0; i < kTile; ++i) {
        total = fmaf(tile_of_a[y][i], tile_of_b[i][x], total);
      }
      __syncthreads();  // before the next step overwrites what others may still read
    }
    if (row < m && column < n) {
      out[row * n + column] = static_cast<T>(total);
    }
  }
}

kernels::Tensor empty_product(const kernels::Tensor& a, const kernels::Tensor& b) {
  return torch::stable::new_empty(a, {a.size(0), b.size(1)});
}

// Calls launch with a value of the elements' type, their pointers, the sizes, and a grid of side x side tiles.
template <typename Launch>
kernels::Tensor product(const char* operation, const kernels::Tensor& a, const kernels::Tensor& b, int64_t side,
                        const Launch& launch) {
  kernels::require(a.dim() == 2 && b.dim() == 2 && a.size(1) == b.size(0) && a.scalar_type() == b.scalar_type() &&
                       a.get_device_index() == b.get_device_index(),
                   std::string(operation) + " takes an m x k and a k x n tensor of one dtype on one device");
  const torch::stable::accelerator::DeviceGuard guard(a.get_device_index());
  const kernels::Tensor left = torch::stable::contiguous(a);
  const kernels::Tensor right = torch::stable::contiguous(b);
  const kernels::Tensor result = empty_product(left, right);
  if (result.numel() == 0) {
    return result;
  }
  const int64_t m = left.size(0);
  const int64_t n = right.size(1);
  const int64_t k = left.size(1);
  const dim3 grid(static_cast<unsigned>(kernels::ceil_div(n, side)),
                  static_cast<unsigned>(std::min(kernels::ceil_div(m, side), kMaxGridY)));
  const dim3 block(static_cast<unsigned>(side), static_cast<unsigned>(side));
  kernels::with_element_type(left, [&](auto element) {
    using T = decltype(element);
    launch(kernels::input<T>(left), kernels::input<T>(right), kernels::output<T>(result), m, n, k, grid, block,
           kernels::current_stream(left));
    kernels::check_launched(operation);
  });
  return result;
}

kernels::Tensor cuda_naive(const kernels::Tensor& a, const kernels::Tensor& b) {
  return product("matmul::cuda_naive", a, b, kNaiveSide,
                 [](const auto* left, const auto* right, auto* out, int64_t m, int64_t n, int64_t k, const dim3& grid,
                    const dim3& block, cudaStream_t stream) {
                   naive<<<grid, block, 0, stream>>>(left, right, out, m, n, k);
                   kernels::record_launch("naive", "naive", grid, block);
                 });
}

template <int kTile>
kernels::Tensor with_tile(const kernels::Tensor& a, const kernels::Tensor& b) {
  return product("matmul::cuda_tiled", a, b, kTile,
                 [](const auto* left, const auto* right, auto* out, int64_t m, int64_t n, int64_t k, const dim3& grid,
                    const dim3& block, cudaStream_t stream) {
                   using T = std::remove_pointer_t<decltype(out)>;
                   tiled<T, kTile><<<grid, block, 0, stream>>>(left, right, out, m, n, k);
                   kernels::record_launch("tiled", "tiled", grid, block, 1, 0, 1);
                 });
}

kernels::Tensor cuda_tiled(const kernels::Tensor& a, const kernels::Tensor& b, int64_t tile) {
  kernels::require(tile == 16 || tile == 32, "tile must be 16 or 32, not " + std::to_string(tile));
  return tile == 16 ? with_tile<16>(a, b) : with_tile<32>(a, b);
}

kernels::Tensor meta_tiled(const kernels::Tensor& a, const kernels::Tensor& b, int64_t) {
  return empty_product(a, b);
}

}  // namespace matmul

STABLE_TORCH_LIBRARY_FRAGMENT(matmul, m) {
  m.def("cuda_naive(Tensor a, Tensor b) -> Tensor");
  m.def("cuda_tiled(Tensor a, Tensor b, int tile) -> Tensor");
}

STABLE_TORCH_LIBRARY_IMPL(matmul, Meta, m) {
  m.impl("cuda_naive", TORCH_BOX(&matmul::empty_product));
  m.impl("cuda_tiled", TORCH_BOX(&matmul::meta_tiled));
}

STABLE_TORCH_LIBRARY_IMPL(matmul, CUDA, m) {
  m.impl("cuda_naive", TORCH_BOX(&matmul::cuda_naive));
  m.impl("cuda_tiled", TORCH_BOX(&matmul::cuda_tiled));
}
