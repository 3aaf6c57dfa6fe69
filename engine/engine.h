// The engine: continuous batching over paged pools with a prefix cache, and a canary on all of it.
// A step is: land what was issued, schedule, head check, forward, tail check, publish and finish.
// docs/design/engine.md says why it is as it is.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <serinus/canary.h>

#include "engine/fault_injector.h"
#include "engine/fault_log.h"
#include "engine/host_tier.h"
#include "engine/kv_pool.h"
#include "engine/page_allocator.h"
#include "engine/radix_cache.h"
#include "engine/request_table.h"
#include "engine/request_text.h"

namespace serinus::engine {

/// Who holds the pages of the prefix cache.
inline constexpr canary::Owner kCacheOwner = 0xffffffff;

struct EngineOptions {
  std::string layout = "fp8_656";
  KvLayoutOptions layout_options;  ///< its page_size is ignored: `page` holds
  int layers = 2;
  std::int64_t page = 64;                ///< tokens a page, 1..256
  std::int64_t pool_tokens = 1'000'000;  ///< rounded up to whole pages; the null page comes on top
  bool real_data = true;                 ///< false: no KV bytes at all
  /// Tokens of the longest request that will be submitted: columns of the request table.
  std::int64_t max_length = 0;

  std::int64_t window = 0;       ///< > 0: a second pool whose layers look back this many tokens
  std::int64_t swa_tokens = 0;   ///< its size; 0 = half of pool_tokens
  int draft_layers = 0;          ///< > 0: a draft pool, whose slot p holds the KV of token p + 1
  std::int64_t host_tokens = 0;  ///< > 0: a second tier of this size; not together with `window`
  std::uint64_t transfer_steps = 3;  ///< steps from issuing a transfer to its landing

  std::int64_t max_running = 256;   ///< requests at a time
  std::int64_t step_tokens = 8192;  ///< tokens that a forward writes at most (chunked prefill)
  std::int64_t decode_tokens =
      1;                ///< tokens that a request decodes a step (> 1: as if accepted drafts)
  bool serial = false;  ///< one request at a time

  Device device{};    ///< where the pools and the tables lie that the canary reads
  bool watch = true;  ///< false: no canary, to see what it costs
  canary::Options canary;
  canary::NullSlot null_slot = canary::NullSlot::clean;
  int threads = 0;  ///< 0 = all that the machine has; the result does not depend on it
};

/// One forward, on the "device". Flat arrays hold the extended tokens of all requests, in order.
struct ForwardBatch {
  std::vector<std::int64_t> rows, prefix_lens, extend_lens, valid_lens;
  std::vector<canary::Owner> owners;
  std::vector<std::int64_t> input_ids, positions, out_cache_loc;
  /// What the draft model reads at the same places: each token's successor. Empty without a draft.
  std::vector<std::int64_t> draft_ids;
  /// Where the forward really writes each token, in the full pool: out_cache_loc, unless a fault
  /// says otherwise. Negative: nowhere.
  std::vector<std::int64_t> write_loc;

  std::int64_t tokens() const noexcept { return static_cast<std::int64_t>(input_ids.size()); }
};

struct Request {
  enum class Phase : std::uint8_t { waiting, loading, running };

  Request(canary::Owner owner_, RequestText text_) : owner(owner_), text(std::move(text_)) {}

  canary::Owner owner;
  RequestText text;
  Phase phase = Phase::waiting;
  std::int64_t row = -1;
  std::int64_t length = 0;             ///< tokens whose KV is in the pool
  std::int64_t produced = 0;           ///< output tokens decided
  std::vector<std::int64_t> pages;     ///< of the full pool, in order of position
  std::vector<RadixCache::Node> path;  ///< the cached ones among them: the first path.size()
  std::int64_t swa_begin = 0;          ///< first page that may still have a place in the SWA pool
  std::int64_t promised = 0;  ///< pages that its admission set aside and that it has not yet taken
  bool admitted_before = false;

