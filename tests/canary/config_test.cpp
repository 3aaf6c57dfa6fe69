// Configuration from a file, the environment and SGLang's flags.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <map>

#include <serinus/canary_config.h>
#include <serinus/error.h>

#include "tests/canary/error_of.h"

namespace serinus::canary {
namespace {

using Variables = std::map<std::string, std::string>;

Environment environment(const Variables& v) {
  return [&v](const char* name) {
    const auto found = v.find(name);
    return found == v.end() ? nullptr : found->second.c_str();
  };
}

std::string json_error(const std::string& json) {
  Config c;
  const std::string said = error_of([&] { apply_json(c, json, "canary.json"); });
  EXPECT_EQ(to_json(c), to_json({})) << "half applied";
  return said;
}

struct TempFile {
  std::string path = "/tmp/serinus_config_" + std::to_string(getpid());
  explicit TempFile(const std::string& text) { std::ofstream(path) << text; }
  ~TempFile() { std::remove(path.c_str()); }
};

TEST(Config, EverySettingFromAFileAndBack) {
  const std::string json =
      R"({"format":"sglang","depth":"partial","mode":"raise","verify":"all",)"
      R"("records_per_step":7,"bytes_per_step":8,"source_digests":true,"sweep_interval":9,)"
      R"("ring_capacity":10,"event_capacity":0,"health_steps":11,"threads":3,)"
      R"("violations_file":"a \"b\"\n"})";
  Config c;
  apply_json(c, json, "f");
  EXPECT_EQ(c.options.format, Format::sglang);
  EXPECT_EQ(c.options.depth, Depth::partial);
  EXPECT_EQ(c.options.mode, Mode::raise);
  EXPECT_EQ(c.options.verify, VerifyPolicy::all);
  EXPECT_EQ(c.options.records_per_step, 7);
  EXPECT_EQ(c.options.threads, 3);
  EXPECT_TRUE(c.options.source_digests);
  EXPECT_EQ(c.options.health_steps, 11);
  EXPECT_EQ(c.violations_file, "a \"b\"\n");
  std::string out = to_json(c);
  EXPECT_EQ(out.replace(out.find("\\u000a"), 6, "\\n"), json);
}

TEST(Config, AFileThatIsNoneIsRefusedWhole) {
  EXPECT_EQ(json_error(R"({"mode":"log","budget":1})"),
            "SRN3009 canary.json is no sound configuration: there is no key budget; known ones are "
            "format, depth, mode, verify, records_per_step, bytes_per_step, source_digests, "
            "sweep_interval, ring_capacity, event_capacity, health_steps, threads, "
            "violations_file");
  EXPECT_EQ(json_error(R"({"verify":"all","mode":"on"})"),
            "SRN3009 canary.json is no sound configuration: mode must be one of none, log, raise, "
            "quarantine, got on");
  EXPECT_EQ(json_error(R"({"threads":2,"threads":3})"),
            "SRN3009 canary.json is no sound configuration: threads is given twice");
  for (const char* bad :
       {"", "[]", "{", R"({"mode":1})", R"({"threads":"3"})", R"({"threads":-1})",
        R"({"threads":3000000000})", R"({"records_per_step":0})", R"({"records_per_step":1.5})",
        R"({"source_digests":1})", R"({"mode":"log"} x)", R"({"kv_canary":"log","mode":"log"})"}) {
    EXPECT_EQ(json_error(bad).substr(0, 7), "SRN3009") << bad;
  }
}

