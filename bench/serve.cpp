// What the live page costs the engine's thread: Feed::look() after a step, in thread CPU time, over
// a pool of a million slots. The yardstick of a look at the maps is a plain read of as many ledger
// entries.
// `--json FILE` also writes the numbers there.
#include <time.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include <serinus/canary.h>

#include "bench/arguments.h"
#include "bench/figures.h"
#include "serve/feed.h"

namespace {

using namespace serinus;

constexpr std::int64_t kSlots = 1 << 20;
volatile std::uint64_t g_sink;

double cpu_seconds() {
  timespec t{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_nsec) * 1e-9;
}

/// Median seconds of `f`, with `between` off the clock.
double median(int rounds, const std::function<void()>& f, const std::function<void()>& between) {
  std::vector<double> times;
  for (int i = 0; i < rounds; ++i) {
    between();
    const double start = cpu_seconds();
    f();
    times.push_back(cpu_seconds() - start);
  }
  std::nth_element(times.begin(), times.begin() + rounds / 2, times.end());
  return times[static_cast<std::size_t>(rounds / 2)];
}

void rest(int milliseconds) {
  std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds));
}

}  // namespace

int main(int argc, char** argv) {
  const bench::Arguments arguments(argc, argv, {"--json"});
  if (!arguments.fine()) return 2;
  canary::Options options;
  options.depth = canary::Depth::none;
  canary::Monitor monitor(options);
  canary::PoolSpec spec;
  spec.layout = kv_layout("fp8_656");
  spec.num_slots = kSlots;
  monitor.add_pool(spec);
  std::vector<std::int64_t> slots(kSlots - 1);
  std::iota(slots.begin(), slots.end(), 1);
  monitor.on_alloc(0, slots, 1);

  serve::Feed feed("bench");
  const auto look = [&] { feed.look(monitor); };
  bench::Figures figures;
  look();
  constexpr int kMany = 1000;
  const double idle = median(
                          51,
                          [&] {
                            for (int i = 0; i < kMany; ++i) look();
                          },
                          [] {}) /
                      kMany;
  figures.add("look, nothing due", idle * 1e9, "ns");
  // Five times a second.
  const double publish = median(15, look, [] { rest(201); });
  figures.add("look that publishes", publish * 1e6, "us");
  // Every 20 ms while a page is open: 32768 slots.
  const double scan = median(101, look, [&] {
    feed.want_maps();
    rest(21);
  });
  const auto ledger = monitor.ledger(0).first(32768);
  const double read = median(
      101,
      [&] {
        std::uint64_t sum = 0;
        for (const canary::LedgerEntry& e : ledger) sum += e.owner + e.written;
        g_sink = sum;
      },
      [] { rest(21); });
  figures.add("look at 32768 slots of the map", scan * 1e6, "us");
  figures.add("look at the map / plain read", scan / read, "x");
  figures.add("share of a core, page open", 100 * (scan / 0.020 + publish / 0.200), "%",
              bench::at_most(1));
  return figures.write(arguments.text("--json")) ? 0 : 3;
}
