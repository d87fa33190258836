// The matrix product for Hopper alone, as CUTLASS's documentation describes its fastest kernels ("Efficient GEMM in
// CUDA", "Hopper Warp Specialization"):
//
// - A block stays on its multiprocessor and takes tile after tile of kBlockM x kBlockN (persistent).
// - One warp copies, one or two warpgroups multiply 64 rows each (warp specialization). The one thread that copies needs
//   hardly a register, so that its warpgroup gives up most of its own (setmaxnreg) where the others keep many sums.
// - Copies are TMA's, whole tiles an instruction. They go round `stages` buffers in shared memory: a buffer's barrier
//   `full` says that its bytes are there, its barrier `empty` that every warp that multiplies is done with it.
// - `cluster_size` blocks of a cluster take tiles one above the other. They need the same columns of b: each copies its
//   part of them, to all (multicast), so that L2 is read less often. So a buffer is empty once all of them are done.
// - wgmma reads both operands from shared memory. It runs asynchronously: the next buffer's are started before the last
//   one's are waited for.
// - While a tile is rounded and stored, by stmatrix and TMA, the copies of the next one are under way.
// - Where tiles are fewer than multiprocessors, `split_k` blocks of a cluster share one, each with a part of k. They bring
//   their sums together through each other's shared memory (wgmma_epilogue.cuh).
//
// The bytes of a tile's row are 128 whatever the elements are: 64 of bfloat16 and float16, 128 of float8.
#pragma once

#include <cstdint>

#include "wgmma_epilogue.cuh"
#include "wgmma_mainloop.cuh"