  /// Tokens whose ids are decided: the prompt and the output so far.
  std::int64_t known() const noexcept { return text.input_length() + produced; }
};

/// Pages on their way between device and host: issued, not yet landed.
struct Transfer {
  enum class Kind : std::uint8_t { store, load };
  Kind kind = Kind::store;
  canary::Owner owner = 0;
  std::uint64_t issued = 0, lands = 0;  ///< steps
  std::vector<RadixCache::Node> path;   ///< locked until it lands; its last nodes are what moves
  std::vector<std::int64_t> pages, host_pages;  ///< page by page, device and host
};

struct EnginePool {
  std::string name;
  canary::PoolKind kind;
  KvPool kv;
};

/// What happened so far. Tokens, unless said otherwise.
struct Counters {
  std::int64_t requests = 0;         ///< finished
  std::int64_t finished_tokens = 0;  ///< of those, prompts and outputs
  std::int64_t aborted = 0, preemptions = 0;
  std::int64_t input_tokens = 0;       ///< of admitted requests
  std::int64_t tokens_written = 0;     ///< KV written by forwards
  std::int64_t prefix_hit_tokens = 0;  ///< found in the cache when first admitted, both tiers
  std::int64_t host_hit_tokens = 0;    ///< of those, loaded from the second tier
  std::int64_t rehit_tokens = 0;       ///< found again by a preempted request
  std::int64_t deduplicated_tokens = 0;
  std::int64_t evicted_tokens = 0, stored_tokens = 0;
  std::int64_t false_alarms = 0;  ///< violations that no fault explains
  std::int64_t explained_violations = 0;
};

class Engine {
 public:
  /// Throws ValueError for options that cannot be.
  explicit Engine(const EngineOptions& options);
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  /// Queues a request. `owner` is new, not 0 and not kCacheOwner. Throws ValueError where it can
  /// never fit the pool.
  void submit(canary::Owner owner, RequestText text);
  /// Throws ValueError where a request of these lengths can never be served with these options.
  static void require_fits(const EngineOptions& options, canary::Owner owner,
                           std::int64_t input_length, std::int64_t output_length);
  /// Ends a request wherever it is. False if there is no such request.
  bool abort(canary::Owner owner);
  /// Takes a running request's pages; it will be prefilled again. To be called between steps (from
  /// later()). False if it is not running.
  bool preempt(canary::Owner owner);
  /// One step. False, and nothing done, when no request is left.
  bool step();
  /// Lands what is in flight and runs the checks that are still due; call it when step() is false.
  void drain();

  /// Called for every violation, with the fault that explains it or -1.
  std::function<void(const canary::Violation&, int fault)> on_violation;
  void set_injector(FaultInjector* injector) { injector_ = injector; }

  // --- state, for the fault lab, tests and reports
  const EngineOptions& options() const noexcept { return options_; }
  const Counters& counters() const noexcept { return counters_; }
  std::uint64_t now() const noexcept { return step_; }  ///< number of the current (or next) step
  /// Null without a canary. Pool numbers are the same as in pools().
  canary::Monitor* monitor() noexcept { return monitor_ ? &*monitor_ : nullptr; }
  canary::Stats canary_stats() const { return monitor_ ? monitor_->stats() : canary::Stats{}; }
  /// Seconds in calls to the monitor.
  double canary_seconds() const noexcept { return canary_seconds_; }
  FaultLog& fault_log() noexcept { return faults_; }
  const FaultLog& fault_log() const noexcept { return faults_; }

  /// Brings to the pools' device what the host wrote since. Nothing to do on the CPU.
  void send();
  /// Cells [begin, end) of a row of the table, or their tokens, were written: send() brings those
  /// and no others.
  void cells_changed(std::int64_t row, std::int64_t begin, std::int64_t end);
  /// The tables, as the canary reads them.
  TensorView slots_view() const;
  TensorView tokens_view() const;

  std::vector<EnginePool>& pools() noexcept { return pools_; }  ///< full; then swa, draft if any
  int swa_pool() const noexcept { return swa_pool_; }           ///< -1 = none
  int draft_pool() const noexcept { return draft_pool_; }
  RequestTable& table() noexcept { return table_; }
  PageAllocator& allocator() noexcept { return allocator_; }
  const PageAllocator& allocator() const noexcept { return allocator_; }
  PageAllocator* swa_allocator() noexcept { return swa_allocator_ ? &*swa_allocator_ : nullptr; }
  /// Slot of the full pool -> slot of the SWA pool, 0 = none.
  std::vector<std::int64_t>& full_to_swa() noexcept { return full_to_swa_; }
  RadixCache& cache() noexcept { return cache_; }
  HostTier* host() noexcept { return host_ ? &*host_ : nullptr; }
  const std::vector<std::unique_ptr<Request>>& running() const noexcept { return running_; }
  const std::deque<std::unique_ptr<Request>>& waiting() const noexcept { return waiting_; }

