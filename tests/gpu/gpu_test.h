// What tests on a GPU have in common. No CUDA header here.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <random>
#include <vector>

#include <serinus/tensor.h>

#include "gpu/device.h"

namespace serinus::testing {

using Int = std::int64_t;
using Ints = std::vector<Int>;
using Rng = std::mt19937_64;

inline const Device kGpu{DeviceType::cuda, 0};

inline Int pick(Rng& rng, Int low, Int high) {
  return std::uniform_int_distribution<Int>(low, high)(rng);
}

/// Skipped where there is no GPU that this build has the canary's kernels for.
class GpuTest : public ::testing::Test {
 protected:
  void SetUp() override {
    for (const gpu::DeviceInfo& d : gpu::survey().devices) {
      if (d.usable && d.index == kGpu.index) return;
    }
    GTEST_SKIP() << "no GPU that this build has kernels for";
  }
};

}  // namespace serinus::testing
