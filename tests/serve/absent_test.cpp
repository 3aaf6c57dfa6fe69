// The build without cpp-httplib says so.
#include <gtest/gtest.h>

#include <string>

#include <serinus/error.h>

#include "serve/server.h"

namespace serinus::serve {
namespace {

TEST(Absent, SaysWhatIsMissing) {
  EXPECT_FALSE(server_available());
  try {
    const Server server({}, nullptr);
    FAIL() << "it serves";
  } catch (const RuntimeError& e) {
    EXPECT_EQ(e.id(), "SRN6022");
    EXPECT_NE(std::string(e.what()).find("cpp-httplib"), std::string::npos);
  }
}

}  // namespace
}  // namespace serinus::serve
