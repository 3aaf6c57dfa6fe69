// `serinus trace-gen`: makes a trace with the statistics of a real one.
#include <fmt/format.h>

#include <filesystem>
#include <fstream>
#include <iostream>
#include <memory>

#include "base/raise.h"
#include "cli/commands.h"
#include "engine/trace/generate.h"
#include "error_ids.h"

namespace serinus::cli {

namespace {

struct Arguments {
  engine::TraceModel model;
  std::string output = "-";
};

void run(const Arguments& args) {
  if (args.output == "-") {
    engine::generate_trace(args.model, std::cout);
    return;
  }
  // Written beside its place and renamed, so that a full disk leaves no half trace behind.
  const std::string partial = args.output + ".partial";
  std::ofstream out(partial, std::ios::binary);
  if (out) engine::generate_trace(args.model, out);
  out.close();
  std::error_code failed;
  if (out) std::filesystem::rename(partial, args.output, failed);
  if (!out || failed) {
    std::error_code ignored;
    std::filesystem::remove(partial, ignored);
    raise(errors::Page::trace_not_written, {{"got", args.output}});
  }
}

}  // namespace

void add_trace_gen(CLI::App& app, int& exit_code) {
  auto args = std::make_shared<Arguments>();
  CLI::App* cmd = app.add_subcommand(
      "trace-gen", "Make a trace (Mooncake JSONL) with the statistics of a real one");
  cmd->add_option("--requests", args->model.requests, "How many requests")
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{100'000'000}))
      ->capture_default_str();
  cmd->add_option("--seed", args->model.seed, "Same seed, same bytes")->capture_default_str();
  cmd->add_option("-o,--output", args->output, "File to write; - is standard output")
      ->capture_default_str();
  cmd->callback([args, &exit_code] {
    run(*args);
    exit_code = kFine;
  });
}

}  // namespace serinus::cli
