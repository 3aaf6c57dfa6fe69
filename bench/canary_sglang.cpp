// Speed of the sglang record format on one core: `canary_sglang [--mb N] [--json FILE]`. Medians of
// the thread's CPU time; contenders take turns in one run, so that ratios survive a busy machine.
#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <functional>
#include <new>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include <serinus/canary_sglang.h>

#include "bench/arguments.h"
#include "bench/figures.h"
#include "canary/sglang/hash.h"
#include "canary/sglang/look_ahead.h"
#include "tests/canary/sglang_endpoint.h"

namespace serinus::canary::sglang {
namespace {

constexpr int kRounds = 5;

double cpu_ns() {
  timespec t{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) * 1e9 + static_cast<double>(t.tv_nsec);
}

// Median nanoseconds of each contender; they take turns.
std::vector<double> race(const std::vector<std::function<void()>>& contenders) {
  std::vector<std::vector<double>> times(contenders.size());
  for (int round = 0; round <= kRounds; ++round) {
    for (std::size_t i = 0; i < contenders.size(); ++i) {
      const double begin = cpu_ns();
      contenders[i]();
      const double took = cpu_ns() - begin;
      if (round > 0) times[i].push_back(took);  // the first round warms up
    }
  }
  std::vector<double> medians;
  for (std::vector<double>& t : times) {
    std::ranges::nth_element(t, t.begin() + kRounds / 2);
    medians.push_back(t[kRounds / 2]);
  }
  return medians;
}

bench::Figures g_figures;

enum class MemoryPages : char { of_4_kb, of_2_mb };

// What records lie in, in memory pages of one kind. The kernel gives 2 MB pages where it has them
// (Linux with transparent huge pages): it is what a pool of the engine asks for.
class Buffer {
 public:
  Buffer(std::int64_t bytes, MemoryPages pages) : bytes_(static_cast<std::size_t>(bytes)) {
    memory_ = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory_ == MAP_FAILED) throw std::bad_alloc();
    madvise(memory_, bytes_, pages == MemoryPages::of_2_mb ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
    std::memset(memory_, 0, bytes_);
  }
  ~Buffer() { munmap(memory_, bytes_); }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  std::uint8_t* data() const { return static_cast<std::uint8_t*>(memory_); }

 private:
  std::size_t bytes_;
  void* memory_;
};

// Slots 1, 2, ... in the order in which a sequence visits them: page by page with the pages
// shuffled, or in no order at all (page size 1).
std::vector<std::int64_t> visiting_order(std::int64_t num_slots, std::int64_t page,
                                         std::mt19937_64& rng) {
  std::vector<std::int64_t> pages(static_cast<std::size_t>(num_slots / page - 1));
  std::iota(pages.begin(), pages.end(), 1);
  std::ranges::shuffle(pages, rng);
  std::vector<std::int64_t> slots;
  for (const std::int64_t p : pages) {
    for (std::int64_t i = 0; i < page; ++i) slots.push_back(p * page + i);
  }
  return slots;
}

// The records of an entry and of its predecessor, loaded with the same look-ahead and nothing done
// with them: what memory allows.
std::uint64_t load_only(const VerifyParams& p, std::int64_t ahead, bool pages_ahead) {
  std::uint64_t sum = 0;
  const std::int64_t n = *p.num_valid;
  const std::uint8_t* const records = p.context.records;
  PagesAhead pages(p.context, p.slots, 0, pages_ahead ? n : 0);
  for (std::int64_t i = 0; i < n; ++i) {
    pages.at(i);
    if (i + ahead < n) __builtin_prefetch(records + p.slots[i + ahead] * kSlotBytes, 0, 3);
    for (const std::int64_t slot : {p.slots[i], std::max<std::int64_t>(p.prev_slots[i], 0)}) {
      Record r;
      std::memcpy(&r, records + slot * kSlotBytes, sizeof r);
      sum += static_cast<std::uint64_t>(r.token ^ r.position ^ r.prev_hash ^ r.real_kv_hash);
    }
  }
  return sum;
}

// One request of as many tokens as the buffer has room for.
struct Work {
  Work(std::int64_t num_slots, std::int64_t page, MemoryPages memory, std::mt19937_64& rng)
      : num_slots(num_slots),
        records(num_slots * kSlotBytes, memory),
        slots(visiting_order(num_slots, page, rng)),
        n(static_cast<std::int64_t>(slots.size())),
        tokens(slots.size()),
        positions(slots.size()) {
    for (std::int64_t& t : tokens) t = static_cast<std::int64_t>(rng() % 150000);
    std::iota(positions.begin(), positions.end(), 0);
    plan.offsets = {0, n};
    plan.seeds = {kChainHead};
    plan.num_valid_reqs = 1;
  }
  WriteInput input() {
    return {.input_ids = view(tokens), .positions = view(positions), .out_cache_loc = view(slots)};
  }
  VerifyOrWriteContext context() {
    VerifyOrWriteContext c = e.context();
    c.canary_buf = TensorView(records.data(), DType::u8, {num_slots, kSlotBytes});
    return c;
  }
  void write_all() { write(context(), plan.view(), input()); }
  void chain_alone() const {
    std::uint64_t h = hash::kAnchorHash;
    for (std::int64_t i = 0; i < n; ++i) {
      const auto at = static_cast<std::size_t>(i);
      h = hash::mix3(h, static_cast<std::uint64_t>(tokens[at]),
                     static_cast<std::uint64_t>(positions[at]));
    }
    volatile std::uint64_t sink = h;
    static_cast<void>(sink);
  }

