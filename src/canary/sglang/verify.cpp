// Verify: every entry of a plan against the records.
#include <algorithm>
#include <vector>

#include "base/parallel.h"
#include "canary/cuda/sglang/run.h"
#include "canary/sglang/lanes.h"
#include "canary/sglang/look_ahead.h"
#include "canary/sglang/records.h"

namespace serinus::canary::sglang {

namespace {

constexpr std::int64_t kGrain = 16384;  // entries a thread takes at a time
// Entries between asking for a record and loading it. More than this many lines under way at once
// are not asked for in earnest: the request is dropped, and costs more than none.
constexpr std::int64_t kAhead = 24;

void check_entry(const VerifyParams& p, std::int64_t i, const Record& stored,
                 const Record& predecessor, std::uint64_t real_kv_hash, Tally& tally) {
  const std::uint64_t before = p.prev_slots[i] > 0 ? hash_of(predecessor) : 0;
  const ViolationRow row = judge(p, i, stored, before, real_kv_hash);
  if (row.fail_reason_bits != 0) tally.add(row);
}

// Asks for the records of the entry kAhead further on. An address out of the buffer is not
// dereferenced, so none is refused here.
void look_ahead(const VerifyParams& p, std::int64_t i, std::int64_t end) noexcept {
  const std::int64_t next = i + kAhead;
  if (next >= end) return;
  const Addresses address_of(p.context);
  prefetch<0>(address_of(p.slots[next]));
  // Along a chain the predecessor's record is the one just asked for.
  if (p.prev_slots[next] != p.slots[next - 1]) prefetch<0>(address_of(p.prev_slots[next]));
}

// What a group of entries is loaded into. Made once a range: filling it with zeros takes as long as
// a group's loads.
struct Scratch {
  Record chain[kGroup + 1];  // the first entry's predecessor, then the entries
  Record others[kGroup];     // predecessors, where they are not a chain
  std::uint64_t hashes[kGroup] = {};
  bool ok[kGroup];
};

// Verifies a group of entries. Their records are loaded first, all at once, so that the misses
// overlap; then they are checked.
void verify_group(const VerifyParams& p, std::int64_t first, std::int64_t count, std::int64_t end,
                  Scratch& scratch, PagesAhead& pages, Tally& tally) {
  const ContextParams& c = p.context;
  const GroupShape shape = group_shape(p, first, count);
  bool skips = !shape.all_checked;
  auto& [chain, others, hashes, ok] = scratch;
  if (c.num_sources > 0) {
    std::int64_t slots[kGroup] = {};
    for (std::int64_t k = 0; k < count; ++k) {
      const std::int64_t slot = p.slots[first + k];
      slots[k] = slot == kPaddingSlot ? -1 : slot;
    }
    fold(c, slots, count, hashes, ok);
    for (std::int64_t k = 0; k < count; ++k) skips |= !ok[k];
  }

  const Record* const stored = chain + 1;
  const Record* predecessors = chain;
  if (!skips) {
    const std::int64_t prev = p.prev_slots[first];
    chain[0] = prev > 0 ? load(c, prev) : Record{};
    for (std::int64_t k = 0; k < count; ++k) {
      pages.at(first + k);
      look_ahead(p, first + k, end);
      copy(c, p.slots[first + k], chain[k + 1]);
    }
    if (!shape.a_chain) {
      for (std::int64_t k = 0; k < count; ++k)
        copy(c, std::max(p.prev_slots[first + k], kPaddingSlot), others[k]);
      predecessors = others;
    }
    if (!any_fault(p, first, count, stored, predecessors, hashes)) return;
  }
  for (std::int64_t k = 0; k < count; ++k) {
    const std::int64_t slot = p.slots[first + k];
    const std::int64_t prev = p.prev_slots[first + k];
    if (slot == kPaddingSlot) continue;
    if (!within(slot, c.num_slots) || prev >= c.num_slots || (c.num_sources > 0 && !ok[k])) {
      ++tally.out_of_range;
      continue;
    }
    check_entry(p, first + k, load(c, slot), prev > 0 ? load(c, prev) : Record{}, hashes[k], tally);
  }
}

// While a group is checked memory waits, so smaller groups are better; but where every entry lies
// on another page, a larger one has more page walks under way at once (19 instead of 23 ns an
// entry).
std::int64_t group_size(const VerifyParams& p, std::int64_t i, std::int64_t end) {
  const bool in_order = i + 1 < end && p.slots[i + 1] == i64(u64(p.slots[i]) + 1);
  return in_order ? kGroup / 2 : kGroup;
}

void verify_range(const VerifyParams& p, std::int64_t begin, std::int64_t end, Tally& tally) {
  tally.entries = end - begin;
  Scratch scratch;
  // Beyond the range: the next one is often this thread's, too.
  PagesAhead pages(p.context, p.slots, begin, count_of(*p.num_valid, p.capacity));
  for (std::int64_t i = begin, count = 0; i < end; i += count) {
    count = std::min(group_size(p, i, end), end - i);
    verify_group(p, i, count, end, scratch, pages, tally);
  }
}

void run_verify(const VerifyParams& p, int threads) {
  Tally::add_to(p.context.kernel_run_counter, 1);
  if (*p.enable == 0) return;
  const std::int64_t n = count_of(*p.num_valid, p.capacity);
  if (n == 0) return;
  std::vector<Tally> tallies(static_cast<std::size_t>((n + kGrain - 1) / kGrain), Tally(p.context));
  parallel_for(threads, n, kGrain, [&](std::int64_t begin, std::int64_t end) {
    verify_range(p, begin, end, tallies[static_cast<std::size_t>(begin / kGrain)]);
  });
  Tally total(p.context);
  for (const Tally& tally : tallies) total.append(tally);
  total.commit(p.context);
}

}  // namespace

void verify(const VerifyOrWriteContext& context, const VerifyPlan& plan,
            bool check_verify_expected_token, Stream stream, int threads) {
  const VerifyParams params = check_verify(context, plan, check_verify_expected_token);
  const Device device = context.canary_buf.device;
  if (device.type == DeviceType::cuda) {
    cuda::verify(params, device, stream);
  } else {
    run_verify(params, threads);
  }
}

}  // namespace serinus::canary::sglang
