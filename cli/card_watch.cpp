#include "cli/card_watch.h"

#include <cuda_runtime.h>
#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <mutex>
#include <thread>
#include <vector>

namespace serinus::cli {

namespace {

// The little of NVML that is asked for, as its documentation declares it; 0 is success.
// https://docs.nvidia.com/deploy/nvml-api/group__nvmlDeviceQueries.html
struct Nvml {
  void* library = dlopen("libnvidia-ml.so.1", RTLD_NOW);
  template <class F>
  F* function(const char* name) const {
    return library == nullptr ? nullptr : reinterpret_cast<F*>(dlsym(library, name));
  }
  int (*init)() = function<int()>("nvmlInit_v2");
  int (*by_bus_id)(const char*,
                   void**) = function<int(const char*, void**)>("nvmlDeviceGetHandleByPciBusId_v2");
  int (*clock)(void*, int,
               unsigned*) = function<int(void*, int, unsigned*)>("nvmlDeviceGetClockInfo");
  int (*power)(void*, unsigned*) = function<int(void*, unsigned*)>("nvmlDeviceGetPowerUsage");
  bool complete() const {
    return init != nullptr && by_bus_id != nullptr && clock != nullptr && power != nullptr;
  }
};

class Watching : public CardWatch {
 public:
  Watching(const Nvml& nvml, void* card) : nvml_(nvml), card_(card) {
    thread_ = std::thread([this] {
      while (!stop_) {
        look();
        std::this_thread::sleep_for(std::chrono::milliseconds(3));
      }
    });
  }
  ~Watching() override {
    stop_ = true;
    thread_.join();
  }

  State since_last() override {
    const std::lock_guard lock(mutex_);
    const State s{median(mhz_), median(watts_)};
    mhz_.clear();
    watts_.clear();
    return s;
  }

 private:
  static constexpr int kSmClock = 1;

  void look() {
    unsigned mhz = 0, milliwatts = 0;
    if (nvml_.clock(card_, kSmClock, &mhz) != 0 || nvml_.power(card_, &milliwatts) != 0) return;
    const std::lock_guard lock(mutex_);
    mhz_.push_back(static_cast<int>(mhz));
    watts_.push_back(static_cast<int>(milliwatts / 1000));
  }
  static int median(std::vector<int>& x) {
    if (x.empty()) return 0;
    const auto middle = x.begin() + static_cast<std::ptrdiff_t>(x.size() / 2);
    std::nth_element(x.begin(), middle, x.end());
    return *middle;
  }

  const Nvml nvml_;
  void* const card_;
  std::mutex mutex_;
  std::vector<int> mhz_, watts_;
  std::atomic<bool> stop_ = false;
  std::thread thread_;
};

}  // namespace

std::unique_ptr<CardWatch> CardWatch::start(int device) {
  const Nvml nvml;
  std::array<char, 32> bus_id{};
  void* card = nullptr;
  if (!nvml.complete() || nvml.init() != 0 ||
      cudaDeviceGetPCIBusId(bus_id.data(), static_cast<int>(bus_id.size()), device) !=
          cudaSuccess ||
      nvml.by_bus_id(bus_id.data(), &card) != 0)
    return nullptr;
  return std::make_unique<Watching>(nvml, card);
}

}  // namespace serinus::cli
