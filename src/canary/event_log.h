// What was announced about slots, as far back as a bounded ring reaches: the evidence that a report
// carries. It works for every record format and device, since announcements come from the host.
#pragma once

#include <cstdint>
#include <deque>
#include <limits>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

#include <serinus/canary.h>

#include "canary/zero_array.h"

namespace serinus::canary {

/// Thread-safe. One ring a pool; an entry knows the entry before it about the same slot, so that a
/// slot's history is found without a search.
class EventLog {
 public:
  /// `capacity` events a pool; 0 keeps none. Below 2^31.
  explicit EventLog(std::int64_t capacity) : capacity_(static_cast<std::uint32_t>(capacity)) {}

  void add_pool(std::int64_t num_slots);
  void drop_last_pool();

  /// One event a slot; `peers` is empty or has one entry a slot. Slots outside the pool are passed
  /// over.
  void add(int pool, LedgerEventKind kind, std::span<const std::int64_t> slots, Owner owner,
           std::uint64_t step, std::int64_t peer = -1, std::span<const std::int64_t> peers = {});

  /// The last events of a slot up to a step, at most `n`, oldest first.
  std::vector<LedgerEvent> last(
      int pool, std::int64_t slot, std::size_t n,
      std::uint64_t step = std::numeric_limits<std::uint64_t>::max()) const;
  /// All that the ring holds, oldest first, with the slot.
  std::vector<std::pair<std::int64_t, LedgerEvent>> all(int pool) const;

 private:
  struct Entry {
    LedgerEvent event;
    std::int64_t slot = -1;
    std::uint32_t before = 0;  ///< of the same slot; 0 = none
  };
  struct Ring {
    explicit Ring(std::int64_t num_slots) : newest(num_slots), slots(num_slots) {}
    std::vector<Entry> entries;       ///< grows up to the capacity, then goes round
    ZeroArray<std::uint32_t> newest;  ///< a slot's newest event: its number modulo 2^32
    std::int64_t slots = 0;
    std::uint64_t count = 0;  ///< events ever; they are numbered from 1
  };

  std::uint32_t capacity_;
  mutable std::mutex mutex_;
  std::deque<Ring> rings_;
};

}  // namespace serinus::canary
