// What is common to all subcommands: help, version, exit codes, errors with their ids, completion.
#include <gtest/gtest.h>

#include <string>
#include <utility>

#include <serinus/error.h>
#include <serinus/version.h>

#include "tests/cli/run_command.h"

namespace serinus::cli {
namespace {

TEST(Command, PrintsItsVersion) {
  const CommandResult r = run_command("--version");
  EXPECT_EQ(r.exit_code, 0);
  EXPECT_EQ(r.out, std::string("serinus ") + version_string() + "\n");
  EXPECT_EQ(std::string(version_string()), std::to_string(kVersionMajor) + "." +
                                               std::to_string(kVersionMinor) + "." +
                                               std::to_string(kVersionPatch));
}

TEST(Command, HelpDocumentsTheExitCodes) {
  const CommandResult r = run_command("--help");
  EXPECT_EQ(r.exit_code, 0);
  for (const char* line : {"  0  fine", "  1  a violation", "  2  the command line",
                           "  3  an input", "  4  a bug", "doctor", "completion"})
    EXPECT_NE(r.out.find(line), std::string::npos) << line;
}

TEST(Command, AUsageErrorNamesItsPageAndExitsWith2) {
  for (const char* arguments :
       {"", "nonsense", "doctor --nonsense", "completion", "completion tcsh"}) {
    const CommandResult r = run_command(arguments);
    EXPECT_EQ(r.exit_code, 2) << arguments;
    EXPECT_EQ(r.out, "") << arguments;
    EXPECT_TRUE(r.err.starts_with("error SRN6001: command line: ")) << arguments << ": " << r.err;
    EXPECT_NE(r.err.find("serinus explain SRN6001"), std::string::npos) << arguments;
  }
  ASSERT_NE(find_error("SRN6001"), nullptr);
}

TEST(Command, AValueThatAnOptionDoesNotAcceptIsNamedWithThoseThatItDoes) {
  const std::pair<const char*, const char*> cases[] = {
      {"replay t --format x", "--format: x not in {serinus,sglang}"},
      {"layouts mha_nhd --order x", "--order: x not in {nhd,hnd}"},
      {"replay t --requests -1", "--requests: must be a whole number, 0 or more, got -1"},
      {"replay t --pool-tokens 1M", "--pool-tokens: must be a number, got 1M"},
      {"replay t --budget 0", "--budget: must be a whole number, 1 or more, got 0"},
      {"replay t --seed 18446744073709551616", "--seed: must be a whole number, 0 or more, got 18"},
      {"replay t --trace-format x", "--trace-format: x not in {automatic,mooncake,qwen,azure}"},
      {"bench", "bench: a subcommand is required (serinus bench --help"},
      {"replay", "command line: TRACE is required"},
      {"scenario", "command line: FILE is required"},
      {"layouts mha_nhd --dtype x", "--dtype: x not in {bf16,bfloat16,e4m3,"},
  };
  for (const auto& [arguments, message] : cases) {
    const CommandResult r = run_command(arguments);
    EXPECT_EQ(r.exit_code, 2) << arguments;
    EXPECT_NE(r.err.find(message), std::string::npos) << arguments << ": " << r.err;
  }
}

TEST(Command, EveryHelpListsTheExitCodes) {
  for (const char* subcommand : {"", "attend ", "scenario ", "replay ", "explain "}) {
    const CommandResult r = run_command(subcommand + std::string("--help"));
    EXPECT_EQ(r.exit_code, 0);
    EXPECT_NE(r.out.find("exit codes:"), std::string::npos) << subcommand;
    EXPECT_NE(r.out.find("4  a bug in Serinus itself"), std::string::npos) << subcommand;
  }
}

TEST(Command, ASlipGetsASuggestion) {
  EXPECT_NE(run_command("docter").err.find("did you mean doctor?"), std::string::npos);
  EXPECT_EQ(run_command("wrzlbrnft").err.find("did you mean"), std::string::npos);
}

TEST(Command, OutputThatCannotBeWrittenIsAnError) {
  const CommandResult r = run_command("doctor >/dev/full");
  EXPECT_EQ(r.exit_code, 3);
  EXPECT_NE(r.err.find("error SRN6002: standard output could not be written"), std::string::npos)
      << r.err;
}

// Sources the script in a real bash and asks what it would offer.
std::string bash_offers(const std::string& words, int current) {
  return run_command("completion bash | bash -c 'source /dev/stdin; COMP_WORDS=(" + words +
                     "); COMP_CWORD=" + std::to_string(current) +
                     "; _serinus; echo \"${COMPREPLY[*]}\"'")
      .out;
}

TEST(Completion, BashOffersSubcommandsOptionsAndValues) {
  EXPECT_EQ(bash_offers("serinus doc", 1), "doctor\n");
  EXPECT_EQ(bash_offers("serinus --ver", 1), "--version\n");
  EXPECT_EQ(bash_offers("serinus completion z", 2), "zsh\n");
  EXPECT_EQ(bash_offers("serinus replay --format s", 3), "serinus sglang\n");
  EXPECT_EQ(bash_offers("serinus doctor --he", 2), "--help\n");
}

TEST(Completion, EveryShellGetsEverySubcommand) {
  for (const char* shell : {"bash", "zsh", "fish"}) {
    const CommandResult r = run_command(std::string("completion ") + shell);
    EXPECT_EQ(r.exit_code, 0);
    for (const char* name : {"doctor", "completion"})
      EXPECT_NE(r.out.find(name), std::string::npos) << shell << " " << name;
  }
}

}  // namespace
}  // namespace serinus::cli
