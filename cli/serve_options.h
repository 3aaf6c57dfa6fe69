// The options of whatever listens, the same everywhere.
#pragma once

#include <CLI/CLI.hpp>

#include "serve/server.h"

namespace serinus::cli {

/// With SERINUS_TOKEN from the environment.
serve::ServerOptions serve_options();

CLI::Option* add_host_option(CLI::App& cmd, serve::ServerOptions& options);

}  // namespace serinus::cli
