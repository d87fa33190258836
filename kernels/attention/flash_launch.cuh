// What the operators cuda_flash of attention and attention_with_lse share: they check tensors, tell TMA where queries,
// keys and values lie, and launch the kernel of flash_kernel.cuh with one of the tiles that they have.
#pragma once

#include <algorithm>
#include <cmath>
#include <string>

#include "flash_kernel.cuh"

namespace attention {

using Scalar = torch::headeronly::ScalarType;

// A batch of heads, (batch, heads, rows, head_dim), of which boxes of `box_rows` rows of 64 elements of one head are
// copied. What is outside of a head is zeros.
inline CUtensorMap tensor_map(const Tensor& x, int box_rows) {
  CUtensorMap map{};
  const auto type = x.scalar_type() == Scalar::BFloat16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16
                                                        : CU_TENSOR_MAP_DATA_TYPE_FLOAT16;
  cuuint64_t sizes[4];
  cuuint64_t strides[3];  // bytes, of all dimensions but the first
  for (int i = 0; i < 4; ++i) {
    sizes[i] = static_cast<cuuint64_t>(x.size(3 - i));
  }
  for (int i = 0; i < 3; ++i) {
    strides[i] = static_cast<cuuint64_t>(x.stride(2 - i)) * 2;
  }
  const cuuint32_t box[] = {kSlab, static_cast<cuuint32_t>(box_rows), 1, 1};
  const cuuint32_t steps[] = {1, 1, 1, 1};
  const CUresult result =
      tensor_map_encoder()(&map, type, 4, const_cast<void*>(x.const_data_ptr()), sizes, strides, box, steps,
                           CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                           CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  require(result == CUDA_SUCCESS, "TMA takes no batch of " + std::to_string(x.size(1)) + " heads of " +
                                      std::to_string(x.size(2)) + " rows, " + std::to_string(strides[0]) +
                                      " bytes apart");
  return map;
}

inline void check(const Tensor& x) {
  require(x.stride(3) == 1, "cuda_flash takes rows of neighbouring elements");
  bool is_aligned = aligned_to_16(x.const_data_ptr());
  for (int i = 0; i < 3; ++i) {
    is_aligned = is_aligned && x.stride(i) > 0 && x.stride(i) % 8 == 0;
  }
  require(is_aligned, "cuda_flash takes rows that begin at multiples of 16 bytes");
}

// Each head has `queries` rows of q, which may have the rows of several heads as those of one.
inline void check_together(const Tensor& q, const Tensor& k, const Tensor& v, bool causal, int64_t queries,
                           int64_t stages) {
  require(q.dim() == 4 && k.dim() == 4 && v.dim() == 4 && q.scalar_type() == k.scalar_type() &&
              k.scalar_type() == v.scalar_type() && q.get_device_index() == k.get_device_index() &&
              k.get_device_index() == v.get_device_index(),
          "cuda_flash takes three tensors of four dimensions, of one dtype on one device");
  require(q.size(0) == k.size(0) && k.size(0) == v.size(0) && k.size(1) == v.size(1) && k.size(2) == v.size(2) &&
              q.size(3) == k.size(3) && k.size(3) == v.size(3) && k.size(1) > 0 && q.size(1) % k.size(1) == 0,
          "cuda_flash takes queries, keys and values that belong together");
  require(q.size(2) == 0 || (queries > 0 && q.size(2) % queries == 0), "cuda_flash takes whole heads");
  require(k.size(2) > 0 && (!causal || queries <= k.size(2)), "cuda_flash takes queries that each see a key");
  require(q.size(2) <= INT32_MAX / 2 && k.size(2) <= INT32_MAX / 2 && q.size(0) * q.size(1) <= INT32_MAX / 2,
          "cuda_flash takes fewer than 2**30 rows and heads");
  require(stages >= 2 && stages <= kMostStages, "stages must be from 2 to 8, not " + std::to_string(stages));
  require(q.scalar_type() == Scalar::BFloat16 || q.scalar_type() == Scalar::Half,
          std::string("cuda_flash takes bfloat16 and float16, not ") + torch::headeronly::toString(q.scalar_type()));
}

// An output in q's shape. The heads of a row are neighbours if they are in q, as in a model whose linear layer makes the
// queries of all heads; its next layer takes such an output without a copy.
inline Tensor empty_output(const Tensor& q) {
  const int64_t heads = q.size(1);
  const int64_t rows = q.size(2);
  const int64_t head_dim = q.size(3);
  const bool are_neighbours = heads > 1 && rows > 1 && q.stride(1) < q.stride(2);
  const int64_t sizes[] = {q.size(0), heads, rows, head_dim};
  const int64_t strides[] = {heads * rows * head_dim, (are_neighbours ? 1 : rows) * head_dim,
                             (are_neighbours ? heads : 1) * head_dim, 1};
  int32_t device_type = 0;
  int32_t dtype = 0;
  AtenTensorHandle made = nullptr;
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_device_type(q.get(), &device_type));
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_dtype(q.get(), &dtype));
  TORCH_ERROR_CODE_CHECK(
      aoti_torch_empty_strided(4, sizes, strides, dtype, device_type, q.get_device_index(), &made));
  return Tensor(made);
}

