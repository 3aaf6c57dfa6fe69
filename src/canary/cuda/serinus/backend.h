// The Monitor over pools on a GPU: what is announced gathers on the host and goes to the device
// with the next step, in that step's stream, as one copy and one launch; the moments are launches;
// what was found comes back through page-locked memory when somebody polls. Nothing here waits for
// the device but the calls that must: flush(), detach_pool(), and those that read raw state.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <unordered_map>
#include <vector>

#include <serinus/canary_cuda.h>

#include "canary/cuda/device_backend.h"
#include "canary/serinus/reader.h"
#include "canary/zero_array.h"
#include "gpu/async.h"
#include "gpu/memory.h"

namespace serinus::canary::cuda {

class CudaBackend final : public DeviceBackend {
 public:
  CudaBackend(const Options& options, Reporter& reporter, Device device);
  ~CudaBackend() override;

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

  void head(const DeviceBatch& batch, std::span<const int> pools, Stream stream) override;
  void tail(const DeviceBatch& batch, std::span<const int> pools, Stream stream) override;
  void catch_up(const DeviceBatch& batch, std::span<const int> pools, Stream stream) override;

  void request_digests(int pool, const DeviceBatch& batch, const TensorView& digests,
                       Stream stream) const override;

  std::span<Record> records(int pool) override;
  std::span<LedgerEntry> ledger(int pool) override;
  std::span<std::uint32_t> source_digests(int pool) override;
  void set_record(int pool, std::int64_t slot, const Record& record) override;
  std::uint64_t null_digest(int pool) const override;
  SlotState state(int pool, std::int64_t slot) const override;
  std::int64_t live_slots(int pool) const override;
  std::optional<std::uint64_t> digest_of(int pool, std::int64_t slot) const override;
  std::int64_t num_sources(int pool) const override;
  void set_sweep_source(int, std::function<void(std::vector<SweepEntry>&)>) override {}

 protected:
  int num_pools() const override;
  const PoolSpec& spec(int pool) const override;
  std::span<const Source> sources(int pool) const override;
  bool pass_on(Stream stream) override;
  bool describe(Violation& v, int source, std::uint64_t& life) const override;

 private:
  struct Pool;
  struct Pending;   // announced, not on the device yet
  class Section;    // what goes to the device in one copy, and the launches that read it
  class CellBatch;  // requests that are nothing but cells to be verified in full
  struct Due {
    Owner owner = 0;
    std::int64_t row = 0, begin = 0, end = 0;
    std::vector<bool> done{};  // by pool
  };
  struct Cells {  // of one request, to be verified in full
    Owner owner = 0;
    std::int64_t row = 0, begin = 0, end = 0, valid = 0;
  };

  Pool& at(int pool) const { return *pools_[static_cast<std::size_t>(pool)]; }

  void announce(int pool, std::int64_t slot, LedgerEventKind kind, Owner owner,
                std::uint32_t other);
  Pending& next_pending(int pool);
  /// The raw state, by what was announced of `slots` slots.
  void changed(std::size_t slots);
  void forget_row(Owner owner);

  TensorView workspace(Stream stream, std::int64_t requests, std::int64_t tokens,
                       std::int64_t slots);
  std::vector<Cells> take_due(int pool, const Batch* batch);
  void verify_due(const Section& section, int pool, const CellBatch& cells, Moment moment,
                  const TensorView& table, const std::optional<TensorView>& expected);
  std::size_t words_each(int pool) const;
  void stamp_words(const std::vector<int>& pools, const DeviceBatch& batch, Stream stream);
  void name_damaged(Stream stream);
  void run_head(const std::vector<int>& pools, const DeviceBatch& batch, Stream stream);
  void run_tail(const std::vector<int>& pools, const DeviceBatch& batch, Stream stream);
  void run_stamp(const std::vector<int>& pools, const DeviceBatch& batch, Stream stream);
  DeviceBatch with_attached(DeviceBatch batch) const;

  std::vector<std::unique_ptr<Pool>> pools_;
  std::optional<gpu::Memory> attached_;  // [table rows, kAttachedEach] AttachedCells
  std::int64_t table_rows_ = 0;

  // Announced, not on the device yet, in order.
  std::vector<Pending> pending_;
  std::uint32_t epoch_ = 0;
  std::unordered_map<Owner, std::int64_t> row_of_;
  std::unordered_map<std::int64_t, std::pair<Owner, Attached>> rows_;  // what was attached
  std::set<std::int64_t> changed_rows_;
  std::deque<Due> due_;

  std::map<std::pair<void*, std::uint64_t>, gpu::Memory> workspaces_;  // by stream and capture
  std::deque<gpu::Memory> outgrown_;                                   // may be in use by a graph
  // What of the sweep went with the tail before it.
  std::vector<int> swept_;
  bool counted_ = false;
  std::uint64_t version_ = 1;  // of the raw state
};

}  // namespace serinus::canary::cuda
