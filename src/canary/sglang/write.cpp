// Write: stamps the records of the new tokens.
#include <algorithm>
#include <iterator>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/parallel.h"
#include "base/raise.h"
#include "canary/cuda/sglang/run.h"
#include "canary/sglang/lanes.h"
#include "canary/sglang/look_ahead.h"
#include "canary/sglang/records.h"

namespace serinus::canary::sglang {

namespace {

constexpr std::int64_t kGrain = 8 * kGroup;  // entries a thread folds at a time
// Below this a second thread costs more than it brings.
constexpr std::int64_t kParallelTokens = 8192;

// A request's run of tokens, and where its chain stands.
struct Row {
  std::int64_t begin = 0, end = 0;
  std::uint64_t chain = hash::kAnchorHash;
  bool seed_exists = true;       // false: none of the row's entries can be stamped
  bool check_positions = false;  // against `position`, the predecessor's
  std::int64_t position = 0;
};

std::vector<Row> rows_of(const WriteParams& p, Tally& tally) {
  const std::int64_t n = count_of(*p.num_valid_reqs, p.req_capacity);
  std::vector<Row> rows;
  rows.reserve(static_cast<std::size_t>(n));
  for (std::int64_t r = 0; r < n; ++r) {
    const WriteRow found = write_row(p, r);
    tally.out_of_range += found.was_cut ? 1 : 0;
    if (found.end <= found.begin) continue;
    Row row{.begin = found.begin, .end = found.end, .seed_exists = found.seed_exists};
    if (found.seed_exists && found.seed >= 0) {
      const Record predecessor = load(p.context, found.seed);
      row.chain = hash_of(predecessor);
      row.check_positions = *p.context.enable_chain_position_assert != 0;
      row.position = predecessor.position;
    }
    rows.push_back(row);
  }
  return rows;
}

// Compares entry i with what was expected of it.
void check_input(const WriteParams& p, std::int64_t i, std::uint64_t running_hash, Tally& tally) {
  const std::int64_t bits = wrong_input(p, i);
  if (bits == 0) return;
  tally.add(
      write_violation(p, i, running_hash, p.expected_tokens[i], p.expected_positions[i], bits), i);
}

// The chain of a row as its walk goes along: each token's hash waits for the one before.
struct RunningChain {
  std::uint64_t hash;
  std::uint64_t before(std::int64_t) const noexcept { return hash; }
  void add(std::uint64_t token, std::uint64_t position) noexcept {
    hash = hash::mix3(hash, token, position);
  }
};

// Chains that run_side_by_side() has worked out, or the caller: by entry, from `first` on.
template <class Word>
struct KnownChain {
  const Word* hashes;
  std::int64_t first;
  std::uint64_t before(std::int64_t i) const noexcept {
    return static_cast<std::uint64_t>(hashes[i - first]);
  }
  void add(std::uint64_t, std::uint64_t) const noexcept {}
};

template <bool kChecks, class Chain, class Folded, class Stamp>
void walk(const WriteParams& p, const Row& row, Chain chain, Tally& tally, const Folded& folded,
          const Stamp& stamp) {
  // Nothing but a chain may wait: what the loop needs is local, as the compiler must assume that a
  // stamp changes all other memory.
  const std::int64_t* const slots = p.slots;
  const std::int64_t* const tokens = p.tokens;
  const std::int64_t* const positions = p.positions;
  const std::int64_t end = row.end;
  const bool check_inputs = kChecks && p.expected_tokens != nullptr;
  const bool check_positions = kChecks && row.check_positions;
  const bool seed_exists = !kChecks || row.seed_exists;
  std::int64_t next_position = i64(u64(row.position) + 1);
  std::int64_t entries = 0;
  WriteAhead ahead(p, row.begin, end);
  for (std::int64_t i = row.begin; i < end; ++i) {
    ahead.at(i);
    if (slots[i] < 0) continue;
    ++entries;
    std::uint64_t real_kv_hash = 0;
    if (!seed_exists || !folded(i, real_kv_hash)) {
      ++tally.out_of_range;
      continue;
    }
    const std::int64_t token = tokens[i];
    const std::int64_t position = positions[i];
    const std::uint64_t before = chain.before(i);
    if (check_inputs) check_input(p, i, before, tally);
    if (check_positions) {
      if (position != next_position) [[unlikely]] {
        tally.add(write_violation(p, i, before, token, next_position,
                                  static_cast<std::int64_t>(FailReason::write_position)),
                  i);
      }
      next_position = i64(u64(position) + 1);
    }
    stamp(i, Record{.token = token,
                    .position = position,
                    .prev_hash = i64(before),
                    .real_kv_hash = i64(real_kv_hash)});
    chain.add(u64(token), u64(position));
  }
  tally.entries += entries;
}

bool needs_checks(const WriteParams& p, const Row& row) {
  return p.expected_tokens != nullptr || row.check_positions || !row.seed_exists;
}

// Walks a row. `folded(i, hash)` gives entry i's fingerprint, or false if it has none to give;
// `stamp(i, record)` is called for every entry that is written. Both in order of the entries. Where
// nothing is to be checked the loop calls nobody, and the chain stays in a register.
template <class Chain, class Folded, class Stamp>
void walk_row(const WriteParams& p, const Row& row, Chain chain, Tally& tally, const Folded& folded,
              const Stamp& stamp) {
  if (needs_checks(p, row)) {
    walk<true>(p, row, chain, tally, folded, stamp);
  } else {
    walk<false>(p, row, chain, tally, folded, stamp);
  }
}

// The same along the caller's chain, or the row's own.
template <class Folded, class Stamp>
void walk_row(const WriteParams& p, const Row& row, Tally& tally, const Folded& folded,
              const Stamp& stamp) {
  if (p.chain_hashes != nullptr) {
    walk_row(p, row, KnownChain<std::int64_t>{p.chain_hashes, 0}, tally, folded, stamp);
  } else {
    walk_row(p, row, RunningChain{row.chain}, tally, folded, stamp);
  }
}

// Every entry in at most one row, rows in the order of their entries.
bool disjoint(const std::vector<Row>& rows) {
  for (std::size_t r = 1; r < rows.size(); ++r) {
    if (rows[r].begin < rows[r - 1].end) return false;
  }
  return true;
}

// The fingerprints of one row's entries, folded a group at a time.
class FoldedGroups {
 public:
  FoldedGroups(const WriteParams& p, const Row& row) : p_(p), end_(row.begin), last_(row.end) {}

