// Runs a step of matmul on an emulated multiprocessor. steps.h includes steps, and EACH_STEP calls a macro with each
// one's name. It reads a and b from a file, row by row, and writes out. What follows a matrix in memory may be neither
// read nor written.
#include "../matmul/steps.h"

#include <sys/mman.h>

#include <fstream>

namespace {

// Memory that ends where the next page, which is closed, begins.
template <typename T>
T* before_a_closed_page(size_t count) {
  constexpr size_t kPage = 4096;
  const size_t bytes = count * sizeof(T);
  const size_t open = (bytes + kPage - 1) / kPage * kPage;
  auto* const memory = static_cast<unsigned char*>(
      mmap(nullptr, open + kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  if (memory == MAP_FAILED || mprotect(memory + open, kPage, PROT_NONE) != 0) {
    emulated::fail("no memory");
  }
  std::fill_n(memory, open, static_cast<unsigned char>(0xFF));  // NaN
  return reinterpret_cast<T*>(memory + open - bytes);
}

template <typename T, typename Launch>
void run(char** argv, const Launch& launch) {
  const int m = std::stoi(argv[3]), n = std::stoi(argv[4]), k = std::stoi(argv[5]);
  emulated::seed = static_cast<unsigned>(std::stoi(argv[6]));
  const size_t of_a = size_t{1} * m * k, of_b = size_t{1} * k * n, of_out = size_t{1} * m * n;
  T* const a = before_a_closed_page<T>(of_a);
  T* const b = before_a_closed_page<T>(of_b);
  T* const out = before_a_closed_page<T>(of_out);
  std::ifstream file(argv[1], std::ios::binary);
  file.read(reinterpret_cast<char*>(a), static_cast<std::streamsize>(of_a * sizeof(T)));
  file.read(reinterpret_cast<char*>(b), static_cast<std::streamsize>(of_b * sizeof(T)));
  launch(matmul::Product<T>{a, b, out, m, n, k});
  std::ofstream(argv[2], std::ios::binary)
      .write(reinterpret_cast<const char*>(out), static_cast<std::streamsize>(of_out * sizeof(T)));
}

template <typename... Ts, typename Launch>
void run_for(const std::string& element, char** argv, std::tuple<Ts...>*, const Launch& launch) {
  const auto name_of = [](auto x) {
    using T = decltype(x);
    return std::is_same_v<T, float> ? "float32" : std::is_same_v<T, matmul::BFloat16> ? "bfloat16" : "float16";
  };
  ((element == name_of(Ts{}) ? run<Ts>(argv, launch) : void()), ...);
}

}  // namespace

int main(int, char** argv) {
  const std::string step = argv[8];
#define RUN(name)                                                            \
  if (step == #name) {                                                       \
    run_for(argv[7], argv, static_cast<matmul::name::Elements*>(nullptr),    \
            [](const auto& of) { matmul::name::launch(of, cudaStream_t{}); }); \
  }
  EACH_STEP(RUN)
  return 0;
}
