// Every perturbation is found, for the reason that the triage page gives. Built with the injection
// itself, whatever the library was built with.
#include <gtest/gtest.h>

#include <serinus/canary_inject.h>
#include <serinus/error.h>

#include "rig.h"

namespace serinus::canary {
namespace {

using testing::Rig;

Options all_verified() {
  Options o;
  o.verify = VerifyPolicy::all;
  return o;
}

InjectOptions one(Perturbation p, std::uint64_t seed = 1) {
  InjectOptions o;
  o.enabled = true;
  o.seed = seed;
  o.probability[static_cast<std::size_t>(p)] = 1;
  o.warmup_steps = 0;
  return o;
}

struct Drill {
  Rig rig;
  Injector injector;
  std::vector<Injected> done;

  explicit Drill(const InjectOptions& o) : rig(32, all_verified()), injector(rig.monitor, o) {
    for (Owner owner = 1; owner <= 3; ++owner) rig.expect_tokens(owner, 20);
    rig.alloc(1, {3, 4, 5, 6});
    rig.run(1, 0, {3, 4, 5});
    rig.alloc(2, {10, 11, 12});
    rig.run(2, 0, {10, 11});
    rig.alloc(3, {20, 21});  // cached, read by nobody now
    rig.run(3, 0, {20, 21});
    EXPECT_TRUE(rig.monitor.poll().empty());
  }

  /// A decode of requests 1 and 2 with the injector around it; what the step and a sweep found.
  std::vector<Violation> step() {
    rig.map(1, 3, {6});
    rig.map(2, 2, {12});
    Rig::Forward f;
    f.add(1, 3, {6});
    f.add(2, 2, {12});
    const Batch b = f.with(rig.batch());
    done = injector.before_step(b, f.ids, f.positions);
    rig.monitor.begin_step(b);
    rig.write_bytes(f);
    rig.monitor.end_step(b);
    in_step = rig.monitor.poll();
    for (const Injected& i : injector.after_step(b)) done.push_back(i);
    rig.monitor.flush();
    std::vector<Violation> found = in_step;
    for (Violation& v : rig.monitor.poll()) found.push_back(std::move(v));
    return found;
  }
  std::vector<Violation> in_step;
};

bool has(const Violation& v, Reason r) {
  return any(v.reasons & r);
}

TEST(Inject, EveryPerturbationIsFoundWhereItWasDone) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    for (std::size_t p = 0; p < kNumPerturbations; ++p) {
      const auto what = static_cast<Perturbation>(p);
      Drill d(one(what, seed));
      const std::vector<Violation> found = d.step();
      if (d.done.empty()) {  // a table cell, or tokens, may be drawn twice
        EXPECT_TRUE(found.empty()) << name_of(what);
        continue;
      }
      ASSERT_EQ(d.done.size(), 1u) << name_of(what);
      const Injected& i = d.done[0];
      EXPECT_EQ(i.what, what);
      ASSERT_FALSE(found.empty()) << to_text(i);
      const Violation& v = found[0];
      switch (what) {
        case Perturbation::req_to_token:
          EXPECT_TRUE(has(v, Reason::chain) || has(v, Reason::token) || has(v, Reason::position));
          EXPECT_EQ(v.row, i.row);
          EXPECT_EQ(v.moment, Moment::head);
          break;
        case Perturbation::kv_used:
        case Perturbation::v_byte:
          EXPECT_EQ(v.reasons, Reason::kv_bytes) << to_text(i);
          EXPECT_EQ(v.slot, i.slot);
          EXPECT_EQ(v.moment, Moment::head);
          break;
        case Perturbation::kv_unused_cache:
          EXPECT_EQ(v.reasons, Reason::kv_bytes);
          EXPECT_EQ(v.moment, Moment::sweep);
          EXPECT_TRUE(v.slot == 20 || v.slot == 21);
          break;
        case Perturbation::kv_post_forward:
          EXPECT_TRUE(d.in_step.empty());  // after the stamp: the next look sees it
          EXPECT_EQ(v.reasons, Reason::kv_bytes);
          EXPECT_EQ(v.slot, i.slot);
          break;
        case Perturbation::token_swap:
          EXPECT_EQ(found.size(), 2u);
          EXPECT_TRUE(has(v, Reason::token));
          EXPECT_EQ(v.moment, Moment::tail);
          break;
        case Perturbation::position:
          EXPECT_TRUE(has(v, Reason::position));
          EXPECT_EQ(v.slot, i.slot);
          break;
        case Perturbation::record:
          EXPECT_TRUE(has(v, Reason::chain) || has(v, Reason::foreign_write)) << to_text(v, "");
          EXPECT_EQ(v.slot, i.slot);
          break;
      }
    }
  }
}

TEST(Inject, SeededWarmedUpAndOffByDefault) {
  const auto faults = [](std::uint64_t seed) {
    InjectOptions o = one(Perturbation::kv_used, seed);
    o.probability[static_cast<std::size_t>(Perturbation::record)] = 0.5;
    Drill d(o);
    std::string all;
    d.step();
    for (const Injected& i : d.done) all += to_text(i) + "\n";
    return all;
  };
  EXPECT_EQ(faults(7), faults(7));
  bool differs = false;
  for (std::uint64_t s = 1; s < 10; ++s) differs |= faults(s) != faults(s + 1);
  EXPECT_TRUE(differs);
  InjectOptions late = one(Perturbation::kv_used);
  late.warmup_steps = 1;
  Drill d(late);
  EXPECT_TRUE(d.step().empty());
  EXPECT_TRUE(d.done.empty());
  Rig rig;
  EXPECT_THROW(Injector(rig.monitor, InjectOptions{}), RuntimeError);
  InjectOptions nothing;
  nothing.enabled = true;
  nothing.warmup_steps = 0;
  Drill quiet(nothing);
  EXPECT_TRUE(quiet.step().empty());
}

}  // namespace
}  // namespace serinus::canary
