// The moments at which a fault can be injected into the engine. The engine calls them in this order
// within a step; an injector reaches everything through the Engine: pool bytes, tables, allocators,
// prefix cache, the monitor's raw records and ledger, and later() for what lands in a later step.
// It registers what it does with engine.fault_log(), which then explains the violations.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include <serinus/canary.h>

namespace serinus::engine {

class Engine;
struct ForwardBatch;
struct Transfer;

class FaultInjector {
 public:
  virtual ~FaultInjector() = default;

  /// Between two forwards, before anything of this step happened.
  virtual void step_begin(Engine&) {}

  // --- while the step is scheduled
  /// Pages were taken for `owner`; before the monitor hears of it. Page numbers may be changed (a
  /// double hand-out); the allocator tolerates the double free that follows.
  virtual void after_alloc(Engine&, canary::Owner, std::span<std::int64_t> /*pages*/) {}
  /// Before and after pages are given back, and the monitor told.
  virtual void before_free(Engine&, std::span<const std::int64_t> /*pages*/) {}
  virtual void after_free(Engine&, std::span<const std::int64_t> /*pages*/) {}
  /// Cells [begin, begin + slots.size()) of a row are about to be uploaded; they may be changed.
  virtual void table_write(Engine&, std::int64_t /*row*/, std::int64_t /*begin*/,
                           std::span<std::int32_t> /*slots*/) {}
  /// A transfer lands: bytes and records are copied between the two calls.
  virtual void before_transfer(Engine&, const Transfer&) {}
  virtual void after_transfer(Engine&, const Transfer&) {}

  // --- around the forward; the batch may be changed
  /// The batch and all tables are on the device; the head check follows.
  virtual void before_head(Engine&, ForwardBatch&) {}
  /// After the head check: the forward is about to write at batch.write_loc.
  virtual void before_write(Engine&, ForwardBatch&) {}
  /// The forward wrote; the tail check follows, then the records are stamped.
  virtual void after_write(Engine&, ForwardBatch&) {}
  /// After the tail and its stamps; violations were polled.
  virtual void after_tail(Engine&, const ForwardBatch&) {}

  /// The last check is done, and its violations were polled.
  virtual void drained(Engine&) {}
};

}  // namespace serinus::engine
