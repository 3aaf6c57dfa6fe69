// With Highway this file is compiled once a target and the best one is chosen at run time. Vectors
// pay off where the CPU multiplies 64-bit lanes (AVX-512); elsewhere, and without Highway, the same
// tests run one record after another, without a branch. All give the same answer.
#ifdef SERINUS_HIGHWAY
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "canary/serinus/lanes.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "canary/gather-inl.h"
#endif

#include <algorithm>
#include <cstdint>

#include "canary/serinus/hash.h"
#include "canary/serinus/lanes.h"

#ifdef SERINUS_HIGHWAY
HWY_BEFORE_NAMESPACE();
namespace serinus::canary::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;  // NOLINT(misc-unused-alias-decls): used in the templates
#else
namespace serinus::canary::portable {
#endif

std::uint64_t who(const Record& r) {
  return std::uint64_t{r.generation} << 32 | r.owner;
}

#ifdef SERINUS_VECTOR_MULTIPLY

bool group_holds(const RecordGroup& group, std::uint64_t& chain) {
  const D8 d;
  const hn::RebindToSigned<D8> di;
  const hn::Rebind<std::int32_t, D8> d32;
  const auto set = [&](std::uint64_t x) HWY_ATTR { return hn::Set(d, x); };
  const auto low = set(0xFFFFFFFFu);
  const auto fold = [&](auto x) HWY_ATTR {
    return hn::Add(hn::And(x, set(hash::kP)), hn::ShiftRight<61>(x));
  };
  // h * R as hash::chain_step has it, from products of halves.
  constexpr std::uint64_t kScaled = hash::kR << 3;
  const auto r_low = set(kScaled & 0xFFFFFFFFu), r_high = set(kScaled >> 32);
  const auto product = [&](auto a, auto b) HWY_ATTR {
    const hn::Repartition<std::uint32_t, decltype(d)> halves;
    return hn::MulEven(hn::BitCast(halves, a), hn::BitCast(halves, b));
  };
  std::int32_t none = 0;
  for (std::int64_t k = 0; k < kGroup; ++k) none |= group.slots[k];
  if (none < 0) return false;
  const Record& first = group.records[group.slots[0]];
  const auto first_who = set(who(first));
  const std::uint8_t mark = hash::mark(first);
  std::uint32_t other_marks = 0;
  LaneBefore chain_before(chain);
  auto bad = hn::Zero(d);
  for (std::int64_t k = 0; k < kGroup; k += 8) {
    for (std::int64_t lane = 0; lane < 8; ++lane) group.ask_for(k + lane + kLinesAhead);
    const std::int32_t* const slots = group.slots + k;
    for (int lane = 0; lane < 8; ++lane)
      other_marks |= static_cast<std::uint32_t>(group.marks[slots[lane]] ^ mark);
    const Words words = gather([&](int lane) HWY_ATTR { return group.records + slots[lane]; });
    const V8 where = words.first, now_stored = words.third;
    bad = hn::Or(bad, hn::Xor(words.second, first_who));
    const V8 before = chain_before(now_stored);
    auto x = hn::Add(where, set(0x9E3779B97F4A7C15u));
    x = hn::Mul(hn::Xor(x, hn::ShiftRight<30>(x)), set(0xBF58476D1CE4E5B9u));
    x = hn::Mul(hn::Xor(x, hn::ShiftRight<27>(x)), set(0x94D049BB133111EBu));
    const auto term = fold(hn::Xor(x, hn::ShiftRight<31>(x)));
    const auto high = hn::ShiftRight<32>(before);
    const auto low_low = product(before, r_low), low_high = product(before, r_high);
    const auto mid =
        hn::Add(hn::Add(hn::ShiftRight<32>(low_low), hn::And(low_high, low)), product(high, r_low));
    const auto rest = hn::Or(hn::ShiftLeft<32>(mid), hn::And(low_low, low));
    const auto quotient = hn::Add(hn::Add(product(high, r_high), hn::ShiftRight<32>(low_high)),
                                  hn::ShiftRight<32>(mid));
    const auto now = fold(hn::Add(quotient, hn::Add(hn::ShiftRight<3>(rest), term)));
    bad = hn::Or(bad, hn::Xor(now, now_stored));
    bad = hn::Or(bad, hn::VecFromMask(d, hn::Eq(now_stored, hn::Zero(d))));
    const auto places = hn::Iota(d, std::uint64_t{group.position} + static_cast<std::uint64_t>(k));
    bad = hn::Or(bad, hn::Xor(hn::ShiftRight<32>(where), places));
    if (group.tokens != nullptr) {
      const auto want = hn::PromoteTo(di, hn::LoadU(d32, group.tokens + k));
      const auto unknown = hn::RebindMask(d, hn::Lt(want, hn::Zero(di)));
      const auto differs = hn::Xor(hn::And(where, low), hn::BitCast(d, want));
      bad = hn::Or(bad, hn::IfThenZeroElse(unknown, differs));
    }
  }
  if (other_marks != 0 || !hn::AllTrue(d, hn::Eq(bad, hn::Zero(d)))) return false;
  chain = chain_before.last();
  return true;
}

#else

bool group_holds(const RecordGroup& group, std::uint64_t& chain) {
  if (group.slots[0] < 0) return false;
  const Record& first = group.records[group.slots[0]];
  const std::uint8_t mark = hash::mark(first);
  std::uint64_t bad = 0, before = chain;
  std::int32_t none = 0;
  for (std::int64_t k = 0; k < kGroup; ++k) {
    group.ask_for(k + kLinesAhead);
    none |= group.slots[k];
    const std::int32_t slot = std::max(group.slots[k], 0);
    const Record& r = group.records[slot];
    const std::uint64_t now =
        hash::fold(hash::chain_step(before, hash::token_term(r.token, r.position)));
    bad |= (who(r) ^ who(first)) | static_cast<std::uint64_t>(group.marks[slot] ^ mark);
    bad |= (now ^ r.chain) | std::uint64_t{r.chain == 0};
    bad |= r.position ^ (std::uint64_t{group.position} + static_cast<std::uint64_t>(k));
    if (group.tokens != nullptr && group.tokens[k] >= 0)
      bad |= r.token ^ static_cast<std::uint32_t>(group.tokens[k]);
    before = r.chain;
  }
  if (none < 0 || bad != 0) return false;
  chain = before;
  return true;
}

#endif

#ifdef SERINUS_HIGHWAY
}  // namespace serinus::canary::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#else
}  // namespace serinus::canary::portable
#endif

#if !defined(SERINUS_HIGHWAY) || HWY_ONCE
namespace serinus::canary {

#ifdef SERINUS_HIGHWAY
HWY_EXPORT(group_holds);
#endif

bool group_holds(const RecordGroup& group, std::uint64_t& chain) noexcept {
#ifdef SERINUS_HIGHWAY
  return HWY_DYNAMIC_DISPATCH(group_holds)(group, chain);
#else
  return portable::group_holds(group, chain);
#endif
}

}  // namespace serinus::canary
#endif
