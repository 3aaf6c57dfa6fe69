// The serinus format: what the Monitor's calls do to records and ledger.
#pragma once

#include <deque>
#include <unordered_map>
#include <vector>

#include "canary/backend.h"
#include "canary/serinus/pool.h"
#include "canary/serinus/reader.h"

namespace serinus::canary {

/// What the ledger knows about a request that reads.
struct Reader {
  struct Due {
    std::int64_t row = 0, begin = 0, end = 0;
    std::vector<bool> done;  ///< by pool
  };
  Attached attached;
  std::vector<Due> due;              ///< attached, not verified yet
  std::vector<std::int64_t> cursor;  ///< rolling verification, by pool
};

class SerinusBackend final : public Backend {
 public:
  using Backend::Backend;

  void add_pool(const PoolSpec& spec) override;
  void detach_pool(int pool) override;
  void on_alloc(int pool, std::span<const std::int64_t> slots, Owner owner) override;
  void on_free(int pool, std::span<const std::int64_t> slots, Owner owner) override;
  void on_transfer(int pool, std::span<const std::int64_t> slots, Owner from, Owner to) override;
  void on_attach(Owner owner, std::int64_t row, std::int64_t begin, std::int64_t end) override;
  void on_release(Owner owner) override;
  void on_move(int pool, std::span<const std::int64_t> from,
               std::span<const std::int64_t> to) override;
  void on_store(int pool, std::span<const std::int64_t> slots, std::span<Record> records,
                std::span<std::uint32_t> source_digests) override;
  void on_load(int pool, std::span<const Record> records, std::span<const std::int64_t> slots,
               Owner owner, std::span<const std::uint32_t> source_digests) override;
  void head(const Batch& batch, Stream stream) override;
  void tail(const Batch& batch, Stream stream) override;
  void sweep(Stream stream) override;
  void verify_now(Moment moment, Owner owner, std::int64_t row, std::int64_t begin,
                  std::int64_t end, const Batch& tables, Stream stream) override;
  void stamp(const Batch& batch, Stream stream) override;
  void flush() override;
  std::uint64_t request_digest(std::int64_t row, std::int64_t length,
                               const Batch& tables) const override;
  std::span<Record> records(int pool) override { return at(pool).records.span(); }
  std::span<LedgerEntry> ledger(int pool) override { return at(pool).ledger.span(); }
  std::span<std::uint32_t> source_digests(int pool) override {
    return at(pool).source_digests.span();
  }
  std::uint64_t null_digest(int pool) const override { return at(pool).null_digest; }
  SlotState state(int pool, std::int64_t slot) const override;
  std::int64_t live_slots(int pool) const override { return at(pool).num_live; }
  std::optional<std::uint64_t> digest_of(int pool, std::int64_t slot) const override {
    const Pool& p = at(pool);
    return kv_digest(p.raw_sources, p.spec.layout.page_size, slot, options_.depth);
  }
  std::int64_t num_sources(int pool) const override {
    return static_cast<std::int64_t>(at(pool).sources.size());
  }
  void set_sweep_source(int, std::function<void(std::vector<SweepEntry>&)>) override {}

 private:
  struct Walk;     // one request's cells in one pool
  struct Pending;  // slots whose bytes are still to be compared

  Pool& at(int pool) { return pools_[static_cast<std::size_t>(pool)]; }
  const Pool& at(int pool) const { return pools_[static_cast<std::size_t>(pool)]; }
  std::vector<int> pools_of(const Batch& batch) const;

  /// A violation at a slot of the pool, with what records and ledger say about it.
  Violation describe(int pool, std::int64_t slot, Moment moment, Reason reasons) const;
  void report(Violation v);
  void report_out_of_range(int pool, std::int64_t slot, Moment moment, Owner owner,
                           std::int64_t row, std::int64_t cell);

  void verify_batch(const Batch& batch, Moment moment);
  void verify_due(const Batch& batch);
  void verify_fresh();
  void verify_cells(int pool, Moment moment, Owner owner, std::int64_t row, std::int64_t begin,
                    std::int64_t end, const Table& table, const Table& expected,
                    std::int64_t valid);
  /// One cell that is not plainly sound: says what is wrong with it, if anything. Returns what the
  /// next cell continues.
  ChainBefore examine(const Walk& walk, int pool, Moment moment, std::int64_t cell, bool first,
                      const ChainBefore& before, Pending& pending);
  void verify_slots(int pool, Moment moment, std::span<const std::int64_t> slots);
  void verify_null(int pool, Moment moment);
  void compare_bytes(int pool, Pending& pending);
  void digest(const Pool& pool, std::span<const std::int64_t> slots,
              std::vector<std::uint64_t>& digests, std::vector<std::uint64_t>* contributions) const;

  std::deque<Pool> pools_;
  std::unordered_map<Owner, Reader> readers_;
  std::uint32_t epoch_ = 0;
};

}  // namespace serinus::canary
