// Runs matmul's copy_to_aligned_rows on an emulated multiprocessor: for two matrices each, as the arguments say, rows,
// bytes of a row, bytes from row to row, and where the first begins.
#include <cstdlib>
#include <string>

#include "../matmul/aligned_rows.cuh"

namespace {

struct Matrix {
  int64_t rows, row_bytes, stride;
  std::vector<unsigned char> given, made;
  unsigned char* begin;
  int pieces, blocks;
  matmul::RowsCopy copy;

  explicit Matrix(char** told)
      : rows(std::stoi(told[0])), row_bytes(std::stoi(told[1])), stride(std::stoi(told[2])) {
    given.resize(static_cast<size_t>(rows * stride + 64));
    for (auto& byte : given) {
      byte = static_cast<unsigned char>(std::rand());
    }
    // From a multiple of 16 bytes on.
    begin = given.data() + (16 - reinterpret_cast<uintptr_t>(given.data()) % 16) % 16 + std::stoi(told[3]);
    const int64_t aligned = (row_bytes + 127) / 128 * 128;
    made.resize(static_cast<size_t>(rows * aligned));
    pieces = static_cast<int>((row_bytes + matmul::kPieceBytes - 1) / matmul::kPieceBytes);
    blocks = static_cast<int>((rows * pieces + matmul::kCopyWarps - 1) / matmul::kCopyWarps);
    copy = {begin, made.data(), rows, row_bytes, stride, aligned};
  }

  void check() const {
    for (int64_t row = 0; row < rows; ++row) {
      if (std::memcmp(begin + row * stride, made.data() + row * copy.to_stride, static_cast<size_t>(row_bytes)) != 0) {
        emulated::fail(("row " + std::to_string(row) + " differs").c_str());
      }
    }
  }
};

}  // namespace

int main(int, char** argv) {
  Matrix first(argv + 1), second(argv + 5);
  const int blocks = first.blocks + second.blocks;
  for (int block = 0; block < blocks; ++block) {
    emulated::run_block(static_cast<unsigned>(block), static_cast<unsigned>(blocks), matmul::kCopyWarps * 32, 0, [&] {
      matmul::copy_to_aligned_rows({first.copy, second.copy, first.blocks, blocks, first.pieces, second.pieces});
    });
  }
  first.check();
  second.check();
  return 0;
}
