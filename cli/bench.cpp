// `serinus bench`: what this machine's GPU makes of the library.
#include "cli/bench.h"

#include <memory>

#include "cli/commands.h"

namespace serinus::cli {

void add_bench(CLI::App& app, int& exit_code) {
  CLI::App* bench = app.add_subcommand("bench", "Measure the library on this machine's GPU");
  bench->require_subcommand(1);
  auto options = std::make_shared<BenchOptions>();
  CLI::App* cmd = bench->add_subcommand(
      "sparse_mla", "The sparse MLA prefill beside cuBLASLt's FP8 GEMM of 8192^3, in turns");
  cmd->add_flag("--json", options->json, "Print JSON: an array with an object a row");
  cmd->add_option("--out", options->out, "Also write a JSON file a row into this folder")
      ->type_name("DIR");
  cmd->add_option("--rows", options->rows, "Only rows whose name holds this text")
      ->type_name("TEXT");
  cmd->add_option("--rounds", options->rounds,
                  "Rounds: of three launches, of which two count, and of two pairs")
      ->check(CLI::Range(1, 10'000))
      ->capture_default_str();
  cmd->add_option("--commit", options->commit, "What the results shall say they were measured on");
  cmd->add_option("--device", options->device, "Index of the GPU")
      ->check(CLI::Range(0, 1023))
      ->capture_default_str();
  cmd->footer(
      "Large kernels meet the card's power limit, so that its clock decides: what it does just "
      "after\n"
      "a pause, and steadily, after half a second of the same work, are measured apart. The ratio "
      "to\n"
      "the GEMM is what can be compared. Heads below 64 are also compared with a kernel that does\n"
      "nothing but gather their rows.");
  cmd->callback([options, &exit_code] {
    bench_sparse_mla(*options);
    exit_code = kFine;
  });
}

}  // namespace serinus::cli
