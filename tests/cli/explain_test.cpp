// `serinus explain`, `serinus layouts` and `serinus doctor`, run as a user would.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <set>
#include <string>

#include <serinus/error.h>
#include <serinus/kv_layout.h>
#include <serinus/version.h>

#include "tests/cli/run_command.h"

namespace serinus::cli {
namespace {

using Json = nlohmann::ordered_json;

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST(Explain, FindsByIdSlugAndPastedLine) {
  for (const char* arguments : {
           "SRN2000",
           "srn2000",
           "kv-must-be-contiguous",
           "kv must be contiguous",
           "'kv must be contiguous'",
           "\"ValueError: kv must be contiguous\"",
           "serinus.Error: kv must be contiguous",
           "error SRN2000: kv must be contiguous",
       }) {
    const CommandResult r = run_command(std::string("explain ") + arguments);
    EXPECT_EQ(r.exit_code, 0) << arguments << r.err;
    EXPECT_TRUE(r.out.starts_with("SRN2000  The KV cache must be contiguous\n")) << r.out;
  }
}

TEST(Explain, ReadsStandardInput) {
  const CommandResult r =
      run_command("explain - <<'EOF'\nTraceback\nValueError: kv must be contiguous\n\nEOF");
  EXPECT_EQ(r.exit_code, 0) << r.err;
  EXPECT_TRUE(r.out.starts_with("SRN2000"));
  EXPECT_EQ(run_command("explain - </dev/null").exit_code, 3);
  EXPECT_EQ(run_command("explain - </bin/sh").exit_code, 3);
}

TEST(Explain, WordsThatBeginWithADashArePartOfTheLine) {
  const CommandResult r =
      run_command("explain x must have a contiguous last dimension, got stride -2");
  EXPECT_TRUE(r.out.starts_with("SRN1008")) << r.out << r.err;
  const CommandResult dashed = run_command("explain -- '--x must be contiguous'");
  EXPECT_TRUE(dashed.out.starts_with("SRN1001")) << dashed.out << dashed.err;
}

TEST(Explain, ALineInBracketsIsALine) {
  const CommandResult r =
      run_command("explain '[rank0]: ValueError: q must have shape (s_q, h_q, d_qk), got [3, 4]'");
  EXPECT_TRUE(r.out.starts_with("SRN1002")) << r.out << r.err;
}

TEST(Explain, APageHoldsEverything) {
  const ErrorEntry& e = *find_error("SRN2000");
  const std::string out = run_command("explain SRN2000").out;
  EXPECT_TRUE(contains(out, std::string(e.message)));
  EXPECT_TRUE(contains(out, std::string(e.guard.substr(0, e.guard.find('\n')))));
  EXPECT_TRUE(contains(out, "\n  | rows = pool")) << "code is indented";
  for (const char* heading :
       {"What it means", "When it is raised", "How people get there", "How to mend it", "Before",
        "After", "To check beforehand", "Related", "raised in "}) {
    EXPECT_TRUE(contains(out, std::string("\n").append(heading))) << heading;
  }
  EXPECT_FALSE(contains(out, "\033")) << "colours in a pipe";
  // Prose is set to 80 columns where there is no terminal.
  std::size_t begin = out.find("What it means");
  const std::size_t stop = out.find("\nBefore\n");
  while (begin < stop) {
    const std::size_t end = out.find('\n', begin);
    EXPECT_LE(end - begin, 80u) << out.substr(begin, end - begin);
    begin = end + 1;
  }
}

TEST(Explain, ColoursOnATerminalAlone) {
  // script(1) runs its command in a terminal of its own.
  if (std::system("command -v script >/dev/null") != 0) GTEST_SKIP() << "script(1) is not here";
  const std::string in_terminal = std::string("doctor >/dev/null; script -qec '") +
                                  SERINUS_COMMAND_PATH + " explain SRN2000' /dev/null";
  EXPECT_TRUE(contains(run_command(in_terminal).out, "\033[1m"));
  const std::string without = std::string("doctor >/dev/null; NO_COLOR=1 script -qec '") +
                              SERINUS_COMMAND_PATH + " explain SRN2000' /dev/null";
  EXPECT_FALSE(contains(run_command(without).out, "\033["));
}

TEST(Explain, WithoutArgumentsListsAll) {
  const CommandResult r = run_command("explain");
  EXPECT_EQ(r.exit_code, 0);
  for (const ErrorEntry& e : error_reference()) EXPECT_TRUE(contains(r.out, std::string(e.id)));
}

TEST(Explain, NotFoundExitsWith3AndNamesWhatIsNear) {
  const CommandResult r = run_command("explain kv must be contiguos");
  EXPECT_EQ(r.exit_code, 3);
  EXPECT_EQ(r.out, "");
  EXPECT_TRUE(r.err.starts_with(
      "error SRN1014: no error of the reference fits \"kv must be contiguos\"; near it are\n"))
      << r.err;
  EXPECT_TRUE(contains(r.err, "SRN2000  The KV cache must be contiguous")) << r.err;
  EXPECT_EQ(run_command("explain --json zzzzqqqq").exit_code, 3);
  EXPECT_FALSE(contains(run_command("explain zzzzqqqq").err, "near it"));
}

TEST(Explain, JsonHasExactlyTheContractsKeys) {
  const Json one = Json::parse(run_command("explain SRN2000 --json").out);
  std::vector<std::string> keys;
  for (const auto& [key, value] : one.items()) keys.push_back(key);
  EXPECT_EQ(keys, (std::vector<std::string>{"id", "slug", "title", "message", "exception",
                                            "meaning", "trigger", "situations", "solutions",
                                            "example", "guard", "related", "raised_at"}));
  EXPECT_EQ(one["message"], "kv must be contiguous");
  EXPECT_EQ(one["slug"], "kv-must-be-contiguous");
  EXPECT_EQ(one["exception"], "ValueError");
  EXPECT_EQ(one["example"].size(), 2u);
  EXPECT_FALSE(one["example"]["before"].get<std::string>().empty());
  EXPECT_FALSE(one["example"]["after"].get<std::string>().empty());
  EXPECT_GE(one["situations"].size(), 2u);
  EXPECT_GE(one["solutions"].size(), 2u);
  const Json canary =
      Json::parse(run_command("explain --json kv-canary: canary_buf must be contiguous").out);
  EXPECT_EQ(canary["slug"], "canary-tensor-must-be-contiguous");
  EXPECT_EQ(canary["message"], "kv-canary: {name} must be contiguous");
  const Json all = Json::parse(run_command("explain --json").out);
  ASSERT_TRUE(all.is_array());
  EXPECT_EQ(all.size(), error_reference().size());
  EXPECT_EQ(all[0].size(), 13u);
}

TEST(Layouts, ListsAll) {
  const CommandResult r = run_command("layouts");
  EXPECT_EQ(r.exit_code, 0);
  for (const std::string_view name : kv_layout_names()) {
    EXPECT_TRUE(contains(r.out, std::string("\n").append(name).append(" "))) << name;
  }
  const Json all =
      Json::parse(run_command("layouts --json --heads 2 --head-size 64 --page 32").out);
  EXPECT_EQ(all.size(), kv_layout_names().size());
  EXPECT_EQ(all[0]["page_size"], 32);
  EXPECT_EQ(all[9]["token_bytes"], 2 * 2 * 64 * 2);
}

TEST(Layouts, DrawsOne) {
  const CommandResult r = run_command("layouts dsv4_584 --page 256");
  EXPECT_EQ(r.exit_code, 0);
  EXPECT_TRUE(contains(r.out, "a page of 256 tokens: 149760 bytes")) << r.out;
  EXPECT_TRUE(contains(r.out, "7 x ue8m0, one per 64 values")) << r.out;
  const CommandResult mha = run_command("layouts mha_packed --heads 64 --head-size 80 --dtype fp8");
  EXPECT_EQ(mha.exit_code, 0);
  EXPECT_TRUE(contains(mha.out, "v.head63")) << mha.out;
  EXPECT_TRUE(contains(mha.out, "... 117 more")) << mha.out;
}

TEST(Layouts, JsonOfOneHasItsAddresses) {
  const Json one = Json::parse(run_command("layouts --json dsv4_584").out);
  EXPECT_EQ(one["page_bytes"], Json({37440}));
  EXPECT_EQ(one["padding_bytes"], 37440 - 64 * 583);
  EXPECT_EQ(one["segments"][2]["name"], "scale");
  EXPECT_EQ(one["segments"][2]["offset"], 36864);
  const Json hnd = Json::parse(
      run_command("layouts mha_blocks_first --order hnd --heads 2 --head-size 4 --page 2 --json")
          .out);
  EXPECT_EQ(hnd["segments"][1]["offset"], 16);
}

TEST(Layouts, WhatCannotBeExitsWith2) {
  const CommandResult r = run_command("layouts fp8_657");
  EXPECT_EQ(r.exit_code, 2);
  EXPECT_TRUE(r.err.starts_with("error SRN1201: unknown KV layout fp8_657; known are fp8_656, "));
  EXPECT_TRUE(contains(run_command("layouts fp8_656 --heads 8").err, "SRN1202"));
  for (const char* arguments : {"--page 0", "--page 65537", "--page x", "--heads -1",
                                "--head-size 0", "--dtype int4", "--order hdn"}) {
    EXPECT_EQ(run_command(std::string("layouts mha_packed ") + arguments).exit_code, 2)
        << arguments;
  }
}

TEST(Doctor, SaysWhatIsThere) {
  const CommandResult r = run_command("doctor");
  EXPECT_EQ(r.exit_code, 0);
  EXPECT_TRUE(r.out.starts_with(std::string("serinus ") + version_string() + "\n"));
  for (const char* row :
       {"\n  CPU ", "\n  SIMD ", "\n  memory ", "\n  CUDA ", "\n  GPU ", "\n  build "}) {
    EXPECT_TRUE(contains(r.out, row)) << row << "\n" << r.out;
  }
  const Json j = Json::parse(run_command("doctor --json").out);
  EXPECT_EQ(j["version"], version_string());
  EXPECT_GE(j["cpu"]["cores"].get<int>(), 1);
  EXPECT_FALSE(j["cpu"]["attention_paths"].empty());
  EXPECT_GT(j["memory_bytes"].get<std::int64_t>(), 0);
  EXPECT_TRUE(j["cuda"]["built"].is_boolean());
  // No devices always has a reason.
  EXPECT_NE(j["cuda"]["devices"].empty(), j["cuda"]["problem"].get<std::string>().empty());
  EXPECT_FALSE(j["build"]["type"].get<std::string>().empty());
}

}  // namespace
}  // namespace serinus::cli
