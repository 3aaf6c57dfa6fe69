// With Highway this file is compiled once a target and the best one is chosen at run time. Vectors
// pay off where the CPU multiplies 64-bit lanes (AVX-512); elsewhere, and without Highway, the
// same tests run one entry after another. All give the same answer.
#ifdef SERINUS_HIGHWAY
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "canary/sglang/lanes.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "canary/gather-inl.h"
#endif

#include <algorithm>
#include <cstdint>

#include "canary/sglang/lanes.h"
#include "canary/sglang/look_ahead.h"
#include "canary/sglang/records.h"

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

#ifdef SERINUS_VECTOR_MULTIPLY
using canary::HWY_NAMESPACE::D8;
using canary::HWY_NAMESPACE::LaneBefore;
using canary::HWY_NAMESPACE::V8;
using I8 = hn::RebindToSigned<D8>;

// Eight records, a word of each in a vector.
struct Records {
  V8 token, position, prev_hash, real_kv_hash;
};

HWY_INLINE Records load_records(const ContextParams& c, const std::int64_t* slots) {
  const auto words = canary::HWY_NAMESPACE::gather(
      [&](int k) HWY_ATTR { return c.records + slots[k] * c.stride; });
  return {words.first, words.second, words.third, words.fourth};
}

HWY_INLINE V8 hashes_of(const Records& r) {
  const auto multiplied = [](V8 x) HWY_ATTR {
    x = hn::Mul(hn::Xor(x, hn::ShiftRight<30>(x)), hn::Set(D8(), hash::kMul1));
    return hn::Mul(hn::Xor(x, hn::ShiftRight<27>(x)), hn::Set(D8(), hash::kMul2));
  };
  V8 x = multiplied(r.prev_hash);
  x = multiplied(hn::Xor3(x, hn::ShiftRight<31>(x), r.token));
  x = multiplied(hn::Xor3(x, hn::ShiftRight<31>(x), r.position));
  return hn::Xor(x, hn::ShiftRight<31>(x));
}
#endif

// Where kAChain, an entry's predecessor is the entry before it, whose hash is at hand.
template <bool kAChain>
bool any_fault_in(const VerifyParams& p, std::int64_t first, std::int64_t count,
                  const std::uint64_t* real_kv_hashes, VerifyAhead& ahead) {
  const ContextParams& c = p.context;
  const std::int64_t* const slots = p.slots + first;
  const std::int64_t* const prev_slots = p.prev_slots + first;
  const auto predecessor = [&](std::int64_t k) {
    return prev_slots[k] > 0 ? hash_of(load(c, prev_slots[k])) : 0;
  };
  std::uint64_t before = predecessor(0);
  std::int64_t k = 0;
#ifdef SERINUS_VECTOR_MULTIPLY
  const D8 d;
  const I8 di;
  const std::int64_t* const tokens = p.check_tokens ? p.tokens + first : nullptr;
  const std::int64_t* const positions = p.positions + first;
  const auto none = hn::Zero(di);
  LaneBefore lane_before(before);
  V8 differences = hn::Zero(d);
  for (; k + 8 <= count; k += 8) {
    ahead.at(first + k);
    const Records r = load_records(c, slots + k);
    const auto prev = hn::LoadU(di, prev_slots + k);
    V8 expected;
    if constexpr (kAChain) {
      expected = lane_before(hashes_of(r));
    } else {
      std::int64_t existing[8];
      hn::StoreU(hn::Max(prev, none), di, existing);
      expected = hashes_of(load_records(c, existing));
    }
    expected = hn::IfThenElse(hn::RebindMask(d, hn::Lt(prev, none)), hn::Set(d, hash::kAnchorHash),
                              expected);
    expected = hn::IfThenElse(hn::RebindMask(d, hn::Eq(prev, none)), r.prev_hash, expected);
    differences = hn::Or(differences, hn::Xor(r.prev_hash, expected));
    differences =
        hn::Or(differences, hn::Xor(r.position, hn::BitCast(d, hn::LoadU(di, positions + k))));
    differences = hn::Or(differences, hn::Xor(r.real_kv_hash, hn::LoadU(d, real_kv_hashes + k)));
    if (tokens != nullptr) {
      const auto want = hn::LoadU(di, tokens + k);
      const auto known = hn::RebindMask(d, hn::Ne(want, hn::Set(di, kNoToken)));
      differences =
          hn::Or(differences, hn::IfThenElseZero(known, hn::Xor(r.token, hn::BitCast(d, want))));
    }
  }
  if (!hn::AllTrue(d, hn::Eq(differences, hn::Zero(d)))) return true;
  before = lane_before.last();
#endif
  for (; k < count; ++k) {
    if (k % VerifyAhead::kStep == 0) ahead.at(first + k);
    const Record r = load(c, slots[k]);
    if (!kAChain) before = predecessor(k);
    if (judge(p, first + k, r, before, real_kv_hashes[k]).fail_reason_bits != 0) return true;
    before = hash_of(r);
  }
  return false;
}

