// Runs attention_backward's kernels on the emulated multiprocessor: the macro RUNS lists instances of run, the rest is
// told by arguments. It reads q, k, v, out, d_out and lse, as words of 16 bits, from a file, contiguous and one after
// the other, and writes dq, dk and dv.
#include <fstream>
#include <iterator>
#include <string>

#include "../attention_backward/flash_kernel.cuh"

namespace {

using kernels::Element;

CUtensorMap tensor_map(const uint16_t* data, int batch, int heads, int rows, int columns, int box_rows) {
  const int64_t row = columns;
  return {data, {columns, rows, heads, batch}, {1, row, row * rows, row * rows * heads}, box_rows};
}

template <Element kElement, int kHeadDim, int kBlockM, int kStages>
void run(char** argv) {
  using namespace attention_backward;
  const auto told = [&](int i) { return std::stoi(argv[i]); };
  const int batch = told(4), heads = told(5), kv_heads = told(6), seq_q = told(7), seq_k = told(8);
  const bool causal = told(9) != 0;
  const int at_once = told(10);
  const bool deterministic = told(11) != 0;
  const auto seed = static_cast<unsigned>(told(12));
  const int columns = told(13);
  const int grid = told(14);  // blocks that stay
  const int split = told(15);

  std::ifstream file(argv[1], std::ios::binary);
  const std::vector<char> bytes((std::istreambuf_iterator<char>(file)), {});
  std::vector<uint16_t> given(bytes.size() / 2);
  std::memcpy(given.data(), bytes.data(), bytes.size());
  const size_t of_q = static_cast<size_t>(batch) * heads * seq_q * columns;
  const size_t of_k = static_cast<size_t>(batch) * kv_heads * seq_k * columns;
  const uint16_t* const q = given.data();
  const uint16_t* const k = q + of_q;
  const uint16_t* const v = k + of_k;
  const uint16_t* const out = v + of_k;
  const uint16_t* const d_out = out + of_q;
  std::vector<float> lse(static_cast<size_t>(batch) * heads * seq_q);
  std::memcpy(lse.data(), d_out + of_q, lse.size() * 4);

  const int tiles = (seq_q + kBlockM - 1) / kBlockM;
  const int all_tiles = batch * heads * tiles;
  const int blocks = (seq_k + kBlockN - 1) / kBlockN;
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  std::vector<float> statistics(static_cast<size_t>(all_tiles) * 2 * kBlockM, kNan);
  std::vector<float> sums(static_cast<size_t>(all_tiles) * kBlockM * kHeadDim, kNan);
  std::vector<int> turns(static_cast<size_t>(all_tiles) * kWarpgroups, -1);
  int taken = -1;
  int* const turns_or_null = deterministic ? turns.data() : nullptr;
  std::vector<uint16_t> made(of_q + 2 * of_k, 0x7FFF);
  std::vector<uint16_t> parts(2 * split * of_k, 0x7FFF);

  const int64_t row = columns;
  const Batch of_out = {out, row * seq_q * heads, row * seq_q, row};
  const Batch of_d_out = {d_out, row * seq_q * heads, row * seq_q, row};
  const RowArguments of_rows = {of_out,        of_d_out, lse.data(), statistics.data(), sums.data(),
                                turns_or_null, &taken,  heads,      seq_q,             columns};

  Arguments of{};
  of.schedule = {batch * kv_heads * split, blocks, groups_of(batch * kv_heads * split, at_once),
                 deterministic && causal};
  of.heads = heads;
  of.parts = kv_heads * split;
  of.split = split;
  of.group = heads / kv_heads;
  of.seq_q = seq_q;
  of.seq_k = seq_k;
  of.columns = columns;
  of.causal = causal;
  of.scale = static_cast<float>(1 / std::sqrt(static_cast<double>(columns)));
  of.scale_log2 = static_cast<float>(1.4426950408889634 / std::sqrt(static_cast<double>(columns)));
  of.statistics = statistics.data();
  of.sums = sums.data();
  of.turns = turns_or_null;
  of.taken = &taken;
  uint16_t* const dk = made.data() + of_q;
  uint16_t* const dv = dk + of_k;
  of.dk = split > 1 ? parts.data() : dk;
  of.dv = split > 1 ? of.dk + split * of_k : dv;

  const auto launch = [&](int grid, int threads, const std::function<void()>& kernel) {
    for (int block = 0; block < grid; ++block) {
      std::memset(attention::shared_memory, 0xFF, sizeof(attention::shared_memory));  // NaN
      emulated::run_block(static_cast<unsigned>(block), static_cast<unsigned>(grid), threads, seed, kernel);
    }
  };
  launch(all_tiles, kThreadsOfRows, [&] { flash_statistics<kElement, kHeadDim, kBlockM>(of_rows); });
  const CUtensorMap map_q = tensor_map(q, batch, heads, seq_q, columns, kBlockM);
  const CUtensorMap map_k = tensor_map(k, batch, kv_heads, seq_k, columns, kBlockN);
  const CUtensorMap map_v = tensor_map(v, batch, kv_heads, seq_k, columns, kBlockN);
  const CUtensorMap map_d_out = tensor_map(d_out, batch, heads, seq_q, columns, kBlockM);
  launch(grid, kThreads, [&] {
    flash_gradients<kElement, kHeadDim, kBlockM, kStages>(map_q, map_k, map_v, map_d_out, of);
  });
  const KeyParts key_parts = {reinterpret_cast<const uint4*>(of.dk), reinterpret_cast<const uint4*>(of.dv),
                              reinterpret_cast<uint4*>(dk),          reinterpret_cast<uint4*>(dv),
                              static_cast<int64_t>(of_k / 8),        int64_t{seq_k} * columns / 8,
                              split,                                   of.group,
                              seq_q,                                   seq_k,
                              causal};
  const int to_add = split > 1 ? static_cast<int>((2 * of_k / 8 + kThreadsOfRows - 1) / kThreadsOfRows) : 0;
  launch(all_tiles + to_add, kThreadsOfRows, [&] {
    flash_round<kElement, kHeadDim, kBlockM>(sums.data(), made.data(), seq_q, columns, of.scale, all_tiles, key_parts);
  });
  std::ofstream(argv[2], std::ios::binary)
      .write(reinterpret_cast<const char*>(made.data()), static_cast<std::streamsize>(made.size() * 2));
}

}  // namespace

int main(int, char** argv) {
  void (*const runs[])(char**) = {RUNS};
  runs[std::stoi(argv[3])](argv);
  return 0;
}
