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

void check_entry(const VerifyParams& p, std::int64_t i, const Record& stored,
                 const Record& predecessor, std::uint64_t real_kv_hash, Tally& tally) {
  const std::uint64_t before = p.prev_slots[i] > 0 ? hash_of(predecessor) : 0;
  const ViolationRow row = judge(p, i, stored, before, real_kv_hash);
  if (row.fail_reason_bits != 0) tally.add(row, i);
}

// Verifies entries [first, first + count) of the plan, at most kGroup. Only where something is
// wrong with one of them are they looked at one by one.
void verify_group(const VerifyParams& p, std::int64_t first, std::int64_t count, VerifyAhead& ahead,
                  Tally& tally) {
  const ContextParams& c = p.context;
  const GroupShape shape = group_shape(p, first, count);
  bool all_checked = shape.all_checked;
  std::uint64_t hashes[kGroup] = {};
  bool ok[kGroup];
  if (c.num_sources > 0) {
    std::int64_t slots[kGroup] = {};
    for (std::int64_t k = 0; k < count; ++k) {
      const std::int64_t slot = p.slots[first + k];
      slots[k] = slot == kPaddingSlot ? -1 : slot;
    }
    fold(c, slots, count, hashes, ok);
    for (std::int64_t k = 0; k < count; ++k) all_checked &= ok[k];
  }
  if (all_checked && !any_fault(p, first, count, shape.a_chain, hashes, ahead)) return;
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

void verify_range(const VerifyParams& p, std::int64_t begin, std::int64_t end, Tally& tally) {
  tally.entries = end - begin;
  // Beyond the range: the next one is often this thread's, too.
  VerifyAhead ahead(p, begin, count_of(*p.num_valid, p.capacity));
  for (std::int64_t i = begin; i < end; i += kGroup)
    verify_group(p, i, std::min(kGroup, end - i), ahead, tally);
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
