// The float32 path in plain C++: always built, for any CPU.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/dtypes.h"
#include "sparse_mla/cpu/kernels.h"

namespace serinus::sparse_mla {

namespace portable {
namespace {

inline constexpr int kLanes = 4;
inline constexpr int kTileRows = 2;

struct F {
  float at[kLanes];
};

template <class Op>
inline F each(Op op) {
  F r;
  for (int i = 0; i < kLanes; ++i) r.at[i] = op(i);
  return r;
}

inline F load(const float* p) {
  return each([&](int i) { return p[i]; });
}
inline void store(F x, float* p) {
  std::memcpy(p, x.at, sizeof(x.at));
}
inline F splat(float x) {
  return each([&](int) { return x; });
}
inline F zero() {
  return splat(0);
}
inline F multiply(F a, F b) {
  return each([&](int i) { return a.at[i] * b.at[i]; });
}
inline F multiply_add(F a, F b, F c) {
  return each([&](int i) { return a.at[i] * b.at[i] + c.at[i]; });
}
inline F add(F a, F b) {
  return each([&](int i) { return a.at[i] + b.at[i]; });
}
inline F subtract(F a, F b) {
  return each([&](int i) { return a.at[i] - b.at[i]; });
}
inline F maximum(F a, F b) {
  return each([&](int i) { return a.at[i] > b.at[i] ? a.at[i] : b.at[i]; });
}
inline F exp2_nonpositive(F x) {
  return each([&](int i) { return std::exp2(x.at[i]); });
}
inline F decode(const std::uint8_t* p) {
  return each([&](int i) { return e4m3_to_float(p[i]); });
}

#include "sparse_mla/cpu/f32-inl.h"

}  // namespace
}  // namespace portable

const Kernels& portable_path() {
  static constexpr Kernels kPath = {"f32 portable",       portable::kLanes, portable::pack_query,
                                    portable::load_rows,  portable::score,  portable::weigh,
                                    portable::accumulate, portable::finish};
  return kPath;
}

}  // namespace serinus::sparse_mla
