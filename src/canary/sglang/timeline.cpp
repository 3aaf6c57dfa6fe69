// When SGLang's host looks at what the device counted.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include <serinus/canary_sglang_host.h>

#include "base/raise.h"

namespace serinus::canary::sglang {

namespace {

constexpr std::int64_t kHealthInterval = 100;  // outer steps

bool is_sweep(LaunchTag t) {
  using enum LaunchTag;
  return t == sweep_k_full || t == sweep_v_full || t == sweep_k_swa || t == sweep_v_swa;
}
bool is_v_half(LaunchTag t) {
  return static_cast<int>(t) % 2 == 1;
}

std::int64_t at(std::span<const std::int64_t> counters, LaunchTag tag) {
  const auto i = static_cast<std::size_t>(tag);
  return i < counters.size() ? counters[i] : 0;
}

}  // namespace

bool HostTimeline::sweep_due() const noexcept {
  if (options_.sweep_interval == 0 || options_.mode == Mode::none) return false;
  return !last_sweep_ || steps_ - *last_sweep_ >= options_.sweep_interval;
}

HostReport HostTimeline::end_outer_step(const DeviceState& now) {
  HostReport out;
  for (const PlanOverflow& o : std::exchange(overflows_, {})) {
    out.overflow_warnings.push_back(
        fmt::format("kv-canary: per-forward verify skipped this step due to overflow (total={}, "
                    "capacity={}); check ServerArgs / pool sizing",
                    o.total, o.capacity));
  }
  overflows_.assign(now.overflows.begin(), now.overflows.end());
  if (sweep_due()) {
    last_sweep_ = steps_;
    ++sweeps_;
  }
  ++steps_;
  if (options_.mode == Mode::none) return out;

  // Each reader reads what it staged one step ago, then stages anew. All of them stage before
  // anything is thrown: the step has ended.
  if (const auto stats = std::exchange(stats_, std::nullopt)) {
    out.stats_line = fmt::format(
        "[canary] step={} protected_tokens={} sweep_passes={} violations={} "
        "launch_tags_active={}/{}",
        stats->step, stats->protected_tokens, sweeps_, stats->violations, options_.tags.size(),
        kNumLaunchTags);
  }
  if (options_.stats_interval > 0 && steps_ % options_.stats_interval == 0) {
    stats_ = {steps_,
              std::accumulate(now.slot_run_counters.begin(), now.slot_run_counters.end(),
                              std::int64_t{0}),
              now.violations};
  }
  if (const auto divergence = std::exchange(divergence_, std::nullopt)) {
    out.divergence_line = swa_divergence_line(*divergence);
  }
  if (options_.swa_divergence_interval > 0 && steps_ % options_.swa_divergence_interval == 0) {
    divergence_ = now.divergence;
  }
  const bool seen = std::exchange(violation_staged_, now.violations > 0);
  if (seen) report_violations(now, out);
  check_health(now);
  return out;
}

void HostTimeline::report_violations(const DeviceState& now, HostReport& out) {
  if (raised_) return;
  const auto capacity = static_cast<std::int64_t>(now.ring.size());
  const std::int64_t stored = std::min(now.violations, capacity);
  for (; reported_ < stored; ++reported_) {
    out.violations.push_back(report_text(now.ring[static_cast<std::size_t>(reported_)],
                                         now.violations, now.violations > capacity, steps_));
  }
  if (options_.mode != Mode::raise || out.violations.empty()) return;
  raised_ = true;
  constexpr std::string_view kBeginning = "kv_canary violation: ";  // of report_text and the page
  raise(errors::Page::canary_violation_sglang,
        {{"got", fmt::format("{}", fmt::join(out.violations, "\n")).substr(kBeginning.size())}});
}

void HostTimeline::check_health(const DeviceState& now) {
  std::vector<std::string> stalled;
  std::int64_t stalled_at = 0;
  if (!health_staged_.empty()) {
    health_before_.resize(health_staged_.size());
    for (const LaunchTag tag : options_.tags) {
      if (is_sweep(tag) && options_.sweep_interval <= 0) continue;
      if (is_v_half(tag) && !options_.v_gate) continue;
      if (at(health_staged_, tag) == at(health_before_, tag)) stalled.push_back(name_of(tag));
    }
    stalled_at = health_step_;
    health_before_ = std::exchange(health_staged_, {});
  }
  if (steps_ % kHealthInterval == 0) {
    health_staged_.assign(now.kernel_run_counters.begin(), now.kernel_run_counters.end());
    health_staged_.resize(kNumLaunchTags);
    health_step_ = steps_;
  }
  if (stalled.empty()) return;
  raise(errors::Page::canary_stalled, {{"argument", "kernel_run_counters"},
                                       {"got", fmt::format("{}", fmt::join(stalled, ", "))},
                                       {"step", std::to_string(stalled_at)}});
}

}  // namespace serinus::canary::sglang
