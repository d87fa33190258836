// The gradient of softmax over the last dimension of a 2-D tensor on CUDA, with each row in the registers of a block or
// of a cluster of up to 16 blocks.
//
// A thread loads all its vectors of d_out and out before it needs one, and keeps them as raw bits. The sum of the
// products goes through the warps, the block and the cluster by distributed shared memory (ClusterReduce). Then each
// thread has its elements of the row, so that a row is read once, however wide it is: the limit is DRAM bandwidth.
// Rows may begin anywhere within 16 bytes, those of all three matrices alike. The elements before a row's first vector
// and after its last are loaded one by one, by threads of the cluster's first block.
#include <algorithm>
#include <string>

#include "../include/row_fragment.cuh"
#include "../include/rows.h"
#include "../include/rows_launch.cuh"

namespace softmax_backward {

using kernels::Tensor;

constexpr int kMostThreads = 512;  // of a block, so that each has 128 registers
constexpr int kMostVectors = 8;    // of each input that a thread keeps, in half of them

// The sum of some elements' products, which ClusterReduce adds up.
struct Products {
  struct Partial {
    float sum;
  };

  __device__ static Partial empty() { return {0.0f}; }
  __device__ static Partial merge(const Partial& a, const Partial& b) { return {a.sum + b.sum}; }
  __device__ static Partial warp_merge(const Partial& mine) {
    return {kernels::warp_reduce_sum(mine.sum, kernels::kThreadsPerWarp)};
  }
};

template <typename T>
struct Matrices {
  const T* d_out;  // rows d_out_stride elements apart
  const T* out;
  T* d_x;  // contiguous
  int64_t d_out_stride;
  int64_t out_stride;
  int columns;
  kernels::EvictionPriority eviction;
};

// K vectors of V elements of each input per thread, and with kPeel an element.
template <typename T, int V, int K, bool kPeel>
__global__ void __launch_bounds__(kMostThreads, 1)
    register_resident_gradient(const Matrices<T> of, const kernels::RowPartition partition) {
  using Elements = kernels::Vector<T, V>;
  extern __shared__ uint4 shared[];
  const kernels::ClusterReduce<Products, false> cluster_reduce(partition, shared);
  const int rank = static_cast<int>(blockIdx.x) & (cluster_reduce.cluster_size - 1);
  const int64_t row = blockIdx.x >> partition.log2_cluster_size;
  const auto thread = static_cast<int>(threadIdx.x);
  const auto step = static_cast<int>(blockDim.x);
  cluster_reduce.init();

  const uint64_t policy = kernels::make_policy(of.eviction);
  const T* const d_out_row = of.d_out + row * of.d_out_stride;
  const T* const out_row = of.out + row * of.out_stride;
  T* const d_x_row = of.d_x + row * of.columns;
  const auto peeled = kernels::peel<T, V, kPeel, false>(out_row, of.columns);
  const int first = rank * partition.vectors_per_block + thread;
  const int end = min((rank + 1) * partition.vectors_per_block, peeled.vectors);
  const auto* d_out = reinterpret_cast<const Elements*>(d_out_row + peeled.head);
  const auto* out = reinterpret_cast<const Elements*>(out_row + peeled.head);
  kernels::RawVector<T, V> given[K];
  kernels::RawVector<T, V> values[K];
#pragma unroll
  for (int k = 0; k < K; ++k) {
    const int i = first + k * step;
    given[k] = i < end ? kernels::load_raw(d_out + i, policy) : kernels::padding<T, V, false>();
    values[k] = i < end ? kernels::load_raw(out + i, policy) : kernels::padding<T, V, false>();
  }
  const int column = kernels::scalar_column<V>(peeled, thread);
  const bool has_scalar = kPeel && rank == 0 && thread < peeled.scalars;
  const float given_scalar = has_scalar ? static_cast<float>(d_out_row[column]) : 0.0f;
  const float value_scalar = has_scalar ? static_cast<float>(out_row[column]) : 0.0f;

  kernels::Accumulators products;
  if constexpr (kPeel) {
    products.add(0, given_scalar * value_scalar);
  }
#pragma unroll
  for (int k = 0; k < K; ++k) {
    float a[V];
    float b[V];
    kernels::unpack<T, V>(given[k], a);
    kernels::unpack<T, V>(values[k], b);
#pragma unroll
    for (int j = 0; j < V; ++j) {
      products.add(k * V + j, a[j] * b[j]);
    }
  }
  const Products::Partial own{kernels::warp_reduce_sum(products.total(), kernels::kThreadsPerWarp)};
  cluster_reduce.wait_init();
  const float total = cluster_reduce.all_reduce(own, 0, rank, true).sum;

  if (has_scalar) {
    d_x_row[column] = static_cast<T>((given_scalar - total) * value_scalar);
  }
  auto* const d_x = reinterpret_cast<Elements*>(d_x_row + peeled.head);
#pragma unroll
  for (int k = 0; k < K; ++k) {
    const int i = first + k * step;
    if (i < end) {
      kernels::optimization_barrier(given[k]);  // or their floats would be kept instead
      kernels::optimization_barrier(values[k]);
      float a[V];
      float b[V];
      kernels::unpack<T, V>(given[k], a);
      kernels::unpack<T, V>(values[k], b);
      Elements result;
#pragma unroll
      for (int j = 0; j < V; ++j) {
        result.values[j] = static_cast<T>((a[j] - total) * b[j]);
      }
      kernels::store(d_x + i, result, policy);
    }
  }
}

// How a row is divided: the blocks of its cluster, their threads, and the vectors of each input that a thread keeps.
struct Plan {
  int blocks;
  int threads;
  int vectors_per_block;
  int vectors_per_thread;

