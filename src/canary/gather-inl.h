// Records of both formats are four 64-bit words. Eight of them into vectors, a word of each in one.
// Included by files that Highway compiles once a target: where the CPU multiplies 64-bit lanes,
// SERINUS_VECTOR_MULTIPLY is defined.
#if defined(SERINUS_CANARY_GATHER_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef SERINUS_CANARY_GATHER_INL_H_
#undef SERINUS_CANARY_GATHER_INL_H_
#else
#define SERINUS_CANARY_GATHER_INL_H_
#endif

#include <hwy/highway.h>

#include <cstdint>

#undef SERINUS_VECTOR_MULTIPLY
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3
#define SERINUS_VECTOR_MULTIPLY
#endif

HWY_BEFORE_NAMESPACE();
namespace serinus::canary::HWY_NAMESPACE {

#ifdef SERINUS_VECTOR_MULTIPLY

using D8 = hwy::HWY_NAMESPACE::FixedTag<std::uint64_t, 8>;
using V8 = hwy::HWY_NAMESPACE::Vec<D8>;

struct Words {
  V8 first, second, third, fourth;
};

/// `record(k)` is where record k lies, k < 8; any alignment.
template <class WhereRecord>
HWY_INLINE Words gather(const WhereRecord& record) {
  namespace hn = hwy::HWY_NAMESPACE;
  const D8 d;
  const auto load = [&](int k) HWY_ATTR {
    return hn::LoadU(hn::Half<D8>(), reinterpret_cast<const std::uint64_t*>(record(k)));
  };
  const auto two = [&](int k, int l) HWY_ATTR { return hn::Combine(d, load(l), load(k)); };
  const V8 r04 = two(0, 4), r15 = two(1, 5), r26 = two(2, 6), r37 = two(3, 7);
  // In blocks of two lanes: first words of records 0 and 1, third words of 0 and 1, first words of
  // 4 and 5, third words of 4 and 5; the same of 2 3 6 7; second and fourth words likewise.
  const V8 odd_0145 = hn::InterleaveLower(d, r04, r15), odd_2367 = hn::InterleaveLower(d, r26, r37);
  const V8 even_0145 = hn::InterleaveUpper(d, r04, r15),
           even_2367 = hn::InterleaveUpper(d, r26, r37);
  const auto lower = [](V8 a, V8 b)
                         HWY_ATTR { return hn::OddEvenBlocks(hn::SwapAdjacentBlocks(b), a); };
  const auto upper = [](V8 a, V8 b)
                         HWY_ATTR { return hn::OddEvenBlocks(b, hn::SwapAdjacentBlocks(a)); };
  return {lower(odd_0145, odd_2367), lower(even_0145, even_2367), upper(odd_0145, odd_2367),
          upper(even_0145, even_2367)};
}

/// What each record's predecessor has, where that is the record one lane before; the first lane's
/// is in the last lane of the vector before.
class LaneBefore {
 public:
  explicit LaneBefore(std::uint64_t first) : carried_(hwy::HWY_NAMESPACE::Set(D8(), first)) {}
  HWY_INLINE V8 operator()(V8 v) {
    namespace hn = hwy::HWY_NAMESPACE;
    alignas(64) static constexpr std::int64_t kFrom[8] = {7, 0, 1, 2, 3, 4, 5, 6};
    const V8 rotated = hn::TableLookupLanes(v, hn::SetTableIndices(D8(), kFrom));
    const V8 before = hn::IfThenElse(hn::FirstN(D8(), 1), carried_, rotated);
    carried_ = rotated;
    return before;
  }
  std::uint64_t last() const { return hwy::HWY_NAMESPACE::GetLane(carried_); }

 private:
  V8 carried_;
};

#endif

}  // namespace serinus::canary::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
