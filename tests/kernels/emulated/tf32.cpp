// Runs matmul's tf32_persistent on an emulated multiprocessor, after transpose_rows where a matrix needs it, as
// tf32.cu does. It reads a and b from a file as they lie in memory, and writes out.
#include <fstream>
#include <iterator>
#include <string>

#include "../matmul/tf32_kernel.cuh"

namespace {

using namespace matmul::tf32;

struct Rows {
  std::vector<float> memory;
  int rows;
  int row;
};

// `stored` rows of `columns` elements, which go along k, or across it.
Rows along_k(const float* x, int stored, int columns, bool is_along_k, unsigned seed) {
  const int rows = is_along_k ? stored : columns;
  const int k = is_along_k ? columns : stored;
  if (is_along_k && k % 4 == 0) {
    return {std::vector<float>(x, x + size_t{1} * rows * k), rows, k};
  }
  const int row = (k + 3) / 4 * 4;
  Rows to{std::vector<float>(size_t{1} * rows * row, std::numeric_limits<float>::quiet_NaN()), rows, row};
  for (int top = 0; top < (stored + kSide - 1) / kSide; ++top) {
    for (int left = 0; left < (columns + kSide - 1) / kSide; ++left) {
      blockIdx.y = static_cast<unsigned>(left);
      emulated::run_block(static_cast<unsigned>(top), 1, 256, seed, [&] {
        (is_along_k ? transpose_rows<false> : transpose_rows<true>)(x, columns, to.memory.data(), row, stored, columns);
      });
    }
  }
  return to;
}

CUtensorMap tensor_map(const Rows& of, int k, int box_rows) {
  return {reinterpret_cast<const uint16_t*>(of.memory.data()), {k * 2, of.rows, 1, 1}, {1, of.row * 2, 0, 0}, box_rows};
}

template <int kBlockN>
void run(const Rows& a, const Rows& b, const Arguments& of, unsigned grid, unsigned seed) {
  const CUtensorMap map_a = tensor_map(a, of.k, kBlockM);
  const CUtensorMap map_b = tensor_map(b, of.k, kBlockN);
  for (unsigned block = 0; block < grid; ++block) {
    std::memset(attention::shared_memory, 0xFF, sizeof(attention::shared_memory));  // NaN
    emulated::run_block(block, grid, kThreads, seed, [&] { tf32_persistent<kBlockN>(map_a, map_b, of); });
  }
}

}  // namespace

int main(int, char** argv) {
  const auto told = [&](int i) { return std::stoi(argv[i]); };
  const int m = told(3), n = told(4), k = told(5);
  const std::string layout = argv[6];
  const auto seed = static_cast<unsigned>(told(9));
  std::ifstream file(argv[1], std::ios::binary);
  const std::vector<char> bytes((std::istreambuf_iterator<char>(file)), {});
  std::vector<float> given(bytes.size() / 4);
  std::memcpy(given.data(), bytes.data(), bytes.size());
  const bool a_along = layout[0] == 'n', b_along = layout[1] == 't';
  const Rows a = along_k(given.data(), a_along ? m : k, a_along ? k : m, a_along, seed);
  const Rows b = along_k(given.data() + size_t{1} * m * k, b_along ? n : k, b_along ? k : n, b_along, seed);
  std::vector<float> out(size_t{1} * m * n, std::numeric_limits<float>::quiet_NaN());
  (told(7) == 128 ? run<128> : run<256>)(a, b, {out.data(), m, n, k}, static_cast<unsigned>(told(8)), seed);
  std::ofstream(argv[2], std::ios::binary)
      .write(reinterpret_cast<const char*>(out.data()), static_cast<std::streamsize>(out.size() * 4));
  return 0;
}
