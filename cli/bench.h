// What `serinus bench` measures. Without CUDA in the build, bench_absent.cpp answers.
#pragma once

#include <string>

namespace serinus::cli {

struct BenchOptions {
  std::string out, rows, commit = "unknown";
  int rounds = 12;
  int device = 0;
  bool json = false;
};

/// Prints a table, or JSON. Throws where no GPU of this machine can run the kernel.
void bench_sparse_mla(const BenchOptions& options);

}  // namespace serinus::cli
