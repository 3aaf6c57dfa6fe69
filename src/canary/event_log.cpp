#include "canary/event_log.h"

#include <algorithm>

namespace serinus::canary {

void EventLog::add_pool(std::int64_t num_slots) {
  const std::lock_guard lock(mutex_);
  rings_.emplace_back(capacity_ == 0 ? 0 : num_slots);
}

void EventLog::drop_last_pool() {
  const std::lock_guard lock(mutex_);
  rings_.pop_back();
}

void EventLog::add(int pool, LedgerEventKind kind, std::span<const std::int64_t> slots, Owner owner,
                   std::uint64_t step, std::int64_t peer, std::span<const std::int64_t> peers) {
  if (capacity_ == 0) return;
  const std::lock_guard lock(mutex_);
  Ring& ring = rings_[static_cast<std::size_t>(pool)];
  for (std::size_t i = 0; i < slots.size(); ++i) {
    const std::int64_t slot = slots[i];
    if (slot < 0 || slot >= ring.slots) continue;
    Entry e{{step, kind, owner, peers.empty() ? peer : peers[i]}, slot, ring.newest[slot]};
    const std::size_t at = ring.count % capacity_;
    if (at < ring.entries.size()) {
      ring.entries[at] = e;
    } else {
      ring.entries.push_back(e);
    }
    ring.newest[slot] = static_cast<std::uint32_t>(++ring.count);
  }
}

std::vector<LedgerEvent> EventLog::last(int pool, std::int64_t slot, std::size_t n,
                                        std::uint64_t step) const {
  std::vector<LedgerEvent> found;
  if (capacity_ == 0) return found;
  const std::lock_guard lock(mutex_);
  const Ring& ring = rings_[static_cast<std::size_t>(pool)];
  if (slot < 0 || slot >= ring.slots) return found;
  // Numbers are kept modulo 2^32: what is not in the ring any more shows by its age or by its slot.
  for (std::uint32_t number = ring.newest[slot]; number != 0 && found.size() < n;) {
    const std::uint64_t age = static_cast<std::uint32_t>(ring.count) - number;
    if (age >= ring.entries.size()) break;
    const Entry& e = ring.entries[(ring.count - 1 - age) % capacity_];
    if (e.slot != slot) break;
    if (e.event.step <= step) found.push_back(e.event);
    number = e.before;
  }
  std::reverse(found.begin(), found.end());
  return found;
}

std::vector<std::pair<std::int64_t, LedgerEvent>> EventLog::all(int pool) const {
  std::vector<std::pair<std::int64_t, LedgerEvent>> found;
  if (capacity_ == 0) return found;
  const std::lock_guard lock(mutex_);
  const Ring& ring = rings_[static_cast<std::size_t>(pool)];
  const std::size_t kept = ring.entries.size();
  for (std::size_t i = 0; i < kept; ++i) {
    const Entry& e = ring.entries[(ring.count - kept + i) % capacity_];
    found.emplace_back(e.slot, e.event);
  }
  return found;
}

}  // namespace serinus::canary
