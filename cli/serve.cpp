// `serinus serve`: the error reference on the web, without an engine.
#include <fmt/format.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <thread>

#include "cli/commands.h"
#include "cli/serve_options.h"
#include "cli/stop_on_signal.h"

namespace serinus::cli {

serve::ServerOptions serve_options() {
  serve::ServerOptions options;
  const char* token = std::getenv("SERINUS_TOKEN");  // NOLINT(concurrency-mt-unsafe)
  if (token != nullptr) options.token = token;
  return options;
}

CLI::Option* add_host_option(CLI::App& cmd, serve::ServerOptions& options) {
  return cmd
      .add_option("--host", options.host,
                  "Address to listen at; one that others can reach needs SERINUS_TOKEN")
      ->capture_default_str();
}

void add_serve(CLI::App& app, int& exit_code) {
  auto options = std::make_shared<serve::ServerOptions>(serve_options());
  CLI::App* cmd = app.add_subcommand(
      "serve", "Serve the error reference as web pages and JSON (replay --serve: a live run too)");
  cmd->add_option("--port", options->port, "Port to listen at, 0 = any free one")
      ->check(CLI::Range(0, 65535))
      ->capture_default_str();
  add_host_option(*cmd, *options);
  cmd->callback([options, &exit_code] {
    const StopOnSignal stop_on_signal;
    const serve::Server server(*options, nullptr);
    fmt::print("serving {} (Ctrl-C ends it)\n", server.url());
    std::fflush(stdout);
    while (!StopOnSignal::requested()) std::this_thread::sleep_for(std::chrono::milliseconds(50));
    exit_code = kFine;
  });
}

}  // namespace serinus::cli
