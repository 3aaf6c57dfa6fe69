// Which fault explains which violation, and for how long.
#include "engine/fault_log.h"

#include <gtest/gtest.h>

#include <vector>

namespace serinus::engine {
namespace {

canary::Violation at(int pool, std::int64_t slot, canary::Owner request = 0) {
  canary::Violation v;
  v.pool = pool;
  v.slot = slot;
  v.request = request;
  v.reasons = canary::Reason::kv_bytes;
  return v;
}

void free_slot(FaultLog& log, int pool, std::int64_t slot, std::uint64_t step) {
  log.freed(pool, std::span(&slot, 1), step);
}

TEST(FaultLog, ExplainsWhatWasMarkedAndNothingElse) {
  FaultLog log;
  const int fault = log.add("byte_flip", 5, "");
  log.mark(fault, 1, 70);
  EXPECT_EQ(log.explain(at(1, 71), 6), -1);
  EXPECT_EQ(log.explain(at(0, 70), 6), -1);
  EXPECT_EQ(log.explain(at(1, 70), 9), fault);
  EXPECT_EQ(log.faults()[0].state, FaultState::detected);
  EXPECT_EQ(log.faults()[0].detected_step, 9u);
  EXPECT_EQ(log.explain(at(1, 70), 12), fault) << "seen again";
  EXPECT_EQ(log.faults()[0].detected_step, 9u) << "the first sighting counts";
}

TEST(FaultLog, AMarkEndsWithTheLivesOfItsSlot) {
  FaultLog log;
  const int once = log.add("byte_flip", 1, ""), twice = log.add("late_write", 1, "");
  log.mark(once, 0, 3);
  log.mark(twice, 0, 4, 2);
  free_slot(log, 0, 3, 10);
  free_slot(log, 0, 4, 10);
  EXPECT_EQ(log.explain(at(0, 3), 20), -1);
  EXPECT_EQ(log.explain(at(0, 4), 20), twice);
  free_slot(log, 0, 4, 21);
  EXPECT_EQ(log.explain(at(0, 4), 21), twice) << "a report of this step may still be unread";
  EXPECT_EQ(log.explain(at(0, 4), 23), -1);
}

TEST(FaultLog, WhatWasNeverSeenIsMaskedOrMissed) {
  FaultLog log;
  const int masked = log.add("byte_flip", 1, ""), missed = log.add("byte_flip", 1, "");
  const int invisible = log.add("pad_write", 1, "");
  log.mark(masked, 0, 3);
  log.mark(missed, 0, 4);
  log.set_not_visible(invisible, "no record lies there");
  free_slot(log, 0, 3, 2);
  log.finish();
  EXPECT_EQ(log.faults()[static_cast<std::size_t>(masked)].state, FaultState::masked);
  EXPECT_FALSE(log.faults()[static_cast<std::size_t>(masked)].why.empty());
  EXPECT_EQ(log.faults()[static_cast<std::size_t>(missed)].state, FaultState::missed);
  EXPECT_EQ(log.faults()[static_cast<std::size_t>(invisible)].state, FaultState::not_visible);
}

TEST(FaultLog, ARequestsMarkEndsWhenItIsReleased) {
  FaultLog log;
  const int fault = log.add("remapped_cell", 1, "");
  log.mark_request(fault, 42);
  EXPECT_EQ(log.explain(at(0, 999, 42), 2), fault);
  EXPECT_EQ(log.explain(at(0, 999, 43), 2), -1);
  log.released(42, 5);
  EXPECT_EQ(log.explain(at(0, 999, 42), 9), -1);
}

TEST(FaultLog, MarksTravelToTheHostAndBack) {
  FaultLog log;
  const int fault = log.add("byte_flip", 1, "");
  log.mark(fault, 0, 3);
  log.carried(0, 3, FaultLog::kHostPools, 7);
  free_slot(log, 0, 3, 2);
  log.carried(FaultLog::kHostPools, 7, 0, 9);
  EXPECT_EQ(log.explain(at(0, 3), 9), -1);
  EXPECT_EQ(log.explain(at(0, 9), 9), fault);
  log.carried(0, 100, FaultLog::kHostPools, 7);  // the host page is overwritten by a sound one
  log.carried(FaultLog::kHostPools, 7, 0, 11);
  EXPECT_EQ(log.explain(at(0, 11), 9), -1);
}

}  // namespace
}  // namespace serinus::engine