  bool operator()(std::int64_t i, std::uint64_t& hash) {
    while (i >= end_) {
      begin_ = end_;
      end_ = std::min(begin_ + kGroup, last_);
      fold(p_.context, p_.slots + begin_, end_ - begin_, hashes_, ok_);
    }
    hash = hashes_[i - begin_];
    return ok_[i - begin_];
  }

 private:
  const WriteParams& p_;
  std::int64_t begin_ = 0, end_, last_;
  std::uint64_t hashes_[kGroup];
  bool ok_[kGroup];
};

// A row's chain on the way: the entry that it has come to.
struct Runner {
  std::int64_t i = 0, end = 0;
  std::uint64_t hash = 0;
};

// Runs kRunners chains for `steps` entries each, none waiting for another.
template <int kRunners>
void run_some(const WriteParams& p, Runner* runners, std::int64_t steps, std::int64_t first,
              std::uint64_t* hashes) {
  Runner r[kRunners];  // in registers
  std::copy_n(runners, kRunners, r);
  const std::int64_t* const slots = p.slots;
  const std::int64_t* const tokens = p.tokens;
  const std::int64_t* const positions = p.positions;
  const std::int64_t num_slots = p.context.num_slots;
  for (std::int64_t s = 0; s < steps; ++s) {
#pragma GCC unroll 8
    for (int k = 0; k < kRunners; ++k) {
      const std::int64_t i = r[k].i++;
      hashes[i - first] = r[k].hash;
      if (within(slots[i], num_slots))  // else it is as if the entry were not there
        r[k].hash = hash::mix3(r[k].hash, u64(tokens[i]), u64(positions[i]));
    }
  }
  std::copy_n(r, kRunners, runners);
}

constexpr std::size_t kSideBySide = 4;  // rows whose chains run together

// The chains of a few rows, by entry from the first row's on. A chain is bound by its latency: four
// of them take no longer than one.
void run_side_by_side(const WriteParams& p, std::span<const Row> rows, std::uint64_t* hashes) {
  std::vector<Runner> runners;
  for (const Row& row : rows) runners.push_back({row.begin, row.end, row.chain});
  while (!runners.empty()) {
    std::int64_t steps = runners[0].end - runners[0].i;
    for (const Runner& r : runners) steps = std::min(steps, r.end - r.i);
    constexpr decltype(&run_some<1>) kRun[] = {run_some<1>, run_some<2>, run_some<3>, run_some<4>};
    static_assert(std::size(kRun) == kSideBySide);
    kRun[runners.size() - 1](p, runners.data(), steps, rows[0].begin, hashes);
    std::erase_if(runners, [](const Runner& r) { return r.i == r.end; });
  }
}

void write_serial(const WriteParams& p, const std::vector<Row>& rows, Tally& tally) {
  const auto stamp = [context = p.context, slots = p.slots](std::int64_t i, const Record& record) {
    store(context, slots[i], record);
  };
  const auto no_bytes = [num_slots = p.context.num_slots, slots = p.slots](
                            std::int64_t i, std::uint64_t&) { return within(slots[i], num_slots); };
  if (p.context.num_sources > 0) {
    for (const Row& row : rows) {
      FoldedGroups groups(p, row);
      const auto folded = [&](std::int64_t i, std::uint64_t& hash) { return groups(i, hash); };
      walk_row(p, row, tally, folded, stamp);
    }
    return;
  }
  if (rows.size() == 1 || p.chain_hashes != nullptr || !disjoint(rows)) {
    for (const Row& row : rows) {
      if (needs_checks(p, row) || p.chain_hashes != nullptr) {
        walk_row(p, row, tally, no_bytes, stamp);
      } else {
        const StampedRun run = stamp_run(p, row.begin, row.end, row.chain);
        tally.entries += run.entries;
        tally.out_of_range += run.out_of_range;
      }
    }
    return;
  }
  // Stamped in the order of the entries all the same, as if one chain had followed the other.
  std::vector<std::uint64_t> hashes;
  for (std::size_t at = 0; at < rows.size(); at += kSideBySide) {
    const auto some = std::span(rows).subspan(at, std::min(kSideBySide, rows.size() - at));
    const std::int64_t first = some.front().begin;
    hashes.resize(static_cast<std::size_t>(some.back().end - first));
    run_side_by_side(p, some, hashes.data());
    for (const Row& row : some) {
      walk_row(p, row, KnownChain<std::uint64_t>{hashes.data(), first}, tally, no_bytes, stamp);
    }
  }
}

// Fingerprints by entry, chains by row, then stores by slot: each thread keeps to its own slots, so
// that of two entries with one slot the later wins, as in write_serial.
void write_parallel(const WriteParams& p, const std::vector<Row>& rows, int threads, Tally& total) {
  const auto num_tokens = static_cast<std::size_t>(p.num_tokens);
  std::vector<std::uint64_t> hashes(num_tokens);
  const auto ok = std::make_unique<bool[]>(num_tokens);
  parallel_for(threads, p.num_tokens, kGrain, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; i += kGroup)
      fold(p.context, p.slots + i, std::min(kGroup, end - i), hashes.data() + i, ok.get() + i);
  });
  std::vector<Record> records(num_tokens);
  std::vector<std::uint8_t> stamped(num_tokens);
  std::vector<Tally> tallies(rows.size(), Tally(p.context));
  const auto folded = [&](std::int64_t i, std::uint64_t& hash) {
    hash = hashes[static_cast<std::size_t>(i)];
    return ok[static_cast<std::size_t>(i)];
  };
  const auto stamp = [&](std::int64_t i, const Record& record) {
    records[static_cast<std::size_t>(i)] = record;
    stamped[static_cast<std::size_t>(i)] = 1;
  };
  const auto num_rows = static_cast<std::int64_t>(rows.size());
  parallel_for(threads, num_rows, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t r = begin; r < end; ++r) {
      const auto at = static_cast<std::size_t>(r);
      walk_row(p, rows[at], tallies[at], folded, stamp);
    }
  });
  const std::int64_t part = p.context.num_slots / threads + 1;
  parallel_for(threads, threads, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::size_t i = 0; i < num_tokens; ++i) {
      const std::int64_t slot = p.slots[i];
      if (stamped[i] != 0 && slot >= begin * part && slot / part < end)
        store(p.context, slot, records[i]);
    }
  });
  for (const Tally& tally : tallies) total.append(tally);
}

