// `serinus serve` and `replay --serve` as a user starts them. What they answer: tests/serve.
#include <gtest/gtest.h>

#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string>

#include "serve/server.h"
#include "tests/cli/run_command.h"

namespace serinus::cli {
namespace {

using Json = nlohmann::json;

const std::string kReplay =
    std::string("replay ") + SERINUS_SOURCE_DIR +
    "/engine/traces/demo.jsonl --requests 12 --pool-tokens 150000 --faults all:6 ";

// What a replay found, without what depends on the clock and on the machine.
Json found(const std::string& options) {
  const CommandResult r = run_command(kReplay + options + " --json");
  EXPECT_EQ(r.exit_code, 0) << r.err;
  Json j = Json::parse(r.out);
  for (const char* key : {"seconds", "canary_seconds", "peak_rss_bytes"}) j.erase(key);
  return j;
}

TEST(ReplayServe, FindsWhatItFindsWithout) {
  if (!serve::server_available()) GTEST_SKIP() << "built without cpp-httplib";
  const Json without = found("");
  EXPECT_FALSE(without.empty());
  EXPECT_EQ(found("--serve 0"), without);
  EXPECT_EQ(found("--serve 0 --pace 100000"), without);
}

TEST(ReplayServe, OptionsThatMakeNoSense) {
  for (const char* options :
       {"--hold", "--pace 3", "--host 127.0.0.1", "--serve 65536", "--serve x",
        "--serve 0 --pace -1", "--serve 0 --no-canary --faults none"}) {
    const CommandResult r = run_command(kReplay + options);
    EXPECT_EQ(r.exit_code, 2) << options << r.err;
  }
}

TEST(Serve, IsRefusedWithAnIdWhereItCannotBe) {
  if (!serve::server_available()) GTEST_SKIP() << "built without cpp-httplib";
  unsetenv("SERINUS_TOKEN");
  EXPECT_NE(run_command("serve --port 0 --host 0.0.0.0").err.find("SRN6021"), std::string::npos);
  EXPECT_NE(run_command("serve --port 0 --host nowhere").err.find("SRN6020"), std::string::npos);
  EXPECT_EQ(run_command("serve --port 70000").exit_code, 2);
}

}  // namespace
}  // namespace serinus::cli
