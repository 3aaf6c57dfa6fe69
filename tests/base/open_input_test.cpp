// Which files open_input opens, and which path it refuses.
#include "base/open_input.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <string>

#include <serinus/canary_config.h>
#include <serinus/canary_dump.h>
#include <serinus/error.h>

namespace serinus {
namespace {

template <class Open>
std::string error_of(const Open& open) {
  try {
    open();
  } catch (const Error& e) {
    return e.id() + " " + e.what();
  }
  return "";
}

TEST(OpenInput, OpensAFileAndSaysWhyItCannot) {
  const std::string path = "/tmp/serinus_input_" + std::to_string(getpid());
  std::ofstream(path) << "text\r\n";
  std::string read(6, ' ');
  open_input(path).read(read.data(), 6);
  EXPECT_EQ(read, "text\r\n");
  std::remove(path.c_str());
  EXPECT_EQ(error_of([&] { open_input(path); }),
            "SRN4101 cannot read " + path + ": No such file or directory");
}

// The system would end the path there: /dev/null opens.
TEST(OpenInput, ANulInAPathOpensNothing) {
  const std::string path("/dev/null\0.dump", 15);
  const std::string want = "SRN4101 cannot read /dev/null\\x00.dump: the path holds a NUL";
  EXPECT_EQ(error_of([&] { open_input(path); }), want);
  EXPECT_EQ(error_of([&] { canary::Dump dump(path); }), want);
  EXPECT_EQ(error_of([&] { canary::read_config({}, path); }), want);
}

}  // namespace
}  // namespace serinus
