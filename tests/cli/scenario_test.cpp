// `serinus scenario` and `serinus trace-gen`, run as a user would.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "run_command.h"

namespace serinus::cli {
namespace {

const std::string kSource = SERINUS_SOURCE_DIR;

TEST(ScenarioCommand, RunsTheCollectionAsATable) {
  const CommandResult r = run_command("scenario '" + kSource + "'/engine/scenarios/*.jsonl");
  EXPECT_EQ(r.exit_code, 0) << r.out << r.err;
  EXPECT_TRUE(r.out.starts_with("scenario ")) << r.out;
  EXPECT_NE(r.out.find("\nabort_late_xfer "), std::string::npos);
  EXPECT_NE(r.out.find(" scenarios as expected\n"), std::string::npos);
}

TEST(ScenarioCommand, GivesOneJsonObjectWithBothFormats) {
  const CommandResult r = run_command(
      "scenario '" + kSource + "'/engine/scenarios/legal.scenario.jsonl --format both --json");
  EXPECT_EQ(r.exit_code, 0) << r.err;
  const auto j = nlohmann::json::parse(r.out);
  EXPECT_EQ(j["scenarios"], j["results"].size());
  EXPECT_EQ(j["serinus_ok"], j["scenarios"]);
  EXPECT_EQ(j["results"][0]["expect"][0], "no_alarm");
  EXPECT_TRUE(j["results"][0]["sglang"].contains("missed"));
}

TEST(ScenarioCommand, AnExpectationThatFailsGivesOne) {
  const std::string file = testing::TempDir() + "failing.scenario.jsonl";
  std::ofstream(file) << R"({"id": "quiet", "ops": ["alloc A 1"], "expect": ["token@1"]})" << "\n";
  const CommandResult r = run_command("scenario -v '" + file + "'");
  std::filesystem::remove(file);
  EXPECT_EQ(r.exit_code, 1);
  EXPECT_NE(r.out.find("misses token@1"), std::string::npos) << r.out;
  EXPECT_NE(r.out.find("serinus: 0 of 1 scenarios as expected"), std::string::npos) << r.out;
}

TEST(ScenarioCommand, AMalformedFileGivesThreeAndNamesFileLineAndField) {
  const CommandResult r =
      run_command("scenario '" + kSource + "'/tests/engine/malformed.scenario.jsonl");
  EXPECT_EQ(r.exit_code, 3);
  EXPECT_EQ(r.out, "");
  EXPECT_NE(r.err.find("error SRN4201: "), std::string::npos) << r.err;
  EXPECT_NE(r.err.find("malformed.scenario.jsonl:1: ops[1] `write 1,2 A.0` pairs lists of "
                       "different lengths, got `2 and 1`"),
            std::string::npos)
      << r.err;
  EXPECT_EQ(run_command("scenario /no/such/file").exit_code, 3);
  EXPECT_EQ(run_command("scenario /").exit_code, 3);
  EXPECT_EQ(run_command("scenario").exit_code, 2);
  EXPECT_EQ(run_command("scenario --format xml /dev/null").exit_code, 2);
}

TEST(TraceGenCommand, WritesAWholeTraceOrNone) {
  const std::string file = testing::TempDir() + "generated.jsonl";
  EXPECT_EQ(run_command("trace-gen --requests 3 --seed 9 -o '" + file + "'").exit_code, 0);
  const std::string text = read(file);
  EXPECT_EQ(run_command("trace-gen --requests 3 --seed 9").out, text);
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 3);
  std::filesystem::remove(file);
  const CommandResult nowhere = run_command("trace-gen -o /no/such/folder/trace.jsonl");
  EXPECT_EQ(nowhere.exit_code, 3);
  EXPECT_NE(nowhere.err.find("SRN4301"), std::string::npos) << nowhere.err;
  EXPECT_EQ(run_command("trace-gen >/dev/full").exit_code, 3);
  EXPECT_EQ(run_command("trace-gen --requests 0").exit_code, 2);
}

}  // namespace
}  // namespace serinus::cli