namespace matmul {

template <typename Tile>
__global__ void __launch_bounds__(Tile::kThreads, Tile::kBlocks)
    wgmma_persistent(const __grid_constant__ CUtensorMap map_a, const __grid_constant__ CUtensorMap map_b,
                     const __grid_constant__ OutputMaps maps_out, const __grid_constant__ Arguments of) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  constexpr int kElements = kSwizzle / kItemBytes<Tile::kElement>;  // of k to a buffer
  const SharedLayout layout(Tile::kBlockM, Tile::kBlockN, of.stages, of.split_k);
  unsigned char* const shared = dynamic_shared_memory<kSwizzleTile>();
  auto* const full = reinterpret_cast<uint64_t*>(shared + layout.barriers());
  uint64_t* const empty = full + of.stages;
  uint64_t* const arrived = empty + of.stages;  // what other blocks that share the tile send
  const Place place(of);
  // The same in all lanes of a warp, which the compiler is not to find out.
  const int warpgroup = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / kWarpgroup, 0);

  if (threadIdx.x == 0) {
    prefetch_tensor_map(&map_a);
    prefetch_tensor_map(&map_b);
    if (of.store_by_tma && of.split_k == 1) {
      prefetch_tensor_map(&maps_out.of[0]);
    }
    for (int stage = 0; stage < of.stages; ++stage) {
      mbarrier_init(&full[stage], 1);
      mbarrier_init(&empty[stage], Tile::kConsumers * kWarpgroup / 32 * of.cluster_size);
    }
    mbarrier_init(arrived, 1);
    fence_mbarrier_init();
    if (of.split_k > 1) {
      mbarrier_arrive_expect_tx(arrived, (of.split_k - 1) * layout.part_bytes());
    }
  }
  // Nobody copies to a block whose barriers are not there yet.
  __syncthreads();
  if (of.cluster_size > 1) {
    cluster_arrive_relaxed();
    cluster_wait();
  }

  const int rows_of_tiles = (of.m + Tile::kBlockM * of.cluster_size - 1) / (Tile::kBlockM * of.cluster_size);
  const int columns_of_tiles = (of.n + Tile::kBlockN - 1) / Tile::kBlockN;
  const int tiles = rows_of_tiles * columns_of_tiles;
  const int cluster = static_cast<int>(blockIdx.x) / (of.cluster_size * of.split_k);
  const int clusters = static_cast<int>(gridDim.x) / (of.cluster_size * of.split_k);
  const int steps = (of.k + kElements - 1) / kElements;
  const int first = first_step(place.part, of.split_k, steps);
  const int last = first_step(place.part + 1, of.split_k, steps);
  Pipeline pipeline;

  if (warpgroup == 0) {
    if constexpr (Tile::kMovesRegisters) {
      setmaxnreg_dec<40>();
    }
    if (threadIdx.x == 0) {
      const auto blocks = static_cast<uint16_t>(((1 << of.cluster_size) - 1) << place.rank(0, place.part, of.cluster_size));
      wait_on_dependent_grids();  // the copies to aligned rows, where there are some
      for (int wave = 0;; ++wave) {
        const int at = place_of(wave, cluster, clusters, tiles);
        if (at >= tiles) {
          break;
        }
        const TileIndex tile = grouped_tile(at, rows_of_tiles, columns_of_tiles, of.group);
        const int row = (tile.m * of.cluster_size + place.above) * Tile::kBlockM;
        const int column = tile.n * Tile::kBlockN;
        for (int buffer = first; buffer < last; ++buffer) {
          // A barrier that no phase has completed yet lets the parity 1 pass: the buffers begin empty.
          mbarrier_wait_parity(&empty[pipeline.stage], pipeline.parity ^ 1);
          mbarrier_arrive_expect_tx(&full[pipeline.stage], layout.stage_bytes());
          copy_tiles<Tile>(shared + pipeline.stage * layout.stage_bytes(), &map_a, &map_b, row, column,
                           buffer * kElements, place.above, of.cluster_size, blocks, &full[pipeline.stage]);
          pipeline.advance(of.stages);
        }
      }
    }
    __syncwarp();
    if (of.split_k > 1) {  // once for the sums, as the others do
      cluster_arrive_relaxed();
      cluster_wait();
    }
  } else {
    if constexpr (Tile::kMovesRegisters) {
      setmaxnreg_inc<232>();
    }
    const int which = warpgroup - 1;
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const auto release = [&](int stage) {
      if (lane < of.cluster_size) {
        mbarrier_arrive_cluster(&empty[stage], place.rank(lane, place.part, of.cluster_size));
      }
    };
    const float scale = of.scale_a == nullptr ? 1.0f : *of.scale_a * *of.scale_b;
    float sums[Tile::kBlockN / 2];
    for (int wave = 0;; ++wave) {
      const int at = place_of(wave, cluster, clusters, tiles);
      if (at >= tiles) {
        break;
      }
      const TileIndex tile = grouped_tile(at, rows_of_tiles, columns_of_tiles, of.group);
      const int top = (tile.m * of.cluster_size + place.above) * Tile::kBlockM;
      const int row = top + which * kWarpgroupRows;
      const int column = tile.n * Tile::kBlockN;
      if (row >= of.m && of.split_k == 1) {  // nothing to multiply: the other warpgroup is faster for it
        for (int buffer = first; buffer < last; ++buffer) {
          mbarrier_wait_parity(&full[pipeline.stage], pipeline.parity);
          release(pipeline.stage);
          pipeline.advance(of.stages);
        }
        continue;
      }
      multiply<Tile>(sums, shared, layout, full, pipeline, first, last, which, release);
      if (of.split_k > 1) {
        reduce_and_store<Tile>(sums, scale, shared, layout, arrived, place, of, top, column);
      } else if (of.store_by_tma) {
        store_by_tma<Tile>(sums, scale, shared + layout.output() + which * layout.output_bytes_of_warpgroup(),
                           &maps_out.of[0], row, column, which);
      } else if constexpr (Tile::kBlockN >= 128) {
        store_by_residues<Tile>(sums, scale, shared + layout.output() + which * layout.residues_bytes_of_warpgroup(),
                                maps_out, of, row, column, which);
      } else {
        store_by_elements<Tile>(sums, scale, of, row, column);
      }
    }
    bulk_wait_group_read<0>();  // shared memory stays until it is stored
    __syncwarp();
  }
  // A block does not end while another one may copy or arrive here.
  if (of.cluster_size * of.split_k > 1) {
    cluster_arrive_relaxed();
    cluster_wait();
  }
#endif
}

}  // namespace matmul
