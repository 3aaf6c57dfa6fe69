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
  if (s.compiled && s.driver_version == 0) {
    EXPECT_EQ(s.problem, "no NVIDIA driver");
  }
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

TEST(RequireGpu, RefusesADeviceThatIsNotThereWithAPage) {
  try {
    require_gpu("canary pool", kNoSuchDevice);
    FAIL() << "accepted cuda:1000000";
  } catch (const RuntimeError& e) {
    EXPECT_EQ(e.id(), survey().compiled ? "SRN7002" : "SRN7001") << e.what();
  }
}

TEST(RequireGpu, AgreesWithTheSurvey) {
  const auto accepts = [](auto require, Device device) {
    try {
      require("this", device);
      return true;
    } catch (const RuntimeError& e) {
      EXPECT_EQ(e.id(), "SRN7003") << e.what();
      return false;
    }
  };
  for (const DeviceInfo& d : survey().devices) {
    const Device device{DeviceType::cuda, d.index};
    EXPECT_EQ(accepts(require_gpu, device), d.usable);
    EXPECT_EQ(accepts(require_hopper, device), d.sparse_mla);
    EXPECT_EQ(d.sparse_mla, d.major == 9 && d.minor == 0);
    EXPECT_TRUE(d.usable || !d.sparse_mla);  // whatever runs the prefill runs the canary
  }
}

}  // namespace
}  // namespace serinus::gpu
