#include "canary/reporter.h"

#include <algorithm>
#include <utility>

#include <serinus/canary_sink.h>
#include <serinus/log.h>

namespace serinus::canary {

namespace {

constexpr std::size_t kRemembered = 64;  // faults that are known, and tainted slots, a ring entry

// What one sighting could not know, another can.
void fill_in(Violation& known, const Violation& v) {
  const auto fill = [](auto& to, const auto& from, auto unknown) {
    if (to == unknown) to = from;
  };
  fill(known.expected_token, v.expected_token, -1);
  fill(known.expected_position, v.expected_position, -1);
  fill(known.stored_token, v.stored_token, -1);
  fill(known.stored_position, v.stored_position, -1);
  fill(known.expected_chain, v.expected_chain, 0u);
  fill(known.stored_chain, v.stored_chain, 0u);
  fill(known.expected_digest, v.expected_digest, 0u);
  fill(known.stored_digest, v.stored_digest, 0u);
  fill(known.request, v.request, 0u);
  fill(known.row, v.row, -1);
  if (known.layer < 0) {
    known.layer = v.layer;
    known.segment = v.segment;
  }
}

void merge(Violation& known, const Violation& v) {
  known.reasons |= v.reasons;
  known.last_step = v.last_step;
  known.count += v.count;
  fill_in(known, v);
}

// A fault that is handed out again tells of the sighting that brought the new reason: that may be
// another request's, by another fault.
Violation told_again(const Violation& known, Violation v) {
  v.reasons |= known.reasons;
  v.first_step = known.first_step;
  v.count += known.count;
  fill_in(v, known);
  return v;
}

}  // namespace

Reporter::Reporter(std::int64_t capacity, Mode mode, const EventLog& events)
    : capacity_(static_cast<std::size_t>(capacity)), mode_(mode), events_(events) {}

void Reporter::add_pool_name(std::string name) {
  const std::lock_guard lock(mutex_);
  pool_names_.push_back(std::move(name));
  by_reason_.emplace_back();
}

void Reporter::log_to(std::shared_ptr<FileSink> sink) {
  const std::lock_guard lock(mutex_);
  sink_.swap(sink);  // the old one goes after the lock: it may take a second
}

void Reporter::count(int pool, Reason reasons) {
  ByReason& counts = by_reason_[static_cast<std::size_t>(pool)];
  for (std::size_t i = 0; i < kNumReasons; ++i) {
    counts[i] += static_cast<std::uint32_t>(reasons) >> i & 1u;
  }
}

std::size_t Reporter::KeyHash::operator()(const Key& k) const noexcept {
  std::uint64_t h = static_cast<std::uint64_t>(k.slot) * 0x9E3779B97F4A7C15u;
  h = (h ^ (h >> 32) ^ k.life) * 0xC2B2AE3D27D4EB4Fu;
  h = (h ^ (h >> 29) ^ static_cast<std::uint64_t>(k.pool)) * 0xD6E8FEB86659FD93u;
  return static_cast<std::size_t>(h ^ (h >> 32));
}

void Reporter::report(Violation v, std::uint64_t life) {
  std::string line;
  {
    const std::lock_guard lock(mutex_);
    counts_.sightings += v.count;
    taint(v);
    const Key key{v.slot, life, v.pool};
    auto found = seen_.find(key);
    if (found == seen_.end()) {
      // A bounded memory of faults: when it is full of faults that were handed out, it starts over.
      if (pending_.size() >= capacity_) {
        ++counts_.dropped;
        return;
      }
      if (seen_.size() >= kRemembered * capacity_) {
        std::erase_if(seen_, [&](const auto& s) { return s.second.round != round_; });
      }
      ++counts_.violations;
      count(v.pool, v.reasons);
      v.events = events_.last(v.pool, v.slot, kEventsInAViolation, v.first_step);
      seen_.emplace(key, Seen{v, round_, pending_.size()});
      pending_.push_back(v);
      const std::string& pool = pool_names_[static_cast<std::size_t>(v.pool)];
      line = to_text(v, pool);
      if (sink_) sink_->write(to_json(v, pool));
      if (first_.empty()) first_ = line;
    } else {
      Seen& s = found->second;
      const bool more = (s.violation.reasons | v.reasons) != s.violation.reasons;
      // The reasons that are new.
      count(v.pool, static_cast<Reason>(static_cast<std::uint32_t>(v.reasons) &
                                        ~static_cast<std::uint32_t>(s.violation.reasons)));
      const bool waits = s.round == round_;
      if (more && !waits && pending_.size() < capacity_) {
        v.events = events_.last(v.pool, v.slot, kEventsInAViolation, v.last_step);
        s = {told_again(s.violation, std::move(v)), round_, pending_.size()};
        pending_.push_back(s.violation);
      } else {
        if (waits) merge(pending_[s.index], v);
        if (more && !waits) ++counts_.dropped;
        merge(s.violation, v);
      }
    }
  }
  if (!line.empty() && mode_ != Mode::none) log(LogLevel::error, line);
}

void Reporter::taint(const Violation& v) {
  if (mode_ != Mode::quarantine) return;  // nobody asks
  const std::size_t room = kRemembered * capacity_;
  const auto add = [&](auto& set, auto value) {
    if (set.size() < room) {
      set.insert(value);
    } else if (!set.contains(value)) {
      taint_complete_ = false;
    }
  };
  if (v.slot >= 0) add(tainted_slots_, std::pair(v.pool, v.slot));
  if (v.request != 0) add(tainted_requests_, v.request);
}

void Reporter::drop(std::uint64_t n) {
  const std::lock_guard lock(mutex_);
  counts_.sightings += n;
  counts_.dropped += n;
}

void Reporter::forget(int pool, std::int64_t slot, std::uint64_t life) {
  const std::lock_guard lock(mutex_);
  seen_.erase({slot, life, pool});
}

std::vector<Violation> Reporter::take() {
  const std::lock_guard lock(mutex_);
  ++round_;
  return std::exchange(pending_, {});
}

Monitor::Tainted Reporter::take_tainted() {
  const std::lock_guard lock(mutex_);
  Monitor::Tainted t;
  t.slots.assign(tainted_slots_.begin(), tainted_slots_.end());
  t.requests.assign(tainted_requests_.begin(), tainted_requests_.end());
  t.complete = std::exchange(taint_complete_, true);
  tainted_slots_.clear();
  tainted_requests_.clear();
  return t;
}

Reporter::Counts Reporter::counts() const {
  const std::lock_guard lock(mutex_);
  return counts_;
}

std::vector<Reporter::ByReason> Reporter::counts_by_reason() const {
  const std::lock_guard lock(mutex_);
  return by_reason_;
}

std::string Reporter::first_since_last_call() {
  const std::lock_guard lock(mutex_);
  return std::exchange(first_, {});
}

}  // namespace serinus::canary
