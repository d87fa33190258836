// Runs cuda_stream_k's kernel on emulated multiprocessors. RUNS lists instances of run. It reads x, the words and the
// scales from a file, one after the other, and writes out.
#include <fstream>
#include <iterator>
#include <string>

#include "../matmul_int4/stream_k_kernel.cuh"

namespace {

using torch::headeronly::BFloat16;
using torch::headeronly::Half;

using emulated::slabs;
using emulated::words;

template <typename T, int kBlockM, bool kOneGroup>
void run(char** argv) {
  constexpr int kBlockN = matmul_int4::kStreamKRows<kBlockM>;
  const auto argument = [&](int i) { return std::stoi(argv[i]); };
  const int m = argument(4), n = argument(5), k = argument(6), multiprocessors = argument(7), group = argument(8);
  const auto seed = static_cast<unsigned>(argument(9));
  std::ifstream file(argv[1], std::ios::binary);
  const std::vector<char> given((std::istreambuf_iterator<char>(file)), {});
  std::vector<uint16_t> out(static_cast<size_t>(m) * n, 0x7FFF);  // NaN
  const int groups = group == 0 ? 1 : 128 / group;
  const char* const of_w = given.data() + 2 * static_cast<size_t>(m) * k;
  const CUtensorMap map_x = slabs(given.data(), m, k, kBlockM);
  const CUtensorMap map_words = words(of_w, n / 8, k, kBlockN / 8, 128);
  const CUtensorMap map_scales =
      words(of_w + static_cast<size_t>(n) * k / 2, group == 0 ? 1 : k / group, n, groups, kBlockN);
  const int tiles = (m + kBlockM - 1) / kBlockM * ((n + kBlockN - 1) / kBlockN);
  const matmul_int4::StreamK work = matmul_int4::stream_k(tiles, k / 128, multiprocessors);
  std::vector<float> parts(static_cast<size_t>(work.blocks) * kBlockM * kBlockN, NAN);
  std::vector<int> arrived(static_cast<size_t>(work.blocks));
  constexpr int kStages = 3;
  const matmul_int4::StreamKArguments arguments{
      {{m, n, k, kStages, 1, out.data()}, groups, group == 0}, work, parts.data(), arrived.data()};
  const matmul_int4::StreamKLayout layout{{kBlockM, kBlockN, kStages, matmul_int4::bytes_of_w(kBlockN, groups)},
                                          kernels::kConsumerWarps};
  // All blocks at the same time, or one after the other.
  const int together = seed == 0 ? 1 : work.blocks;
  for (int block = 0; block < work.blocks; block += together) {
    emulated::run_together(block, work.blocks, together, kernels::kThreadsOfTile, layout.bytes(), seed, [&] {
      matmul_int4::product_stream_k<T, kBlockM, kOneGroup>(map_x, map_words, map_scales, arguments);
    });
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