// The kernel's arguments without those that depend on tiles. `lse` is null if nobody wants it.
inline Arguments arguments_of(const Tensor& q, const Tensor& k, int64_t queries, int64_t stages, const Tensor& out,
                              void* lse) {
  Arguments of{};
  of.heads = static_cast<int>(q.size(1));
  of.group = static_cast<int>(q.size(1) / k.size(1));
  of.seq_q = static_cast<int>(q.size(2));
  of.queries = static_cast<int>(queries);
  of.seq_k = static_cast<int>(k.size(2));
  of.stages = static_cast<int>(stages);
  constexpr double kLog2E = 1.4426950408889634;
  of.scale = static_cast<float>(kLog2E / std::sqrt(static_cast<double>(q.size(3))));
  of.out = static_cast<uint16_t*>(out.mutable_data_ptr());
  for (int i = 0; i < 3; ++i) {
    of.out_strides[i] = out.stride(i);
  }
  of.lse = static_cast<float*>(lse);
  return of;
}

template <Element kElement, int kHeadDim, int kBlockM, int kBlockN, bool kCausal>
void launch(const Tensor& q, const Tensor& k, const Tensor& v, Arguments of) {
  const CUtensorMap map_q = tensor_map(q, kBlockM);
  const CUtensorMap map_k = tensor_map(k, kBlockN);
  const CUtensorMap map_v = tensor_map(v, kBlockN);
  const int64_t heads = q.size(0) * q.size(1);
  const int64_t blocks = ceil_div(of.seq_q, kBlockM);
  require(blocks * heads <= INT32_MAX / 2, "cuda_flash takes fewer than 2**30 tiles");
  int multiprocessors = 0;
  cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, q.get_device_index());
  const dim3 grid(static_cast<unsigned>(std::min<int64_t>(blocks * heads, multiprocessors)));
  of.schedule = Schedule(static_cast<int>(heads), static_cast<int>(blocks), static_cast<int>(grid.x), kCausal,
                         of.queries < of.seq_q);

  auto* const function = flash_persistent<kElement, kHeadDim, kBlockM, kBlockN, kCausal>;
  const int shared_bytes = SharedLayout(kHeadDim, kBlockM, kBlockN).bytes(of.stages);
  require(cudaFuncSetAttribute(function, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes) == cudaSuccess,
          "cuda_flash needs " + std::to_string(shared_bytes) + " bytes of shared memory");
  const dim3 block(kThreads<kBlockM>);
  function<<<grid, block, static_cast<size_t>(shared_bytes), current_stream(q)>>>(map_q, map_k, map_v, of);
  record_launch("flash_persistent", "warp-specialized", grid, block, 1, shared_bytes, of.stages);
}

// What an operator is compiled for: a head_dim, the queries of a tile, and the keys of a step.
template <int kHeadDim_, int kBlockM_, int kBlockN_>
struct Tiles {
  static constexpr int kHeadDim = kHeadDim_;
  static constexpr int kBlockM = kBlockM_;
  static constexpr int kBlockN = kBlockN_;
};

template <Element kElement, bool kCausal, typename... Each>
void with_tiles(const Tensor& q, const Tensor& k, const Tensor& v, int64_t block_m, int64_t block_n,
                const Arguments& of) {
  const auto launched = [&](auto tiles) {
    using T = decltype(tiles);
    const bool is_asked = q.size(3) == T::kHeadDim && block_m == T::kBlockM && block_n == T::kBlockN;
    if (is_asked) {
      launch<kElement, T::kHeadDim, T::kBlockM, T::kBlockN, kCausal>(q, k, v, of);
    }
    return is_asked;
  };
  require((launched(Each{}) || ...), "cuda_flash has no tiles of " + std::to_string(block_m) + " queries and " +
                                         std::to_string(block_n) + " keys for a head_dim of " +
                                         std::to_string(q.size(3)));
}

// Launches the kernel with those of the operator's tiles, `Each`, that are asked for.
template <typename... Each>
void attend(const Tensor& q, const Tensor& k, const Tensor& v, bool causal, int64_t block_m, int64_t block_n,
            const Arguments& of) {
  check(q);
  check(k);
  check(v);
  constexpr Element kBFloat16 = Element::kBFloat16;
  constexpr Element kFloat16 = Element::kFloat16;
  const auto run = q.scalar_type() == Scalar::BFloat16
                       ? (causal ? with_tiles<kBFloat16, true, Each...> : with_tiles<kBFloat16, false, Each...>)
                       : (causal ? with_tiles<kFloat16, true, Each...> : with_tiles<kFloat16, false, Each...>);
  run(q, k, v, block_m, block_n, of);
  check_launched("cuda_flash");
}

}  // namespace attention
