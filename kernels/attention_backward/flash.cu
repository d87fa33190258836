// The operator cuda_flash: tells TMA where tensors lie, and launches the kernels of flash_rows.cuh and
// flash_kernel.cuh.
#include <algorithm>
#include <string>
#include <tuple>

#include "flash_kernel.cuh"

namespace attention_backward {

using Scalar = torch::headeronly::ScalarType;
using kernels::Tensor;

// A batch of heads, (batch, heads, rows, head_dim), of which boxes of `box_rows` rows of 64 elements of one head are
// copied. What is outside of a head is zeros.
CUtensorMap tensor_map(const Tensor& x, int box_rows) {
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

void check(const Tensor& x) {
  require(x.stride(3) == 1, "attention_backward::cuda_flash takes rows of neighbouring elements");
  bool is_aligned = aligned_to_16(x.const_data_ptr());
  for (int i = 0; i < 3; ++i) {
    is_aligned = is_aligned && x.stride(i) > 0 && x.stride(i) % 8 == 0;
  }
  require(is_aligned, "attention_backward::cuda_flash takes rows that begin at multiples of 16 bytes");
}

Batch batch_of(const Tensor& x) {
  return {static_cast<const uint16_t*>(x.const_data_ptr()), x.stride(0), x.stride(1), x.stride(2)};
}

struct Inputs {
  Tensor q;
  Tensor k;
  Tensor v;
  Tensor out;
  Tensor lse;
  Tensor d_out;
};

// The groups of parts of key heads that a schedule goes through. With a mask, the queries, d_out and sums of dq of a
// group's heads take half of L2. For each part a head is counted, since blocks go through a part's heads at the same
// time; a head of several parts is counted for each, which makes groups smaller than they need be.
int groups_for(const Inputs& given, int parts, bool causal) {
  if (!causal) {
    return parts;
  }
  int l2_bytes = 0;
  cudaDeviceGetAttribute(&l2_bytes, cudaDevAttrL2CacheSize, given.q.get_device_index());
  const int64_t of_head = given.q.size(2) * given.q.size(3) * 8;
  return groups_of(parts, static_cast<int>(std::clamp<int64_t>(l2_bytes / 2 / of_head, 1, parts)));
}

// Launches a kernel that may begin before the end of the one before it: it calls wait_on_dependent_grids() first.
template <typename... Parameters, typename... Arguments>
void launch_dependent(void (*kernel)(Parameters...), const dim3& grid, int threads, int shared_bytes,
                      cudaStream_t stream, Arguments... arguments) {
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.dynamicSmemBytes = static_cast<size_t>(shared_bytes);
  config.stream = stream;
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  config.attrs = &attribute;
  config.numAttrs = 1;
  cudaLaunchKernelEx(&config, kernel, arguments...);
}

template <Element kElement, int kHeadDim, int kBlockM, int kStages>
void launch(const Inputs& given, bool deterministic, uint16_t* dq, Arguments of, KeyParts key_parts) {
  const CUtensorMap map_q = tensor_map(given.q, kBlockM);
  const CUtensorMap map_k = tensor_map(given.k, kBlockN);
  const CUtensorMap map_v = tensor_map(given.v, kBlockN);
  const CUtensorMap map_d_out = tensor_map(given.d_out, kBlockM);
  const int64_t tiles = given.q.size(0) * given.q.size(1) * ceil_div(of.seq_q, kBlockM);
  const int64_t blocks = ceil_div(of.seq_k, kBlockN);
  const int64_t parts = given.k.size(0) * given.k.size(1) * of.split;
  require(tiles <= INT32_MAX / 2 && blocks * parts <= INT32_MAX / 2,
          "attention_backward::cuda_flash takes fewer than 2**30 tiles");
  const Tensor statistics = torch::stable::new_empty(given.q, {tiles, 2, kBlockM}, Scalar::Float);
  const Tensor sums = torch::stable::new_empty(given.q, {tiles, kBlockM, kHeadDim}, Scalar::Float);
  // How many places of the schedule are taken, then the parts' turns.
  const Tensor counts = torch::stable::new_empty(given.q, {1 + (deterministic ? tiles * kWarpgroups : 0)}, Scalar::Int);
  of.taken = static_cast<int*>(counts.mutable_data_ptr());
  of.turns = deterministic ? of.taken + 1 : nullptr;
  of.statistics = static_cast<const float*>(statistics.const_data_ptr());
  of.sums = static_cast<float*>(sums.mutable_data_ptr());
  int multiprocessors = 0;
  cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, given.q.get_device_index());
  of.schedule = {static_cast<int>(parts), static_cast<int>(blocks), groups_for(given, static_cast<int>(parts), of.causal),
                 of.causal && deterministic};
  const cudaStream_t stream = current_stream(given.q);

  const dim3 grid_of_tiles(static_cast<unsigned>(tiles));
  const dim3 rows(kThreadsOfRows);
  const RowArguments of_rows = {batch_of(given.out),
                                batch_of(given.d_out),
                                static_cast<const float*>(given.lse.const_data_ptr()),
                                static_cast<float*>(statistics.mutable_data_ptr()),
                                of.sums,
                                of.turns,
                                of.taken,
                                of.heads,
                                of.seq_q,
                                of.columns};
  flash_statistics<kElement, kHeadDim, kBlockM><<<grid_of_tiles, rows, 0, stream>>>(of_rows);
  record_launch("flash_statistics", "tile", grid_of_tiles, rows);

  auto* const function = flash_gradients<kElement, kHeadDim, kBlockM, kStages>;
  constexpr int kSharedBytes = SharedLayout(kHeadDim, kBlockM, kStages).bytes();
  require(cudaFuncSetAttribute(function, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes) == cudaSuccess,
          "attention_backward::cuda_flash needs " + std::to_string(kSharedBytes) + " bytes of shared memory");
  const dim3 grid(static_cast<unsigned>(std::min<int64_t>(blocks * parts, multiprocessors)));
  launch_dependent(function, grid, kThreads, kSharedBytes, stream, map_q, map_k, map_v, map_d_out, of);
  record_launch("flash_gradients", "warp-specialized", grid, dim3(kThreads), 1, kSharedBytes, kStages);

  constexpr int kBytesToRound = bytes_to_round(kHeadDim, kBlockM);
  const int64_t to_add = of.split > 1 ? ceil_div(2 * key_parts.vectors, kThreadsOfRows) : 0;
  require(to_add <= INT32_MAX / 2, "attention_backward::cuda_flash takes fewer than 2**40 elements of keys in parts");
  const dim3 grid_to_round(static_cast<unsigned>(tiles + to_add));
  launch_dependent(flash_round<kElement, kHeadDim, kBlockM>, grid_to_round, kThreadsOfRows, kBytesToRound, stream,
                   static_cast<const float*>(of.sums), dq, of.seq_q, of.columns, of.scale, static_cast<int>(tiles),
                   key_parts);
  record_launch("flash_round", "tile", grid_to_round, rows, 1, kBytesToRound);
}

struct Tiles {
  int64_t block_m;
  int64_t stages;
  bool deterministic;
};

template <Element kElement>
void with_tiles(const Inputs& given, const Tiles& tiles, uint16_t* dq, const Arguments& of, const KeyParts& key_parts) {
  const bool deterministic = tiles.deterministic;
  // 96 columns are copied as 128, of which TMA fills the last 32 with zeros.
  const int64_t width = given.q.size(3) == 96 ? 128 : given.q.size(3);
  const auto is = [&](int64_t head_dim, int64_t block_m, int64_t stages) {
    return width == head_dim && tiles.block_m == block_m && tiles.stages == stages;
  };
  if (is(128, 64, 2)) {
    launch<kElement, 128, 64, 2>(given, deterministic, dq, of, key_parts);
  } else if (is(128, 64, 3)) {
    launch<kElement, 128, 64, 3>(given, deterministic, dq, of, key_parts);
  } else if (is(128, 80, 2)) {
    launch<kElement, 128, 80, 2>(given, deterministic, dq, of, key_parts);
  } else {
    require(is(64, 128, 2), "attention_backward::cuda_flash has no tiles of " + std::to_string(tiles.block_m) +
                                " queries in " + std::to_string(tiles.stages) + " stages for a head_dim of " +
                                std::to_string(given.q.size(3)));
    launch<kElement, 64, 128, 2>(given, deterministic, dq, of, key_parts);
  }
}

using Gradients = std::tuple<Tensor, Tensor, Tensor>;

Gradients empty_gradients(const Tensor& q, const Tensor& k) {
  const auto like = [](const Tensor& x) {
    return torch::stable::new_empty(x, {x.size(0), x.size(1), x.size(2), x.size(3)});
  };
  return {like(q), like(k), like(k)};
}

Gradients cuda_flash(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& out, const Tensor& lse,
                     const Tensor& d_out, bool causal, int64_t block_m, int64_t stages, bool deterministic,
                     int64_t split) {
  for (const Tensor* const x : {&q, &k, &v, &out, &d_out}) {
    require(x->dim() == 4 && x->scalar_type() == q.scalar_type() && x->get_device_index() == q.get_device_index(),
            "attention_backward::cuda_flash takes five tensors of four dimensions, of one dtype on one device");
  }
  for (int i = 0; i < 4; ++i) {
    require(out.size(i) == q.size(i) && d_out.size(i) == q.size(i) && v.size(i) == k.size(i),
            "attention_backward::cuda_flash takes out and d_out like queries, and values like keys");
  }
  require(q.size(0) == k.size(0) && q.size(3) == k.size(3) && k.size(1) > 0 && q.size(1) % k.size(1) == 0,
          "attention_backward::cuda_flash takes queries and keys that belong together");
  const int64_t group = q.size(1) / k.size(1);
  require(lse.dim() == 3 && lse.scalar_type() == Scalar::Float && lse.get_device_index() == q.get_device_index() &&
              lse.size(0) == q.size(0) && lse.size(1) == q.size(1) && lse.size(2) == q.size(2) && lse.is_contiguous(),
          "attention_backward::cuda_flash takes contiguous logarithms in float32, one for each query");
  require(k.size(2) > 0 && (!causal || q.size(2) <= k.size(2)),
          "attention_backward::cuda_flash takes queries that each see a key");
  require(q.size(2) <= INT32_MAX / 2 && k.size(2) <= INT32_MAX / 2 && q.size(0) * q.size(1) <= INT32_MAX / 2,
          "attention_backward::cuda_flash takes fewer than 2**30 rows and heads");
  const bool is_bfloat16 = q.scalar_type() == Scalar::BFloat16;
  require(is_bfloat16 || q.scalar_type() == Scalar::Half,
          std::string("attention_backward::cuda_flash takes bfloat16 and float16, not ") +
              torch::headeronly::toString(q.scalar_type()));
  require(q.numel() > 0, "attention_backward::cuda_flash takes one query at least");
  const int64_t tiles = block_m > 0 ? group * ceil_div(q.size(2), block_m) : 0;
  require(split > 0 && split <= tiles,
          "attention_backward::cuda_flash takes from 1 part to as many as tiles of queries share a block of keys, not " +
              std::to_string(split) + " of " + std::to_string(tiles));
  require(!deterministic || group % split == 0,
          "attention_backward::cuda_flash takes with deterministic parts of as many heads each, not " +
              std::to_string(split) + " of " + std::to_string(group) + " heads");
  const torch::stable::accelerator::DeviceGuard guard(q.get_device_index());
  const Gradients result = empty_gradients(q, k);
  for (const Tensor* const x : {&q, &k, &v, &out, &d_out}) {
    check(*x);
  }
  Arguments of{};
  of.heads = static_cast<int>(q.size(1));
  of.split = static_cast<int>(split);
  of.parts = static_cast<int>(k.size(1) * split);
  of.group = static_cast<int>(group);
  of.seq_q = static_cast<int>(q.size(2));
  of.seq_k = static_cast<int>(k.size(2));
  of.columns = static_cast<int>(q.size(3));
  of.causal = causal;
  constexpr double kLog2E = 1.4426950408889634;
  const double scale = 1 / std::sqrt(static_cast<double>(q.size(3)));
  of.scale = static_cast<float>(scale);
  of.scale_log2 = static_cast<float>(scale * kLog2E);
  auto* const dk = static_cast<uint16_t*>(std::get<1>(result).mutable_data_ptr());
  auto* const dv = static_cast<uint16_t*>(std::get<2>(result).mutable_data_ptr());
  const Tensor parts = torch::stable::new_empty(q, {split > 1 ? 2 * split * k.numel() : 0});
  of.dk = split > 1 ? static_cast<uint16_t*>(parts.mutable_data_ptr()) : dk;
  of.dv = split > 1 ? of.dk + split * k.numel() : dv;
  const KeyParts key_parts = {reinterpret_cast<const uint4*>(of.dk),
                              reinterpret_cast<const uint4*>(of.dv),
                              reinterpret_cast<uint4*>(dk),
                              reinterpret_cast<uint4*>(dv),
                              k.numel() / 8,
                              k.size(2) * k.size(3) / 8,
                              of.split,
                              of.group,
                              of.seq_q,
                              of.seq_k,
                              causal};
  const auto run = is_bfloat16 ? with_tiles<Element::kBFloat16> : with_tiles<Element::kFloat16>;
  run({q, k, v, out, lse, d_out}, {block_m, stages, deterministic},
      static_cast<uint16_t*>(std::get<0>(result).mutable_data_ptr()), of, key_parts);
  check_launched("attention_backward::cuda_flash");
  return result;
}

Gradients meta_flash(const Tensor& q, const Tensor& k, const Tensor&, const Tensor&, const Tensor&, const Tensor&, bool,
                     int64_t, int64_t, bool, int64_t) {
  return empty_gradients(q, k);
}

}  // namespace attention_backward

STABLE_TORCH_LIBRARY(attention_backward, m) {
  m.def(
      "cuda_flash(Tensor q, Tensor k, Tensor v, Tensor out, Tensor lse, Tensor d_out, bool causal, int block_m, int "
      "stages, bool deterministic, int split) -> (Tensor, Tensor, Tensor)");
}

STABLE_TORCH_LIBRARY_IMPL(attention_backward, Meta, m) {
  m.impl("cuda_flash", TORCH_BOX(&attention_backward::meta_flash));
}

STABLE_TORCH_LIBRARY_IMPL(attention_backward, CUDA, m) {
  m.impl("cuda_flash", TORCH_BOX(&attention_backward::cuda_flash));
}
