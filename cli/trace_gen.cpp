// `serinus trace-gen`: makes a trace with the statistics of a real one.
#include <iostream>
#include <memory>
#include <sstream>
#include <string>

#include "cli/commands.h"
#include "cli/report_file.h"
#include "engine/trace/generate.h"

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
  std::ostringstream text;
  engine::generate_trace(args.model, text);
  ReportFile file(args.output);
  file.write(text.view());
  file.finish();
}

}  // namespace

void add_trace_gen(CLI::App& app, int& exit_code) {
  auto args = std::make_shared<Arguments>();
  CLI::App* cmd = app.add_subcommand(
      "trace-gen", "Make a trace (Mooncake JSONL) with the statistics of a real one");
  cmd->add_option("--requests", args->model.requests, "How many requests")
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{100'000'000}))
      ->capture_default_str();
  cmd->add_option("--seed", args->model.seed, "Same seed, same bytes")
      ->check(CLI::NonNegativeNumber)  // a negative one would wrap
      ->capture_default_str();
  cmd->add_option("-o,--output", args->output, "File to write; - is standard output")
      ->capture_default_str();
  cmd->callback([args, &exit_code] {
    run(*args);
    exit_code = kFine;
  });
}

}  // namespace serinus::cli
