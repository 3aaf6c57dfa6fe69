// With Highway this file is compiled once a target and the best one is chosen at run time. Vectors
// pay off where the CPU multiplies 64-bit lanes (AVX-512); elsewhere, and without Highway, the
// same tests run one entry after another. All give the same answer.
#ifdef SERINUS_HIGHWAY
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "canary/sglang/lanes.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>
#endif

#include "canary/sglang/lanes.h"
#include "canary/sglang/look_ahead.h"
#include "canary/sglang/records.h"

#undef SERINUS_VECTOR_MULTIPLY
#if defined(SERINUS_HIGHWAY) && HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3
#define SERINUS_VECTOR_MULTIPLY
#endif

#ifdef SERINUS_HIGHWAY
HWY_BEFORE_NAMESPACE();
namespace serinus::canary::sglang::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;  // NOLINT(misc-unused-alias-decls): used in the templates
#else
namespace serinus::canary::sglang::portable {
#endif

// Sign bits in place of comparisons, so that the compiler makes vectors of it. (A predecessor near
// INT64_MIN reads as not checked: that costs time and changes nothing.)
GroupShape group_shape(const VerifyParams& p, std::int64_t first, std::int64_t count) {
  const std::int64_t* const slots = p.slots + first;
  const std::int64_t* const prev_slots = p.prev_slots + first;
  const std::uint64_t last = u64(p.context.num_slots) - 1;
  std::uint64_t skipped = last - u64(prev_slots[0]);
  std::uint64_t elsewhere = 0;
  for (std::int64_t k = 0; k < count; ++k)
    skipped |= (u64(slots[k]) - 1) | (last - u64(slots[k])) | (last - u64(prev_slots[k]));
  for (std::int64_t k = 1; k < count; ++k) {
    const std::uint64_t positive = u64(i64(0 - u64(prev_slots[k])) >> 63);
    elsewhere |= positive & u64(prev_slots[k] ^ slots[k - 1]);
  }
  return {.all_checked = i64(skipped) >= 0, .a_chain = elsewhere == 0};
}

// Without a branch: what differs anywhere in entries [begin, count) of the group.
inline std::uint64_t differences_one_by_one(const VerifyParams& p, std::int64_t first,
                                            std::int64_t begin, std::int64_t count,
                                            const Record* stored, const Record* predecessors,
                                            const std::uint64_t* real_kv_hashes) noexcept {
  std::uint64_t differences = 0;
  for (std::int64_t k = begin; k < count; ++k) {
    const Record& r = stored[k];
    const std::int64_t prev = p.prev_slots[first + k];
    std::uint64_t expected_hash = hash_of(predecessors[k]);
    expected_hash = prev < 0 ? hash::kAnchorHash : expected_hash;
    expected_hash = prev == kPaddingSlot ? u64(r.prev_hash) : expected_hash;
    differences |= u64(r.prev_hash) ^ expected_hash;
    differences |= u64(r.position ^ p.positions[first + k]);
    differences |= u64(r.real_kv_hash) ^ real_kv_hashes[k];
    const std::int64_t token = p.check_tokens ? p.tokens[first + k] : kNoToken;
    differences |= token == kNoToken ? 0 : u64(r.token ^ token);
  }
  return differences;
}

bool any_fault(const VerifyParams& p, std::int64_t first, std::int64_t count, const Record* stored,
               const Record* predecessors, const std::uint64_t* real_kv_hashes) {
  std::int64_t k = 0;
#ifdef SERINUS_VECTOR_MULTIPLY
  const hn::ScalableTag<std::uint64_t> d;
  const hn::RebindToSigned<decltype(d)> di;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  const auto mul1 = hn::Set(d, hash::kMul1);
  const auto mul2 = hn::Set(d, hash::kMul2);
  const auto anchor = hn::Set(d, hash::kAnchorHash);
  const auto splitmix64 = [&](auto x) HWY_ATTR {
    x = hn::Mul(hn::Xor(x, hn::ShiftRight<30>(x)), mul1);
    x = hn::Mul(hn::Xor(x, hn::ShiftRight<27>(x)), mul2);
    return hn::Xor(x, hn::ShiftRight<31>(x));
  };
  const auto list = [&](const std::int64_t* v) HWY_ATTR { return hn::LoadU(di, v + first + k); };
  auto differences = hn::Zero(d);
  for (; k + lanes <= count; k += lanes) {
    hn::Vec<decltype(d)> token, position, prev_hash, real_kv_hash, p_token, p_position, p_prev,
        p_kv;
    hn::LoadInterleaved4(d, reinterpret_cast<const std::uint64_t*>(predecessors + k), p_token,
                         p_position, p_prev, p_kv);
    hn::LoadInterleaved4(d, reinterpret_cast<const std::uint64_t*>(stored + k), token, position,
                         prev_hash, real_kv_hash);
    const auto prev = list(p.prev_slots);
    auto expected =
        splitmix64(hn::Xor(splitmix64(hn::Xor(splitmix64(p_prev), p_token)), p_position));
    expected = hn::IfThenElse(hn::RebindMask(d, hn::Lt(prev, hn::Zero(di))), anchor, expected);
    expected = hn::IfThenElse(hn::RebindMask(d, hn::Eq(prev, hn::Zero(di))), prev_hash, expected);
    differences = hn::Or(differences, hn::Xor(prev_hash, expected));
    differences = hn::Or(differences, hn::Xor(position, hn::BitCast(d, list(p.positions))));
    differences = hn::Or(differences, hn::Xor(real_kv_hash, hn::LoadU(d, real_kv_hashes + k)));
    if (p.check_tokens) {
      const auto want = list(p.tokens);
      const auto known = hn::RebindMask(d, hn::Ne(want, hn::Set(di, kNoToken)));
      differences =
          hn::Or(differences, hn::IfThenElseZero(known, hn::Xor(token, hn::BitCast(d, want))));
    }
  }
  if (!hn::AllTrue(d, hn::Eq(differences, hn::Zero(d)))) return true;
#endif
  return differences_one_by_one(p, first, k, count, stored, predecessors, real_kv_hashes) != 0;
}

#ifdef SERINUS_VECTOR_MULTIPLY
// A chain without the last xor-shift of its last splitmix64. That one and the first of the next
// are one step of three cycles, where one after the other would take four:
//   y = x ^ x >> 31 ^ b;  y ^ y >> 30  =  x ^ x >> 31 ^ x >> 30 ^ x >> 61 ^ (b ^ b >> 30)
class Chain {
 public:
  explicit Chain(std::uint64_t hash)
      : x_(hn::Set(D(), hash ^ hash >> 31 ^ hash >> 62)) {}  // that xor-shift undone
  std::uint64_t hash() const { return hn::GetLane(hn::Xor(x_, hn::ShiftRight<31>(x_))); }
  void add(std::int64_t token, std::int64_t position) {
    multiply(joined(x_));
    multiply(joined(with(token)));
    multiply(joined(with(position)));
  }