TEST(Config, TheEnvironmentWinsOverTheFileOverCode) {
  const TempFile file(R"({"mode":"raise","records_per_step":5})");
  Config base;
  base.options.records_per_step = 1;
  base.options.threads = 4;
  const Variables v = {{"SERINUS_CANARY_CONFIG", file.path},
                       {"SERINUS_CANARY_MODE", " Quarantine "},
                       {"SERINUS_CANARY_DEPTH", ""}};
  const Config c = read_config(base, {}, environment(v));
  EXPECT_EQ(c.options.mode, Mode::quarantine);
  EXPECT_EQ(c.options.records_per_step, 5);
  EXPECT_EQ(c.options.threads, 4);
  EXPECT_EQ(c.options.depth, Depth::all);
  EXPECT_EQ(read_config({}, "", environment({})).options.mode, Mode::log);
  EXPECT_EQ(error_of([&] { read_config({}, "/nonexistent/c.json", environment(v)); }).substr(0, 7),
            "SRN4101");
}

TEST(Config, VariablesAreCheckedByName) {
  const auto said = [](const Variables& v) {
    Config c;
    return error_of([&] { apply_environment(c, environment(v)); });
  };
  EXPECT_EQ(said({{"SERINUS_CANARY_BYTES_PER_STEP", "8MiB"}}),
            "SRN3008 the setting SERINUS_CANARY_BYTES_PER_STEP must be a whole number in [1, "
            "9223372036854775807], got 8MiB");
  EXPECT_EQ(said({{"SERINUS_KV_CANARY", "on"}}),
            "SRN3008 the setting SERINUS_KV_CANARY must be one of none, log, raise, quarantine, "
            "got on");
  EXPECT_EQ(said({{"SERINUS_KV_CANARY", "log"}, {"SERINUS_CANARY_MODE", "LOG"}}), "no error");
  EXPECT_EQ(said({{"SERINUS_KV_CANARY", "log"}, {"SERINUS_CANARY_MODE", "raise"}}),
            "SRN3008 the setting SERINUS_KV_CANARY must be raise as SERINUS_CANARY_MODE says, "
            "got log");
}

TEST(Config, TheProcessReadsItOnce) {
  const Config& first = process_config();
  ASSERT_EQ(setenv("SERINUS_CANARY_MODE", "raise", 1), 0);
  EXPECT_EQ(&process_config(), &first);
  EXPECT_EQ(process_config().options.mode, Mode::log);
  EXPECT_EQ(read_config().options.mode, Mode::raise);
  unsetenv("SERINUS_CANARY_MODE");
}

TEST(Flags, MeanWhatTheyMeanInSglang) {
  const Options none = options_from_flags();
  EXPECT_EQ(none.mode, Mode::none);
  EXPECT_EQ(none.depth, Depth::none);
  EXPECT_EQ(none.sweep_interval, 0);
  const Options o = options_from_flags(" LOG ", "partial", 16);
  EXPECT_EQ(o.format, Format::sglang);
  EXPECT_EQ(o.mode, Mode::log);
  EXPECT_EQ(o.depth, Depth::partial);
  EXPECT_EQ(o.sweep_interval, 16);
  EXPECT_EQ(options_from_flags("raise", "all").mode, Mode::raise);
  EXPECT_EQ(error_of([] { options_from_flags("on"); }),
            "SRN3226 kv-canary: kv_canary must be one of none/log/raise, got 'on'");
  EXPECT_EQ(error_of([] { options_from_flags("quarantine"); }).substr(0, 7), "SRN3226");
  EXPECT_EQ(error_of([] { options_from_flags("log", "full"); }).substr(0, 7), "SRN3008");
  EXPECT_EQ(error_of([] { options_from_flags("none", "none", 4); }),
            "SRN3227 --kv-canary-sweep-interval requires --kv-canary in {log, raise}");
}

TEST(Config, AMonitorIsMadeWithIt) {
  Config c;
  c.options.mode = Mode::quarantine;
  c.violations_file = "/nonexistent/v.jsonl";
  EXPECT_EQ(error_of([&] { make_monitor(c); }).substr(0, 7), "SRN4404");
  c.violations_file.clear();
  EXPECT_EQ(make_monitor(c).options().mode, Mode::quarantine);
}

}  // namespace
}  // namespace serinus::canary
