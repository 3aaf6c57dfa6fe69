// What the library says of GPUs, on machines with and without one.
#include "gpu/device.h"

#include <gtest/gtest.h>

#include <serinus/error.h>

namespace serinus::gpu {
namespace {

constexpr Device kNoSuchDevice{DeviceType::cuda, 1'000'000};

TEST(Survey, EitherNamesDevicesOrSaysWhyNot) {
  const Survey s = survey();
  EXPECT_EQ(s.devices.empty(), !s.problem.empty()) << s.problem;
  EXPECT_EQ(s.compiled, s.toolkit_version != 0);
  if (s.compiled && s.driver_version == 0) EXPECT_EQ(s.problem, "no NVIDIA driver");
  for (const DeviceInfo& d : s.devices) {
    EXPECT_FALSE(d.name.empty());
    EXPECT_GT(d.multiprocessors, 0);
    EXPECT_GT(d.memory_bytes, 0);
    EXPECT_EQ(multiprocessors({DeviceType::cuda, d.index}), d.multiprocessors);
  }
}

TEST(RequireHopper, RefusesADeviceThatIsNotThereWithAPage) {
  try {
    require_hopper("sparse_mla_prefill", kNoSuchDevice);
    FAIL() << "accepted cuda:1000000";
  } catch (const RuntimeError& e) {
    EXPECT_EQ(e.id(), survey().compiled ? "SRN7002" : "SRN7001") << e.what();
    EXPECT_NE(std::string(e.what()).find("cuda:1000000"), std::string::npos) << e.what();
    EXPECT_NE(find_error(e.id()), nullptr);
  }
  EXPECT_EQ(multiprocessors(kNoSuchDevice), 0);
}

TEST(RequireHopper, AgreesWithTheSurvey) {
  for (const DeviceInfo& d : survey().devices) {
    const Device device{DeviceType::cuda, d.index};
    if (d.usable) {
      EXPECT_NO_THROW(require_hopper("this", device));
    } else {
      EXPECT_THROW(require_hopper("this", device), RuntimeError);
    }
  }
}

}  // namespace
}  // namespace serinus::gpu
