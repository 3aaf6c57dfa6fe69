// A bundle of `serinus replay`, opened by `serinus scan` as a colleague would.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include <serinus/canary_config.h>
#include <serinus/canary_dump.h>

#include "tests/cli/run_command.h"

namespace serinus::cli {
namespace {

namespace fs = std::filesystem;

class Scan : public testing::Test {
 protected:
  void SetUp() override {
    std::string name = "/tmp/serinus_scan_XXXXXX";
    folder_ = mkdtemp(name.data());
    bundle_ = folder_ / "bundle";
    std::ofstream out(folder_ / "trace.jsonl");
    for (int turn = 1; turn <= 3; ++turn) {
      for (int chat = 1; chat <= 2; ++chat) {
        out << R"({"timestamp": )" << turn * 1000 << R"(, "input_length": )" << turn * 512 + 100
            << R"(, "output_length": 20, "hash_ids": [)";
        for (int b = 0; b <= turn; ++b) out << (b > 0 ? ", " : "") << chat * 100 + b;
        out << "]}\n";
      }
    }
  }
  void TearDown() override { fs::remove_all(folder_); }

  CommandResult replay(const std::string& options) const {
    return run_command("replay '" + (folder_ / "trace.jsonl").string() +
                       "' --pool-tokens 20000 --bundle '" + bundle_.string() + "' " + options);
  }
  CommandResult scan(const std::string& options = {}) const {
    return run_command("scan '" + bundle_.string() + "' " + options);
  }

  fs::path folder_, bundle_;
};

TEST_F(Scan, OfARunWithoutFaultsIsFine) {
  for (const char* options : {"", "--format sglang", "--window 128 --draft-layers 1",
                              "--draft-layers 1 --host-tokens 20000", "--real-data none",
                              "--layout mha_nhd --heads 2 --head-size 16"}) {
    const CommandResult r = replay(options);
    ASSERT_EQ(r.exit_code, 0) << r.err;
    EXPECT_NE(r.out.find("bundle: "), std::string::npos) << r.out;
    const CommandResult s = scan();
    EXPECT_EQ(s.exit_code, 0) << options << "\n" << s.out << s.err;
    EXPECT_NE(s.out.find("\nviolations: 0\n"), std::string::npos) << s.out;
    EXPECT_NE(s.out.find("violations while it ran: 0"), std::string::npos) << s.out;
  }
}

TEST_F(Scan, ShowsWhatAFaultLeftBehind) {
  const CommandResult r = replay("--faults byte_flip:20 --seed 3 --verify all --admit serial");
  ASSERT_EQ(r.exit_code, 0) << r.err << r.out;
  // What the run said, with the slot's history, and the state right after it.
  std::ifstream lines(bundle_ / "violations.jsonl");
  std::string line;
  ASSERT_TRUE(std::getline(lines, line));
  const auto reported = nlohmann::json::parse(line);
  EXPECT_GE(reported["fault"], 0);
  EXPECT_EQ(reported["events"][0]["event"], "alloc");
  const CommandResult s = scan("--json");
  EXPECT_EQ(s.exit_code, 1) << s.out << s.err;
  const auto found = nlohmann::json::parse(s.out);
  bool is_there = false;  // others may be on their way
  for (const auto& v : found["violations"]) {
    if (v["slot"] != reported["slot"] || v["pool"] != reported["pool"]) continue;
    is_there = true;
    EXPECT_EQ(v["reasons"], reported["reasons"]);
    EXPECT_EQ(v["events"], reported["events"]);
  }
  EXPECT_TRUE(is_there) << s.out;
  EXPECT_GT(found["cells_checked"], 0);
  // The configuration is one that can be used again.
  canary::Config config;
  canary::apply_json(config, read(bundle_ / "config.json"), "config.json");
  EXPECT_EQ(config.options.verify, canary::VerifyPolicy::all);
  EXPECT_EQ(nlohmann::json::parse(read(bundle_ / "summary.json"))["seed"], 3);
  EXPECT_EQ(scan().out.find("violations while it ran: 0"), std::string::npos);
}

TEST_F(Scan, RefusesWhatIsNoDump) {
  std::ofstream(folder_ / "no.dump")
      << "something else, and long enough to be looked at: " << std::string(100, 'x');
  const CommandResult r = run_command("scan '" + (folder_ / "no.dump").string() + "'");
  EXPECT_EQ(r.exit_code, 3);
  EXPECT_NE(r.err.find("SRN4401"), std::string::npos) << r.err;
  EXPECT_EQ(run_command("scan '" + folder_.string() + "'").exit_code, 3);  // no dump in it
  EXPECT_EQ(run_command("scan").exit_code, 2);
  EXPECT_EQ(run_command("replay '" + (folder_ / "trace.jsonl").string() +
                        "' --no-canary --bundle '" + bundle_.string() + "'")
                .exit_code,
            2);
}

}  // namespace
}  // namespace serinus::cli
