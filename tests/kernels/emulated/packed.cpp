// Runs a product with packed weights on emulated multiprocessors. WGMMA_KERNEL is the kernel's header, RUNS lists
// instances of run, and of four-bit weights HAS_GROUPS is defined; the rest is told by arguments. It reads x and what belongs
// to the weights from a file, one after the other, and writes out.
#include <fstream>
#include <iterator>
#include <string>

#include WGMMA_KERNEL

namespace {

using torch::headeronly::BFloat16;
using torch::headeronly::Half;

using emulated::slabs;
using emulated::words;

template <typename T, int kBlockM, int kTiles, bool kOneGroup>
void run(char** argv) {
  constexpr int kBlockN = 128 * kTiles;
  const auto told = [&](int i) { return std::stoi(argv[i]); };
  const int m = told(4), n = told(5), k = told(6), stages = told(7), split_k = told(8);
  const auto seed = static_cast<unsigned>(told(9));
  std::ifstream file(argv[1], std::ios::binary);
  const std::vector<char> given((std::istreambuf_iterator<char>(file)), {});
  std::vector<uint16_t> out(static_cast<size_t>(m) * n, 0x7FFF);  // NaN
  const kernels::TiledProduct product{m, n, k, stages, split_k, out.data()};
  const char* const of_w = given.data() + 2 * static_cast<size_t>(m) * k;
  const CUtensorMap map_x = slabs(given.data(), m, k, kBlockM);
#ifdef HAS_GROUPS
  const int group = told(10);  // 0: one scale for a row
  const int groups = group == 0 ? 1 : 128 / group;
  const CUtensorMap first = words(of_w, n / 8, k, kBlockN / 8, 128);
  const CUtensorMap second = words(of_w + static_cast<size_t>(n) * k / 2, group == 0 ? 1 : k / group, n, groups, kBlockN);
  const kernels::TileLayout layout{kBlockM, kBlockN, stages, matmul_int4::bytes_of_w(kBlockN, groups)};
  const matmul_int4::Arguments of{product, groups, group == 0};
  const auto multiply = [&] { matmul_int4::product_wgmma<T, kBlockM, kTiles, kOneGroup>(map_x, first, second, of); };
#else
  const CUtensorMap first = slabs(of_w, n, k / 2, kBlockN);
  const CUtensorMap second = words(of_w + static_cast<size_t>(n) * k, n / 16, k / 2, kBlockN / 16, 64);
  const kernels::TileLayout layout{kBlockM, kBlockN, stages, matmul_sparse::bytes_of_w(kBlockN)};
  const auto multiply = [&] { matmul_sparse::product_wgmma<T, kBlockM, kTiles>(map_x, first, second, product); };
#endif
  const int tiles = (m + kBlockM - 1) / kBlockM * ((n + kBlockN - 1) / kBlockN);
  for (int tile = 0; tile < tiles; ++tile) {
    emulated::run_together(tile * split_k, tiles * split_k, split_k, kernels::kThreadsOfTile, layout.bytes(), seed,
                           multiply);
  }
  std::ofstream(argv[2], std::ios::binary)
      .write(reinterpret_cast<const char*>(out.data()), static_cast<std::streamsize>(out.size() * 2));
}

}  // namespace

int main(int, char** argv) {
  void (*const runs[])(char**) = {RUNS};
  runs[std::stoi(argv[3])](argv);
  return 0;
}
