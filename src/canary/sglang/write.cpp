// Write: stamps the records of the new tokens.
#include <algorithm>
#include <vector>

#include "base/parallel.h"
#include "canary/sglang/records.h"

namespace serinus::canary::sglang {

namespace {

constexpr std::int64_t kAhead = 16;  // entries between asking for a record's line and storing to it
constexpr std::int64_t kGroup = 16;  // entries whose bytes are folded side by side
// Below this a second thread costs more than it brings.
constexpr std::int64_t kParallelTokens = 8192;

// A request's run of tokens, and where its chain stands.
struct Row {
  std::int64_t begin = 0, end = 0;
  hash::Chain chain{hash::kAnchorHash};
  bool seed_exists = true;       // false: none of the row's entries can be stamped
  bool check_positions = false;  // against `position`, the predecessor's
  std::int64_t position = 0;
};

std::vector<Row> rows_of(const WriteParams& p, Tally& tally) {
  // As on the GPU, a negative count is a huge unsigned one.
  const std::int64_t n =
      std::min<std::int64_t>(static_cast<std::uint32_t>(*p.num_valid_reqs), p.req_capacity);
  std::vector<Row> rows;
  rows.reserve(static_cast<std::size_t>(n));
  for (std::int64_t r = 0; r < n; ++r) {
    Row row;
    row.begin = p.offsets[r];
    row.end = p.offsets[r + 1];
    if (row.end <= row.begin) continue;
    if (row.begin < 0 || row.end > p.num_tokens) {
      ++tally.out_of_range;  // tokens that do not exist: the row shrinks to those that do
      row.begin = std::max<std::int64_t>(row.begin, 0);
      row.end = std::min(row.end, p.num_tokens);
      if (row.end <= row.begin) continue;
    }
    const std::int64_t seed = p.seeds[r];
    if (seed >= p.context.num_slots) {
      row.seed_exists = false;
    } else if (seed >= 0) {
      const Record predecessor = load(p.context, seed);
      row.chain = hash::Chain(hash_of(predecessor));
      row.check_positions = *p.context.enable_chain_position_assert != 0;
      row.position = predecessor.position;
    }
    rows.push_back(row);
  }
  return rows;
}

void report(const WriteParams& p, std::int64_t i, std::uint64_t running_hash,
            std::int64_t expected_token, std::int64_t expected_position, FailReason reasons,
            Tally& tally) {
  tally.add(p.context, {.kernel_kind = p.context.kernel_kind,
                        .slot = p.slots[i],
                        .position = p.positions[i],
                        .stored_token = p.tokens[i],
                        .expected_token = expected_token,
                        .stored_chain_hash = i64(running_hash),
                        .expected_aux = expected_position,
                        .fail_reason_bits = static_cast<std::int64_t>(reasons)});
}

// Compares entry i with what was expected of it, and moves the row's position on.
void check_input(const WriteParams& p, std::int64_t i, Row& row, std::uint64_t running_hash,
                 Tally& tally) {
  const std::int64_t token = p.tokens[i];
  const std::int64_t position = p.positions[i];
  if (p.expected_tokens != nullptr) {
    FailReason reasons = FailReason::none;
    if (token != p.expected_tokens[i]) reasons = reasons | FailReason::write_token;
    if (position != p.expected_positions[i]) reasons = reasons | FailReason::write_position;
    if (reasons != FailReason::none) [[unlikely]]
      report(p, i, running_hash, p.expected_tokens[i], p.expected_positions[i], reasons, tally);
  }
  if (row.check_positions) {
    const std::int64_t next = i64(u64(row.position) + 1);
    if (position != next) [[unlikely]]
      report(p, i, running_hash, token, next, FailReason::write_position, tally);
    row.position = position;
  }
}

// Walks a row; `stamp(i, record)` is called for every entry that is written, in order. `hashes`,
// if given, holds the fingerprints of all entries.
template <class Stamp>
void walk_row(const WriteParams& p, Row row, const std::uint64_t* hashes, Tally& tally,
              const Stamp& stamp) {
  for (std::int64_t i = row.begin; i < row.end;) {
    std::int64_t entries[kGroup];
    std::int64_t slots[kGroup];
    std::uint64_t folded[kGroup];
    std::int64_t n = 0;
    for (; i < row.end && n < kGroup; ++i) {
      if (i + kAhead < row.end) prefetch<1>(p.context, p.slots[i + kAhead]);
      const std::int64_t slot = p.slots[i];
      if (slot < 0) continue;
      ++tally.entries;
      if (!within(slot, p.context.num_slots) || !row.seed_exists || !has_bytes(p.context, slot)) {
        ++tally.out_of_range;
        continue;
      }
      entries[n] = i;
      slots[n++] = slot;
    }
    if (hashes == nullptr) fold(p.context, slots, n, folded);
    for (std::int64_t k = 0; k < n; ++k) {
      const std::int64_t e = entries[k];
      const std::uint64_t running_hash = row.chain.value();
      check_input(p, e, row, running_hash, tally);
      stamp(e, Record{.token = p.tokens[e],
                      .position = p.positions[e],
                      .prev_hash = i64(running_hash),
                      .real_kv_hash = i64(hashes == nullptr ? folded[k] : hashes[e])});
      row.chain.append(u64(p.tokens[e]), u64(p.positions[e]));
    }
  }
}

void write_serial(const WriteParams& p, const std::vector<Row>& rows, Tally& tally) {
  for (const Row& row : rows) {
    walk_row(p, row, nullptr, tally,
             [&](std::int64_t i, const Record& record) { store(p.context, p.slots[i], record); });
  }
}

// Every entry in at most one row, rows in the order of their entries.
bool disjoint(const std::vector<Row>& rows) {
  for (std::size_t r = 1; r < rows.size(); ++r) {
    if (rows[r].begin < rows[r - 1].end) return false;
  }
  return true;
}

// Fingerprints by entry, chains by row, then stores by slot: each thread keeps to its own slots, so
// that of two entries with one slot the later wins, as in write_serial.
void write_parallel(const WriteParams& p, const std::vector<Row>& rows, int threads, Tally& total) {
  const auto num_tokens = static_cast<std::size_t>(p.num_tokens);
  std::vector<std::uint64_t> hashes(num_tokens);
  if (p.context.num_sources > 0) {
    parallel_for(threads, p.num_tokens, 256, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end;) {
        std::int64_t entries[kGroup];
        std::int64_t slots[kGroup];
        std::uint64_t folded[kGroup];
        std::int64_t n = 0;
        for (; i < end && n < kGroup; ++i) {
          if (!within(p.slots[i], p.context.num_slots) || !has_bytes(p.context, p.slots[i]))
            continue;
          entries[n] = i;
          slots[n++] = p.slots[i];
        }
        fold(p.context, slots, n, folded);
        for (std::int64_t k = 0; k < n; ++k)
          hashes[static_cast<std::size_t>(entries[k])] = folded[k];
      }
    });
  }
  std::vector<Record> records(num_tokens);
  std::vector<std::uint8_t> stamped(num_tokens);
  std::vector<Tally> tallies(rows.size());
  parallel_for(threads, static_cast<std::int64_t>(rows.size()), 1,
               [&](std::int64_t begin, std::int64_t end) {
                 for (auto r = static_cast<std::size_t>(begin); r < static_cast<std::size_t>(end);
                      ++r) {
                   walk_row(p, rows[r], hashes.data(), tallies[r],
                            [&](std::int64_t i, const Record& record) {
                              records[static_cast<std::size_t>(i)] = record;
                              stamped[static_cast<std::size_t>(i)] = 1;
                            });
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
  for (const Tally& tally : tallies) total.append(p.context, tally);
}

void run_write(const WriteParams& p, int threads) {
  Tally::add_to(p.context.kernel_run_counter, 1);
  Tally tally;
  const std::vector<Row> rows = rows_of(p, tally);
  threads = resolve_threads(threads);
  if (threads > 1 && p.num_tokens >= kParallelTokens && disjoint(rows))
    write_parallel(p, rows, threads, tally);
  else
    write_serial(p, rows, tally);
  tally.commit(p.context);
}

}  // namespace

void write(const VerifyOrWriteContext& context, const WritePlan& plan, const WriteInput& input,
           Stream stream, int threads) {
  const WriteParams params = check_write(context, plan, input);
  require_cpu("canary_buf", context.canary_buf);
  static_cast<void>(stream);
  run_write(params, threads);
}

}  // namespace serinus::canary::sglang