 private:
  // Two lanes that are the same: one alone Highway would multiply outside of vectors.
  using D = hn::FixedTag<std::uint64_t, 2>;
  using V = hn::Vec<D>;

  V with(std::int64_t word) const {
    const V b = hn::Set(D(), u64(word));
    return hn::Xor3(x_, b, hn::ShiftRight<30>(b));
  }
  // x >> 61 comes from x >> 31: it is needed last, and two shifts a cycle is what there is.
  V joined(V x_and_b) const {
    const V by_31 = hn::ShiftRight<31>(x_);
    return hn::Xor(hn::Xor3(x_and_b, by_31, hn::ShiftRight<30>(x_)), hn::ShiftRight<30>(by_31));
  }
  void multiply(V z) {
    z = hn::Mul(z, hn::Set(D(), hash::kMul1));
    x_ = hn::Mul(hn::Xor(z, hn::ShiftRight<27>(z)), hn::Set(D(), hash::kMul2));
  }

  V x_;
};
#else
class Chain {
 public:
  explicit Chain(std::uint64_t hash) : hash_(hash) {}
  std::uint64_t hash() const { return hash_; }
  void add(std::int64_t token, std::int64_t position) {
    hash_ = hash::mix3(hash_, u64(token), u64(position));
  }

 private:
  std::uint64_t hash_;
};
#endif

StampedRun stamp_run(const WriteParams& p, std::int64_t begin, std::int64_t end,
                     std::uint64_t chain) {
  // Nothing but the chain may wait: what the loop needs is local, as the compiler must assume that
  // a store changes all other memory.
  const ContextParams context = p.context;
  const std::int64_t* const slots = p.slots;
  const std::int64_t* const tokens = p.tokens;
  const std::int64_t* const positions = p.positions;
  Chain running(chain);
  StampedRun run;
  WriteAhead ahead(p, begin, end);
  for (std::int64_t i = begin; i < end; ++i) {
    ahead.at(i);
    if (slots[i] < 0) continue;
    ++run.entries;
    if (slots[i] >= context.num_slots) {
      ++run.out_of_range;
      continue;
    }
    store(context, slots[i],
          {.token = tokens[i], .position = positions[i], .prev_hash = i64(running.hash())});
    running.add(tokens[i], positions[i]);
  }
  return run;
}

#ifdef SERINUS_HIGHWAY
}  // namespace serinus::canary::sglang::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#else
}  // namespace serinus::canary::sglang::portable
#endif

#if !defined(SERINUS_HIGHWAY) || HWY_ONCE
namespace serinus::canary::sglang {

#ifdef SERINUS_HIGHWAY
HWY_EXPORT(group_shape);
HWY_EXPORT(any_fault);
HWY_EXPORT(stamp_run);
#endif

GroupShape group_shape(const VerifyParams& p, std::int64_t first, std::int64_t count) noexcept {
#ifdef SERINUS_HIGHWAY
  return HWY_DYNAMIC_DISPATCH(group_shape)(p, first, count);
#else
  return portable::group_shape(p, first, count);
#endif
}

bool any_fault(const VerifyParams& p, std::int64_t first, std::int64_t count, const Record* stored,
               const Record* predecessors, const std::uint64_t* real_kv_hashes) noexcept {
#ifdef SERINUS_HIGHWAY
  return HWY_DYNAMIC_DISPATCH(any_fault)(p, first, count, stored, predecessors, real_kv_hashes);
#else
  return portable::any_fault(p, first, count, stored, predecessors, real_kv_hashes);
#endif
}

StampedRun stamp_run(const WriteParams& p, std::int64_t begin, std::int64_t end,
                     std::uint64_t chain) noexcept {
#ifdef SERINUS_HIGHWAY
  return HWY_DYNAMIC_DISPATCH(stamp_run)(p, begin, end, chain);
#else
  return portable::stamp_run(p, begin, end, chain);
#endif
}

}  // namespace serinus::canary::sglang
#endif