bool any_fault(const VerifyParams& p, std::int64_t first, std::int64_t count, bool a_chain,
               const std::uint64_t* real_kv_hashes, VerifyAhead& ahead) {
  return a_chain ? any_fault_in<true>(p, first, count, real_kv_hashes, ahead)
                 : any_fault_in<false>(p, first, count, real_kv_hashes, ahead);
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
  /// What add() takes: known long before it is needed, and there are two shifters for all.
  static std::uint64_t word(std::int64_t token_or_position) {
    return u64(token_or_position) ^ u64(token_or_position) >> 30;
  }
  void add(std::uint64_t token_word, std::uint64_t position_word) {
    multiply(hn::Xor(x_by_0_30_31(), x_by_61()));
    multiply(hn::Xor3(x_by_0_30_31(), x_by_61(), hn::Set(D(), token_word)));
    multiply(hn::Xor3(x_by_0_30_31(), x_by_61(), hn::Set(D(), position_word)));
  }

 private:
  // Two lanes that are the same: one alone Highway would multiply outside of vectors.
  using D = hn::FixedTag<std::uint64_t, 2>;
  using V = hn::Vec<D>;

  V x_by_0_30_31() const { return hn::Xor3(x_, hn::ShiftRight<30>(x_), hn::ShiftRight<31>(x_)); }
  // It is needed last, and two shifts a cycle is what there is: so it comes from x >> 31.
  V x_by_61() const { return hn::ShiftRight<30>(hn::ShiftRight<31>(x_)); }
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
  static std::uint64_t word(std::int64_t token_or_position) { return u64(token_or_position); }
  void add(std::uint64_t token_word, std::uint64_t position_word) {
    hash_ = hash::mix3(hash_, token_word, position_word);
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
  alignas(64) std::uint64_t token_words[kGroup], position_words[kGroup];
  for (std::int64_t i = begin; i < end;) {
    const std::int64_t count = std::min(kGroup, end - i);
    for (std::int64_t k = 0; k < count; ++k) {
      token_words[k] = Chain::word(tokens[i + k]);
      position_words[k] = Chain::word(positions[i + k]);
    }
    for (std::int64_t k = 0; k < count; ++k, ++i) {
      ahead.at(i);
      if (!within(slots[i], context.num_slots)) [[unlikely]] {
        if (slots[i] < 0) continue;
        ++run.entries;
        ++run.out_of_range;
        continue;
      }
      ++run.entries;
      store(context, slots[i],
            {.token = tokens[i], .position = positions[i], .prev_hash = i64(running.hash())});
      running.add(token_words[k], position_words[k]);
    }
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

bool any_fault(const VerifyParams& p, std::int64_t first, std::int64_t count, bool a_chain,
               const std::uint64_t* real_kv_hashes, VerifyAhead& ahead) noexcept {
#ifdef SERINUS_HIGHWAY
  return HWY_DYNAMIC_DISPATCH(any_fault)(p, first, count, a_chain, real_kv_hashes, ahead);
#else
  return portable::any_fault(p, first, count, a_chain, real_kv_hashes, ahead);
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
