// Runs matmul's wgmma_persistent on emulated multiprocessors, and before it before_tiles for so many leftover rows and
// columns as the last two arguments say: BLOCK_M, BLOCK_N, A_TRANSPOSED, B_TRANSPOSED, ELEMENT
// and PROMOTED are macros, the rest is told by arguments. It reads a and b from a file as they lie in memory, with rows of multiples of 16
// bytes, and writes out.
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

}  // namespace

int main(int, char** argv) {
  const auto told = [&](int i) { return std::stoi(argv[i]); };
  const int m = told(3), n = told(4), k = told(5);
  matmul::Arguments of{};
  of.m = m;
  of.n = n;
  of.k = k;
  of.out_row = n;
  of.stages = told(6);
  of.cluster_size = told(7);
  of.split_k = told(8);
  of.group = told(9);
  const int clusters = told(10);
  const auto seed = static_cast<unsigned>(told(11));
  of.store_by_tma = n % 8 == 0;

  std::ifstream file(argv[1], std::ios::binary);
  std::vector<char> bytes((std::istreambuf_iterator<char>(file)), {});
  std::vector<uint16_t> given(bytes.size() / 2);
  std::memcpy(given.data(), bytes.data(), bytes.size());
  const int rows_of_a = A_TRANSPOSED ? k : m, columns_of_a = A_TRANSPOSED ? m : k;
  const int rows_of_b = B_TRANSPOSED ? n : k, columns_of_b = B_TRANSPOSED ? k : n;
  const size_t of_a = static_cast<size_t>(rows_of_a) * aligned(columns_of_a);
  std::vector<uint16_t> out(static_cast<size_t>(m) * n + 8, 0x7FFF);  // NaN
  // From a multiple of 16 bytes on.
  uint16_t* const begin = out.data() + (16 - reinterpret_cast<uintptr_t>(out.data()) % 16) % 16 / 2;
  of.out = begin;
  const int rows = told(12), columns = told(13);
  if (rows > 0 || columns > 0) {
    const uint16_t* const a = given.data();
    const uint16_t* const b = a + of_a;
    const int64_t a_row = aligned(columns_of_a), b_row = aligned(columns_of_b);
    const int64_t a_step = A_TRANSPOSED ? 1 : a_row, a_k_step = A_TRANSPOSED ? a_row : 1;
    const int64_t b_step = B_TRANSPOSED ? b_row : 1, b_k_step = B_TRANSPOSED ? 1 : b_row;
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
    (few == 1   ? run_before_tiles<kernels::Element::ELEMENT, 1>
     : few <= 4 ? run_before_tiles<kernels::Element::ELEMENT, 4>
                : run_before_tiles<kernels::Element::ELEMENT, 8>)(before, seed);
  }
  const CUtensorMap map_a = tensor_map(given.data(), rows_of_a, columns_of_a, aligned(columns_of_a),
                                       A_TRANSPOSED ? 64 : BLOCK_M);
  const CUtensorMap map_b = tensor_map(given.data() + of_a, rows_of_b, columns_of_b, aligned(columns_of_b),
                                       (B_TRANSPOSED ? BLOCK_N : 64) / of.cluster_size);
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
  using Tile = matmul::Tile<kernels::Element::ELEMENT, BLOCK_M, BLOCK_N, A_TRANSPOSED, B_TRANSPOSED, PROMOTED>;
  const int blocks = of.cluster_size * of.split_k;
  const int needed = matmul::SharedLayout(BLOCK_M, BLOCK_N, of.stages, of.split_k).bytes();
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
  return 0;
}
