// `serinus replay` as a user runs it: summary, JSON contract, reports, Ctrl-C, bad input.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>

#include "tests/cli/run_command.h"

namespace serinus::cli {
namespace {

namespace fs = std::filesystem;

class Replay : public testing::Test {
 protected:
  void SetUp() override {
    std::string name = "/tmp/serinus_replay_XXXXXX";
    folder_ = mkdtemp(name.data());
    trace_ = folder_ / "trace.jsonl";
    std::ofstream out(trace_);
    // Two conversations of three turns; every turn continues the one before it.
    for (int turn = 1; turn <= 3; ++turn) {
      for (int chat = 1; chat <= 2; ++chat) {
        out << R"({"timestamp": )" << turn * 1000 << R"(, "input_length": )" << turn * 512 + 100
            << R"(, "output_length": 20, "hash_ids": [)";
        for (int b = 0; b <= turn; ++b)
          out << (b > 0 ? ", " : "") << chat * 100 + b * (b == turn ? 11 : 1);
        out << "]}\n";
      }
    }
  }
  void TearDown() override { fs::remove_all(folder_); }

  CommandResult replay(const std::string& options) const {
    const bool sized = options.find("--pool-tokens") != std::string::npos;
    return run_command("replay '" + trace_.string() + "' " + (sized ? "" : "--pool-tokens 20000 ") +
                       options);
  }

