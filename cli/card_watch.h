// What the card does while something is measured: large kernels meet its power limit, and then its
// clock decides. Asks NVML, which is loaded where it is; without it there is nothing to say.
#pragma once

#include <memory>

namespace serinus::cli {

class CardWatch {
 public:
  /// Of one moment, or medians.
  struct State {
    int sm_mhz = 0;
    int watts = 0;
  };

  /// Watches the GPU of this CUDA index. Null without NVML.
  static std::unique_ptr<CardWatch> start(int device);
  virtual ~CardWatch() = default;

  /// Medians of what was seen since the last call, every few milliseconds.
  virtual State since_last() = 0;
};

}  // namespace serinus::cli
