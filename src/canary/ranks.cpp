#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <map>

#include <serinus/canary_ranks.h>
#include <serinus/canary_sglang.h>
#include <serinus/version.h>

#include "base/raise.h"
#include "canary/serinus/hash.h"

namespace serinus::canary {

namespace {

std::uint64_t hash_text(std::uint64_t h, std::string_view text) {
  for (const char c : text) h = hash::mix64(h ^ static_cast<std::uint8_t>(c));
  return hash::mix64(h ^ text.size());
}

/// A name out of a struct that may hold anything.
std::string name_in(const char (&field)[64]) {
  std::string out(field, strnlen(field, sizeof field));
  std::ranges::replace_if(out, [](char c) { return c < ' ' || c > '~'; }, '?');
  return out;
}

template <class E>
std::string word(std::uint32_t value, std::uint32_t count) {
  return value < count ? name_of(static_cast<E>(value)) : fmt::format("unknown({})", value);
}

}  // namespace

TransferTerms transfer_terms(const Options& options, const PoolSpec& pool) {
  TransferTerms t;
  t.record_version = kRecordVersion;
  t.format = static_cast<std::uint32_t>(options.format);
  t.depth = static_cast<std::uint32_t>(options.depth);
  t.num_layers = pool.num_layers;
  t.token_bytes = pool.layout.token_bytes() * pool.num_layers;
  t.page_size = pool.layout.page_size;
  for (const KvSegment& s : pool.layout.segments) {
    t.layout_hash = hash_text(t.layout_hash, s.name);
    t.layout_hash = hash::mix64(t.layout_hash ^ static_cast<std::uint64_t>(s.role));
    t.layout_hash = hash::mix64(t.layout_hash ^ static_cast<std::uint64_t>(s.bytes));
  }
  pool.layout.name.copy(t.layout, sizeof t.layout - 1);
  return t;
}

std::vector<std::string> differences(const TransferTerms& mine, const TransferTerms& theirs) {
  std::vector<std::string> found;
  const auto compare = [&](const char* what, auto here, auto there) {
    if (here != there) found.push_back(fmt::format("{}: {} here, {} there", what, here, there));
  };
  compare("version of the terms", mine.version, theirs.version);
  if (!found.empty()) return found;  // what follows may mean something else
  compare("record version", mine.record_version, theirs.record_version);
  compare("format", word<Format>(mine.format, 2), word<Format>(theirs.format, 2));
  compare("depth", word<Depth>(mine.depth, 3), word<Depth>(theirs.depth, 3));
  compare("layers", mine.num_layers, theirs.num_layers);
  compare("bytes a token", mine.token_bytes, theirs.token_bytes);
  if (mine.layout_hash != theirs.layout_hash) {
    found.push_back(fmt::format("segments: those of {} here, of {} there", name_in(mine.layout),
                                name_in(theirs.layout)));
  }
  return found;
}

void check_transfer(const TransferTerms& mine, const TransferTerms& theirs) {
  const std::vector<std::string> found = differences(mine, theirs);
  if (found.empty()) return;
  raise(errors::Page::transfer_terms_differ,
        {{"argument", "theirs"}, {"got", fmt::format("{}", fmt::join(found, "; "))}});
}

RequestDigest request_digest(Monitor& monitor, int pool, Owner owner, std::int64_t row,
                             std::int64_t length, const TensorView& req_to_token) {
  const PoolSpec& spec = monitor.pool(pool);
  const std::vector<std::int64_t> slots = monitor.slots_of(pool, row, length, req_to_token);
  const std::span<const Record> records = monitor.records(pool);
  RequestDigest d;
  d.owner = owner;
  d.length = length;
  for (std::int64_t cell = 0; cell < std::ssize(slots); ++cell) {
    const std::int64_t slot = slots[static_cast<std::size_t>(cell)];
    if (spec.kind == PoolKind::swa && slot == 0) continue;  // evicted from the window
    const Record r = slot != kNoSlot ? records[static_cast<std::size_t>(slot)] : Record{};
    const std::uint64_t chain = monitor.options().format == Format::serinus || r == Record{}
                                    ? r.chain
                                    : sglang::chain_hash(std::bit_cast<sglang::Record>(r));
    d.chain += hash::rank_term(chain, cell);
    d.kv += hash::rank_term(r.kv_digest, cell);
  }
  return d;
}

std::string to_text(const RankDifference& d) {
  std::string what;
  const auto add = [&](bool differs, const char* name) {
    if (differs) what += (what.empty() ? "" : ", ") + std::string(name);
  };
  add(d.version, "version");
  add(d.owner_differs, "owner");
  add(d.length, "length");
  add(d.chain, "chain");
  add(d.kv, "kv");
  return fmt::format("rank {}, request {}: {}", d.rank, d.owner, what);
}

namespace {

/// The value that most ranks have.
template <class T>
T usual(std::span<const RequestDigest> gathered, std::size_t ranks, std::size_t n, std::size_t i,
        T RequestDigest::* field) {
  std::map<T, std::size_t> votes;
  for (std::size_t r = 0; r < ranks; ++r) ++votes[gathered[r * n + i].*field];
  T best = gathered[i].*field;
  for (std::size_t r = 1; r < ranks; ++r) {
    const T value = gathered[r * n + i].*field;
    if (votes[value] > votes[best]) best = value;
  }
  return best;
}

}  // namespace

std::vector<RankDifference> compare_ranks(std::span<const RequestDigest> gathered, int num_ranks,
                                          bool kv) {
  if (num_ranks < 1 || gathered.size() % static_cast<std::size_t>(num_ranks) != 0) {
    raise(errors::Page::canary_lengths_differ,
          {{"name", "gathered"},
           {"got", std::to_string(gathered.size())},
           {"as", "num_ranks"},
           {"want", std::to_string(num_ranks) + ", which does not divide them"}});
  }
  const auto ranks = static_cast<std::size_t>(num_ranks);
  const std::size_t n = gathered.size() / ranks;
  std::vector<RankDifference> found;
  for (std::size_t i = 0; i < n; ++i) {
    RequestDigest most;
    most.version = usual(gathered, ranks, n, i, &RequestDigest::version);
    most.owner = usual(gathered, ranks, n, i, &RequestDigest::owner);
    most.length = usual(gathered, ranks, n, i, &RequestDigest::length);
    most.chain = usual(gathered, ranks, n, i, &RequestDigest::chain);
    most.kv = usual(gathered, ranks, n, i, &RequestDigest::kv);
    for (std::size_t r = 0; r < ranks; ++r) {
      const RequestDigest& d = gathered[r * n + i];
      const RankDifference difference{
          static_cast<int>(r),   static_cast<std::int64_t>(i), d.owner,
          d.owner != most.owner, d.length != most.length,      d.chain != most.chain,
          kv && d.kv != most.kv, d.version != most.version};
      if (difference.version || difference.owner_differs || difference.length || difference.chain ||
          difference.kv) {
        found.push_back(difference);
      }
    }
  }
  return found;
}

std::vector<RankDifference> report_ranks(Monitor& monitor, std::span<const RequestDigest> gathered,
                                         int num_ranks, bool kv) {
  const std::vector<RankDifference> found = compare_ranks(gathered, num_ranks, kv);
  const std::size_t n = gathered.size() / static_cast<std::size_t>(num_ranks);
  const auto folded = [&](const RequestDigest& d) {
    const std::uint64_t h = hash::mix64(static_cast<std::uint64_t>(d.length) + 1) ^ d.chain;
    return hash::mix64(hash::mix64(h) ^ (kv ? d.kv : 0) ^ d.owner ^ std::uint64_t{d.version} << 32);
  };
  for (const RankDifference& d : found) {
    // Against a rank that has what most have, where there is one.
    const auto i = static_cast<std::size_t>(d.request);
    const auto rank = static_cast<std::size_t>(d.rank);
    std::size_t other = rank == 0 ? 1 : 0;
    for (std::size_t r = 0; r < static_cast<std::size_t>(num_ranks); ++r) {
      if (std::ranges::none_of(found, [&](const RankDifference& o) {
            return o.request == d.request && o.rank == static_cast<int>(r);
          })) {
        other = r;
        break;
      }
    }
    const std::uint64_t pair[] = {folded(gathered[other * n + i]), folded(gathered[rank * n + i])};
    monitor.on_rank_digests(d.owner, -1, pair);
  }
  return found;
}

}  // namespace serinus::canary
