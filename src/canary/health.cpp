#include "canary/health.h"

#include <utility>

namespace serinus::canary {

namespace {
constexpr std::uint64_t kAnnouncementsAStep = 64;
constexpr Moment kMoments[] = {Moment::head, Moment::tail, Moment::sweep};
}  // namespace

void HealthWatch::used(int pool, std::uint64_t step) {
  ++announcements_;
  for (std::optional<Wait>& wait : at(pool).waits) {
    if (!wait) wait = {step, announcements_};
  }
}

bool HealthWatch::is_late(const Pool& p, Moment moment, std::uint64_t step) const {
  const std::optional<Wait>& wait = p.waits[static_cast<std::size_t>(moment)];
  if (!wait || (moment == Moment::sweep && !p.sweeps)) return false;
  auto limit = static_cast<std::uint64_t>(steps_);
  if (moment == Moment::sweep) limit += static_cast<std::uint64_t>(sweep_interval_);
  // Divided, not multiplied: a limit may be as good as none.
  return step - wait->step > limit ||
         (announcements_ - wait->announcement + kAnnouncementsAStep - 1) / kAnnouncementsAStep >
             limit;
}

std::vector<Stall> HealthWatch::stalled(std::uint64_t step) const {
  std::vector<Stall> found;
  if (steps_ == 0) return found;
  for (std::size_t pool = 0; pool < pools_.size(); ++pool) {
    for (const Moment m : kMoments) {
      if (!is_late(pools_[pool], m, step)) continue;
      found.push_back(
          {m, static_cast<int>(pool), pools_[pool].waits[static_cast<std::size_t>(m)]->step});
    }
  }
  return found;
}

std::vector<Stall> HealthWatch::new_ones(std::uint64_t step) {
  std::vector<Stall> fresh;
  for (const Stall& s : stalled(step)) {
    Wait& wait = *at(s.pool).waits[static_cast<std::size_t>(s.moment)];
    if (!std::exchange(wait.told, true)) fresh.push_back(s);
  }
  return fresh;
}

}  // namespace serinus::canary
