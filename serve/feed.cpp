#include "serve/feed.h"

#include <algorithm>
#include <random>
#include <utility>

namespace serinus::serve {

namespace {

using std::chrono::milliseconds;

constexpr milliseconds kPublishEvery{200};
constexpr milliseconds kScanEvery{20};
constexpr milliseconds kPointEvery{1000};
constexpr std::chrono::seconds kMapsStayWanted{10};
constexpr std::int64_t kSlotsAScan = 32768;  // some tens of microseconds
constexpr std::size_t kAnswersALook = 4;     // each looks through the ledger's events
constexpr std::size_t kMaxQuestions = 64;
constexpr std::size_t kEventsAnAnswer = 12;
constexpr std::size_t kMaxPoints = 300;

std::uint64_t random_number() {
  std::random_device device;
  return std::uint64_t{device()} << 32 | device();
}

double unix_time() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

double check_seconds(const canary::Stats& s) {
  return s.seconds_head + s.seconds_tail + s.seconds_sweep;
}

canary::SlotState state_of(const canary::LedgerEntry& e) noexcept {
  if (e.owner == 0) return canary::SlotState::free;
  return e.written == 0 ? canary::SlotState::empty : canary::SlotState::written;
}

}  // namespace

const char* name_of(EngineState s) noexcept {
  switch (s) {
    case EngineState::none:
      return "none";
    case EngineState::running:
      return "running";
    case EngineState::ended:
      return "ended";
  }
  return "?";
}

Feed::Feed(std::string engine) : run_(random_number()) {
  next_.engine = std::move(engine);
  next_.state = EngineState::running;
  next_.taken = Clock::now();
  published_ = std::make_shared<const Picture>(next_);
}

void Feed::set_cache_owner(canary::Owner owner) {
  next_.cache = owner;
}

void Feed::add(canary::Violation v, std::string pool, std::string note) {
  auto seen = std::make_shared<SeenViolation>(
      SeenViolation{0, unix_time(), std::move(pool), std::move(note), std::move(v)});
  SeenViolationPtr oldest;  // freed after the lock
  const std::lock_guard lock(mutex_);
  seen->number = ++count_;
  violations_.push_back(std::move(seen));
  if (violations_.size() > kMaxViolations) {
    oldest = std::move(violations_.front());
    violations_.pop_front();
  }
}

void Feed::look(canary::Monitor& monitor) {
  const Clock::time_point now = Clock::now();
  if (asked_.load(std::memory_order_relaxed)) answer_questions(monitor, kAnswersALook);
  const bool maps_wanted =
      now.time_since_epoch().count() < maps_wanted_until_.load(std::memory_order_relaxed);
  if (maps_wanted && now >= scan_due_) {
    scan(monitor, kSlotsAScan);
    scan_due_ = now + kScanEvery;
  }
  if (now >= publish_due_) {
    publish(monitor);
    publish_due_ = now + kPublishEvery;
  }
}

void Feed::end(canary::Monitor& monitor) {
  describe_pools(monitor);
  std::ranges::fill(cursors_, 0);
  scan(monitor, std::int64_t{1} << 40);
  next_.state = EngineState::ended;
  publish(monitor);
}

std::shared_ptr<const Picture> Feed::picture() const {
  const std::lock_guard lock(mutex_);
  return published_;
}

Feed::Violations Feed::violations(std::optional<std::uint64_t> since, std::size_t limit) const {
  Violations v;
  const std::lock_guard lock(mutex_);
  const std::uint64_t before = count_ - violations_.size();  // number of the newest that is gone
  v.last = count_;
  v.first_kept = before + 1;
  std::size_t begin = violations_.size() - std::min(limit, violations_.size());
  if (since) {
    begin = static_cast<std::size_t>(std::clamp(*since, before, count_) - before);
  }
  const std::size_t end = std::min(begin + limit, violations_.size());
  v.list.assign(violations_.begin() + static_cast<std::ptrdiff_t>(begin),
                violations_.begin() + static_cast<std::ptrdiff_t>(end));
  return v;
}

void Feed::want_maps() const noexcept {
  maps_wanted_until_.store((Clock::now() + kMapsStayWanted).time_since_epoch().count(),
                           std::memory_order_relaxed);
}

std::optional<SlotAnswer> Feed::ask(int pool, std::int64_t slot, milliseconds patience) {
  auto question = std::make_shared<Question>();
  question->pool = pool;
  question->slot = slot;
  std::unique_lock lock(mutex_);
  if (questions_.size() >= kMaxQuestions) return std::nullopt;
  questions_.push_back(question);
  asked_.store(true, std::memory_order_relaxed);
  if (!answered_.wait_for(lock, patience, [&] { return question->answered; })) {
    std::erase(questions_, question);
    return std::nullopt;
  }
  return question->answer;
}

void Feed::answer_questions(canary::Monitor& monitor, std::size_t most) {
  std::vector<std::shared_ptr<Question>> taken;
  {
    const std::lock_guard lock(mutex_);
    while (!questions_.empty() && taken.size() < most) {
      taken.push_back(std::move(questions_.front()));
      questions_.pop_front();
    }
    if (questions_.empty()) asked_.store(false, std::memory_order_relaxed);
  }
  if (taken.empty()) return;
  std::vector<SlotAnswer> answers;
  for (const auto& q : taken) {
    SlotAnswer& a = answers.emplace_back();
    if (q->pool < 0 || static_cast<std::size_t>(q->pool) >= monitor.pool_stats().size()) continue;
    a.state = monitor.state(q->pool, q->slot);
    const auto at = static_cast<std::size_t>(q->slot);
    const auto records = monitor.records(q->pool);
    const auto ledger = monitor.ledger(q->pool);
    if (q->slot >= 0 && at < records.size()) a.record = records[at];
    if (q->slot >= 0 && at < ledger.size()) a.ledger = ledger[at];
    a.events = monitor.events(q->pool, q->slot, kEventsAnAnswer);
  }
  {
    const std::lock_guard lock(mutex_);
    for (std::size_t i = 0; i < taken.size(); ++i) {
      taken[i]->answer = answers[i];
      taken[i]->answered = true;
    }
  }
  answered_.notify_all();
}

void Feed::describe_pools(canary::Monitor& monitor) {
  const std::size_t count = monitor.pool_stats().size();
  for (std::size_t i = next_.pools.size(); i < count; ++i) {
    const canary::PoolSpec& spec = monitor.pool(static_cast<int>(i));
    PoolPicture p;
    p.name = spec.name;
    p.layout = spec.layout.name;
    p.kind = spec.kind;
    p.null_slot = spec.null_slot;
    p.num_slots = spec.num_slots;
    p.page_size = spec.layout.page_size;
    p.token_bytes = spec.layout.token_bytes() * spec.num_layers;
    p.num_layers = spec.num_layers;
    p.slots_per_cell = (p.num_slots + PoolPicture::kMaxCells - 1) / PoolPicture::kMaxCells;
    if (p.slots_per_cell > p.page_size) {  // whole pages
      p.slots_per_cell = (p.slots_per_cell + p.page_size - 1) / p.page_size * p.page_size;
    }
    const auto cells =
        static_cast<std::size_t>((p.num_slots + p.slots_per_cell - 1) / p.slots_per_cell);
    p.empty.resize(cells);
    p.written.resize(cells);
    p.cached.resize(cells);
    next_.pools.push_back(std::move(p));
    cursors_.push_back(0);
  }
}

void Feed::scan(canary::Monitor& monitor, std::int64_t most) {
  describe_pools(monitor);
  for (std::size_t i = 0; i < next_.pools.size(); ++i) {
    const int pool = static_cast<int>(i);
    PoolPicture& p = next_.pools[i];
    const auto ledger = monitor.ledger(pool);
    const bool has_ledger = std::ssize(ledger) == p.num_slots;
    std::int64_t left = std::max<std::int64_t>(1, most / p.slots_per_cell);
    for (std::int64_t& cell = cursors_[i]; left > 0; --left) {
      std::uint32_t empty = 0, written = 0, cached = 0;
      const std::int64_t begin = cell * p.slots_per_cell;
      const std::int64_t end = std::min(begin + p.slots_per_cell, p.num_slots);
      for (std::int64_t slot = begin; slot < end; ++slot) {
        const auto at = static_cast<std::size_t>(slot);
        const canary::SlotState s = has_ledger ? state_of(ledger[at]) : monitor.state(pool, slot);
        const bool is_written = s == canary::SlotState::written;
        empty += static_cast<std::uint32_t>(s == canary::SlotState::empty);
        written += static_cast<std::uint32_t>(is_written);
        if (has_ledger && is_written && ledger[at].owner == next_.cache) ++cached;
      }
      const auto c = static_cast<std::size_t>(cell);
      p.empty[c] = empty;
      p.written[c] = written;
      p.cached[c] = cached;
      if (++cell == p.num_cells()) {
        cell = 0;
        ++p.passes;
        break;
      }
    }
  }
}

void Feed::publish(canary::Monitor& monitor) {
  describe_pools(monitor);
  next_.options = monitor.options();
  next_.taken = Clock::now();
  next_.metrics = canary::metrics_sample(monitor);
  const canary::Stats& s = next_.metrics.stats;
  const bool due = next_.taken >= point_due_ || next_.state == EngineState::ended;
  if (due && s.steps > last_point_.steps) {
    next_.history.push_back({s.steps, s.steps - last_point_.steps,
                             s.records_verified - last_point_.records_verified,
                             check_seconds(s) - check_seconds(last_point_)});
    if (next_.history.size() > kMaxPoints) next_.history.erase(next_.history.begin());
    last_point_ = s;
    point_due_ = next_.taken + kPointEvery;
  }
  auto picture = std::make_shared<const Picture>(next_);
  const std::lock_guard lock(mutex_);
  published_.swap(picture);
}

}  // namespace serinus::serve
