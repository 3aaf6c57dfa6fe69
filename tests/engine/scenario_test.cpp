// The scenario language: the collection holds in the serinus format, the lab judges nothing itself,
// and bad files are named.
#include "engine/scenario.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include <serinus/error.h>

namespace serinus::engine {
namespace {

namespace fs = std::filesystem;
using canary::Format;

std::vector<Scenario> collection() {
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(SERINUS_SOURCE_DIR "/engine/scenarios")) {
    files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  std::vector<Scenario> all;
  for (const fs::path& file : files) {
    for (Scenario& s : read_scenarios(file.string())) all.push_back(std::move(s));
  }
  return all;
}

std::string line(const std::string& ops, const std::string& expect, const std::string& more = "") {
  return R"({"id": "t", )" + more + R"("ops": [)" + ops + R"(], "expect": [)" + expect + "]}";
}

ScenarioOutcome outcome(const std::string& text, Format format = Format::serinus) {
  return run_scenario(parse_scenarios("t", text).at(0), format);
}

TEST(Scenario, EveryExpectationOfTheCollectionHolds) {
  const auto all = collection();
  EXPECT_GE(all.size(), 80u);
  std::map<std::string, int> ids;
  for (const Scenario& s : all) {
    EXPECT_EQ(++ids[s.id], 1) << s.id;
    const ScenarioOutcome o = run_scenario(s, Format::serinus);
    EXPECT_TRUE(o.ok()) << s.place << " " << s.id
                        << "\n  missed: " << testing::PrintToString(o.missed)
                        << "\n  false alarms: " << testing::PrintToString(o.false_alarms)
                        << "\n  violations: " << testing::PrintToString(o.violations);
    if (s.expect.empty()) {
      EXPECT_TRUE(o.violations.empty()) << s.id;
    }
  }
}

// What a record cannot know is missed in the other format, and the legal ones alarm nobody.
TEST(Scenario, LegalOnesRaiseNoAlarmInTheSglangFormatEither) {
  for (const Scenario& s : collection()) {
    if (!s.expect.empty()) continue;
    const ScenarioOutcome o = run_scenario(s, Format::sglang);
    EXPECT_TRUE(o.violations.empty()) << s.id << testing::PrintToString(o.violations);
  }
}

// Without the operation that does the damage, every scenario would be a legal one.
TEST(Scenario, WithoutTheFaultNothingIsReported) {
  const struct {
    const char* ops;
    const char* fault;
    const char* expect;
  } cases[] = {
      {R"("alloc A 1", "write 1 A.0", )", R"("flip 1 byte 9", )", R"("kv_bytes@1")"},
      {R"("alloc A 1", "write 1 A.0", )", R"("junk 0", )", R"("null_slot_dirty@0")"},
      {R"("alloc A 1,2", "write 1,2 A.0..1", )", R"("row A 2,1", )", R"("position@1", "token@2")"},
      {R"("alloc A 1", "write 1 A.0", )", R"("alloc B 1", )", R"("double_owner@1")"},
      {R"("alloc A 1", "write 1 A.0", )", R"("row A 99", )", R"("out_of_range@99")"},
  };
  for (const auto& c : cases) {
    const std::string end = R"("verify A", "sweep")";
    const ScenarioOutcome with = outcome(line(c.ops + std::string(c.fault) + end, c.expect));
    EXPECT_TRUE(with.ok()) << c.fault << testing::PrintToString(with.missed)
                           << testing::PrintToString(with.false_alarms);
    const ScenarioOutcome without = outcome(line(c.ops + end, c.expect));
    EXPECT_EQ(without.missed.size(),
              parse_scenarios("t", line(c.ops + end, c.expect))[0].expect.size());
    EXPECT_TRUE(without.violations.empty()) << testing::PrintToString(without.violations);
  }
}

TEST(Scenario, AnAlarmAtAnUnrelatedSlotIsAFalseAlarm) {
  const std::string ops = R"("alloc A 1,2", "write 1,2 A.0..1", "flip 1", "flip 2", "verify A")";
  const ScenarioOutcome o = outcome(line(ops, R"("kv_bytes@1")"));
  EXPECT_TRUE(o.missed.empty());
  ASSERT_EQ(o.false_alarms.size(), 1u);
  EXPECT_EQ(o.false_alarms[0], "kv_bytes at kv:2");
  EXPECT_TRUE(outcome(line(ops, R"("kv_bytes@1")", R"("also": ["2"], )")).ok());
  EXPECT_FALSE(outcome(line(ops, R"("no_alarm")")).ok());
}

TEST(Scenario, AWrongStateIsReported) {
  const std::string ops = R"("alloc A 1", "state 1 empty", "write 1 A.0", "state 1 empty")";
  const ScenarioOutcome o = outcome(line(ops, R"("no_alarm")"));
  EXPECT_EQ(o.missed, std::vector<std::string>{"state 1 empty"});
}

TEST(Scenario, TellsTheOperationThatAViolationFollows) {
  const ScenarioOutcome o =
      outcome(line(R"("alloc A 1", "alloc B 1", "idle")", R"("double_owner@1")"));
  ASSERT_FALSE(o.violations.empty());
  EXPECT_TRUE(o.violations[0].starts_with("after `alloc B 1`: ")) << o.violations[0];
}

struct BadCase {
  std::string text, message;
};

TEST(Scenario, NamesWhatIsMalformed) {
  const auto one_op = [](const std::string& op) { return line('"' + op + '"', R"("no_alarm")"); };
  const BadCase cases[] = {
      {"{", "SRN4201 scenario t:1: line ends too early (byte 1), got ``"},
      {R"({"id": "a"})", "SRN4201 scenario t:1: ops is missing, got `{\"id\": \"a\"}`"},
      {R"({"ops": [], "expect": ["no_alarm"]})",
       "SRN4201 scenario t:1: id is missing, got `{\"ops\": [], \"expect\": [\"no_alarm\"]}`"},
      {R"({"id": "a", "ops": []})",
       "SRN4201 scenario t:1: expect is missing (a legal scenario expects no_alarm), got `{\"id\": "
       "\"a\", "
       "\"ops\": []}`"},
      {R"({"id": "a", "id": "b"})", "SRN4201 scenario t:1: id stands twice, got `\"b\"`"},
      {R"({"id": "a", "opps": []})",
       "SRN4201 scenario t:1: opps is no field of a scenario, got `[]`"},
      {R"({"id": 7})", "SRN4201 scenario t:1: id should be a string (byte 7), got `7}`"},
      {line("7", R"("no_alarm")"), "SRN4201 scenario t:1: ops[0] should be a string, got `7`"},
      {line("", R"("kv_byte@1")"),
       "SRN4201 scenario t:1: expect[0] `kv_byte@1` names no reason (token, position, chain, "
       "kv_bytes, "
       "...), got `kv_byte`"},
      {line("", R"("token@swa:1")"),
       "SRN4201 scenario t:1: expect[0] `token@swa:1` names a pool that the scenario does not "
       "have, got "
       "`swa`"},
      {one_op(""), "SRN4201 scenario t:1: ops[0] `` lacks a verb, got ``"},
      {one_op("fly A"), "SRN4201 scenario t:1: ops[0] `fly A` has an unknown verb, got `fly`"},
      {one_op("alloc a 1"),
       "SRN4201 scenario t:1: ops[0] `alloc a 1` needs a request (A to Z, or cache), got `a`"},
      {one_op("alloc A"), "SRN4201 scenario t:1: ops[0] `alloc A` lacks slots, got ``"},
      {one_op("alloc A 1.5"),
       "SRN4201 scenario t:1: ops[0] `alloc A 1.5` needs a whole number from -2147483647 to "
       "2147483647, "
       "got `1.5`"},
      {one_op("alloc A 1..9999999"),
       "SRN4201 scenario t:1: ops[0] `alloc A 1..9999999` lists too many slots, got `1..9999999`"},
      {one_op("write 1 A"),
       "SRN4201 scenario t:1: ops[0] `write 1 A` needs tokens of a request, such as A.0 or A.0..3, "
       "got `A`"},
      {one_op("write 1 A.999"),
       "SRN4201 scenario t:1: ops[0] `write 1 A.999` needs a whole number from 0 to 254, got "
       "`999`"},
      {one_op("write 1,2 A.0"),
       "SRN4201 scenario t:1: ops[0] `write 1,2 A.0` pairs lists of different lengths, got `2 and "
       "1`"},
      {one_op("free 1 raw"),
       "SRN4201 scenario t:1: ops[0] `free 1 raw` has a word that this operation does not know, "
       "got `raw`"},
      {one_op("give 1 A"), "SRN4201 scenario t:1: ops[0] `give 1 A` needs FROM>TO, got `A`"},
      {one_op("issue x issue y idle"),
       "SRN4201 scenario t:1: ops[0] `issue x issue y idle` cannot issue an issue, got `issue y "
       "idle`"},
      {one_op("rank 1 idle"),
       "SRN4201 scenario t:1: ops[0] `rank 1 idle` needs a rank from 0 to 0, got `1`"},
      {one_op("land x"),
       "SRN4201 scenario t:1: ops[0] `land x` lands what was never issued, got `x`"},
      {one_op("load h>1 A"),
       "SRN4201 scenario t:1: ops[0] `load h>1 A` loads a copy that was never made, got `h`"},
      {line("", R"("no_alarm")", R"("pools": {"kv": {"slots": 0}}, )"),
       "SRN4201 scenario t:1: pools.kv.slots must be a whole number from 1 to 4194304, got `0`"},
      {line("", R"("no_alarm")", R"("pools": {"kv": {"slots": 4194304}}, )"),
       "SRN4201 scenario t:1: kv is a pool too large for a scenario, got `4194304 slots x 1 "
       "layers`"},
      {line("", R"("no_alarm")", R"("pools": {}, )"),
       "SRN4201 scenario t:1: pools must be one to eight pools, the first of kind full, got `0 "
       "pools`"},
      {line("", R"("no_alarm")", R"("pools": {"kv": {"kind": "ful"}}, )"),
       "SRN4201 scenario t:1: pools.kv.kind must be full, swa or draft, got `ful`"},
      {"\xff", "SRN4201 scenario t:1: line is not UTF-8: is this a binary file?, got `\\xff`"},
      {"", "SRN4202 t holds no scenario"},
      {"\n\n", "SRN4202 t holds no scenario"},
  };
  for (const BadCase& c : cases) {
    try {
      outcome(c.text);
      ADD_FAILURE() << c.text << "\n  should be: " << c.message;
    } catch (const InputError& e) {
      EXPECT_EQ(e.id() + " " + e.what(), c.message) << c.text;
    }
  }
}

TEST(Scenario, NamesTheLine) {
  try {
    parse_scenarios("t", line("", R"("no_alarm")") + "\n\n{");
    FAIL();
  } catch (const InputError& e) {
    EXPECT_TRUE(std::string(e.what()).starts_with("scenario t:3: ")) << e.what();
  }
}

TEST(Scenario, PoolsThatTheMonitorRefusesAreNamed) {
  for (const char* pools : {R"("pools": {"kv": {"page_stride": 1}}, )",
                            R"("pools": {"kv": {"layout": "no_such"}}, )"}) {
    EXPECT_THROW(outcome(line(R"("idle")", R"("no_alarm")", pools)), InputError) << pools;
  }
}

// ../shared/faults/scenarios.jsonl, where the checkout lies beside it: every line has its port,
// with the expected reasons and the reports.
TEST(Scenario, EverySharedScenarioIsPorted) {
  const std::string path = SERINUS_SOURCE_DIR "/../shared/faults/scenarios.jsonl";
  if (!fs::exists(path)) GTEST_SKIP() << path << " is not here";
  std::map<std::string, Scenario> ported;
  for (Scenario& s : collection()) ported.emplace(s.id, std::move(s));
  std::ifstream file(path);
  int lines = 0;
  for (std::string text; std::getline(file, text); ++lines) {
    const auto j = nlohmann::json::parse(text);
    const std::string id = j["id"];
    ASSERT_TRUE(ported.contains(id)) << id;
    const Scenario& s = ported.at(id);
    EXPECT_EQ(s.fault_class, j["fault_class"].get<std::string>()) << id;
    for (const std::string reason : j["expect"]) {
      const bool expected =
          reason == "no_alarm"
              ? s.expect.empty()
              : std::any_of(s.expect.begin(), s.expect.end(), [&](const Expectation& e) {
                  return canary::names_of(e.reason) == reason;
                });
      EXPECT_TRUE(expected) << id << " " << reason;
    }
    for (const std::string url : j["reports"]) {
      EXPECT_NE(std::find(s.reports.begin(), s.reports.end(), url), s.reports.end()) << id;
    }
  }
  EXPECT_GE(lines, 20);
}

}  // namespace
}  // namespace serinus::engine
