// What a canary counts, for Prometheus. A sample is a copy: take it from any thread, keep it, and
// write it out after its Monitor is gone. Names, labels and what to alert on: docs/serve.md.
#pragma once

#include <span>
#include <string>
#include <vector>

#include <serinus/canary.h>

namespace serinus::canary {

/// The numbers of one Monitor at one time.
struct MetricsSample {
  std::string monitor;  ///< label that tells several monitors apart; none where it is empty
  Stats stats;
  std::vector<PoolStats> pools;
};

/// From any thread, as stats() and pool_stats().
MetricsSample metrics_sample(const Monitor& monitor, std::string name = {});

/// The samples in the text exposition format 0.0.4, to be served as kMetricsType. Every series of
/// every sample is there from the start, with 0. Labels are bounded: moment, reason and cause are
/// those of canary.h, pool and monitor the names that the engine gave, made unique by a number
/// where they are not ("kv", "kv.2"). Without samples: the build's version alone.
std::string metrics_text(std::span<const MetricsSample> samples);

inline constexpr const char* kMetricsType = "text/plain; version=0.0.4; charset=utf-8";

}  // namespace serinus::canary
