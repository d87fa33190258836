// square on CUDA, twice: as a lecture writes it first, and with wide loads.
//
// Both multiply once for two memory accesses, so DRAM bandwidth is the limit. In the naive one a thread loads
// 4 bytes (2 for the 16-bit types) and ends, where the other has up to 64 bytes under way.
#include "../include/elementwise.cuh"

namespace square {

struct Square {
  __device__ float operator()(float value) const { return value * value; }
};

constexpr int kTile = 16;

// A block of 16 x 16 threads takes a tile of 16 rows and 16 columns, a thread one element of it. Nothing is
// kept. A grid has at most 65535 blocks in y, so a block goes on to the next tile below that is free.
template <typename T>
__global__ void naive(const T* x, T* y, int64_t rows, int64_t columns) {
  const int64_t column = static_cast<int64_t>(blockIdx.x) * kTile + threadIdx.x;
  for (int64_t row = static_cast<int64_t>(blockIdx.y) * kTile + threadIdx.y; row < rows;
       row += static_cast<int64_t>(gridDim.y) * kTile) {
    if (column < columns) {
      const float value = static_cast<float>(x[row * columns + column]);
      y[row * columns + column] = static_cast<T>(value * value);
    }
  }
}

kernels::Tensor cuda(const kernels::Tensor& x, int64_t block_size, int64_t num_warps) {
  return kernels::elementwise_cuda("square::cuda", x, block_size, num_warps, Square{});
}

kernels::Tensor cuda_naive(const kernels::Tensor& x) {
  kernels::require(x.dim() == 2, "square::cuda_naive takes a 2-D tensor, not one of " + std::to_string(x.dim()) +
                                     " dimensions");
  const torch::stable::accelerator::DeviceGuard guard(x.get_device_index());
  const kernels::Tensor source = torch::stable::contiguous(x);
  const kernels::Tensor result = torch::stable::empty_like(source);
  kernels::with_element_type(source, [&](auto element) {
    using T = decltype(element);
    if (source.numel() == 0) {
      return;
    }
    const int64_t rows = source.size(0);
    const int64_t columns = source.size(1);
    const dim3 grid(static_cast<unsigned>(kernels::ceil_div(columns, kTile)),
                    static_cast<unsigned>(std::min<int64_t>(kernels::ceil_div(rows, kTile), 65535)));
    naive<T><<<grid, dim3(kTile, kTile), 0, kernels::current_stream(source)>>>(
        kernels::input<T>(source), kernels::output<T>(result), rows, columns);
    kernels::record_launch("naive", "naive", grid, dim3(kTile, kTile));
    kernels::check_launched("square::cuda_naive");
  });
  return result;
}

kernels::Tensor meta(const kernels::Tensor& x, int64_t, int64_t) { return kernels::like(x); }

}  // namespace square

STABLE_TORCH_LIBRARY_FRAGMENT(square, m) {
  m.def("cuda(Tensor x, int block_size, int num_warps) -> Tensor");
  m.def("cuda_naive(Tensor x) -> Tensor");
}

STABLE_TORCH_LIBRARY_IMPL(square, Meta, m) {
  m.impl("cuda", TORCH_BOX(&square::meta));
  m.impl("cuda_naive", TORCH_BOX(&kernels::like));
}

STABLE_TORCH_LIBRARY_IMPL(square, CUDA, m) {
  m.impl("cuda", TORCH_BOX(&square::cuda));
  m.impl("cuda_naive", TORCH_BOX(&square::cuda_naive));
}
