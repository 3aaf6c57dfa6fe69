// The text and the JSON of a violation are read by other programs: frozen.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include <serinus/canary.h>

#include "canary/reporter.h"

namespace serinus::canary {
namespace {

Violation example() {
  Violation v;
  v.reasons = Reason::token | Reason::kv_bytes;
  v.moment = Moment::tail;
  v.pool = 1;
  v.slot = 42;
  v.expected_position = 7;
  v.stored_position = 8;
  v.expected_token = 15339;
  v.stored_token = 374;
  v.expected_chain = 0x1122334455667788u;
  v.stored_chain = 1;
  v.expected_digest = 0xFFFFFFFFFFFFFFFFu;
  v.stored_digest = 0xabcdef;
  v.expected_owner = 3;
  v.stored_owner = 4;
  v.expected_generation = 10;
  v.stored_generation = 9;
  v.request = 3;
  v.row = 2;
  v.prev_slot = 41;
  v.first_step = 100;
  v.last_step = 104;
  v.count = 5;
  return v;
}

TEST(Report, Text) {
  Violation v = example();
  const std::string line =
      "kv-canary violation: reasons=token+kv_bytes moment=tail format=serinus pool=kv slot=42 "
      "request=3 row=2 position=7/8 token=15339/374 chain=1122334455667788/0000000000000001 "
      "digest=ffffffffffffffff/0000000000abcdef owner=3/4 generation=10/9 prev_slot=41 "
      "steps=100..104 count=5";
  EXPECT_EQ(to_text(v, "kv"), line);
  v.layer = 60;
  v.segment = "v.head3";
  EXPECT_EQ(to_text(v, "kv"), line + " layer=60 segment=v.head3");
  v.events = {{12, LedgerEventKind::alloc, 7},
              {13, LedgerEventKind::transfer, 7, 9},
              {14, LedgerEventKind::moved_from, 0, 40},
              {15, LedgerEventKind::free, 0}};
  EXPECT_EQ(to_text(v, "kv"), line +
                                  " layer=60 segment=v.head3 events=alloc:7@12,transfer:7>9@13,"
                                  "moved_from:>40@14,free:@15");
}

TEST(Report, Json) {
  EXPECT_EQ(
      to_json(example(), "k\"v\n"),
      R"({"reasons":["token","kv_bytes"],"moment":"tail","format":"serinus","pool":"k\"v\u000a",)"
      R"("slot":42,"request":3,"row":2,"expected_position":7,"stored_position":8,)"
      R"("expected_token":15339,"stored_token":374,"expected_chain":"1122334455667788",)"
      R"("stored_chain":"0000000000000001","expected_digest":"ffffffffffffffff",)"
      R"("stored_digest":"0000000000abcdef","expected_owner":3,"stored_owner":4,)"
      R"("expected_generation":10,"stored_generation":9,"prev_slot":41,"layer":-1,"segment":"",)"
      R"("first_step":100,"last_step":104,"count":5,"events":[]})");
  Violation v = example();
  v.events = {{12, LedgerEventKind::alloc, 7}, {13, LedgerEventKind::transfer, 7, 9}};
  EXPECT_TRUE(to_json(v, "kv").ends_with(
      R"("count":5,"events":[{"event":"alloc","owner":7,"peer":-1,"step":12},)"
      R"({"event":"transfer","owner":7,"peer":9,"step":13}]})"));
  const auto parsed = nlohmann::json::parse(to_json(v, "k\"v\n"));
  EXPECT_EQ(parsed["events"][1]["peer"], 9);
  EXPECT_EQ(parsed["pool"], "k\"v\n");
  EXPECT_EQ(parsed["reasons"].size(), 2u);
}

TEST(Report, Names) {
  EXPECT_EQ(names_of(Reason::none), "none");
  EXPECT_EQ(names_of(static_cast<Reason>(0x3FF)),
            "token+position+chain+kv_bytes+stale+foreign_write+double_owner+out_of_range+"
            "null_slot_dirty+digest_differs_across_ranks");
  EXPECT_STREQ(name_of(Format::sglang), "sglang");
  EXPECT_STREQ(name_of(Depth::partial), "partial");
  EXPECT_STREQ(name_of(Moment::sweep), "sweep");
}

// One fault is one report, until a new reason shows: then it tells of the sighting that brought it,
// which may be another request's, and of all that was known.
TEST(Reporter, ANewReasonTellsOfItsOwnSighting) {
  EventLog events(4);
  events.add_pool(10);
  Reporter reporter(1, Mode::log, events);
  reporter.add_pool_name("kv");
  Violation first;
  first.slot = 5;
  first.reasons = Reason::chain;
  first.request = 11;
  first.prev_slot = 7;
  first.expected_chain = 99;
  first.first_step = first.last_step = 10;
  reporter.report(first, 1);
  EXPECT_EQ(reporter.take().at(0).request, 11u);
  Violation second = first;
  second.reasons = Reason::token;
  second.request = 20;
  second.prev_slot = 9;
  second.expected_chain = 0;
  second.first_step = second.last_step = 30;
  reporter.report(second, 1);
  const std::vector<Violation> again = reporter.take();
  ASSERT_EQ(again.size(), 1u);
  EXPECT_EQ(names_of(again[0].reasons), "token+chain");
  EXPECT_EQ(again[0].request, 20u);
  EXPECT_EQ(again[0].prev_slot, 9);
  EXPECT_EQ(again[0].expected_chain, 99u);
  EXPECT_EQ(again[0].first_step, 10u);
  EXPECT_EQ(again[0].last_step, 30u);
  EXPECT_EQ(again[0].count, 2u);
  reporter.report(first, 1);
  EXPECT_TRUE(reporter.take().empty());
  // Where the ring is full of others, a new reason is lost, and counted.
  Violation other = first;
  other.slot = 6;
  reporter.report(other, 1);
  second.reasons = Reason::position;
  reporter.report(second, 1);
  EXPECT_EQ(reporter.take().size(), 1u);
  EXPECT_EQ(reporter.counts().dropped, 1u);
}

// Names come from an engine, a dump, another machine: a report stays one line of printable text.
TEST(Text, NamesCannotBreakTheLine) {
  Violation v;
  v.layer = 0;
  v.segment = "k\n\x1b[2J";
  const std::string line = to_text(v, "a\nkv-canary violation: reasons=none \x1b]0;x\x07");
  for (const char c : line) EXPECT_TRUE(c >= 0x20 && c < 0x7f) << line;
  const std::string stall = to_text(Stall{}, "a\nb");
  EXPECT_EQ(stall.find('\n'), std::string::npos) << stall;
}

}  // namespace
}  // namespace serinus::canary
