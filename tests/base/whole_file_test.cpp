// What WholeFile may replace, and what it must leave where it is.
#include "base/whole_file.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <string>

namespace serinus {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void refuse(const std::string& path, const std::string& why) {
  throw std::runtime_error(path + ": " + why);
}

class WholeFileTest : public ::testing::Test {
 protected:
  WholeFileTest() {
    std::string name = (fs::temp_directory_path() / "serinus_whole_XXXXXX").string();
    dir = mkdtemp(name.data());
  }
  ~WholeFileTest() override { fs::remove_all(dir); }

  std::string path(const char* name) const { return (dir / name).string(); }
  static void write(const std::string& to, const std::string& text) {
    WholeFile file(to, refuse);
    file.write(text);
    file.finish();
  }
  std::string read(const char* name) const {
    std::ifstream in(path(name), std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }

  fs::path dir;
};

TEST_F(WholeFileTest, AppearsWhole) {
  write(path("a"), "old");
  {
    WholeFile file(path("a"), refuse);
    file.write("half");
    EXPECT_EQ(read("a"), "old");
  }
  EXPECT_EQ(read("a"), "old");
  EXPECT_FALSE(fs::exists(path("a.partial")));
  write(path("a"), "new");
  EXPECT_EQ(read("a"), "new");
}

// A rename would put a regular file in the place of /dev/null.
TEST_F(WholeFileTest, APipeIsWrittenToAndStays) {
  ASSERT_EQ(mkfifo(path("pipe").c_str(), 0600), 0);
  const int reader = open(path("pipe").c_str(), O_RDONLY | O_NONBLOCK);
  ASSERT_GE(reader, 0);
  write(path("pipe"), "all of it");
  std::array<char, 64> got{};
  EXPECT_EQ(::read(reader, got.data(), got.size()), 9);
  close(reader);
  EXPECT_STREQ(got.data(), "all of it");
  EXPECT_TRUE(fs::is_fifo(path("pipe")));
  EXPECT_FALSE(fs::exists(path("pipe.partial")));
}

TEST_F(WholeFileTest, ALinkStaysALink) {
  write(path("target"), "old");
  fs::create_symlink("target", path("link"));
  write(path("link"), "new");
  EXPECT_TRUE(fs::is_symlink(path("link")));
  EXPECT_EQ(read("target"), "new");
  EXPECT_FALSE(fs::exists(path("target.partial")));
}

// Two ranks that dump to one path: one file is whole, and it is not a mixture of both.
TEST_F(WholeFileTest, OnlyOneWritesAtATime) {
  {
    WholeFile first(path("a"), refuse);
    first.write("one");
    EXPECT_THROW(write(path("a"), "another"), std::runtime_error);
    first.finish();
    EXPECT_EQ(read("a"), "one");
  }
  std::ofstream(path("a.partial")) << "left by a process that died";
  write(path("a"), "two");
  EXPECT_EQ(read("a"), "two");
}

TEST_F(WholeFileTest, WhatCannotBeIsRefused) {
  EXPECT_THROW(write(dir.string(), "x"), std::runtime_error);
  EXPECT_THROW(write(path("no/such/folder"), "x"), std::runtime_error);
  std::string nul = path("a");
  nul += '\0';
  nul += "b";
  EXPECT_THROW(write(nul, "x"), std::runtime_error);
  EXPECT_FALSE(fs::exists(path("a")));
  EXPECT_TRUE(fs::is_empty(dir));
}

}  // namespace
}  // namespace serinus
