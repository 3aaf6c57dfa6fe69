// What a record format does at each call of the Monitor. The Monitor has checked the arguments, and
// calls nothing in Mode::none.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include <serinus/canary.h>
#include <serinus/canary_cuda.h>

#include "canary/reporter.h"
#include "canary/tables.h"

namespace serinus::canary {

class Backend {
 public:
  Backend(const Options& options, Reporter& reporter) : options_(options), reporter_(reporter) {}
  virtual ~Backend() = default;
  Backend(const Backend&) = delete;
  Backend& operator=(const Backend&) = delete;

  virtual void add_pool(const PoolSpec& spec) = 0;
  /// Its memory is never read again.
  virtual void detach_pool(int pool) = 0;

  virtual void on_alloc(int pool, std::span<const std::int64_t> slots, Owner owner) = 0;
  virtual void on_free(int pool, std::span<const std::int64_t> slots, Owner owner) = 0;
  virtual void on_transfer(int pool, std::span<const std::int64_t> slots, Owner from, Owner to) = 0;
  virtual void on_attach(Owner owner, std::int64_t row, std::int64_t begin, std::int64_t end) = 0;
  virtual void on_release(Owner owner) = 0;
  virtual void on_move(int pool, std::span<const std::int64_t> from,
                       std::span<const std::int64_t> to) = 0;
  virtual void on_store(int pool, std::span<const std::int64_t> slots, std::span<Record> records,
                        std::span<std::uint32_t> source_digests) = 0;
  virtual void on_load(int pool, std::span<const Record> records,
                       std::span<const std::int64_t> slots, Owner owner,
                       std::span<const std::uint32_t> source_digests) = 0;

  virtual void head(const Batch& batch, Stream stream) = 0;
  virtual void tail(const Batch& batch, Stream stream) = 0;
  virtual void sweep(Stream stream) = 0;
  virtual void verify_now(Moment moment, Owner owner, std::int64_t row, std::int64_t begin,
                          std::int64_t end, const Batch& tables, Stream stream) = 0;
  virtual void stamp(const Batch& batch, Stream stream) = 0;
  virtual void flush() = 0;
  virtual std::uint64_t request_digest(std::int64_t row, std::int64_t length,
                                       const Batch& tables) const = 0;

  // --- pools on a GPU
  /// Batches whose arrays lie there; refused for pools on the CPU.
  virtual void head(const cuda::DeviceBatch&, std::span<const int> pools, Stream);
  virtual void tail(const cuda::DeviceBatch&, std::span<const int> pools, Stream);
  /// What was announced and what is due for it, before a graph that holds the moments.
  virtual void catch_up(const cuda::DeviceBatch&, std::span<const int> pools, Stream);
  virtual void request_digests(int pool, const cuda::DeviceBatch&, const TensorView& digests,
                               Stream) const;
  /// Launches into this stream become part of a graph.
  virtual bool is_captured(Stream) const { return false; }
  /// Takes what the device found since, if it is there already. From any thread, as the next two.
  virtual void drain() {}
  /// Waits for the device, and takes all that it found.
  virtual void wait() {}
  /// Steps that the device has ended, as far as drain() knows.
  virtual std::uint64_t device_steps() const { return 0; }
  virtual void add_device_counts(Stats&) const {}

  virtual std::span<Record> records(int pool) = 0;
  virtual void set_record(int pool, std::int64_t slot, const Record& record) {
    records(pool)[static_cast<std::size_t>(slot)] = record;
  }
  /// The first `length` cells of a row of a table, as far as there are any.
  virtual std::vector<std::int32_t> cells(const TensorView& table, std::int64_t row,
                                          std::int64_t length) const;
  /// What the host cannot read where the PoolSpec says that it lies: copies of it.
  virtual std::vector<std::int64_t> full_to_swa(int) const { return {}; }
  virtual std::vector<std::uint8_t> slot_bytes(int, std::int64_t) const { return {}; }
  virtual std::span<LedgerEntry> ledger(int pool) = 0;
  virtual std::span<std::uint32_t> source_digests(int) { return {}; }
  virtual std::uint64_t null_digest(int) const { return 0; }
  virtual SlotState state(int pool, std::int64_t slot) const = 0;
  /// Allocated slots of one pool, where the format counts them.
  virtual std::int64_t live_slots(int) const { return 0; }
  virtual std::optional<std::uint64_t> digest_of(int pool, std::int64_t slot) const = 0;
  virtual std::int64_t num_sources(int pool) const = 0;
  virtual void set_sweep_source(int pool, std::function<void(std::vector<SweepEntry>&)> source) = 0;

  /// Counters of this backend; the Monitor adds what the reporter and the clock know.
  Stats stats;
  std::uint64_t step = 0;

 protected:
  bool is_attached(int pool) const noexcept {
    return std::find(detached_.begin(), detached_.end(), pool) == detached_.end();
  }

  /// The rolling budget of a pool, in records: the bytes that they are hashed with are bounded,
  /// too. Head and tail have a quarter of it each, the sweep half.
  std::int64_t records_a_step(std::int64_t slot_bytes) const noexcept {
    std::int64_t n = options_.records_per_step;
    if (slot_bytes > 0) n = std::min(n, options_.bytes_per_step / slot_bytes);
    return std::max<std::int64_t>(n, 1);
  }
  std::int64_t records_a_moment(std::int64_t slot_bytes) const noexcept {
    return std::max<std::int64_t>(records_a_step(slot_bytes) / 4, 1);
  }
  std::int64_t records_a_sweep(std::int64_t slot_bytes) const noexcept {
    return std::max<std::int64_t>(records_a_step(slot_bytes) / 2, 1);
  }

  const Options& options_;
  Reporter& reporter_;
  std::vector<int> detached_;
};

std::unique_ptr<Backend> make_serinus_backend(const Options& options, Reporter& reporter);
std::unique_ptr<Backend> make_sglang_backend(const Options& options, Reporter& reporter);
/// The same on a GPU: all their pools lie there.
std::unique_ptr<Backend> make_cuda_backend(const Options& options, Reporter& reporter,
                                           Device device);
std::unique_ptr<Backend> make_sglang_cuda_backend(const Options& options, Reporter& reporter,
                                                  Device device);

}  // namespace serinus::canary
