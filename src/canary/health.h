// Whether every check that should run does.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include <serinus/canary.h>

namespace serinus::canary {

/// Knows for each pool and moment since when something waits to be looked at. Not thread-safe.
class HealthWatch {
 public:
  explicit HealthWatch(std::int64_t steps, std::int64_t sweep_interval)
      : steps_(steps), sweep_interval_(sweep_interval) {}

  void add_pool() { pools_.emplace_back(); }
  void drop_last_pool() { pools_.pop_back(); }
  /// Sweeps of this pool are expected (or not).
  void expect_sweeps(int pool, bool expected) { at(pool).sweeps = expected; }

  /// Nothing is expected of this pool any more.
  void forget(int pool) { at(pool) = {{}, false}; }
  /// Something was announced about the pool's slots.
  void used(int pool, std::uint64_t step);
  /// The moment looked at the pool.
  void looked(Moment moment, int pool) { at(pool).waits[static_cast<std::size_t>(moment)].reset(); }

  std::vector<Stall> stalled(std::uint64_t step) const;
  /// Those that were not returned before.
  std::vector<Stall> new_ones(std::uint64_t step);

 private:
  struct Wait {
    std::uint64_t step = 0, announcement = 0;
    bool told = false;
  };
  struct Pool {
    std::array<std::optional<Wait>, kNumMoments> waits{};
    bool sweeps = true;
  };
  Pool& at(int pool) { return pools_[static_cast<std::size_t>(pool)]; }
  bool is_late(const Pool& p, Moment moment, std::uint64_t step) const;

  std::int64_t steps_, sweep_interval_;
  std::uint64_t announcements_ = 0;
  std::vector<Pool> pools_;
};

}  // namespace serinus::canary
