// Between an engine and whoever looks at it. The engine's thread calls look() after each step: it
// publishes a picture of bounded size a few times a second, and answers a few questions about
// slots. Everybody else reads what was published. Nobody who reads, however slowly, holds a lock
// for longer than it takes to copy some pointers, so no step ever waits for a browser.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include <serinus/canary.h>
#include <serinus/metrics.h>

namespace serinus::serve {

/// A pool, as a map shows it: cells of equally many slots, at most kMaxCells of them.
struct PoolPicture {
  static constexpr std::int64_t kMaxCells = 4096;

  std::string name, layout;
  canary::PoolKind kind = canary::PoolKind::full;
  canary::NullSlot null_slot = canary::NullSlot::clean;
  std::int64_t num_slots = 0, page_size = 1, token_bytes = 0;
  int num_layers = 1;
  std::int64_t slots_per_cell = 1;
  std::vector<std::uint32_t> empty, written;  ///< slots of each cell; the rest is free
  std::vector<std::uint32_t> cached;          ///< of the written ones, those that the cache holds
  std::uint64_t passes = 0;                   ///< how often all cells were looked at

  std::int64_t num_cells() const noexcept { return static_cast<std::int64_t>(written.size()); }
};

/// What happened since the point before.
struct HistoryPoint {
  std::uint64_t step = 0;   ///< at its end
  std::uint64_t steps = 0;  ///< that it spans
  std::uint64_t verified = 0;
  double check_seconds = 0;  ///< head, tail and sweep
};

enum class EngineState : std::uint8_t {
  none,     ///< nothing is attached: the reference alone
  running,  ///< it calls look()
  ended,    ///< it has done its work
};
const char* name_of(EngineState s) noexcept;

/// Everything at one time. Never changes once it is published.
struct Picture {
  EngineState state = EngineState::none;
  std::string engine;  ///< what it says it is: "replay of trace.jsonl"
  canary::Options options;
  std::optional<canary::Owner> cache;  ///< who holds what belongs to no request
  std::chrono::steady_clock::time_point taken;
  canary::MetricsSample metrics;
  std::vector<PoolPicture> pools;
  std::vector<HistoryPoint> history;
};

/// A violation, numbered in the order of arrival from 1 on.
struct SeenViolation {
  std::uint64_t number = 0;
  double time = 0;   ///< Unix time, s
  std::string pool;  ///< name
  std::string note;  ///< what the engine knows about it, such as the fault that it injected
  canary::Violation violation;
};
using SeenViolationPtr = std::shared_ptr<const SeenViolation>;

struct SlotAnswer {
  canary::SlotState state = canary::SlotState::free;
  std::optional<canary::Record> record;
  std::optional<canary::LedgerEntry> ledger;
  std::vector<canary::LedgerEvent> events;  ///< the last ones, oldest first
};

class Feed {
 public:
  /// How many violations are kept: the newest ones.
  static constexpr std::size_t kMaxViolations = 4096;

  explicit Feed(std::string engine);

  // --- the engine's thread
  /// Who holds the slots of the prefix cache. Before the first look().
  void set_cache_owner(canary::Owner owner);
  void add(canary::Violation v, std::string pool, std::string note);
  /// After each step, and now and then while idle. Does nothing where nothing is due.
  void look(canary::Monitor& monitor);
  /// The engine has done its work: publishes a complete picture. look() may go on, so that
  /// questions are answered, for as long as the monitor is there.
  void end(canary::Monitor& monitor);

  // --- any thread
  std::uint64_t run() const noexcept { return run_; }  ///< differs from run to run
  std::shared_ptr<const Picture> picture() const;
  struct Violations {
    std::vector<SeenViolationPtr> list;  ///< ascending
    std::uint64_t last = 0;              ///< number of the newest there is
    std::uint64_t first_kept = 1;        ///< older ones are gone
  };
  /// Those after number `since`, the oldest `limit` of them; without `since` the newest `limit`.
  Violations violations(std::optional<std::uint64_t> since, std::size_t limit) const;
  /// A page shows the maps: keep them current for the next seconds.
  void want_maps() const noexcept;
  /// Asks the engine, which answers at its next look(). Nothing where it does not come to it.
  std::optional<SlotAnswer> ask(int pool, std::int64_t slot, std::chrono::milliseconds patience);

 private:
  using Clock = std::chrono::steady_clock;
  struct Question {
    int pool = 0;
    std::int64_t slot = 0;
    bool answered = false;
    SlotAnswer answer;
  };

  void describe_pools(canary::Monitor& monitor);
  /// Looks at the next `most` slots of each pool.
  void scan(canary::Monitor& monitor, std::int64_t most);
  void answer_questions(canary::Monitor& monitor, std::size_t most);
  void publish(canary::Monitor& monitor);

  const std::uint64_t run_;

  // The engine's alone.
  Picture next_;
  std::vector<std::int64_t> cursors_;  // by pool: where the next scan begins
  Clock::time_point publish_due_, scan_due_, point_due_;
  canary::Stats last_point_;

  mutable std::mutex mutex_;
  std::shared_ptr<const Picture> published_;
  std::deque<SeenViolationPtr> violations_;
  std::uint64_t count_ = 0;  // violations so far
  std::deque<std::shared_ptr<Question>> questions_;
  std::condition_variable answered_;
  std::atomic<bool> asked_ = false;
  mutable std::atomic<std::int64_t> maps_wanted_until_ = 0;  // ns of Clock
};

}  // namespace serinus::serve
