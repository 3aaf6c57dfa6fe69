// The engine as a whole: small pools and random workloads. The KV of every running request is what
// the model says, no page is lost, and a canary on top never raises an alarm.
#include "engine/engine.h"

#include <gtest/gtest.h>

#include <ostream>
#include <set>
#include <string>
#include <vector>

#include <serinus/error.h>

#include "engine/model.h"
#include "engine/random.h"

namespace serinus::engine {
namespace {

constexpr std::int64_t kBlock = 24;

// A request that continues one of a few conversations.
RequestText random_text(Random& random, canary::Owner owner) {
  std::vector<std::int64_t> ids;
  const auto conversation = static_cast<std::int64_t>(random.below(5));
  const std::size_t blocks = random.below(7);
  for (std::size_t b = 0; b < blocks; ++b)
    ids.push_back(b == 0 ? 1
                         : conversation * 100 + static_cast<std::int64_t>(b) +
                               (b > 3 ? 10 * static_cast<std::int64_t>(random.below(2)) : 0));
  const auto partial = static_cast<std::int64_t>(random.below(kBlock));
  return RequestText(owner, static_cast<std::int64_t>(blocks) * kBlock + partial,
                     static_cast<std::int64_t>(random.below(40)), ids, kBlock);
}

// Bytes of the slots that a running request holds, against the model.
void expect_true_kv(Engine& engine) {
  const std::int64_t page = engine.options().page;
  for (const auto& request : engine.running()) {
    const Request& r = *request;
    for (std::int64_t p = 0; p < r.length; ++p) {
      const std::int64_t slot = r.pages[static_cast<std::size_t>(p / page)] * page + p % page;
      ASSERT_EQ(engine.table().slots(r.row)[p], slot);
      for (const EnginePool& pool : engine.pools()) {
        std::int64_t at = slot;
        std::int64_t position = p;
        if (pool.kind == canary::PoolKind::swa) {
          at = engine.full_to_swa()[static_cast<std::size_t>(slot)];
          if (p < r.length - engine.options().window) continue;  // left behind
          ASSERT_GT(at, 0) << "position " << p << " of " << r.length << " is in the window";
        } else if (pool.kind == canary::PoolKind::draft) {
          position = p + 1;
        }
        std::vector<std::uint8_t> stored(static_cast<std::size_t>(pool.kv.token_bytes()));
        pool.kv.read_token(at, stored);
        std::vector<std::uint8_t> expected;
        int source = 0;
        for (int l = 0; l < pool.kv.num_layers(); ++l) {
          for (const KvSegment& s : pool.kv.layout().segments) {
            std::vector<std::uint8_t> bytes(static_cast<std::size_t>(s.bytes));
            model_bytes(r.text.prefix_state(position), source++, bytes);
            expected.insert(expected.end(), bytes.begin(), bytes.end());
          }
        }
        ASSERT_EQ(stored, expected) << pool.name << " of request " << r.owner << " at " << p;
      }
    }
  }
}

// Every page is free, cached, or held by exactly one running request.
void expect_no_page_lost(Engine& engine) {
  engine.cache().check();
  std::int64_t held = 0;
  std::set<std::int64_t> own;
  for (const auto& r : engine.running()) {
    for (std::size_t i = r->path.size(); i < r->pages.size(); ++i) {
      ASSERT_TRUE(own.insert(r->pages[i]).second) << "page " << r->pages[i] << " held twice";
      ASSERT_EQ(engine.allocator().use(r->pages[i]), PageUse::request);
      ++held;
    }
  }
  std::int64_t free = 0, cached = 0, request = 0;
  for (std::int64_t p = 1; p < engine.allocator().num_pages(); ++p) {
    free += engine.allocator().use(p) == PageUse::free;
    cached += engine.allocator().use(p) == PageUse::cached;
    request += engine.allocator().use(p) == PageUse::request;
  }
  ASSERT_EQ(free, engine.allocator().free_pages());
  ASSERT_EQ(cached, engine.cache().cached_pages());
  // Pages of loads in flight are the only ones that nobody in running() shows.
  ASSERT_GE(request, held);
  if (engine.host() == nullptr) {
    ASSERT_EQ(request, held);
  }
  ASSERT_EQ(engine.allocator().double_frees(), 0);
}

struct Case {
  const char* name;
  canary::Format format;
  std::int64_t page, pool_tokens, window, host_tokens;
  int draft_layers;
  const char* layout = "dsv4_584";
  canary::VerifyPolicy verify = canary::VerifyPolicy::rolling;
  canary::NullSlot null_slot = canary::NullSlot::clean;
};
void PrintTo(const Case& c, std::ostream* os) {
  *os << c.name;
}

EngineOptions options_of(const Case& c) {
  EngineOptions o;
  o.layout = c.layout;
  o.layout_options.heads = 2;
  o.layout_options.head_size = 16;
  if (std::string_view(c.layout).substr(0, 3) != "mha") o.layout_options = {};
  o.page = c.page;
  o.pool_tokens = c.pool_tokens;
  o.window = c.window;
  o.swa_tokens = c.window > 0 ? c.pool_tokens / 2 : 0;
  o.draft_layers = c.draft_layers;
  o.host_tokens = c.host_tokens;
  o.max_running = 12;
  o.step_tokens = 64;
  o.max_length = 7 * kBlock + 48;
  o.canary.format = c.format;
  o.canary.verify = c.verify;
  o.canary.records_per_step = 40;
  o.null_slot = c.null_slot;
  o.threads = 1;
  return o;
}

class EngineProperties : public testing::TestWithParam<Case> {};

TEST_P(EngineProperties, IsTrueAndQuietUnderPreemptionAbortsAndEviction) {
  const Case& c = GetParam();
  Engine engine(options_of(c));
  std::vector<std::string> alarms;
  engine.on_violation = [&](const canary::Violation& v, int) {
    alarms.push_back(canary::to_text(v, engine.pools()[static_cast<std::size_t>(v.pool)].name));
  };
  Random random(static_cast<std::uint64_t>(c.page * 1000 + c.window));
  canary::Owner submitted = 0;
  for (int i = 0; i < 900 && !HasFatalFailure(); ++i) {
    if (i < 600 && random.below(3) == 0) {
      ++submitted;
      engine.submit(submitted, random_text(random, submitted));
    }
    if (submitted > 0 && random.below(12) == 0)
      engine.abort(static_cast<canary::Owner>(1 + random.below(submitted)));
    engine.step();
    ASSERT_TRUE(alarms.empty()) << "step " << i << ": " << alarms[0];
    expect_no_page_lost(engine);
    if (i % 7 == 0) expect_true_kv(engine);
  }
  while (engine.step()) {
  }
  engine.drain();
  ASSERT_TRUE(alarms.empty()) << alarms[0];
  expect_no_page_lost(engine);
  const Counters& n = engine.counters();
  EXPECT_EQ(n.requests + n.aborted, submitted);
  EXPECT_EQ(n.false_alarms, 0);
  // The workload must have met what it is about.
  EXPECT_GT(n.aborted, 0);
  EXPECT_GT(n.evicted_tokens, 0);
  EXPECT_GT(n.prefix_hit_tokens, 0);
  EXPECT_GT(n.preemptions, 0);
  if (c.host_tokens > 0) {
    EXPECT_GT(n.host_hit_tokens, 0);
  }
  if (c.window == 0) {
    EXPECT_GT(n.deduplicated_tokens, 0);
  }
  EXPECT_GT(engine.canary_stats().records_verified, 0u);
  EXPECT_EQ(engine.table().free_rows(), 12);
  EXPECT_EQ(engine.allocator().free_pages() + engine.cache().cached_pages(),
            engine.allocator().capacity());
}

using canary::Format;
INSTANTIATE_TEST_SUITE_P(
    Shapes, EngineProperties,
    testing::Values(Case{"page1", Format::serinus, 1, 420, 0, 0, 0},
                    Case{"page8", Format::serinus, 8, 424, 0, 0, 0},
                    Case{"page24", Format::serinus, 24, 288, 0, 0, 0},
                    Case{"page5", Format::serinus, 5, 420, 0, 0, 0, "nvfp4_384"},
                    Case{"verify_all", Format::serinus, 8, 424, 0, 0, 0, "fp8_656",
                         canary::VerifyPolicy::all},
                    Case{"scratch_null", Format::serinus, 8, 424, 0, 0, 0, "fp8_656",
                         canary::VerifyPolicy::rolling, canary::NullSlot::scratch},
                    Case{"mha", Format::serinus, 16, 432, 0, 0, 0, "mha_hnd"},
                    Case{"window", Format::serinus, 8, 520, 40, 0, 0},
                    Case{"draft", Format::serinus, 8, 424, 0, 0, 1},
                    Case{"window_and_draft", Format::serinus, 4, 520, 40, 0, 2},
                    Case{"host", Format::serinus, 8, 424, 0, 800, 0},
                    Case{"host_and_draft", Format::serinus, 8, 424, 0, 800, 1},
                    Case{"sglang", Format::sglang, 8, 424, 0, 0, 0},
                    Case{"sglang_page1", Format::sglang, 1, 420, 0, 0, 0},
                    Case{"sglang_window", Format::sglang, 8, 520, 40, 0, 0},
                    Case{"sglang_host", Format::sglang, 8, 424, 0, 800, 0},
                    Case{"sglang_draft", Format::sglang, 8, 424, 0, 0, 1}),
    [](const auto& info) { return std::string(info.param.name); });

// What a replay leaves behind: every byte and record of every pool.
std::uint64_t state_of(Engine& engine) {
  std::uint64_t h = 0;
  const auto add = [&h](std::uint64_t x) { h = h * 0x9e3779b97f4a7c15ull + x; };
  for (std::size_t p = 0; p < engine.pools().size(); ++p) {
    std::vector<std::uint8_t> bytes(static_cast<std::size_t>(engine.pools()[p].kv.token_bytes()));
    for (std::int64_t s = 0; s < engine.pools()[p].kv.num_slots(); ++s) {
      engine.pools()[p].kv.read_token(s, bytes);
      for (const std::uint8_t b : bytes) add(b);
    }
    for (const canary::Record& r : engine.monitor()->records(static_cast<int>(p))) {
      add(r.chain);
      add(r.kv_digest);
      add(r.owner);
    }
  }
  add(engine.now());
  add(engine.canary_stats().records_verified);
  return h;
}

TEST(Engine, DoesTheSameOnAnyNumberOfThreads) {
  std::set<std::uint64_t> states;
  for (const int threads : {1, 2, 5}) {
    EngineOptions o;
    o.pool_tokens = 8192;
    o.step_tokens = 4096;
    o.max_length = 3000;
    o.threads = threads;
    Engine engine(o);
    for (canary::Owner owner = 1; owner <= 12; ++owner) {
      const std::vector<std::int64_t> ids{1, owner % 3, owner % 5};
      engine.submit(owner, RequestText(owner, 1200 + 64 * owner, 30, ids, 512));
    }
    while (engine.step()) {
    }
    engine.drain();
    EXPECT_EQ(engine.counters().false_alarms, 0);
    states.insert(state_of(engine));
  }
  EXPECT_EQ(states.size(), 1u);
}

TEST(Engine, APromptThatIsHitWholeComputesNothingAndStillAnswers) {
  EngineOptions o;
  o.page = 8;
  o.pool_tokens = 512;
  o.max_length = 100;
  o.serial = true;
  Engine engine(o);
  const std::vector<std::int64_t> ids{1, 2};
  engine.submit(1, RequestText(1, 32, 5, ids, 16));
  engine.submit(2, RequestText(2, 32, 5, ids, 16));
  while (engine.step()) {
  }
  engine.drain();
  EXPECT_EQ(engine.counters().prefix_hit_tokens, 32);
  // The last output token is sampled and never fed back.
  EXPECT_EQ(engine.counters().tokens_written, 32 + 4 + 4);
  EXPECT_EQ(engine.counters().false_alarms, 0);
}

std::string id_of(const auto& call) {
  try {
    call();
  } catch (const ValueError& e) {
    return e.id();
  }
  return "nothing was raised";
}

TEST(Engine, ARequestThatCanNeverFitIsRefusedByName) {
  EngineOptions o;
  o.page = 8;
  o.pool_tokens = 64;
  o.max_length = 1000;
  Engine engine(o);
  EXPECT_EQ(id_of([&] { engine.submit(7, RequestText(7, 60, 5, {}, 0)); }), "SRN5002");
  engine.submit(8, RequestText(8, 60, 4, {}, 0));
  while (engine.step()) {
  }
  EXPECT_EQ(engine.counters().requests, 1);
  o.window = 100;
  EXPECT_EQ(id_of([&] { Engine::require_fits(o, 1, 10, 10); }), "SRN5002");
}

TEST(Engine, OptionsThatCannotBeAreRefused) {
  const auto with = [](auto&& change) {
    EngineOptions o;
    o.real_data = false;
    change(o);
    return id_of([&] { Engine engine(o); });
  };
  EXPECT_EQ(with([](EngineOptions&) {}), "nothing was raised");
  EXPECT_EQ(with([](EngineOptions& o) { o.page = 0; }), "SRN5001");
  EXPECT_EQ(with([](EngineOptions& o) { o.page = 257; }), "SRN5001");
  EXPECT_EQ(with([](EngineOptions& o) { o.layers = 0; }), "SRN5001");
  EXPECT_EQ(with([](EngineOptions& o) { o.pool_tokens = 63; }), "SRN5001");
  EXPECT_EQ(with([](EngineOptions& o) { o.pool_tokens = std::int64_t{1} << 40; }), "SRN5001");
  EXPECT_EQ(with([](EngineOptions& o) { o.pool_tokens = INT64_MAX; }), "SRN5001");
  EXPECT_EQ(with([](EngineOptions& o) { o.window = -1; }), "SRN5001");
  EXPECT_EQ(with([](EngineOptions& o) { o.step_tokens = 0; }), "SRN5001");
  EXPECT_EQ(with([](EngineOptions& o) { o.decode_tokens = 0; }), "SRN5001");
  EXPECT_EQ(with([](EngineOptions& o) { o.max_running = 0; }), "SRN5001");
  EXPECT_EQ(with([](EngineOptions& o) { o.window = 64, o.host_tokens = 640; }), "SRN5001");
  EXPECT_NE(with([](EngineOptions& o) { o.layout = "nonsense"; }), "nothing was raised");
}

}  // namespace
}  // namespace serinus::engine