void run_write(const WriteParams& p, int threads) {
  Tally::add_to(p.context.kernel_run_counter, 1);
  Tally tally(p.context);
  const std::vector<Row> rows = rows_of(p, tally);
  threads = resolve_threads(threads);
  if (threads > 1 && p.num_tokens >= kParallelTokens && disjoint(rows))
    write_parallel(p, rows, threads, tally);
  else
    write_serial(p, rows, tally);
  tally.commit(p.context);
}

}  // namespace

std::optional<std::int64_t> chain_hashes(std::optional<std::int64_t> before,
                                         std::span<const std::int64_t> tokens,
                                         std::span<const std::int64_t> positions,
                                         std::span<std::int64_t> hashes) {
  const auto require_length = [&](const char* name, std::size_t got) {
    if (got == tokens.size()) return;
    raise(errors::Page::canary_wrong_length,
          {{"name", name}, {"want", std::to_string(tokens.size())}, {"got", std::to_string(got)}});
  };
  require_length("positions", positions.size());
  require_length("hashes", hashes.size());
  RunningChain chain{before ? u64(*before) : hash::kAnchorHash};
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    hashes[i] = i64(chain.hash);
    chain.add(u64(tokens[i]), u64(positions[i]));
  }
  return tokens.empty() ? before : i64(chain.hash);
}

void write(const VerifyOrWriteContext& context, const WritePlan& plan, const WriteInput& input,
           Stream stream, int threads) {
  const WriteParams params = check_write(context, plan, input);
  const Device device = context.canary_buf.device;
  if (device.type == DeviceType::cuda) {
    cuda::write(params, device, stream);
  } else {
    run_write(params, threads);
  }
}

}  // namespace serinus::canary::sglang
