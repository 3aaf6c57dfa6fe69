// The subcommands. Each lives in a file of its own name and registers itself with the parser; its
// callback stores the exit code.
#pragma once

#include <CLI/CLI.hpp>

namespace serinus::cli {

/// Exit codes of every subcommand.
enum ExitCode : int {
  kFine = 0,
  kViolation = 1,  ///< a violation that nothing explains, or a visible fault missed
  kUsage = 2,
  kBadInput = 3,
  kBug = 4,  ///< a broken invariant of Serinus itself
};

void add_doctor(CLI::App& app, int& exit_code);
void add_explain(CLI::App& app, int& exit_code);
void add_layouts(CLI::App& app, int& exit_code);
void add_attend(CLI::App& app, int& exit_code);
void add_bench(CLI::App& app, int& exit_code);
void add_completion(CLI::App& app, int& exit_code);
void add_serve(CLI::App& app, int& exit_code);
void add_scenario(CLI::App& app, int& exit_code);
void add_scan(CLI::App& app, int& exit_code);
void add_replay(CLI::App& app, int& exit_code);
void add_trace_gen(CLI::App& app, int& exit_code);

}  // namespace serinus::cli
