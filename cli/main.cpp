// The `serinus` command: what is common to all subcommands. An error prints its id and where to
// read on; its kind decides the exit code.
#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <exception>
#include <new>
#include <numeric>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include <serinus/error.h>
#include <serinus/version.h>

#include "base/raise.h"
#include "cli/commands.h"

namespace serinus::cli {
namespace {

constexpr const char* kFooter = R"(exit codes:
  0  fine
  1  a violation that no injected fault or expectation explains, a visible fault missed, or an
     output out of its budget (attend --check)
  2  the command line or the state asks for something that cannot be
  3  an input that cannot be read, or an output that cannot be written
  4  a bug in Serinus itself

Every error names an id: `serinus explain ID` says what it means and how to mend it.)";

// Levenshtein: how many letters to add, drop or change.
std::size_t distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 0; i < a.size(); ++i) {
    std::size_t diagonal = row[0]++;
    for (std::size_t j = 0; j < b.size(); ++j) {
      const std::size_t change = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({row[j] + 1, row[j + 1] + 1, change});
    }
  }
  return row.back();
}

// The subcommand, or the option of the subcommand in use, that `word` is probably a slip of; else
// "".
std::string nearest(const CLI::App& app, const std::string& word) {
  std::vector<std::string> known;
  for (const CLI::App* sub : app.get_subcommands([](const CLI::App*) { return true; }))
    known.push_back(sub->get_name());
  const auto add_options = [&](const CLI::App& of) {
    for (const CLI::Option* o : of.get_options())
      for (const std::string& name : o->get_lnames()) known.push_back("--" + name);
  };
  add_options(app);
  for (const CLI::App* sub : app.get_subcommands()) add_options(*sub);
  std::string best;
  std::size_t least = word.size() / 3 + 1;  // at most a third of the letters wrong
  for (const std::string& name : known) {
    if (const std::size_t d = distance(word, name); d < least) {
      least = d;
      best = name;
    }
  }
  return best;
}

// What CLI11 found wrong, as an error of the reference.
[[noreturn]] void raise_usage(const CLI::App& app, const CLI::ParseError& e) {
  std::string text = e.what();
  std::replace(text.begin(), text.end(), '\n', ' ');
  const std::vector<std::string> unknown = app.remaining(true);
  constexpr std::string_view kNotANumber = "Could not convert: ";  // "... --page = x"
  if (const std::size_t equals = text.find(" = ");
      text.starts_with(kNotANumber) && equals != std::string::npos)
    text = text.substr(kNotANumber.size(), equals - kNotANumber.size()) +
           ": must be a number, got " + text.substr(equals + 3);
  const std::vector<CLI::App*> used = app.get_subcommands();
  if (!used.empty() && text == "A subcommand is required")
    text = used.front()->get_name() + ": a subcommand is required (serinus " +
           used.front()->get_name() + " --help lists them)";
  if (used.empty())
    text = unknown.empty() ? "a subcommand is required (serinus --help lists them)"
                           : "there is no subcommand " + unknown.front();
  for (const std::string& word : unknown) {
    if (const std::string meant = nearest(app, word); !meant.empty()) {
      text += " (did you mean " + meant + "?)";
      break;
    }
  }
  raise(errors::Page::bad_command_line, {{"got", text}});
}

int report(const Error& e, ExitCode code) {
  std::fprintf(stderr, "error %s: %s\n  more: serinus explain %s\n", e.id().c_str(), e.what(),
               e.id().c_str());
  return code;
}

// A full disk or a closed file shows when the buffer is written, at the latest here.
void check_output() {
  if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0)
    raise(errors::Page::output_not_written, {{"got", std::generic_category().message(errno)}});
}

// The arguments, last one first as CLI11 wants them. It takes "[...]" for a list, and a line that
// is pasted to `explain` may begin and end so: a space in front makes it a word.
std::vector<std::string> words_of(int argc, char** argv) {
  std::vector<std::string> words;
  for (int i = argc; i-- > 1;) {
    const bool bracketed = argv[i][0] == '[' && std::string_view(argv[1]) == "explain";
    words.push_back((bracketed ? " " : "") + std::string(argv[i]));
  }
  return words;
}

int run(CLI::App& app, int argc, char** argv) {
  app.name("serinus");
  app.set_version_flag("--version", std::string("serinus ") + version_string());
  app.require_subcommand(1);
  app.footer(kFooter);
  int exit_code = kFine;
  add_explain(app, exit_code);
  add_layouts(app, exit_code);
  add_doctor(app, exit_code);
  add_scenario(app, exit_code);
  add_replay(app, exit_code);
  add_serve(app, exit_code);
  add_scan(app, exit_code);
  add_trace_gen(app, exit_code);
  add_attend(app, exit_code);
  add_bench(app, exit_code);
  add_completion(app, exit_code);
  try {
    app.parse(words_of(argc, argv));
  } catch (const CLI::Success& e) {  // --help, --version
    app.exit(e);
  } catch (const CLI::ParseError& e) {
    raise_usage(app, e);
  }
  check_output();
  return exit_code;
}

}  // namespace
}  // namespace serinus::cli

int main(int argc, char** argv) {
  using namespace serinus;
  using namespace serinus::cli;
  std::signal(SIGXFSZ, SIG_IGN);  // a file that may not grow is an error that can be told
  try {
    try {
      CLI::App app{"Serinus reads a KV cache fast and watches it always."};
      return run(app, argc, argv);
    } catch (const Error&) {
      throw;
    } catch (const std::bad_alloc&) {  // of something large: what an error needs is still there
      raise(errors::Page::not_enough_memory, {});
    } catch (const std::exception& e) {
      raise(errors::Page::unexpected_exception, {{"got", e.what()}});
    }
  } catch (const InputError& e) {
    return report(e, kBadInput);
  } catch (const InternalError& e) {
    return report(e, kBug);
  } catch (const Error& e) {
    return report(e, kUsage);
  }
}
