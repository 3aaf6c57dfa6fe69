// A library built as usual injects nothing, whatever is asked for.
#include <gtest/gtest.h>

#include <serinus/canary_inject.h>
#include <serinus/error.h>

namespace serinus::canary {
namespace {

TEST(Inject, IsNotInTheUsualLibrary) {
  Monitor monitor{Options{}};
  InjectOptions o;
  o.enabled = true;
  try {
    Injector injector(monitor, o);
    ADD_FAILURE();
  } catch (const RuntimeError& e) {
    EXPECT_EQ(e.id(), "SRN3010");
    EXPECT_STREQ(e.what(), "no faults are injected: this library was built without it");
  }
}

}  // namespace
}  // namespace serinus::canary
