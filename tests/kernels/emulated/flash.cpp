// Runs flash_persistent on the emulated multiprocessor, as attention does, or as attention_with_lse does. The macro RUNS
// lists instances of run, the rest is told by arguments. It reads q, k and v from a file, contiguous and one after the
// other, and writes out and lse, which is NaN if the kernel was not asked for it. If the heads are packed, those that
// share a key head are one head. The heads of a row of out may be neighbours.
#include <fstream>
#include <iterator>
#include <string>

#include "../attention/flash_kernel.cuh"

namespace {

using kernels::Element;

CUtensorMap tensor_map(const uint16_t* data, int batch, int heads, int rows, int columns, int box_rows) {
  const int64_t row = columns;
  return {data, {columns, rows, heads, batch}, {1, row, row * rows, row * rows * heads}, box_rows};
}

template <Element kElement, int kHeadDim, int kBlockM, int kBlockN>
void run(char** argv) {
  const auto told = [&](int i) { return std::stoi(argv[i]); };
  const int batch = told(4), kv_heads = told(6), queries = told(7), seq_k = told(8);
  const int packed = told(14) != 0 ? told(5) / kv_heads : 1;
  const int heads = told(5) / packed, seq_q = queries * packed;
  const bool causal = told(9) != 0;
  const int stages = told(10), grid = told(11);
  const auto seed = static_cast<unsigned>(told(12));
  const bool with_lse = told(13) != 0, are_neighbours = told(15) != 0;

  std::ifstream file(argv[1], std::ios::binary);
  std::vector<char> bytes((std::istreambuf_iterator<char>(file)), {});
  std::vector<uint16_t> given(bytes.size() / 2);
  std::memcpy(given.data(), bytes.data(), bytes.size());
  const size_t of_q = static_cast<size_t>(batch) * heads * seq_q * kHeadDim;
  const size_t of_k = static_cast<size_t>(batch) * kv_heads * seq_k * kHeadDim;
  std::vector<uint16_t> out(of_q, 0x7FFF);
  const CUtensorMap map_q = tensor_map(given.data(), batch, heads, seq_q, kHeadDim, kBlockM);
  const CUtensorMap map_k = tensor_map(given.data() + of_q, batch, kv_heads, seq_k, kHeadDim, kBlockN);
  const CUtensorMap map_v = tensor_map(given.data() + of_q + of_k, batch, kv_heads, seq_k, kHeadDim, kBlockN);

  attention::Arguments of{};
  of.schedule = attention::Schedule(batch * heads, (seq_q + kBlockM - 1) / kBlockM, grid, causal, packed > 1);
  of.heads = heads;
  of.group = heads / kv_heads;
  of.seq_q = seq_q;
  of.queries = queries;
  of.seq_k = seq_k;
  of.stages = stages;
  of.scale = static_cast<float>(1.4426950408889634 / std::sqrt(static_cast<double>(kHeadDim)));
  of.out = out.data();
  of.out_strides[0] = int64_t{heads} * seq_q * kHeadDim;
  of.out_strides[1] = int64_t{are_neighbours ? 1 : seq_q} * kHeadDim;
  of.out_strides[2] = int64_t{are_neighbours ? heads : 1} * kHeadDim;
  std::vector<float> lse(static_cast<size_t>(batch) * heads * seq_q, NAN);
  of.lse = with_lse ? lse.data() : nullptr;
  for (int block = 0; block < grid; ++block) {
    std::memset(attention::shared_memory, 0xFF, sizeof(attention::shared_memory));  // NaN
    emulated::run_block(static_cast<unsigned>(block), static_cast<unsigned>(grid), attention::kThreads<kBlockM>, seed,
                        [&] {
                          const auto attend =
                              causal ? attention::flash_persistent<kElement, kHeadDim, kBlockM, kBlockN, true>
                                     : attention::flash_persistent<kElement, kHeadDim, kBlockM, kBlockN, false>;
                          attend(map_q, map_k, map_v, of);
                        });
  }
  std::ofstream made(argv[2], std::ios::binary);
  made.write(reinterpret_cast<const char*>(out.data()), static_cast<std::streamsize>(out.size() * 2));
  made.write(reinterpret_cast<const char*>(lse.data()), static_cast<std::streamsize>(lse.size() * 4));
}

}  // namespace

int main(int, char** argv) {
  void (*const runs[])(char**) = {RUNS};
  runs[std::stoi(argv[3])](argv);
  return 0;
}
