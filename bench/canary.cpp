// The canary's speed on one core, as ratios to yardsticks that run in turns with it: XXH3 (inlined
// and built for this CPU), memcpy and a pure read loop for digests; a loop that only loads the
// records for verification. Every contender prefetches. `--json FILE` also writes the numbers
// there.
#include <time.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#define XXH_INLINE_ALL
#include <fmt/format.h>
#include <xxhash.h>

#include <serinus/canary.h>

#include "bench/arguments.h"
#include "bench/figures.h"
#include "canary/serinus/digest.h"
#include "canary/serinus/hash.h"

namespace {

using namespace serinus;
using namespace serinus::canary;

volatile std::uint64_t g_sink;

/// Seconds of this thread's own time: what other processes take of the core does not count.
double seconds(const std::function<void()>& f) {
  const auto now = [] {
    timespec t{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_nsec) * 1e-9;
  };
  const double start = now();
  f();
  return now() - start;
}

/// Median seconds of each contender, run in turns so that all see the same machine.
std::vector<double> race(const std::vector<std::function<void()>>& contenders, int rounds = 15) {
  std::vector<std::vector<double>> times(contenders.size());
  for (int r = 0; r < rounds + 1; ++r) {
    for (std::size_t i = 0; i < contenders.size(); ++i) {
      const double t = seconds(contenders[i]);
      if (r > 0) times[i].push_back(t);  // the first round warms up
    }
  }
  std::vector<double> medians;
  for (auto& t : times) {
    std::nth_element(t.begin(), t.begin() + static_cast<std::ptrdiff_t>(t.size() / 2), t.end());
    medians.push_back(t[t.size() / 2]);
  }
  return medians;
}

bench::Figures g_figures;

void line(const std::string& name, double ratio, double goal, const std::string& detail) {
  g_figures.add(name, ratio, "x", bench::at_least(goal), detail);
}

/// Visits rows in an order, asking for each line `kAhead` bytes before it is read.
template <class F>
void visit(const std::uint8_t* base, std::int64_t row, const std::vector<std::int64_t>& order,
           F&& f) {
  constexpr std::int64_t kAhead = 4096;
  const auto n = static_cast<std::int64_t>(order.size());
  const std::int64_t rows_ahead = std::max<std::int64_t>(1, kAhead / row);
  // Always inline: GCC takes a call that only prefetches for one without effect, and drops it.
  const auto prefetch = [&](std::int64_t i) __attribute__((always_inline)) {
    if (i >= n) return;
    const std::uint8_t* p = base + order[static_cast<std::size_t>(i)] * row;
    for (std::int64_t b = 0; b < std::min(row, kAhead); b += 64) __builtin_prefetch(p + b);
  };
  for (std::int64_t i = 0; i < std::min(rows_ahead, n); ++i) prefetch(i);
  for (std::int64_t i = 0; i < n; ++i) {
    prefetch(i + rows_ahead);
    f(base + order[static_cast<std::size_t>(i)] * row);
  }
}

typedef std::uint64_t Vector __attribute__((vector_size(64), aligned(1), may_alias));

void digests(std::vector<std::uint8_t>& buffer, std::int64_t row, std::int64_t span_bytes,
             std::int64_t total_bytes, bool in_l2) {
  std::mt19937_64 rng(1);
  const std::int64_t rows = span_bytes / row;
  std::vector<std::int64_t> order(static_cast<std::size_t>(total_bytes / row));
  for (auto& o : order) {
    o = static_cast<std::int64_t>(rng() % static_cast<std::uint64_t>(rows));
  }
  const Source source{buffer.data(), span_bytes, row, 0, row, row, 0};
  const auto prepared = prepare({&source, 1});
  std::vector<std::uint64_t> out(order.size());
  std::vector<std::uint8_t> scratch(static_cast<std::size_t>(row) + 64);
  const auto m = race({
      [&] {
        digest_slots(prepared, 1, Depth::all, order, out.data());
        g_sink = out.back();
      },
      [&] {
        std::uint64_t sum = 0;
        visit(buffer.data(), row, order,
              [&](const std::uint8_t* p) { sum += XXH3_64bits(p, static_cast<std::size_t>(row)); });
        g_sink = sum;
      },
      [&] {
        visit(buffer.data(), row, order, [&](const std::uint8_t* p) {
          std::memcpy(scratch.data(), p, static_cast<std::size_t>(row));
          asm volatile("" ::: "memory");
        });
      },
      [&] {
        Vector sum = {};
        visit(buffer.data(), row, order, [&](const std::uint8_t* p) {
          for (std::int64_t b = 0; b + 64 <= row; b += 64) {
            sum += *reinterpret_cast<const Vector*>(p + b);
          }
        });
        g_sink = sum[0];
      },
  });
  const auto rate = [&](double t) {
    return static_cast<double>(order.size()) * static_cast<double>(row) / t / 1e9;
  };
  const std::string detail = fmt::format("{:.1f} GB/s; XXH3 {:.1f}, memcpy {:.1f}, read {:.1f}",
                                         rate(m[0]), rate(m[1]), rate(m[2]), rate(m[3]));
  const std::string where = in_l2 ? "in L2" : "in 1 GB";
  if (in_l2) {
    line(fmt::format("digest of {} B rows {} / XXH3", row, where), m[1] / m[0], 1.5, detail);
  } else if (row < 4096) {
    line(fmt::format("digest of {} B rows {} / XXH3", row, where), m[1] / m[0], 1.25, detail);
  } else {
    line(fmt::format("digest of {} B rows {} / memcpy", row, where), m[2] / m[0], 0.9, detail);
    line(fmt::format("digest of {} B rows {} / read loop", row, where), m[3] / m[0], 0.65, detail);
  }
}

/// Loads the records of a row of cells and does nothing with them. `pages_ahead`: asks for memory
/// pages, too, sixteen at once.
std::uint64_t load_only(const Record* records, std::span<const std::int32_t> cells,
                        std::int64_t ahead, bool pages_ahead) {
  constexpr std::int64_t kStep = 8, kPagesAhead = 1024, kAtOnce = 16;
  const auto n = static_cast<std::int64_t>(cells.size());
  const auto at = [&](std::int64_t i) __attribute__((always_inline)) {
    return records + cells[static_cast<std::size_t>(i)];
  };
  const auto page = [&](std::int64_t i) __attribute__((always_inline)) {
    return reinterpret_cast<std::uintptr_t>(at(i)) >> 12;
  };
  std::uint64_t sum = 0, last = 0;
  const Record* noted[kAtOnce];
  std::size_t count = 0;
  for (std::int64_t i = 0; i < n; ++i) {
    const std::int64_t far = i + kPagesAhead;
    if (pages_ahead && i % kStep == 0 && far + 1 < n && page(far) != last &&
        page(far) == page(far + 1)) {
      last = page(far);
      noted[count++] = at(far);
      if (count == kAtOnce) {
        for (const Record* const r : noted) __builtin_prefetch(r);
        count = 0;
      }
    }
    if (i + ahead < n) __builtin_prefetch(at(i + ahead));
    std::uint64_t words[4];
    std::memcpy(words, at(i), 32);
    sum += words[0] ^ words[1] ^ words[2] ^ words[3];
  }
  return sum;
}

void verification(bool shuffled_pages) {
  const std::int64_t slots = std::int64_t{1} << 20;
  Options o;
  o.depth = Depth::none;
  Monitor monitor(o);
  PoolSpec spec;
  spec.num_slots = slots;
  const int pool = monitor.add_pool(spec);
  const std::int64_t n = slots - 64;
  std::vector<std::int64_t> order(static_cast<std::size_t>(n));
  std::mt19937_64 rng(2);
  if (shuffled_pages) {
    std::vector<std::int64_t> pages(static_cast<std::size_t>(n / 64));
    std::iota(pages.begin(), pages.end(), 1);
    std::shuffle(pages.begin(), pages.end(), rng);
    for (std::int64_t i = 0; i < n; ++i) {
      order[static_cast<std::size_t>(i)] = pages[static_cast<std::size_t>(i / 64)] * 64 + i % 64;
    }
  } else {
    std::iota(order.begin(), order.end(), 64);
    std::shuffle(order.begin(), order.end(), rng);
  }
  std::vector<std::int32_t> table(static_cast<std::size_t>(2 * n));
  std::vector<std::int64_t> ids(static_cast<std::size_t>(n)),
      positions(static_cast<std::size_t>(n));
  for (std::int64_t i = 0; i < n; ++i) {
    const auto at = static_cast<std::size_t>(i);
    table[static_cast<std::size_t>(n) + at] = static_cast<std::int32_t>(order[at]);
    ids[at] = static_cast<std::int64_t>(rng() % 100000);
    positions[at] = i;
  }
  monitor.on_alloc(pool, order, 1);
  const std::vector<std::int64_t> row = {1}, prefix = {0}, extend = {n};
  const std::vector<Owner> owner = {1};
  Batch b;
  b.rows = row;
  b.prefix_lens = prefix;
  b.extend_lens = extend;
  b.owners = owner;
  b.req_to_token = TensorView(table.data(), DType::i32, {2, n});
  b.input_ids = ids;
  b.positions = positions;
  b.out_cache_loc = order;
  const double stamp = seconds([&] { monitor.stamp_now(b); });
  const Record* records = monitor.records(pool).data();
  const std::int32_t* cells = table.data() + n;
  std::vector<std::function<void()>> contenders = {
      [&] { monitor.verify_now(Moment::head, 1, 1, 0, n, b); }};
  for (const std::int64_t ahead : {16, 32, 64}) {
    for (const bool pages_ahead : {false, true})
      contenders.emplace_back([=] {
        g_sink = load_only(records, {cells, static_cast<std::size_t>(n)}, ahead, pages_ahead);
      });
  }
  const std::vector<double> m = race(contenders);
  const double load = *std::min_element(m.begin() + 1, m.end());
  if (!monitor.poll().empty()) fmt::print("unexpected violation\n");
  line(fmt::format("verify without bytes, {} / load loop",
                   shuffled_pages ? "shuffled pages" : "random order"),
       load / m[0], 0.65,
       fmt::format("{:.2f} ns a record; the best of six load loops {:.2f}; stamp {:.2f}",
                   m[0] / static_cast<double>(n) * 1e9, load / static_cast<double>(n) * 1e9,
                   stamp / static_cast<double>(n) * 1e9));
}

void chain() {
  const std::size_t n = 1 << 16;
  std::vector<std::uint32_t> tokens(n);
  std::mt19937 rng(3);
  for (auto& t : tokens) t = static_cast<std::uint32_t>(rng() % 100000);
  std::vector<Record> records(n);
  std::vector<std::uint64_t> out(n);
  const auto m = race({
      [&] {
        std::uint64_t h = kChainAnchor;
        for (std::size_t i = 0; i < n; ++i) {
          const auto position = static_cast<std::uint32_t>(i);
          h = hash::chain_step(h, hash::token_term(tokens[i], position));
          records[i] = {tokens[i], position, 1, 1, hash::chain_value(h), 0};
        }
        g_sink = records[n - 1].chain;
      },
      [&] {
        chain_scan(kChainAnchor, tokens, 0, out);
        g_sink = out[n - 1];
      },
  });
  const double ns = m[0] / static_cast<double>(n) * 1e9;
  g_figures.add("serial chain with its record", ns, "ns/token", bench::at_most(4.5),
                fmt::format("scan {:.2f}", m[1] / static_cast<double>(n) * 1e9));
}

/// What the ring of events, which reports take their evidence from, adds to announcements: pages of
/// 64 slots in random order, handed out and given back.
void announcements() {
  constexpr std::int64_t kPages = 1 << 14, kPage = 64;
  std::vector<std::int64_t> pages(kPages), slots(kPage);
  std::iota(pages.begin(), pages.end(), 1);
  std::shuffle(pages.begin(), pages.end(), std::mt19937_64(1));
  std::vector<std::unique_ptr<Monitor>> monitors;
  std::vector<std::function<void()>> contenders;
  for (const std::int64_t capacity : {65536, 0}) {
    Options o;
    o.depth = Depth::none;
    o.event_capacity = capacity;
    Monitor* const m = monitors.emplace_back(std::make_unique<Monitor>(o)).get();
    PoolSpec spec;
    spec.layout = kv_layout("fp8_656");
    spec.num_slots = (kPages + 1) * kPage;
    m->add_pool(spec);
    contenders.emplace_back([&, m] {
      for (const std::int64_t page : pages) {
        std::iota(slots.begin(), slots.end(), page * kPage);
        m->on_alloc(0, slots, 1);
        m->on_free(0, slots, 1);
      }
    });
  }
  const std::vector<double> s = race(contenders, 7);
  const double to_ns = 1e9 / static_cast<double>(2 * kPages * kPage);
  g_figures.add("an announced slot, with the event log", s[0] * to_ns, "ns", {},
                fmt::format("without: {:.1f} ns", s[1] * to_ns));
}

}  // namespace

