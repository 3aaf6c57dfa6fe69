#include "engine/fault_log.h"

#include <algorithm>
#include <utility>

#include "engine/mix.h"

namespace serinus::engine {

namespace {
constexpr std::uint64_t kLives = ~std::uint64_t{0};
}

const char* name_of(FaultState s) noexcept {
  switch (s) {
    case FaultState::pending:
      return "pending";
    case FaultState::detected:
      return "detected";
    case FaultState::masked:
      return "masked";
    case FaultState::missed:
      return "missed";
    case FaultState::not_visible:
      return "not_visible";
    case FaultState::not_placed:
      return "not_placed";
  }
  return "unknown";
}

FaultLog::Place FaultLog::place(int pool, std::int64_t slot) noexcept {
  return mix(static_cast<std::uint64_t>(pool), static_cast<std::uint64_t>(slot));
}

int FaultLog::add(std::string kind, std::uint64_t step, std::string note) {
  InjectedFault f;
  f.kind = std::move(kind);
  f.note = std::move(note);
  f.step = step;
  faults_.push_back(std::move(f));
  return static_cast<int>(faults_.size()) - 1;
}

void FaultLog::add_not_placed(std::string kind, std::uint64_t step, std::string why) {
  InjectedFault& f = faults_[static_cast<std::size_t>(add(std::move(kind), step, {}))];
  f.state = FaultState::not_placed;
  f.why = std::move(why);
}

void FaultLog::set_not_visible(int fault, std::string why) {
  InjectedFault& f = faults_[static_cast<std::size_t>(fault)];
  f.state = FaultState::not_visible;
  f.why = std::move(why);
}

void FaultLog::set_masked(int fault, std::string why) {
  InjectedFault& f = faults_[static_cast<std::size_t>(fault)];
  f.state = FaultState::masked;
  f.why = std::move(why);
}

void FaultLog::set_reason_if_masked(int fault, std::string why) {
  faults_[static_cast<std::size_t>(fault)].why = std::move(why);
}

void FaultLog::mark(int fault, int pool, std::int64_t slot, int lives) {
  InjectedFault& f = faults_[static_cast<std::size_t>(fault)];
  if (f.pool < 0) {
    f.pool = pool;
    f.slot = slot;
  }
  places_[place(pool, slot)].push_back(
      {.fault = fault, .lives = lives, .on_host = pool >= kHostPools});
}

bool FaultLog::marked(int pool, std::int64_t slot) const {
  const auto it = places_.find(place(pool, slot));
  return it != places_.end() &&
         std::any_of(it->second.begin(), it->second.end(),
                     [](const Mark& m) { return m.ended == kLives && !m.follower; });
}

void FaultLog::mark_request(int fault, canary::Owner owner) {
  requests_[owner].push_back({.fault = fault});
}

void FaultLog::unmark(int fault) {
  const auto drop = [fault](auto& table) {
    for (auto& [key, marks] : table)
      std::erase_if(marks, [&](const Mark& m) { return m.fault == fault; });
    std::erase_if(table, [](const auto& entry) { return entry.second.empty(); });
  };
  drop(places_);
  drop(requests_);
}

void FaultLog::end_lives(std::vector<Mark>& marks, std::uint64_t step) {
  for (Mark& m : marks) {
    if (m.lives > 0 && --m.lives == 0) m.ended = step;
  }
  // What ended in this step may still be in a report that was not yet read.
  std::erase_if(marks, [&](const Mark& m) { return m.ended != kLives && m.ended + 1 < step; });
}

void FaultLog::freed(int pool, std::span<const std::int64_t> slots, std::uint64_t step) {
  if (places_.empty()) return;
  for (const std::int64_t slot : slots) {
    const auto it = places_.find(place(pool, slot));
    if (it != places_.end()) end_lives(it->second, step);
  }
}

void FaultLog::released(canary::Owner owner, std::uint64_t step) {
  const auto it = requests_.find(owner);
  if (it != requests_.end()) end_lives(it->second, step);
}

void FaultLog::carried(int from_pool, std::int64_t from, int to_pool, std::int64_t to) {
  if (places_.empty()) return;
  const Place to_place = place(to_pool, to);
  if (to_pool >= kHostPools) places_.erase(to_place);  // a host page keeps no history
  const auto it = places_.find(place(from_pool, from));
  if (it == places_.end()) return;
  for (const Mark& m : std::vector<Mark>(it->second)) {
    if (m.ended != kLives) continue;
    places_[to_place].push_back(
        {.fault = m.fault, .on_host = to_pool >= kHostPools, .follower = m.follower});
  }
}

void FaultLog::follows(int pool, std::int64_t previous, std::int64_t slot) {
  const auto it = places_.find(place(pool, previous));
  if (it == places_.end()) return;
  for (const Mark& m : std::vector<Mark>(it->second)) {
    if (m.ended != kLives) continue;
    std::vector<Mark>& marks = places_[place(pool, slot)];
    const bool there = std::any_of(marks.begin(), marks.end(), [&](const Mark& n) {
      return n.fault == m.fault && n.ended == kLives;
    });
    if (!there) marks.push_back({.fault = m.fault, .follower = true});
  }
}

int FaultLog::explain(const canary::Violation& v, std::uint64_t step) {
  constexpr canary::Reason kOfAFollower = canary::Reason::chain | canary::Reason::position;
  const bool may_follow = (v.reasons | kOfAFollower) == kOfAFollower;
  int first = -1;
  const auto credit = [&](const std::vector<Mark>& marks) {
    for (const Mark& m : marks) {
      if (m.ended != kLives && m.ended + 1 < step) continue;
      if (m.follower && !may_follow) continue;
      InjectedFault& f = faults_[static_cast<std::size_t>(m.fault)];
      if (f.state != FaultState::detected) {
        f.state = FaultState::detected;
        f.why.clear();
        f.detected_step = step;
        f.reasons = v.reasons;
      }
      if (first < 0 || m.fault < first) first = m.fault;
    }
  };
  if (const auto it = places_.find(place(v.pool, v.slot)); it != places_.end()) credit(it->second);
  if (const auto it = requests_.find(v.request); it != requests_.end()) credit(it->second);
  // In the sglang format a token's chain is the hash of the whole record before it, and its
  // position is held against that record's: damage to that record shows here, too.
  if (first < 0 && may_follow && v.format == canary::Format::sglang) {
    if (const auto it = places_.find(place(v.pool, v.prev_slot)); it != places_.end()) {
      credit(it->second);
    }
  }
  return first;
}

void FaultLog::finish() {
  std::vector<bool> alive(faults_.size());
  const auto note = [&](const auto& table) {
    for (const auto& [key, marks] : table) {
      for (const Mark& m : marks) {
        if (m.ended == kLives && !m.on_host && !m.follower)
          alive[static_cast<std::size_t>(m.fault)] = true;
      }
    }
  };
  note(places_);
  note(requests_);
  for (std::size_t i = 0; i < faults_.size(); ++i) {
    InjectedFault& f = faults_[i];
    if (f.state != FaultState::pending) continue;
    f.state = alive[i] ? FaultState::missed : FaultState::masked;
    if (alive[i]) f.why.clear();
    if (!alive[i] && f.why.empty()) f.why = "its slots were freed before a check came to them";
  }
}

}  // namespace serinus::engine
