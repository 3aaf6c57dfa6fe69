// Stands in for libFuzzer where it is not built: runs a fuzz target over its seeds and over every
// near neighbour of the small ones, always the same. A regression that a seed once found is found
// again.
#include <unistd.h>

#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace {

constexpr std::size_t kSmall = 1024;  // bytes; larger seeds get evenly spread neighbours

// What is running, for the signal handler: a crash must name its input.
char g_case[512];

void on_crash(int signal) {
  const char* text = "crashed on ";
  [[maybe_unused]] ssize_t n = write(STDERR_FILENO, text, std::strlen(text));
  n = write(STDERR_FILENO, g_case, std::strlen(g_case));
  n = write(STDERR_FILENO, "\n", 1);
  std::signal(signal, SIG_DFL);
  std::raise(signal);
}

// A copy of exactly that size, so that AddressSanitizer sees a read one byte past the end.
void run(const std::vector<std::uint8_t>& input, std::size_t size) {
  const std::vector<std::uint8_t> exact(input.begin(),
                                        input.begin() + static_cast<std::ptrdiff_t>(size));
  LLVMFuzzerTestOneInput(exact.data(), exact.size());
}

std::size_t run_with_neighbours(const std::string& name, std::vector<std::uint8_t> seed) {
  std::size_t runs = 0;
  const auto label = [&](const char* what, std::size_t at) {
    std::snprintf(g_case, sizeof g_case, "%s, %s %zu", name.c_str(), what, at);
    ++runs;
  };
  label("whole, bytes:", seed.size());
  run(seed, seed.size());
  const std::size_t step = seed.size() / kSmall + 1;
  for (std::size_t n = 0; n < seed.size(); n += step) {
    label("cut to", n);
    run(seed, n);
  }
  for (std::size_t i = 0; i < seed.size(); i += step) {
    const std::uint8_t old = seed[i];
    for (const int v : {old ^ 0x01, old ^ 0x80, 0x00, 0xff, int{'"'}, int{'9'}}) {
      seed[i] = static_cast<std::uint8_t>(v);
      label("byte changed at", i);
      run(seed, seed.size());
    }
    seed[i] = old;
  }
  return runs;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2 || !std::filesystem::is_directory(argv[1])) {
    std::fprintf(stderr, "usage: %s SEED_FOLDER\n", argv[0]);
    return 2;
  }
  for (const int s : {SIGSEGV, SIGABRT, SIGFPE, SIGBUS}) std::signal(s, on_crash);
  std::size_t seeds = 0, runs = 0;
  for (const auto& entry : std::filesystem::directory_iterator(argv[1])) {
    std::ifstream file(entry.path(), std::ios::binary);
    std::vector<std::uint8_t> bytes{std::istreambuf_iterator<char>(file), {}};
    runs += run_with_neighbours(entry.path().filename().string(), std::move(bytes));
    ++seeds;
  }
  std::printf("%zu seeds, %zu inputs, none crashed\n", seeds, runs);
  if (seeds == 0) std::fprintf(stderr, "no seed in %s\n", argv[1]);
  return seeds == 0 ? 1 : 0;
}