  /// Runs `landing` at the start of a later step (an asynchronous operation), after transfers.
  void later(std::uint64_t steps, std::function<void()> landing);

 private:
  using RequestPtr = std::unique_ptr<Request>;

  // engine.cpp
  template <class F>
  void watched(F&& f);
  void land_due();
  void forward();
  void write_kv(bool draft);
  void write_token_kv(const Request& r, std::int64_t position, std::int64_t slot, bool draft);
  void read_violations();
  canary::Batch device_batch(bool draft) const;
  void set_sweep_source(int pool);

  // schedule.cpp
  void schedule();
  void schedule_decodes(std::int64_t& budget);
  void schedule_prefills(std::int64_t& budget);
  void admit(std::int64_t& budget);
  bool admit_first(std::int64_t& budget);
  void add_chunk(Request& r, std::int64_t& budget);
  void add_to_batch(Request& r, std::int64_t tokens);
  void pad_batch();
  bool reserve(Request& r, std::int64_t tokens);
  std::int64_t available_pages() const noexcept;
  std::size_t usable_with_window(const std::vector<RadixCache::Node>& path) const;
  void attach(Request& r);
  void write_cells(Request& r, std::int64_t begin, std::int64_t end);
  void after_forward();
  void publish(Request& r, bool goes_on);
  void leave_window(Request& r);
  void leave(Request& r);
  void preempt_last();
  void preempt(std::vector<RequestPtr>::iterator at);

  // pages.cpp
  bool take_pages(canary::Owner owner, std::int64_t count, std::vector<std::int64_t>& pages);
  void give_pages(std::span<const std::int64_t> pages);
  void give_swa(std::span<const std::int64_t> pages);
  void hand_to_cache(std::span<const std::int64_t> pages, canary::Owner from);
  std::span<const std::int64_t> slots_of(std::span<const std::int64_t> pages,
                                         std::vector<std::int64_t>& slots) const;

  // transfers.cpp
  bool issue_load(Request& r, const std::vector<RadixCache::Node>& path, std::size_t on_device);
  void issue_store(const Request& r, std::size_t first);
  void land(Transfer& t);
  void land_load(Transfer& t);
  void land_store(Transfer& t);

  EngineOptions options_;
  std::vector<EnginePool> pools_;
  int swa_pool_ = -1, draft_pool_ = -1;
  PageAllocator allocator_;
  std::optional<PageAllocator> swa_allocator_;
  std::vector<std::int64_t> full_to_swa_;
  RequestTable table_;
  std::optional<gpu::Memory> slots_on_device_, tokens_on_device_, swa_on_device_;
  struct CellRange {
    std::int64_t row, begin, end;
  };
  std::vector<CellRange> changed_cells_;  // on the host, not on the device yet
  RadixCache cache_;
  std::optional<HostTier> host_;
  std::optional<canary::Monitor> monitor_;

  std::deque<RequestPtr> waiting_;
  std::vector<RequestPtr> running_;  // in order of admission, loading ones too
  std::deque<Transfer> transfers_;   // in order of landing
  std::set<RadixCache::Node> storing_;
  std::multimap<std::uint64_t, std::function<void()>> later_;
  std::int64_t promised_pages_ = 0;  // of admitted prompts, not yet taken
  ForwardBatch batch_;
  std::vector<Request*> in_batch_;  // the requests of batch_, in its order

  FaultInjector* injector_ = nullptr;
  FaultLog faults_;
  Counters counters_;
  std::uint64_t step_ = 0;
  double canary_seconds_ = 0;
  std::vector<int> target_pools_, draft_pools_;  // the pools of each model
  std::vector<std::int64_t> slots_scratch_;
  std::vector<std::int32_t> cells_scratch_;
};

}  // namespace serinus::engine
