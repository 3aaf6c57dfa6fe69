// The Prometheus text of one or more monitors.
#include <fmt/format.h>

#include <cmath>
#include <set>
#include <string_view>
#include <utility>

#include <serinus/metrics.h>
#include <serinus/version.h>

namespace serinus::canary {

namespace {

// How many bytes the UTF-8 character at the start of `s` has; 0 where it is none.
std::size_t character_size(std::string_view s) {
  const auto byte = [s](std::size_t i) { return static_cast<unsigned char>(s[i]); };
  const unsigned char lead = byte(0);
  if (lead < 0x80) return 1;
  const std::size_t size = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : 2;
  if (lead < 0xc2 || lead > 0xf4 || s.size() < size) return 0;
  for (std::size_t i = 1; i < size; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return 0;
  }
  // Longer than needed, a surrogate, or beyond the last code point.
  const unsigned char second = byte(1);
  if ((lead == 0xe0 && second < 0xa0) || (lead == 0xed && second > 0x9f) ||
      (lead == 0xf0 && second < 0x90) || (lead == 0xf4 && second > 0x8f)) {
    return 0;
  }
  return size;
}

std::string label_value(std::string_view s) {
  std::string out;
  while (!s.empty()) {
    const std::size_t size = character_size(s);
    if (size == 0) {
      out += '?';
    } else if (s[0] == '\n') {
      out += "\\n";
    } else if (s[0] == '"' || s[0] == '\\') {
      out += '\\';
      out += s[0];
    } else {
      out += s.substr(0, size);
    }
    s.remove_prefix(std::max<std::size_t>(size, 1));
  }
  return out;
}

// The names as they can be labels: two series must not have the same ones.
std::vector<std::string> unique_labels(const std::vector<std::string_view>& names) {
  std::vector<std::string> out;
  std::set<std::string> taken;
  for (const std::string_view name : names) {
    const std::string base = label_value(name);
    std::string label = base;
    for (int n = 2; !taken.insert(label).second; ++n) label = fmt::format("{}.{}", base, n);
    out.push_back(std::move(label));
  }
  return out;
}

struct Sample {
  const MetricsSample* of;
  std::string labels;              // of the monitor: `monitor="..."`, or nothing
  std::vector<std::string> pools;  // labels
};

// The text, family by family: the format wants the series of a family side by side.
class Text {
 public:
  explicit Text(std::span<const MetricsSample> samples) {
    std::vector<std::string_view> names;
    for (const MetricsSample& s : samples) names.push_back(s.monitor);
    const std::vector<std::string> labels = unique_labels(names);
    for (std::size_t i = 0; i < samples.size(); ++i) {
      std::vector<std::string_view> pools;
      for (const PoolStats& p : samples[i].pools) pools.push_back(p.name);
      samples_.push_back({&samples[i],
                          labels[i].empty() ? "" : fmt::format("monitor=\"{}\"", labels[i]),
                          unique_labels(pools)});
    }
  }

  /// One series a monitor.
  template <class F>
  void scalar(std::string_view name, std::string_view type, std::string_view help, F&& value) {
    family(name, type, help);
    for (const Sample& s : samples_) series(name, s, "", value(s.of->stats));
  }

  /// One series a monitor and moment.
  template <class F>
  void by_moment(std::string_view name, std::string_view type, std::string_view help, F&& value) {
    family(name, type, help);
    for (const Sample& s : samples_) {
      for (std::size_t m = 0; m < kNumMoments; ++m) {
        series(name, s, fmt::format("moment=\"{}\"", name_of(static_cast<Moment>(m))),
               value(s.of->stats, m));
      }
    }
  }

  /// One series a monitor and pool.
  template <class F>
  void by_pool(std::string_view name, std::string_view type, std::string_view help, F&& value) {
    family(name, type, help);
    for (const Sample& s : samples_) {
      for (std::size_t p = 0; p < s.pools.size(); ++p)
        series(name, s, fmt::format("pool=\"{}\"", s.pools[p]), value(s.of->pools[p]));
    }
  }