int main(int argc, char** argv) {
  const bench::Arguments arguments(argc, argv, {"--json", "--only"});
  if (!arguments.fine()) return 2;
  const std::string json = arguments.text("--json");
  const std::string only = arguments.text("--only");  // digest, l2, chain, verify, announce
  const auto runs = [&](const char* part) { return only.empty() || only == part; };
  std::vector<std::uint8_t> buffer(runs("digest") ? std::size_t{1} << 30 : std::size_t{1} << 20);
  std::mt19937_64 rng(0);
  for (std::size_t i = 0; i + 8 <= buffer.size(); i += 8) {
    const std::uint64_t x = rng();
    std::memcpy(buffer.data() + i, &x, 8);
  }
  const auto size = static_cast<std::int64_t>(buffer.size());
  for (const std::int64_t row : {576, 1024, 16384}) {
    if (runs("digest")) digests(buffer, row, size, std::int64_t{128} << 20, false);
  }
  for (const std::int64_t row : {576, 1024, 16384}) {
    if (runs("l2")) digests(buffer, row, 256 << 10, std::int64_t{32} << 20, true);
  }
  if (runs("chain")) chain();
  if (runs("verify")) {
    verification(true);
    verification(false);
  }
  if (runs("announce")) announcements();
  return g_figures.write(json) ? 0 : 3;
}
