// The `serinus` command.
#include <cstdio>
#include <exception>

#include <serinus/error.h>
#include <serinus/version.h>

#include "cli/commands.h"

namespace {

// One line that names the error, one that says where to read on.
void print_error(const serinus::Error& e) {
  std::fprintf(stderr, "error %s: %s\n  more: serinus explain %s\n", e.id().c_str(), e.what(),
               e.id().c_str());
}

}  // namespace

int main(int argc, char** argv) {
  using namespace serinus::cli;
  CLI::App app{"Serinus reads a KV cache fast and watches it always."};
  app.name("serinus");
  app.set_version_flag("--version", std::string("serinus ") + serinus::version_string());
  app.require_subcommand(1);
  int exit_code = kFine;
  add_doctor(app, exit_code);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    return app.exit(e) == 0 ? kFine : kUsage;
  } catch (const serinus::InputError& e) {
    print_error(e);
    return kBadInput;
  } catch (const serinus::Error& e) {
    print_error(e);
    return kUsage;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "error: %s\n", e.what());
    return kBadInput;
  }
  return exit_code;
}
