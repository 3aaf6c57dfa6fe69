// Verify: every entry of a plan against the records.
#include <algorithm>
#include <vector>

#include "base/parallel.h"
#include "canary/sglang/records.h"

namespace serinus::canary::sglang {

namespace {

constexpr std::int64_t kGrain = 4096;  // entries a thread takes at a time
constexpr std::int64_t kAhead = 32;    // entries between asking for a record and reading it
constexpr std::int64_t kGroup = 16;    // entries whose bytes are folded side by side

enum class Entry : std::uint8_t { padding, out_of_range, checked };

Entry kind_of(const VerifyParams& p, std::int64_t i) noexcept {
  const std::int64_t slot = p.slots[i];
  if (slot == kPaddingSlot) return Entry::padding;
  if (!within(slot, p.context.num_slots) || p.prev_slots[i] >= p.context.num_slots)
    return Entry::out_of_range;
  return Entry::checked;
}

void check_entry(const VerifyParams& p, std::int64_t i, std::uint64_t real_kv_hash, Tally& tally) {
  const Record stored = load(p.context, p.slots[i]);
  const std::int64_t prev = p.prev_slots[i];
  std::int64_t expected_hash = stored.prev_hash;  // of an unreachable predecessor
  if (prev < 0)
    expected_hash = i64(hash::kAnchorHash);
  else if (prev != kPaddingSlot)
    expected_hash = i64(hash_of(load(p.context, prev)));
  const std::int64_t expected_token = p.check_tokens ? p.tokens[i] : kNoToken;

  FailReason reasons = FailReason::none;
  if (stored.prev_hash != expected_hash) reasons = reasons | FailReason::verify_chain_hash;
  if (stored.position != p.positions[i]) reasons = reasons | FailReason::verify_position;
  if (stored.real_kv_hash != i64(real_kv_hash)) reasons = reasons | FailReason::verify_real_kv_hash;
  if (expected_token != kNoToken && stored.token != expected_token)
    reasons = reasons | FailReason::verify_token;
  if (reasons == FailReason::none) [[likely]]
    return;
  tally.add(p.context, {.kernel_kind = p.context.kernel_kind,
                        .slot = p.slots[i],
                        .position = stored.position,
                        .stored_token = stored.token,
                        .expected_token = expected_token,
                        .stored_chain_hash = stored.prev_hash,
                        .expected_aux = expected_hash,
                        .fail_reason_bits = static_cast<std::int64_t>(reasons)});
}

// Asks for the records of the entry kAhead further on; `end` bounds the plan.
void look_ahead(const VerifyParams& p, std::int64_t i, std::int64_t end) noexcept {
  const std::int64_t next = i + kAhead;
  if (next >= end) return;
  prefetch<0>(p.context, p.slots[next]);
  // Along a chain the predecessor's record is the one just asked for.
  if (p.prev_slots[next] != p.slots[next - 1]) prefetch<0>(p.context, p.prev_slots[next]);
}

void verify_records(const VerifyParams& p, std::int64_t begin, std::int64_t end, Tally& tally) {
  for (std::int64_t i = begin; i < end; ++i) {
    look_ahead(p, i, end);
    const Entry kind = kind_of(p, i);
    if (kind == Entry::checked)
      check_entry(p, i, 0, tally);
    else if (kind == Entry::out_of_range)
      ++tally.out_of_range;
  }
}

void verify_records_and_bytes(const VerifyParams& p, std::int64_t begin, std::int64_t end,
                              Tally& tally) {
  for (std::int64_t i = begin; i < end;) {
    std::int64_t entries[kGroup];
    std::int64_t slots[kGroup];
    std::uint64_t hashes[kGroup];
    std::int64_t n = 0;
    for (; i < end && n < kGroup; ++i) {
      look_ahead(p, i, end);
      Entry kind = kind_of(p, i);
      if (kind == Entry::checked && !has_bytes(p.context, p.slots[i])) kind = Entry::out_of_range;
      if (kind == Entry::out_of_range) ++tally.out_of_range;
      if (kind != Entry::checked) continue;
      entries[n] = i;
      slots[n++] = p.slots[i];
    }
    fold(p.context, slots, n, hashes);
    for (std::int64_t k = 0; k < n; ++k) check_entry(p, entries[k], hashes[k], tally);
  }
}

void run_verify(const VerifyParams& p, int threads) {
  Tally::add_to(p.context.kernel_run_counter, 1);
  if (*p.enable == 0) return;
  // As on the GPU, a negative count is a huge unsigned one.
  const std::int64_t n =
      std::min<std::int64_t>(static_cast<std::uint32_t>(*p.num_valid), p.capacity);
  if (n == 0) return;
  std::vector<Tally> tallies(static_cast<std::size_t>((n + kGrain - 1) / kGrain));
  parallel_for(threads, n, kGrain, [&](std::int64_t begin, std::int64_t end) {
    Tally& tally = tallies[static_cast<std::size_t>(begin / kGrain)];
    tally.entries = end - begin;
    if (p.context.num_sources == 0)
      verify_records(p, begin, end, tally);
    else
      verify_records_and_bytes(p, begin, end, tally);
  });
  for (const Tally& tally : tallies) tally.commit(p.context);
}

}  // namespace

void verify(const VerifyOrWriteContext& context, const VerifyPlan& plan,
            bool check_verify_expected_token, Stream stream, int threads) {
  const VerifyParams params = check_verify(context, plan, check_verify_expected_token);
  require_cpu("canary_buf", context.canary_buf);
  static_cast<void>(stream);
  run_verify(params, threads);
}

}  // namespace serinus::canary::sglang