  Plan(int vectors, int64_t blocks_wanted, int threads_wanted, int most_blocks)
      : blocks(1), threads(threads_wanted) {
    while (blocks < blocks_wanted && blocks < most_blocks) {
      blocks *= 2;
    }
    divide(vectors);
    while (vectors_per_thread > kMostVectors && (blocks < most_blocks || threads < kMostThreads)) {
      if (threads < kMostThreads) {
        threads = std::min(2 * threads, kMostThreads);
      } else {
        blocks *= 2;
      }
      divide(vectors);
    }
  }

 private:
  void divide(int vectors) {
    vectors_per_block = (vectors + blocks - 1) / blocks;
    vectors_per_thread = (vectors_per_block + threads - 1) / threads;
  }
};

template <typename T, int V, int K, bool kPeel>
void launch(const Matrices<T>& of, int64_t rows, const Plan& plan, cudaStream_t stream) {
  int log2_blocks = 0;
  while (1 << log2_blocks < plan.blocks) {
    ++log2_blocks;
  }
  const kernels::RowPartition partition{1, plan.threads, 0, log2_blocks, plan.vectors_per_block};
  const int64_t shared_bytes =
      kernels::cluster_reduce_bytes(sizeof(Products::Partial), false, plan.threads, plan.blocks);
  const auto kernel = register_resident_gradient<T, V, K, kPeel>;
  kernels::LaunchConfig launch(rows * plan.blocks, plan.threads, shared_bytes, stream);
  if (plan.blocks > 1) {
    launch.set_cluster_size(plan.blocks);
  }
  kernels::allow_cluster_size(kernel, plan.blocks);
  cudaLaunchKernelEx(&launch.config, kernel, of, partition);
  kernels::record_launch("register_resident_gradient", "register_resident", launch.config.gridDim,
                         launch.config.blockDim, plan.blocks, shared_bytes);
}

template <typename T, int V, bool kPeel>
void run(const Matrices<T>& of, int64_t rows, int64_t blocks, int threads, const Tensor& x) {
  const int most_blocks = kernels::device_limits(x.get_device_index()).max_cluster_size;
  const Plan plan(of.columns / V, blocks, threads, most_blocks);
  kernels::require(plan.vectors_per_thread <= kMostVectors,
                   "softmax_backward::cuda keeps rows in registers: " + std::to_string(of.columns) +
                       " columns are too many");
  kernels::require(rows * plan.blocks <= INT32_MAX, "softmax_backward::cuda takes fewer rows than " +
                                                        std::to_string(rows));
  const cudaStream_t stream = kernels::current_stream(x);
  if (plan.vectors_per_thread <= 1) {
    launch<T, V, 1, kPeel>(of, rows, plan, stream);
  } else if (plan.vectors_per_thread <= 2) {
    launch<T, V, 2, kPeel>(of, rows, plan, stream);
  } else if (plan.vectors_per_thread <= 4) {
    launch<T, V, 4, kPeel>(of, rows, plan, stream);
  } else {
    launch<T, V, kMostVectors, kPeel>(of, rows, plan, stream);
  }
}

Tensor cuda(const Tensor& d_out, const Tensor& out, int64_t block_size, int64_t num_warps) {
  kernels::check_launch_parameters(block_size, num_warps);
  kernels::check_matrix("softmax_backward", out);
  const int threads = std::min(static_cast<int>(num_warps) * kernels::kThreadsPerWarp, kMostThreads);
  const int64_t rows = out.size(0);
  const int64_t columns = out.size(1);
  kernels::require(d_out.dim() == 2 && d_out.size(0) == rows && d_out.size(1) == columns &&
                       d_out.scalar_type() == out.scalar_type() && d_out.get_device_index() == out.get_device_index(),
                   "softmax_backward takes two matrices of one shape and dtype on one device");
  kernels::require(out.stride(1) == 1 && d_out.stride(1) == 1,
                   "softmax_backward::cuda takes rows of neighbouring elements");
  kernels::require(columns <= INT32_MAX / 2, "softmax_backward::cuda takes fewer than 2**30 columns");
  const torch::stable::accelerator::DeviceGuard guard(out.get_device_index());
  const Tensor d_x = torch::stable::new_empty(out, out.sizes());
  if (rows == 0) {
    return d_x;
  }
  kernels::with_element_type(out, [&](auto element) {
    using T = decltype(element);
    constexpr int V = kernels::kVectorWidth<T>;
    const int64_t bytes = 3 * out.numel() * static_cast<int64_t>(sizeof(T));
    const Matrices<T> of{kernels::input<T>(d_out),
                         kernels::input<T>(out),
                         kernels::output<T>(d_x),
                         d_out.stride(0),
                         out.stride(0),
                         static_cast<int>(columns),
                         kernels::eviction_priority_of(bytes, out.get_device_index())};
    const auto begins_like_output = [&](const T* first, int64_t stride) {
      return kernels::aligned_to_16(first) && (rows == 1 || (stride - columns) % V == 0);
    };
    kernels::require(begins_like_output(of.d_out, of.d_out_stride) && begins_like_output(of.out, of.out_stride),
                     "softmax_backward::cuda takes rows that begin within 16 bytes as those of a contiguous matrix do");
    const int64_t blocks = (columns + block_size - 1) / block_size;
    columns % V == 0 ? run<T, V, false>(of, rows, blocks, threads, out)
                     : run<T, V, true>(of, rows, blocks, threads, out);
  });
  kernels::check_launched("softmax_backward::cuda");
  return d_x;
}

Tensor meta(const Tensor&, const Tensor& out, int64_t, int64_t) { return kernels::like(out); }

}  // namespace softmax_backward

STABLE_TORCH_LIBRARY_FRAGMENT(softmax_backward, m) {
  m.def("cuda(Tensor d_out, Tensor out, int block_size, int num_warps) -> Tensor");
}
STABLE_TORCH_LIBRARY_IMPL(softmax_backward, Meta, m) { m.impl("cuda", TORCH_BOX(&softmax_backward::meta)); }
STABLE_TORCH_LIBRARY_IMPL(softmax_backward, CUDA, m) { m.impl("cuda", TORCH_BOX(&softmax_backward::cuda)); }
