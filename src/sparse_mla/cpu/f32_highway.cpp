// The float32 path for every SIMD target that Highway knows, the best one chosen at run time.
#include <algorithm>
#include <vector>

#include "base/dtypes.h"
#include "sparse_mla/cpu/kernels.h"

// Vectors whose size is unknown at compile time cannot be held in arrays; those CPUs take another
// target or the portable path.
#define HWY_DISABLED_TARGETS (HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | HWY_RVV)
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "sparse_mla/cpu/f32_highway.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace serinus::sparse_mla {
namespace HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;  // NOLINT(misc-unused-alias-decls): used in the templates

using D = hn::CappedTag<float, kMaxLanes>;
using F = hn::Vec<D>;
constexpr int kLanes =
    static_cast<int>(HWY_LANES(float) < kMaxLanes ? HWY_LANES(float) : kMaxLanes);
// Accumulators and the operands beside them should fill the registers and not spill.
constexpr int kTileRows = HWY_TARGET <= HWY_AVX3 ? 6 : HWY_ARCH_ARM_A64 ? 6 : 3;

HWY_INLINE F load(const float* p) {
  return hn::Load(D(), p);
}
HWY_INLINE void store(F x, float* p) {
  hn::Store(x, D(), p);
}
HWY_INLINE F splat(float x) {
  return hn::Set(D(), x);
}
HWY_INLINE F zero() {
  return hn::Zero(D());
}
HWY_INLINE F multiply(F a, F b) {
  return hn::Mul(a, b);
}
HWY_INLINE F multiply_add(F a, F b, F c) {
  return hn::MulAdd(a, b, c);
}
HWY_INLINE F add(F a, F b) {
  return hn::Add(a, b);
}
HWY_INLINE F subtract(F a, F b) {
  return hn::Sub(a, b);
}
HWY_INLINE F maximum(F a, F b) {
  return hn::Max(a, b);
}

// 2^x = 2^round(x) * 2^rest by Taylor's series, whose next term is below 2^-29.
HWY_INLINE F exp2_nonpositive(F x) {
  const D d;
  const F clamped = hn::Max(x, hn::Set(d, -126.0f));
  const auto whole = hn::NearestInt(clamped);
  const F rest = hn::Sub(clamped, hn::ConvertTo(d, whole));
  F y = hn::Set(d, 1.5252734e-5f);
  y = hn::MulAdd(y, rest, hn::Set(d, 1.5403530e-4f));
  y = hn::MulAdd(y, rest, hn::Set(d, 1.3333558e-3f));
  y = hn::MulAdd(y, rest, hn::Set(d, 9.6181291e-3f));
  y = hn::MulAdd(y, rest, hn::Set(d, 5.5504109e-2f));
  y = hn::MulAdd(y, rest, hn::Set(d, 2.4022651e-1f));
  y = hn::MulAdd(y, rest, hn::Set(d, 6.9314718e-1f));
  y = hn::MulAdd(y, rest, hn::Set(d, 1.0f));
  const auto exponent = hn::ShiftLeft<23>(hn::Add(whole, hn::Set(hn::RebindToSigned<D>(), 127)));
  y = hn::Mul(y, hn::BitCast(d, exponent));
  y = hn::IfThenElse(hn::Lt(x, hn::Set(d, -126.0f)), hn::Zero(d), y);
  return hn::IfThenElse(hn::IsNaN(x), x, y);
}

HWY_INLINE F decode(const std::uint8_t* p) {
  const D d;
  const hn::Rebind<std::uint8_t, D> bytes;
  const hn::RebindToUnsigned<D> bits;
  const auto code = hn::PromoteTo(bits, hn::LoadU(bytes, p));
  const auto magnitude = hn::And(code, hn::Set(bits, 0x7f));
  const auto sign = hn::ShiftLeft<24>(hn::And(code, hn::Set(bits, 0x80)));
  // The exponent's bias goes from 7 to 127. A subnormal (exponent 0) gets an implicit bit too much:
  // 2^-6 * (1 + m/8) with the exponent of 2^-6 set, minus that 2^-6.
  const auto normal = hn::Add(hn::ShiftLeft<20>(magnitude), hn::Set(bits, 120u << 23));
  const auto subnormal = hn::BitCast(
      bits, hn::Sub(hn::BitCast(d, hn::Add(normal, hn::Set(bits, 1u << 23))), hn::Set(d, 0x1p-6f)));
  auto value = hn::IfThenElse(hn::Lt(magnitude, hn::Set(bits, 8)), subnormal, normal);
  value = hn::IfThenElse(hn::Eq(magnitude, hn::Set(bits, 0x7f)), hn::Set(bits, 0x7fc00000), value);
  return hn::BitCast(d, hn::Or(value, sign));
}

#include "sparse_mla/cpu/f32-inl.h"

constexpr const char* path_name() {
  switch (HWY_TARGET) {
#if HWY_ARCH_X86
    case HWY_AVX3:
      return "f32 AVX-512";
    case HWY_AVX2:
      return "f32 AVX2";
    case HWY_SSE4:
      return "f32 SSE4";
    case HWY_SSSE3:
      return "f32 SSSE3";
#elif HWY_ARCH_ARM
    case HWY_NEON:
      return "f32 NEON";
#endif
    default:
      return "f32 SIMD";
  }
}

constexpr Kernels kPath = {path_name(), kLanes, pack_query, load_rows,
                           score,       weigh,  accumulate, finish};

}  // namespace

const Kernels* path() {
  return &kPath;
}

}  // namespace HWY_NAMESPACE
}  // namespace serinus::sparse_mla
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace serinus::sparse_mla {

HWY_EXPORT(path);

std::span<const Kernels* const> highway_paths() {
  static const std::vector<const Kernels*> paths = [] {
    std::vector<const Kernels*> found;
    // Beside the best target, which is what HWY_DYNAMIC_DISPATCH would give, the others that this
    // CPU has, from the table behind it: they are tested like the best.
    if constexpr (std::size(HWY_DISPATCH_TABLE(path)) == 1) {
      found.push_back(HWY_DISPATCH_TABLE(path)[0]());
    } else {
      for (std::int64_t left = hwy::SupportedTargets() & HWY_TARGETS; left != 0;
           left &= left - 1) {  // the lowest bit is the best target
        const std::int64_t target = left & -left;
        const auto slot =
            static_cast<std::uint64_t>(HWY_CHOSEN_TARGET_SHIFT(target) |
                                       (target >= HWY_EMU128 ? HWY_CHOSEN_TARGET_MASK_SCALAR : 0));
        if (slot == 0) continue;
        const auto get = HWY_DISPATCH_TABLE(path)[hwy::Num0BitsBelowLS1Bit_Nonzero64(slot)];
        if (get != nullptr) found.push_back(get());
      }
    }
    return found;
  }();
  return paths;
}

}  // namespace serinus::sparse_mla
#endif
