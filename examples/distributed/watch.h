// The canary over a node's pool. Over host memory it is a Monitor, as it is; over a GPU's it is the
// canary's kernels, with the same calls (device_watch.h). Meanings: serinus/canary.h, Monitor.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include <serinus/canary.h>

namespace distributed {

class Watch {
 public:
  using Owner = serinus::canary::Owner;
  using Record = serinus::canary::Record;
  using Batch = serinus::canary::Batch;
  using Slots = std::span<const std::int64_t>;

  virtual ~Watch() = default;
  /// Once. `rows` is that of req_to_token.
  virtual void add_pool(const serinus::canary::PoolSpec& spec, std::int64_t rows) = 0;
  virtual void on_alloc(Slots slots, Owner owner) = 0;
  virtual void on_free(Slots slots, Owner owner) = 0;
  virtual void on_release(Owner owner) = 0;
  virtual void on_store(Slots slots, std::span<Record> records,
                        std::span<std::uint32_t> source_digests) = 0;
  virtual void on_load(std::span<const Record> records, Slots slots, Owner owner,
                       std::span<const std::uint32_t> source_digests) = 0;
  virtual void begin_step(const Batch& batch) = 0;
  virtual void end_step(const Batch& batch) = 0;
  /// All cells below the prefix_lens of the batch, now.
  virtual void verify(const Batch& batch) = 0;
  /// Over row, owner and prefix_len of the batch's first request.
  virtual std::uint64_t request_digest(const Batch& batch) = 0;
  virtual void on_rank_digests(Owner owner, std::span<const std::uint64_t> digests) = 0;
  virtual void flush() = 0;
  virtual std::vector<serinus::canary::Violation> poll() = 0;
  /// Words of source digests a slot; 0 where a violation does not name layer and segment.
  virtual std::int64_t source_digests() const = 0;
};

class MonitorWatch : public Watch {
 public:
  explicit MonitorWatch(const serinus::canary::Options& options) : monitor_(options) {}

  void add_pool(const serinus::canary::PoolSpec& spec, std::int64_t) override {
    monitor_.add_pool(spec);
  }
  void on_alloc(Slots slots, Owner owner) override { monitor_.on_alloc(0, slots, owner); }
  void on_free(Slots slots, Owner owner) override { monitor_.on_free(0, slots, owner); }
  void on_release(Owner owner) override { monitor_.on_release(owner); }
  void on_store(Slots slots, std::span<Record> records,
                std::span<std::uint32_t> source_digests) override {
    monitor_.on_store(0, slots, records, source_digests);
  }
  void on_load(std::span<const Record> records, Slots slots, Owner owner,
               std::span<const std::uint32_t> source_digests) override {
    monitor_.on_load(0, records, slots, owner, source_digests);
  }
  void begin_step(const Batch& batch) override { monitor_.begin_step(batch); }
  void end_step(const Batch& batch) override { monitor_.end_step(batch); }
  void verify(const Batch& batch) override {
    for (std::size_t i = 0; i < batch.rows.size(); ++i) {
      monitor_.verify_now(serinus::canary::Moment::head, batch.owners[i], batch.rows[i], 0,
                          batch.prefix_lens[i], batch);
    }
  }
  std::uint64_t request_digest(const Batch& batch) override {
    return monitor_.request_digest(batch.rows[0], batch.prefix_lens[0], batch);
  }
  void on_rank_digests(Owner owner, std::span<const std::uint64_t> digests) override {
    monitor_.on_rank_digests(owner, owner, digests);
  }
  void flush() override { monitor_.flush(); }
  std::vector<serinus::canary::Violation> poll() override { return monitor_.poll(); }
  std::int64_t source_digests() const override { return monitor_.num_sources(0); }

 private:
  serinus::canary::Monitor monitor_;
};

}  // namespace distributed
