// `serinus doctor`: what this machine offers.
#include <cstdio>

#include <serinus/version.h>

#include "cli/commands.h"

namespace serinus::cli {

void add_doctor(CLI::App& app, int& exit_code) {
  CLI::App* cmd = app.add_subcommand("doctor", "What this machine offers: CPU, GPU, build options");
  cmd->callback([&exit_code] {
    std::printf("serinus %s\n", version_string());
    exit_code = kFine;
  });
}

}  // namespace serinus::cli
