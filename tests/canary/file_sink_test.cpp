// The violations file: whole lines whatever happens to the process, and no step that waits.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include <serinus/canary_sink.h>
#include <serinus/error.h>
#include <serinus/log.h>

#include "rig.h"

namespace serinus::canary {
namespace {

using namespace std::chrono_literals;
using testing::Rig;

struct TempFile {
  std::string path = "/tmp/serinus_sink_" + std::to_string(getpid());
  TempFile() { std::remove(path.c_str()); }
  ~TempFile() { std::remove(path.c_str()); }
  std::vector<std::string> lines() const {
    std::ifstream in(path);
    std::vector<std::string> all;
    for (std::string line; std::getline(in, line);) all.push_back(line);
    return all;
  }
  std::string text() const {
    std::ifstream in(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }
};

TEST(FileSink, AMonitorsViolationsAsJsonLines) {
  const TempFile file;
  auto sink = std::make_shared<FileSink>(file.path);
  Rig rig;
  rig.monitor.log_to(sink);
  rig.alloc(1, {3, 4});
  rig.run(1, 0, {3, 4});
  *rig.bytes.byte(3, 0, 0) ^= 1;
  rig.monitor.flush();
  rig.monitor.flush();  // seen again: not written again
  ASSERT_TRUE(sink->flush(10s));
  const auto lines = file.lines();
  ASSERT_EQ(lines.size(), 1u);
  const auto v = nlohmann::json::parse(lines[0]);
  EXPECT_EQ(v["slot"], 3);
  EXPECT_EQ(v["reasons"][0], "kv_bytes");
  EXPECT_EQ(sink->counts().written, 1u);
  rig.monitor.log_to(nullptr);
  *rig.bytes.byte(4, 0, 0) ^= 1;
  rig.monitor.flush();
  ASSERT_TRUE(sink->flush(10s));
  EXPECT_EQ(file.lines().size(), 1u);
}

TEST(FileSink, AKillInTheMiddleLeavesWholeLines) {
  const TempFile file;
  const std::string payload(700, 'x');
  for (int round = 0; round < 20; ++round) {
    const pid_t child = fork();
    if (child == 0) {
      FileSink sink(file.path);
      for (std::uint64_t i = 0;; ++i) {
        sink.write("{\"i\":" + std::to_string(i) + ",\"p\":\"" +
                   payload.substr(0, i * 37 % payload.size()) + "\"}");
      }
    }
    ASSERT_GT(child, 0);
    // Until it has written something, and a little longer each time.
    const auto size = [&] {
      std::error_code ignored;
      const auto n = std::filesystem::file_size(file.path, ignored);
      return ignored ? 0 : n;
    };
    const auto before = size();
    while (size() <= before + static_cast<unsigned>(round) * 5000u) std::this_thread::yield();
    kill(child, SIGKILL);
    int status = 0;
    waitpid(child, &status, 0);
    const std::string text = file.text();
    ASSERT_FALSE(text.empty());
    ASSERT_EQ(text.back(), '\n') << "round " << round;
  }
  for (const std::string& line : file.lines()) {
    ASSERT_TRUE(nlohmann::json::accept(line)) << line;
  }
}

TEST(FileSink, LinesLieWithinPages) {
  const TempFile file;
  {
    FileSink sink(file.path);
    for (int i = 0; i < 200; ++i)
      sink.write("{\"i\":\"" + std::string(static_cast<std::size_t>(i) * 7, 'y') + "\"}");
    ASSERT_TRUE(sink.flush(10s));
  }
  const std::string text = file.text();
  std::size_t begin = 0, count = 0;
  for (std::size_t end = text.find('\n'); end != std::string::npos; end = text.find('\n', begin)) {
    EXPECT_EQ(begin / 4096, end / 4096) << "line " << count;
    begin = end + 1;
    ++count;
  }
  EXPECT_EQ(count, 200u);
}

TEST(FileSink, AnUnfinishedLineIsCutOff) {
  const TempFile file;
  std::ofstream(file.path) << "{\"a\":1}\n{\"b\":" << std::string(9000, '7');
  std::string said;
  set_log_callback([&](LogLevel, std::string_view line) { said = line; });
  FileSink sink(file.path);
  set_log_callback({});
  EXPECT_TRUE(said.starts_with("kv-canary: " + file.path + " ended in an unfinished line")) << said;
  EXPECT_NE(said.find("(9005 bytes): {\"b\":777"), std::string::npos) << said;
  sink.write("{\"c\":3}");
  ASSERT_TRUE(sink.flush(10s));
  const auto lines = file.lines();
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_EQ(lines[0], "{\"a\":1}");
  EXPECT_EQ(nlohmann::json::parse(lines[1])["c"], 3);
}

TEST(FileSink, ALastLineThatOnlyLacksItsNewlineIsKept) {
  for (const std::string last : {"{\"b\":[2]}", "no JSON at all"}) {
    const TempFile file;
    std::ofstream(file.path) << "{\"a\":1}\n" << last;
    FileSink sink(file.path);
    sink.write("{\"c\":3}");
    ASSERT_TRUE(sink.flush(10s));
    const auto lines = file.lines();
    ASSERT_EQ(lines.size(), 3u);
    EXPECT_EQ(lines[1], last);
    EXPECT_EQ(nlohmann::json::parse(lines[2])["c"], 3);
  }
}

TEST(FileSink, ASlowReaderDelaysNobody) {
  const TempFile file;
  ASSERT_EQ(mkfifo(file.path.c_str(), 0600), 0);
  // Nobody reads: after a pipe's worth of lines the sink stands still. This test ends only if
  // write() and the destructor do not.
  FileSink sink(file.path, 100);
  for (int i = 0; i < 10000; ++i) sink.write(std::string(500, 'z'));
  const FileSink::Counts c = sink.counts();
  EXPECT_GT(c.dropped, 5000u);
  // However late its thread began: a pipe holds fewer lines than are written here in turn.
  bool stuck = false;
  for (int round = 0; round < 50 && !stuck; ++round) {
    for (int i = 0; i < 50; ++i) sink.write(std::string(500, 'z'));
    stuck = !sink.flush(100ms);
  }
  EXPECT_TRUE(stuck);
}

TEST(FileSink, AFullDiskIsCounted) {
  if (access("/dev/full", W_OK) != 0) GTEST_SKIP() << "no /dev/full here";
  FileSink sink("/dev/full");
  for (int i = 0; i < 10; ++i) sink.write("{}");
  ASSERT_TRUE(sink.flush(10s));
  EXPECT_EQ(sink.counts().failed, 10u);
  EXPECT_EQ(sink.counts().written, 0u);
  EXPECT_THROW(FileSink("/nonexistent/v.jsonl"), InputError);
}

// A configuration's JSON may write \u0000 into a path: the system would open what stands before it.
TEST(FileSink, APathWithANulIsNone) {
  const TempFile file;
  const std::string path = file.path + std::string("\0.jsonl", 7);
  EXPECT_THROW(FileSink{path}, InputError);
  EXPECT_NE(access(file.path.c_str(), F_OK), 0);
}

TEST(FileSink, ManyWriters) {
  const TempFile file;
  {
    FileSink sink(file.path, 1 << 20);
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back([&sink, t] {
        for (int i = 0; i < 500; ++i) sink.write("{\"t\":" + std::to_string(t) + "}");
      });
    }
    for (std::thread& t : threads) t.join();
  }  // the destructor writes what is queued
  EXPECT_EQ(file.lines().size(), 2000u);
}

}  // namespace
}  // namespace serinus::canary
