// Runs matmul's wgmma_persistent on emulated multiprocessors, and before it before_tiles for so many leftover rows and
// columns as the last two arguments say. TILES is a macro: the tiles that this program has. The third argument says
// which of them, from 0, and the rest is told by those behind it. It reads a and b from a file as they lie in memory,
// with rows of multiples of 16 bytes, and writes out.
#include <fstream>
#include <iterator>
#include <string>

#include "../matmul/edges.cuh"
#include "../matmul/wgmma_kernel.cuh"

namespace {

int aligned(int columns) { return (columns + 7) / 8 * 8; }

CUtensorMap tensor_map(const uint16_t* data, int rows, int columns, int stride, int box_rows) {
  return {data, {columns, rows, 1, 1}, {1, stride, 0, 0}, box_rows};
}

// The leftover rows and columns, as cuda_wgmma peels them off.
template <kernels::Element kElement, int kFew>
void run_before_tiles(const matmul::BeforeTiles& of, unsigned seed) {
  const int blocks = of.strips_of_rows + of.strips_of_columns;
  for (int block = 0; block < blocks; ++block) {
    std::vector<unsigned char> memory(emulated::kSharedBytes, 0xFF);
    emulated::run_cluster(static_cast<unsigned>(block), static_cast<unsigned>(blocks), {memory.data()},
                          matmul::kEdgeThreads, seed, [&] { matmul::before_tiles<kElement, kFew>(of); });
    const auto needed = memory.begin() + matmul::kEdgeBytes<kFew> + 16;
    if (std::any_of(needed, memory.end(), [](unsigned char byte) { return byte != 0xFF; })) {
      emulated::fail("the leftover rows' kernel writes past the shared memory that it asks for");
    }
  }
}

template <typename Tile>
void run(char** argv) {
  const auto told = [&](int i) { return std::stoi(argv[i]); };
  const int m = told(4), n = told(5), k = told(6);
  matmul::Arguments of{};
  of.m = m;
  of.n = n;
  of.k = k;
  of.out_row = n;
  of.stages = told(7);
  of.cluster_size = told(8);
  of.split_k = told(9);
  of.group = told(10);
  const int clusters = told(11);
  const auto seed = static_cast<unsigned>(told(12));
  of.store_by_tma = n % 8 == 0;

  std::ifstream file(argv[1], std::ios::binary);
  std::vector<char> bytes((std::istreambuf_iterator<char>(file)), {});
  std::vector<uint16_t> given(bytes.size() / 2);
  std::memcpy(given.data(), bytes.data(), bytes.size());
  const int rows_of_a = Tile::kATransposed ? k : m, columns_of_a = Tile::kATransposed ? m : k;
  const int rows_of_b = Tile::kBTransposed ? n : k, columns_of_b = Tile::kBTransposed ? k : n;
  const size_t of_a = static_cast<size_t>(rows_of_a) * aligned(columns_of_a);
  std::vector<uint16_t> out(static_cast<size_t>(m) * n + 8, 0x7FFF);  // NaN
  // From a multiple of 16 bytes on.
  uint16_t* const begin = out.data() + (16 - reinterpret_cast<uintptr_t>(out.data()) % 16) % 16 / 2;
  of.out = begin;
  const int rows = told(13), columns = told(14);
  if (rows > 0 || columns > 0) {
    const uint16_t* const a = given.data();
    const uint16_t* const b = a + of_a;
    const int64_t a_row = aligned(columns_of_a), b_row = aligned(columns_of_b);
    const int64_t a_step = Tile::kATransposed ? 1 : a_row, a_k_step = Tile::kATransposed ? a_row : 1;
    const int64_t b_step = Tile::kBTransposed ? b_row : 1, b_k_step = Tile::kBTransposed ? 1 : b_row;
    of.m = m - rows;
    of.n = n - columns;
    const auto strips = [](int few, int many) { return few == 0 ? 0 : (many + matmul::kStrip - 1) / matmul::kStrip; };
    const matmul::BeforeTiles before{
        {a + of.m * a_step, b, begin + int64_t{of.m} * n, rows, n, k, a_step, a_k_step, b_step, b_k_step, n, 1},
        {b + of.n * b_step, a, begin + of.n, columns, of.m, k, b_step, b_k_step, a_step, a_k_step, 1, n},
        strips(rows, n),
        strips(columns, of.m),
        {}};
    const int few = std::max(rows, columns);
    (few == 1   ? run_before_tiles<Tile::kElement, 1>
     : few <= 4 ? run_before_tiles<Tile::kElement, 4>
                : run_before_tiles<Tile::kElement, 8>)(before, seed);
  }
  const CUtensorMap map_a = tensor_map(given.data(), rows_of_a, columns_of_a, aligned(columns_of_a),
                                       Tile::kATransposed ? 64 : Tile::kBlockM);
  const CUtensorMap map_b = tensor_map(given.data() + of_a, rows_of_b, columns_of_b, aligned(columns_of_b),
                                       (Tile::kBTransposed ? Tile::kBlockN : 64) / of.cluster_size);
  matmul::OutputMaps maps_out{};
  if (of.store_by_tma) {
    maps_out.of[0] = tensor_map(begin, of.m, of.n, n, matmul::kWarpgroupRows);
  } else {
    for (int residue = 0; residue < matmul::kResidues; ++residue) {
      const int first = matmul::first_aligned_column(residue, n);
      maps_out.of[residue] = tensor_map(begin + residue * n + first, (of.m - residue + 7) / 8,
                                        matmul::columns_of_residue(first, of.n), 8 * n, 8);
    }
  }
  const int blocks = of.cluster_size * of.split_k;
  const int needed = matmul::SharedLayout(Tile::kBlockM, Tile::kBlockN, of.stages, of.split_k).bytes();
  std::vector<std::vector<unsigned char>> shared(static_cast<size_t>(blocks));
  for (int cluster = 0; cluster < clusters; ++cluster) {
    std::vector<unsigned char*> memories;
    for (auto& memory : shared) {
      memory.assign(emulated::kSharedBytes, 0xFF);  // NaN
      memories.push_back(memory.data());
    }
    emulated::run_cluster(static_cast<unsigned>(cluster * blocks), static_cast<unsigned>(clusters * blocks), memories,
                          Tile::kThreads, seed, [&] { matmul::wgmma_persistent<Tile>(map_a, map_b, maps_out, of); });
    for (const auto& memory : shared) {
      for (size_t i = static_cast<size_t>(needed); i < memory.size(); ++i) {
        if (memory[i] != 0xFF) {
          emulated::fail("the kernel writes past the shared memory that it asks for");
        }
      }
    }
  }
  std::ofstream(argv[2], std::ios::binary)
      .write(reinterpret_cast<const char*>(begin), static_cast<std::streamsize>(size_t{2} * m * n));
}

template <typename... Tiles>
void run_one(int which, char** argv) {
  int i = 0;
  ((i++ == which ? run<Tiles>(argv) : void()), ...);
}

}  // namespace

int main(int, char** argv) {
  run_one<TILES>(std::stoi(argv[3]), argv);
  return 0;
}