  std::int64_t num_slots;
  Buffer records;
  std::vector<std::int64_t> slots;
  std::int64_t n;
  std::vector<std::int64_t> tokens, positions;
  Endpoint e{1};  // all but the records
  HostWritePlan plan{1};
};

// `times`: how often a contender does it in a round.
void bench_chain(Work& work, const std::string& where, int times) {
  const auto repeat = [times](auto f) {
    return [times, f] {
      for (int i = 0; i < times; ++i) f();
    };
  };
  const std::vector<double> took =
      race({repeat([&] { work.write_all(); }), repeat([&] { work.chain_alone(); })});
  const double per = static_cast<double>(work.n) * times;
  g_figures.add("write, one chain, " + where, took[0] / per, "ns/token", bench::at_most(10));
  g_figures.add("the chain alone, " + where, took[1] / per, "ns/token");
}

void bench_order(const std::string& where, std::int64_t num_slots, std::int64_t page,
                 MemoryPages memory) {
  const std::string order =
      fmt::format("{}, {} memory pages", where, memory == MemoryPages::of_2_mb ? "2 MB" : "4 KB");
  std::mt19937_64 rng(7);
  Work work(num_slots, page, memory, rng);
  bench_chain(work, order, 1);
  const std::int64_t n = work.n;
  const WriteInput input = work.input();
  const VerifyOrWriteContext context = work.context();
  const auto per = static_cast<double>(n);

  // The same tokens as those of a batch: 64 requests.
  constexpr std::int64_t kRequests = 64;
  HostWritePlan batch_plan(kRequests);
  for (std::int64_t r = 0; r <= kRequests; ++r)
    batch_plan.offsets[static_cast<std::size_t>(r)] = n * r / kRequests;
  std::fill(batch_plan.seeds.begin(), batch_plan.seeds.end(), kChainHead);
  batch_plan.num_valid_reqs = kRequests;
  const double batch = race({[&] { write(context, batch_plan.view(), input); }})[0];
  g_figures.add("write, 64 chains, " + order, batch / per, "ns/token");
  work.write_all();

  HostVerifyPlan verify_plan(n);
  verify_plan.slots = work.slots;
  verify_plan.positions = work.positions;
  verify_plan.tokens = work.tokens;
  verify_plan.prev_slots = work.slots;
  verify_plan.prev_slots.insert(verify_plan.prev_slots.begin(), kChainHead);
  verify_plan.prev_slots.pop_back();
  verify_plan.num_valid = static_cast<std::int32_t>(n);
  volatile std::uint64_t sink = 0;
  std::vector<std::function<void()>> contenders = {
      [&] { verify(context, verify_plan.view(), true); }};
  const VerifyParams params = check_verify(context, verify_plan.view(), true);
  for (const std::int64_t ahead : {16, 32, 64}) {
    for (const bool pages_ahead : {false, true})
      contenders.emplace_back(
          [&, ahead, pages_ahead] { sink = load_only(params, ahead, pages_ahead); });
  }
  const std::vector<double> verified = race(contenders);
  const double fastest_load = *std::min_element(verified.begin() + 1, verified.end());
  if (work.e.violations != 0) fmt::print("violations: {}\n", work.e.violations);
  g_figures.add("verify without bytes / load loop, " + order, fastest_load / verified[0], "x",
                bench::at_least(0.65),
                fmt::format("{:.2f} ns an entry; the best of six load loops {:.2f}",
                            verified[0] / per, fastest_load / per));
}

void bench_bytes(std::int64_t token_bytes, std::int64_t num_slots) {
  std::mt19937_64 rng(11);
  std::vector<std::uint8_t> bytes(static_cast<std::size_t>(token_bytes * num_slots));
  for (std::size_t i = 0; i + 8 <= bytes.size(); i += 8) {
    const std::uint64_t w = rng();
    std::memcpy(bytes.data() + i, &w, 8);
  }
  const RealKvSource source{TensorView(bytes.data(), DType::u8, {num_slots, token_bytes}), 1,
                            token_bytes, token_bytes};
  std::vector<std::int64_t> slots = visiting_order(num_slots, 1, rng);
  const auto n = static_cast<std::int64_t>(slots.size());
  Endpoint e(num_slots);
  e.tag = LaunchTag::tail_k_full;
  e.sources = {source};
  e.mode = RealKvHashMode::all;
  HostVerifyPlan plan(n);
  plan.slots = slots;
  plan.num_valid = static_cast<std::int32_t>(n);
  for (const std::int64_t slot : slots)
    e.set(slot, {.real_kv_hash =
                     static_cast<std::int64_t>(real_kv_hash(e.sources, e.mode, slot).value())});
  const auto one_by_one = [&] {
    std::uint64_t sum = 0;
    for (const std::int64_t slot : slots) {
      std::uint64_t f = 0;
      for (std::int64_t w = 0; w < token_bytes; w += 8) {
        std::uint64_t word = 0;
        std::memcpy(&word, bytes.data() + slot * token_bytes + w, 8);
        f = hash::splitmix64(f ^ word);
      }
      sum += f;
    }
    volatile std::uint64_t sink = sum;
    static_cast<void>(sink);
  };
  const std::vector<double> times =
      race({[&] { verify(e.context(), plan.view(), false); }, one_by_one});
  const auto total = static_cast<double>(token_bytes * n);
  g_figures.add(fmt::format("verify with all of {} bytes a token", token_bytes), total / times[0],
                "GB/s", {}, fmt::format("folds one after another: {:.2f}", total / times[1]));
}

}  // namespace
}  // namespace serinus::canary::sglang

int main(int argc, char** argv) {
  using namespace serinus::canary::sglang;
  const serinus::bench::Arguments arguments(argc, argv, {"--mb", "--json"});
  if (!arguments.fine()) return 2;
  const std::int64_t megabytes = arguments.count("--mb", 1024);
  const std::int64_t num_slots = megabytes * (1 << 20) / kSlotBytes;
  {
    std::mt19937_64 rng(5);
    Work small((1 << 20) / kSlotBytes, 64, MemoryPages::of_4_kb, rng);
    bench_chain(small, "1 MB of records", 100);
  }
  for (const MemoryPages memory : {MemoryPages::of_4_kb, MemoryPages::of_2_mb}) {
    bench_order("shuffled pages of 64", num_slots, 64, memory);
    bench_order("random order", num_slots, 1, memory);
  }
  bench_bytes(576, megabytes * (1 << 20) / 576 / 4);
  bench_bytes(1024, megabytes * (1 << 20) / 1024 / 4);
  return g_figures.write(arguments.text("--json")) ? 0 : 3;
}
