// With Highway this file is compiled once a target and the best one is chosen at run time. Vectors
// pay off where the CPU multiplies 64-bit lanes (AVX-512); elsewhere, and without Highway, the same
// tests run one record after another, without a branch. All give the same answer.
#ifdef SERINUS_HIGHWAY
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "canary/serinus/lanes.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>
#endif

#include "canary/serinus/hash.h"
#include "canary/serinus/lanes.h"

#undef SERINUS_VECTOR_MULTIPLY
#if defined(SERINUS_HIGHWAY) && HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3
#define SERINUS_VECTOR_MULTIPLY
#endif

#ifdef SERINUS_HIGHWAY
HWY_BEFORE_NAMESPACE();
namespace serinus::canary::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;  // NOLINT(misc-unused-alias-decls): used in the templates
#else
namespace serinus::canary::portable {
#endif

#ifdef SERINUS_VECTOR_MULTIPLY

bool group_holds(const RecordGroup& group, std::uint32_t position, const std::int32_t* tokens) {
  const hn::CappedTag<std::uint64_t, kGroup> d;
  const hn::RebindToSigned<decltype(d)> di;
  const hn::Rebind<std::int32_t, decltype(d)> d32;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
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
  auto bad = hn::Zero(d);
  for (std::int64_t k = 0; k < kGroup; k += lanes) {
    const auto where = hn::LoadU(d, group.where + k);
    const auto before = hn::LoadU(d, group.chains + k);
    const auto chain = hn::LoadU(d, group.chains + k + 1);
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
    bad = hn::Or(bad, hn::Xor(now, chain));
    bad = hn::Or(bad, hn::VecFromMask(d, hn::Eq(chain, hn::Zero(d))));
    const auto places = hn::Iota(d, std::uint64_t{position} + static_cast<std::uint64_t>(k));
    bad = hn::Or(bad, hn::Xor(hn::ShiftRight<32>(where), places));
    if (tokens != nullptr) {
      const auto want = hn::PromoteTo(di, hn::LoadU(d32, tokens + k));
      const auto unknown = hn::RebindMask(d, hn::Lt(want, hn::Zero(di)));
      const auto differs = hn::Xor(hn::And(where, low), hn::BitCast(d, want));
      bad = hn::Or(bad, hn::IfThenZeroElse(unknown, differs));
    }
  }
  return hn::AllTrue(d, hn::Eq(bad, hn::Zero(d)));
}

#else

bool group_holds(const RecordGroup& group, std::uint32_t position, const std::int32_t* tokens) {
  std::uint64_t bad = 0;
  for (std::int64_t k = 0; k < kGroup; ++k) {
    const std::uint64_t where = group.where[k], chain = group.chains[k + 1];
    const auto token = static_cast<std::uint32_t>(where);
    const auto place = static_cast<std::uint32_t>(where >> 32);
    const std::uint64_t now =
        hash::fold(hash::chain_step(group.chains[k], hash::token_term(token, place)));
    bad |= (now ^ chain) | std::uint64_t{chain == 0};
    bad |= place ^ (std::uint64_t{position} + static_cast<std::uint64_t>(k));
    if (tokens != nullptr && tokens[k] >= 0) bad |= token ^ static_cast<std::uint32_t>(tokens[k]);
  }
  return bad == 0;
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

bool group_holds(const RecordGroup& group, std::uint32_t position,
                 const std::int32_t* tokens) noexcept {
#ifdef SERINUS_HIGHWAY
  return HWY_DYNAMIC_DISPATCH(group_holds)(group, position, tokens);
#else
  return portable::group_holds(group, position, tokens);
#endif
}

}  // namespace serinus::canary
#endif