  fs::path folder_, trace_;
};

TEST_F(Replay, PrintsASummary) {
  const CommandResult r = replay("--admit serial");
  EXPECT_EQ(r.exit_code, 0) << r.err;
  for (const char* line :
       {"\nfalse alarms: 0\n", "\nrequests: 6 of 6\n", "\nprefix hits: 3 072 tokens",
        "\nslots protected: ", "\nentries verified: ", "\nsweeps: ", "\nfaults: 0 injected"})
    EXPECT_NE(r.out.find(line), std::string::npos) << line << r.out;
}

TEST_F(Replay, PrintsOneJsonObjectAndNothingElseOnStandardOutput) {
  const CommandResult r = replay("--json --admit serial");
  EXPECT_EQ(r.exit_code, 0) << r.err;
  EXPECT_EQ(std::count(r.out.begin(), r.out.end(), '\n'), 1);
  const auto j = nlohmann::json::parse(r.out);
  EXPECT_EQ(j.at("requests"), 6);
  EXPECT_EQ(j.at("false_alarms"), 0);
  // Turns 2 and 3 find 1 and 2 full blocks of the turn before, in both conversations.
  EXPECT_EQ(j.at("prefix_hit_tokens"), 2 * (1 + 2) * 512);
  const int computed = 2 * (612 + 1124 + 1636) - 2 * (1 + 2) * 512;
  EXPECT_EQ(j.at("tokens_written"), computed + 6 * 19);
  EXPECT_GT(j.at("entries_verified"), 0);
  EXPECT_GT(j.at("seconds"), 0);
  EXPECT_GT(j.at("peak_rss_bytes"), 1'000'000);
  EXPECT_EQ(j.at("faults").at("injected"), 0);
  EXPECT_TRUE(j.at("faults").at("by_class").is_object());
  for (const char* key : {"count", "median", "max"})
    EXPECT_TRUE(j.at("detection_latency_steps").contains(key)) << key;
}

TEST_F(Replay, TheSameSeedGivesTheSameResultOnAnyNumberOfThreads) {
  const auto result = [&](const std::string& threads) {
    auto j = nlohmann::json::parse(replay("--json --seed 9 --threads " + threads).out);
    for (const char* key : {"seconds", "canary_seconds", "peak_rss_bytes"}) j.erase(key);
    return j;
  };
  EXPECT_EQ(result("1"), result("4"));
}

TEST_F(Replay, EveryFormatDepthAndPolicyIsQuiet) {
  for (const char* options :
       {"--format sglang", "--verify all", "--format sglang --verify all", "--real-data none",
        "--real-data partial", "--page 1", "--page 256", "--layout dsv4_584 --layers 3",
        "--layout mha_nhd --heads 2 --head-size 32", "--window 256", "--draft-layers 1",
        "--host-tokens 4000 --pool-tokens 2000", "--no-canary", "--budget 1",
        "--decode-tokens 4"}) {
    const CommandResult r = replay(options);
    EXPECT_EQ(r.exit_code, 0) << options << r.err;
    EXPECT_NE(r.out.find("\nfalse alarms: 0\n"), std::string::npos) << options;
  }
}

TEST_F(Replay, AFaultWithoutItsPlaceIsSaidInWords) {
  const CommandResult r = replay("--faults torn_transfer");
  EXPECT_EQ(r.exit_code, 0) << r.err;
  EXPECT_NE(r.out.find("  not seen: 1 x torn_transfer, not placed: "), std::string::npos) << r.out;
}

TEST_F(Replay, WritesAWholeReport) {
  const fs::path report = folder_ / "a" / "report";
  const CommandResult r = replay(
      "--draft-layers 1 --host-tokens 30000 --faults draft_offset,pad_null_slot:9 --report '" +
      report.string() + "'");
  EXPECT_EQ(r.exit_code, 0) << r.err;
  const std::string page = read(report / "report.html");
  EXPECT_NE(page.find(", a draft pool of 1 layer, a host tier of 30 000 tokens"),
            std::string::npos);
  EXPECT_NE(page.find("<th>not placed</th>"), std::string::npos);
  EXPECT_TRUE(page.starts_with("<!doctype html>"));
  EXPECT_TRUE(page.ends_with("</html>\n"));
  EXPECT_NE(page.find("<svg"), std::string::npos);
  EXPECT_NE(page.find("prefers-color-scheme: dark"), std::string::npos);
  for (const char* outside : {"http:", "https:", "src=", "href=", "@import", "<script"})
    EXPECT_EQ(page.find(outside), std::string::npos) << outside;
  EXPECT_EQ(nlohmann::json::parse(read(report / "summary.json")).at("requests"), 6);
  EXPECT_TRUE(fs::exists(report / "violations.txt"));
  EXPECT_TRUE(fs::exists(report / "violations.jsonl"));
  for (const auto& entry : fs::directory_iterator(report))
    EXPECT_NE(entry.path().extension(), ".partial") << entry.path();
}

TEST_F(Replay, AReportThatCannotBeWrittenIsAnErrorAndLeavesNothing) {
  std::ofstream(folder_ / "file") << "x";
  for (const std::string& place : {(folder_ / "file").string(), (folder_ / "file/below").string(),
                                   std::string("/proc/serinus")}) {
    const CommandResult r = replay("--report '" + place + "'");
    EXPECT_EQ(r.exit_code, 3) << place;
    EXPECT_NE(r.err.find("error SRN4301"), std::string::npos) << r.err;
  }
  // A page that cannot get its name: the folder of that name is in the way.
  const fs::path report = folder_ / "report";
  fs::create_directories(report / "report.html" / "occupied");
  const CommandResult r = replay("--report '" + report.string() + "'");
  EXPECT_EQ(r.exit_code, 3);
  EXPECT_NE(r.err.find("report.html"), std::string::npos) << r.err;
  EXPECT_FALSE(fs::exists(report / "report.html.partial"));
}

// A file size limit stands for a full disk: writes fail half way.
TEST_F(Replay, AFullDiskLeavesNoReportBehind) {
  const fs::path report = folder_ / "report";
  const CommandResult r = run_command(
      "--version >/dev/null; ulimit -f 4; '" + std::string(SERINUS_COMMAND_PATH) + "' replay '" +
      trace_.string() + "' --pool-tokens 20000 --report '" + report.string() + "'");
  EXPECT_EQ(r.exit_code, 3);
  EXPECT_NE(r.err.find("error SRN4301"), std::string::npos) << r.err;
  EXPECT_FALSE(fs::exists(report / "report.html"));
  EXPECT_FALSE(fs::exists(report / "report.html.partial"));
}

TEST_F(Replay, OptionsThatCannotBeAreNamed) {
  const auto expect = [&](const std::string& options, int code, const char* id) {
    const CommandResult r = replay(options);
    EXPECT_EQ(r.exit_code, code) << options;
    EXPECT_NE(r.err.find(std::string("error ") + id), std::string::npos) << options << r.err;
    EXPECT_EQ(r.out, "") << options;
  };
  expect("--page 0", 2, "SRN5001");
  expect("--page 257", 2, "SRN5001");
  expect("--pool-tokens 0", 2, "SRN5001");
  expect("--pool-tokens 9000000000", 2, "SRN5001");
  expect("--layers 0", 2, "SRN5001");
  expect("--host-tokens 1000 --window 64", 2, "SRN5001");
  expect("--layout nonsense", 2, "SRN");
  expect("--format nonsense", 2, "SRN6001");
  expect("--admit never", 2, "SRN6001");
  expect("--faults nonsense:3", 2, "SRN5");
  expect("--budget 0", 2, "SRN6001");
  expect("--requests -1", 2, "SRN6001");
  expect("--format 0", 2, "SRN6001: command line: --format: 0 not in {serinus,sglang}");
  expect("--verify some", 2, "SRN6001: command line: --verify: some not in {rolling,all}");
  expect("--real-data 1", 2, "SRN6001: command line: --real-data: 1 not in {none,partial,all}");
  expect("--seed -1", 2, "SRN6001");
  expect("--no-canary --faults byte_flip:1", 2, "SRN5001");
  for (const char* pace : {"nan", "-nan", "inf", "-1", "x"}) {
    expect(std::string("--serve 0 --pace ") + pace, 2, "SRN6001");
  }
}

TEST_F(Replay, APoolTooSmallForARequestNamesIt) {
  const CommandResult r =
      run_command("replay '" + trace_.string() + "' --pool-tokens 1500 --page 50");
  EXPECT_EQ(r.exit_code, 2);
  EXPECT_NE(r.err.find("error SRN5002: request 5 needs 1656 tokens of KV, but the pool holds 1500"),
            std::string::npos)
      << r.err;
}

TEST_F(Replay, BadTracesStopOrAreCounted) {
  EXPECT_EQ(run_command("replay /nowhere/trace.jsonl").exit_code, 3);
  EXPECT_EQ(run_command("replay /tmp").exit_code, 3);
  std::ofstream(trace_, std::ios::app) << "{\"timestamp\": 1, \"input_length\": -5}\n";
  EXPECT_EQ(replay("").exit_code, 3);
  const CommandResult r = replay("--skip-bad");
  EXPECT_EQ(r.exit_code, 0) << r.err;
  EXPECT_NE(r.out.find("\nmalformed lines skipped: 1\n"), std::string::npos);
}

TEST_F(Replay, CtrlCEndsWithAPartialSummary) {
  // Enough work for many seconds, and a progress line that says when it runs.
  const fs::path big = folder_ / "big.jsonl", out = folder_ / "out", err = folder_ / "err";
  {
    std::ofstream trace(big);
    for (int i = 0; i < 20000; ++i)
      trace << R"({"timestamp": 0, "input_length": 500, "output_length": 400, "hash_ids": [)" << i
            << "]}\n";
  }
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    if (freopen(out.c_str(), "w", stdout) == nullptr ||
        freopen(err.c_str(), "w", stderr) == nullptr)
      _exit(99);
    execl(SERINUS_COMMAND_PATH, "serinus", "replay", big.c_str(), "--pool-tokens", "100000",
          "--report", (folder_ / "report").c_str(), static_cast<char*>(nullptr));
    _exit(98);
  }
  // The report's files are opened just before the replay begins.
  for (int i = 0; i < 600 && !fs::exists(folder_ / "report" / "report.html.partial"); ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  kill(child, SIGINT);
  int status = 0;
  waitpid(child, &status, 0);
  ASSERT_TRUE(WIFEXITED(status)) << "ended by signal " << WTERMSIG(status);
  EXPECT_EQ(WEXITSTATUS(status), 0) << read(err);
  EXPECT_NE(read(out).find(" of 20 000 (interrupted)\n"), std::string::npos) << read(out);
  EXPECT_NE(read(out).find("\nfalse alarms: 0\n"), std::string::npos);
  EXPECT_TRUE(fs::exists(folder_ / "report" / "report.html"));
}

}  // namespace
}  // namespace serinus::cli
