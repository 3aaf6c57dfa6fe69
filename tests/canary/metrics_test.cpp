// What Prometheus reads: names, labels and values, and that another thread may ask.
#include <gtest/gtest.h>

#include <atomic>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <thread>

#include <serinus/metrics.h>
#include <serinus/version.h>

#include "rig.h"

namespace serinus::canary::testing {
namespace {

// The series of an exposition by "name{labels}", after a strict reading: every family has HELP and
// TYPE, once and before its series, which stand side by side; every series is there once.
std::map<std::string, std::string> series_of(const std::string& text) {
  std::map<std::string, std::string> series;
  std::set<std::string> families;
  std::string family, helped, line;
  EXPECT_TRUE(text.ends_with('\n'));
  for (std::istringstream lines(text); std::getline(lines, line);) {
    std::istringstream words(line);
    std::string first, second, name, type;
    words >> first >> second >> name >> type;
    if (first == "#" && second == "HELP") {
      EXPECT_TRUE(families.insert(name).second) << name << " twice";
      EXPECT_FALSE(type.empty()) << name << " without a help text";
      helped = name;
    } else if (first == "#") {
      EXPECT_EQ(second, "TYPE");
      EXPECT_EQ(name, helped);
      EXPECT_TRUE(type == "counter" || type == "gauge") << line;
      EXPECT_EQ(type == "counter", name.ends_with("_total")) << line;
      family = name;
    } else {
      const std::size_t end = line.rfind(' ');
      const std::string key = line.substr(0, end);
      EXPECT_EQ(key.substr(0, key.find('{')), family) << line;
      EXPECT_TRUE(key.starts_with("serinus_")) << line;
      EXPECT_TRUE(series.emplace(key, line.substr(end + 1)).second) << key << " twice";
    }
  }
  return series;
}

TEST(Metrics, OfAMonitorThatFoundSomething) {
  Rig rig;
  rig.alloc(1, {4, 5, 6, 7});
  rig.run(1, 0, {4, 5, 6, 7});
  rig.look(1, 4);
  *rig.bytes.byte(5, 0, 3) ^= 1;
  rig.look(1, 4);
  rig.verify(1, 0, 4);
  const MetricsSample sample = metrics_sample(rig.monitor);
  auto series = series_of(metrics_text({&sample, 1}));

  const Stats stats = rig.monitor.stats();
  EXPECT_GT(stats.records_verified, 8u);
  EXPECT_GT(stats.last_sweep_time, 1.7e9);  // this century's third decade, at least
  EXPECT_EQ(series["serinus_steps_total"], "3");
  EXPECT_EQ(series[R"(serinus_pool_slots{pool="kv"})"], "32");
  EXPECT_EQ(series[R"(serinus_slots_protected{pool="kv"})"], "4");
  EXPECT_EQ(series["serinus_entries_written_total"], "4");
  EXPECT_EQ(series["serinus_entries_verified_total"], std::to_string(stats.records_verified));
  EXPECT_EQ(series["serinus_digested_bytes_total"], std::to_string(stats.bytes_digested));
  EXPECT_EQ(series[R"(serinus_checks_total{moment="head"})"], "3");
  EXPECT_EQ(series[R"(serinus_checks_total{moment="tail"})"], "4");  // and verify_now
  EXPECT_EQ(series[R"(serinus_checks_total{moment="sweep"})"], "3");
  EXPECT_EQ(std::stod(series[R"(serinus_check_seconds_total{moment="tail"})"]), stats.seconds_tail);
  EXPECT_GT(stats.seconds_tail, 0);
  EXPECT_EQ(series[R"(serinus_violations_total{pool="kv",reason="kv_bytes"})"], "1");
  EXPECT_EQ(series[R"(serinus_violations_total{pool="kv",reason="token"})"], "0");
  EXPECT_EQ(series["serinus_violation_sightings_total"], std::to_string(stats.sightings));
  EXPECT_GT(stats.sightings, 1u);
  EXPECT_EQ(series["serinus_ring_dropped_total"], "0");
  EXPECT_EQ(series[R"(serinus_skipped_checks_total{cause="out_of_range"})"], "0");
  EXPECT_EQ(series[R"(serinus_skipped_checks_total{cause="empty"})"],
            std::to_string(stats.skipped_empty));
  EXPECT_EQ(series["serinus_sweeps_total"], std::to_string(stats.sweeps));
  EXPECT_EQ(series["serinus_sweep_bound_steps"], std::to_string(stats.sweep_bound_steps));
  EXPECT_EQ(series.size(), 14u + kNumReasons + 2 * kNumMoments);
}

TEST(Metrics, AReasonThatShowsLaterIsCountedThen) {
  Rig rig;
  rig.alloc(1, {4, 5, 6, 7});
  rig.run(1, 0, {4, 5, 6, 7});
  *rig.bytes.byte(5, 0, 3) ^= 1;
  rig.verify(1, 0, 4);
  rig.record(5).token ^= 1;
  rig.verify(1, 0, 4);
  rig.verify(1, 0, 4);
  const auto violations = rig.monitor.pool_stats()[0].violations;
  EXPECT_EQ(violations[3], 1u);  // kv_bytes
  EXPECT_EQ(violations[2], 1u);  // chain
  EXPECT_EQ(rig.monitor.stats().violations, 1u);
}

TEST(Metrics, LabelsAreEscapedAndUnique) {
  MetricsSample one;
  one.monitor = "a\"b\\c\nd";
  one.pools = {{"kv", PoolKind::full, 1, 0, {}},
               {"kv", PoolKind::swa, 2, 0, {}},
               {"kv.2", PoolKind::draft, 3, 0, {}},
               {"\xff\xc3\xa9\xed\xa0\x80", PoolKind::draft, 4, 0, {}}};
  const std::vector<MetricsSample> two = {one, one};
  auto series = series_of(metrics_text(two));
  const std::string first = R"(serinus_pool_slots{monitor="a\"b\\c\nd",pool=)";
  EXPECT_EQ(series[first + "\"kv\"}"], "1");
  EXPECT_EQ(series[first + "\"kv.2\"}"], "2");
  EXPECT_EQ(series[first + "\"kv.2.2\"}"], "3");
  EXPECT_EQ(series[first + "\"?\xc3\xa9???\"}"], "4");
  EXPECT_EQ(series[R"(serinus_steps_total{monitor="a\"b\\c\nd.2"})"], "0");
}

TEST(Metrics, WithoutAMonitorThereIsTheVersion) {
  const auto series = series_of(metrics_text({}));
  ASSERT_EQ(series.size(), 1u);
  EXPECT_EQ(series.begin()->first,
            std::string("serinus_build_info{version=\"") + version_string() + "\"}");
}

TEST(Metrics, AnotherThreadMayAsk) {
  Rig rig;
  std::atomic<bool> done = false;
  std::thread scraper([&] {
    std::uint64_t steps = 0;
    while (!done) {
      const MetricsSample sample = metrics_sample(rig.monitor);
      EXPECT_GE(sample.stats.steps, steps);
      steps = sample.stats.steps;
      EXPECT_FALSE(metrics_text({&sample, 1}).empty());
    }
  });
  rig.alloc(1, {4, 5, 6, 7});
  rig.run(1, 0, {4, 5, 6, 7});
  for (int i = 0; i < 200; ++i) {
    *rig.bytes.byte(5, 0, 3) ^= 1;
    rig.look(1, 4);
    rig.monitor.poll();
  }
  rig.monitor.add_pool(rig.bytes.spec);
  done = true;
  scraper.join();
  EXPECT_EQ(rig.monitor.pool_stats().size(), 2u);
}

}  // namespace
}  // namespace serinus::canary::testing
