// The yardstick: cuBLASLt's e4m3 x e4m3 -> bf16 product of 8192^3. The library is loaded when asked
// for, so that the command runs without it.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include <serinus/tensor.h>

namespace serinus::cli {

class Fp8Gemm {
 public:
  static constexpr std::uint64_t kN = 8192;
  static constexpr double kFlop = 2.0 * kN * kN * kN;

  /// `a` and `b`: kN x kN codes. Null where this machine has no cuBLASLt.
  static std::unique_ptr<Fp8Gemm> load(Device device, std::span<const std::uint8_t> a,
                                       std::span<const std::uint8_t> b);
  virtual ~Fp8Gemm() = default;
  /// Launches it in the default stream.
  virtual void run() = 0;
};

}  // namespace serinus::cli
