// Where violations gather until somebody takes them: one fault is one violation with a count.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <mutex>
#include <set>
#include <unordered_map>
#include <vector>

#include <serinus/canary.h>

#include "canary/event_log.h"

namespace serinus::canary {

/// Thread-safe. Bounded: at most `capacity` violations wait, the rest is counted as dropped.
class Reporter {
 public:
  Reporter(std::int64_t capacity, Mode mode, const EventLog& events);

  void add_pool_name(std::string name);
  void log_to(std::shared_ptr<FileSink> sink);

  /// `v.count` sightings. `life` tells faults at one slot apart (generation; row and cell where
  /// there is no slot). A
  /// fault that is known already only counts up; one that shows a new reason after it was taken is
  /// handed out again with all its reasons.
  void report(Violation v, std::uint64_t life);
  /// Faults that nobody could describe any more.
  void drop(std::uint64_t n);
  /// The life is over: the next fault at this slot is a new one.
  void forget(int pool, std::int64_t slot, std::uint64_t life);
  /// Whether there is anything to forget; cheap.
  bool empty() const noexcept { return seen_.empty(); }

  std::vector<Violation> take();
  Monitor::Tainted take_tainted();

  struct Counts {
    std::uint64_t violations = 0, sightings = 0, dropped = 0;
  };
  Counts counts() const;
  /// Distinct violations of a pool by reason; one with several reasons counts under each.
  using ByReason = std::array<std::uint64_t, kNumReasons>;
  std::vector<ByReason> counts_by_reason() const;
  /// One line about the first violation since the last call; empty if there was none.
  std::string first_since_last_call();

 private:
  struct Key {
    std::int64_t slot = 0;
    std::uint64_t life = 0;
    int pool = 0;
    bool operator==(const Key&) const = default;
  };
  struct KeyHash {
    std::size_t operator()(const Key& k) const noexcept;
  };
  struct Seen {
    Violation violation;
    std::uint64_t round = 0;  ///< take() that will hand it out
    std::size_t index = 0;    ///< in pending_
  };

  void taint(const Violation& v);

  mutable std::mutex mutex_;
  std::size_t capacity_;
  Mode mode_;
  const EventLog& events_;
  std::shared_ptr<FileSink> sink_;
  void count(int pool, Reason reasons);

  std::vector<std::string> pool_names_;
  std::vector<ByReason> by_reason_;  // by pool
  std::unordered_map<Key, Seen, KeyHash> seen_;
  std::vector<Violation> pending_;
  std::uint64_t round_ = 1;
  std::set<std::pair<int, std::int64_t>> tainted_slots_;
  std::set<Owner> tainted_requests_;
  bool taint_complete_ = true;
  Counts counts_;
  std::string first_;
};

}  // namespace serinus::canary