  void violations(std::string_view name, std::string_view help) {
    family(name, "counter", help);
    for (const Sample& s : samples_) {
      for (std::size_t p = 0; p < s.pools.size(); ++p) {
        for (std::size_t r = 0; r < kNumReasons; ++r) {
          series(name, s,
                 fmt::format("pool=\"{}\",reason=\"{}\"", s.pools[p],
                             names_of(static_cast<Reason>(1u << r))),
                 s.of->pools[p].violations[r]);
        }
      }
    }
  }

  void skipped(std::string_view name, std::string_view help) {
    family(name, "counter", help);
    for (const Sample& s : samples_) {
      series(name, s, "cause=\"empty\"", s.of->stats.skipped_empty);
      series(name, s, "cause=\"out_of_range\"", s.of->stats.out_of_range);
    }
  }

  std::string out;

 private:
  void family(std::string_view name, std::string_view type, std::string_view help) {
    if (samples_.empty()) return;
    out += fmt::format("# HELP {0} {1}\n# TYPE {0} {2}\n", name, help, type);
  }
  template <class V>
  void series(std::string_view name, const Sample& s, std::string_view labels, V value) {
    const bool both = !s.labels.empty() && !labels.empty();
    const std::string all = fmt::format("{}{}{}", s.labels, both ? "," : "", labels);
    out += all.empty() ? fmt::format("{} {}\n", name, value)
                       : fmt::format("{}{{{}}} {}\n", name, all, value);
  }

  std::vector<Sample> samples_;
};

}  // namespace

MetricsSample metrics_sample(const Monitor& monitor, std::string name) {
  return {std::move(name), monitor.stats(), monitor.pool_stats()};
}

std::string metrics_text(std::span<const MetricsSample> samples) {
  Text t(samples);
  t.out = fmt::format(
      "# HELP serinus_build_info The version of Serinus, as a label.\n"
      "# TYPE serinus_build_info gauge\nserinus_build_info{{version=\"{}\"}} 1\n",
      version_string());
  t.scalar("serinus_steps_total", "counter", "Forwards that the canary bracketed.",
           [](const Stats& s) { return s.steps; });
  t.by_pool("serinus_pool_slots", "gauge", "Slots of the pool, in use or not.",
            [](const PoolStats& p) { return p.num_slots; });
  t.by_pool("serinus_slots_protected", "gauge",
            "Slots that are allocated, and so under the canary's eyes.",
            [](const PoolStats& p) { return p.live_slots; });
  t.scalar("serinus_entries_written_total", "counter", "Records stamped.",
           [](const Stats& s) { return s.records_written; });
  t.scalar("serinus_entries_verified_total", "counter", "Records checked.",
           [](const Stats& s) { return s.records_verified; });
  t.scalar("serinus_digested_bytes_total", "counter", "KV bytes digested.",
           [](const Stats& s) { return s.bytes_digested; });
  t.by_moment("serinus_checks_total", "counter", "How often each moment's checks ran.",
              [](const Stats& s, std::size_t m) { return s.checks[m]; });
  t.by_moment("serinus_check_seconds_total", "counter", "Time in each moment's checks.",
              [](const Stats& s, std::size_t m) {
                return (std::array{s.seconds_head, s.seconds_tail, s.seconds_sweep})[m];
              });
  t.violations("serinus_violations_total",
               "Distinct faults found, by reason. A fault that shows in several ways counts under "
               "each reason.");
  t.scalar("serinus_violation_sightings_total", "counter",
           "Times that a fault was seen, repeats included.",
           [](const Stats& s) { return s.sightings; });
  t.scalar("serinus_ring_dropped_total", "counter",
           "Faults that found the ring full: counted, and not described.",
           [](const Stats& s) { return s.dropped; });
  t.skipped("serinus_skipped_checks_total",
            "Entries that were not checked: their slot held nothing yet, or lay out of range.");
  t.scalar("serinus_sweeps_total", "counter", "Passes completed over all live slots.",
           [](const Stats& s) { return s.sweeps; });
  t.scalar("serinus_last_sweep_timestamp_seconds", "gauge",
           "Unix time at which the last pass ended, 0 before the first.",
           [](const Stats& s) { return s.last_sweep_time; });
  t.scalar("serinus_sweep_bound_steps", "gauge",
           "Steps within which every slot that is live now is checked again.",
           [](const Stats& s) { return s.sweep_bound_steps; });
  return std::move(t.out);
}

}  // namespace serinus::canary
