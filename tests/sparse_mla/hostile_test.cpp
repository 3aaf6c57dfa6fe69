// The prefill on values that nobody would pass on purpose, in memory that is exactly as large as
// the views say: under AddressSanitizer a single byte beyond it stops the test. Everything that the
// door lets through must come back with all of its outputs written; everything else must throw and
// leave them alone.
#include <gtest/gtest.h>

#include <bit>
#include <climits>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include <serinus/error.h>
#include <serinus/sparse_mla.h>

#include "base/dtypes.h"
#include "tests/sparse_mla/problem.h"

namespace serinus {
namespace {

using testing::Problem;

class Hostile {
 public:
  explicit Hostile(std::uint32_t seed) : random_(seed) {}

  std::int64_t below(std::int64_t n) {
    return static_cast<std::int64_t>(random_() % static_cast<std::uint64_t>(n));
  }
  bool chance(int one_in) { return below(one_in) == 0; }
  template <class T>
  T one_of(std::initializer_list<T> values) {
    return values.begin()[below(static_cast<std::int64_t>(values.size()))];
  }
  std::int32_t word() {
    return one_of({static_cast<std::int32_t>(random_()), INT_MIN, INT_MIN + 1, -1, 0, 1, 2,
                   INT_MAX - 1, INT_MAX});
  }
  float number() {
    constexpr float kInf = std::numeric_limits<float>::infinity();
    return one_of({std::bit_cast<float>(static_cast<std::uint32_t>(random_())), 0.0f, -0.0f, 1.0f,
                   kInf, -kInf, std::numeric_limits<float>::quiet_NaN(),
                   std::numeric_limits<float>::max(), std::numeric_limits<float>::denorm_min()});
  }
  std::uint8_t code() { return static_cast<std::uint8_t>(random_()); }
  /// Of a dimension that is never stepped along.
  std::int64_t any_stride() {
    return one_of({std::int64_t{0}, std::int64_t{-1}, std::int64_t{16}, std::int64_t{7}, INT64_MAX,
                   INT64_MIN, INT64_MAX - 15, std::int64_t{1} << 62,
                   static_cast<std::int64_t>(random_())});
  }
  /// Strides that stay within `t`'s memory, whatever they are.
  void bend(TensorView& t) {
    const bool empty = t.numel() == 0;
    const auto rank = static_cast<std::size_t>(t.rank);
    for (std::size_t d = 0; d < rank; ++d) {
      const bool stepped = !empty && t.shape[d] > 1;
      if (!stepped && chance(3)) t.strides[d] = any_stride();
      // Every row the same one, or in reverse.
      if (stepped && d + 1 < rank && chance(6)) t.strides[d] = 0;
      if (stepped && d == 0 && t.strides[d] > 0 && chance(6)) {
        t.data = t.as<char>() + (t.shape[0] - 1) * t.strides[0] * size_of(t.dtype);
        t.strides[d] = -t.strides[d];
      }
    }
    if (empty && chance(2)) t.data = nullptr;
  }

 private:
  std::mt19937_64 random_;
};

TEST(SparseMlaHostile, AnyValueIsAnsweredOrRefused) {
  int answered = 0;
  int refused = 0;
  for (std::uint32_t seed = 1; seed <= 400; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    Hostile h(seed);
    Problem p({.s_q = h.one_of<std::int64_t>({0, 1, 2, 5}),
               .s_kv = h.one_of<std::int64_t>({1, 3, 40}),
               .h_q = h.one_of<std::int64_t>({1, 2, 17, 65}),
               .d_qk = h.one_of<std::int64_t>({512, 576}),
               .topk = h.one_of<std::int64_t>({1, 2, 33, 100})},
              seed);
    const bool no_rows = h.chance(8);
    if (no_rows) p.shape.s_kv = 0;
    for (std::int32_t& index : p.indices) {
      index = h.chance(3) ? h.word() : static_cast<std::int32_t>(h.below(p.shape.s_kv + 1));
    }
    if (h.chance(2)) {
      for (std::int64_t t = 0; t < p.shape.s_q; ++t) p.lengths.push_back(h.word());
      p.lengths.shrink_to_fit();
    }
    if (h.chance(2)) {
      for (std::int64_t i = 0; i < p.shape.h_q; ++i) p.sink.push_back(h.number());
      p.sink.shrink_to_fit();
    }
    if (h.chance(2)) {
      for (std::uint8_t& c : p.q) c = h.code();
      for (std::uint8_t& c : p.kv) c = h.code();
    }
    if (h.chance(3)) p.sm_scale = h.number();
    if (h.chance(3)) p.q_scale = h.number();
    if (h.chance(3)) p.kv_scale = h.number();
    SparseMlaPrefill args = p.args();
    args.p_dtype = h.one_of({DType::f32, DType::bf16, DType::bf16, DType::e4m3});
    args.empty_row_lse = h.one_of({EmptyRowLse::plus_inf, EmptyRowLse::minus_inf});
    for (TensorView* t : {&args.q, &args.kv, &args.indices}) h.bend(*t);
    if (h.chance(10)) h.bend(args.out);
    if (h.chance(20)) args.d_v = h.word();
    const bool fits = can_run(args).ok;
    try {
      sparse_mla_prefill(args, {}, static_cast<int>(h.one_of({1, 2, 5})));
      EXPECT_TRUE(fits);
      ++answered;
      for (const std::uint16_t x : p.out) ASSERT_NE(x, Problem::kPoisonBf16);
      for (const float x : p.lse) ASSERT_NE(x, Problem::kPoison);
      for (const float x : p.max_logits) ASSERT_NE(x, Problem::kPoison);
    } catch (const Error&) {
      EXPECT_FALSE(fits);
      ++refused;
      for (const std::uint16_t x : p.out) ASSERT_EQ(x, Problem::kPoisonBf16);
      for (const float x : p.lse) ASSERT_EQ(x, Problem::kPoison);
    }
  }
  EXPECT_GE(answered, 100);
  EXPECT_GE(refused, 50);
}

// A shape is a promise that the caller makes of his memory; what no memory can hold is refused.
TEST(SparseMlaHostile, SizesThatNoMemoryHolds) {
  Problem p({.s_q = 1, .s_kv = 4, .h_q = 2, .d_qk = 576, .topk = 3});
  for (const std::int64_t size :
       {std::int64_t{-1}, INT64_MIN, INT64_MAX, INT64_MAX / 2, std::int64_t{1} << 55}) {
    for (int which = 0; which < 8; ++which) {
      SCOPED_TRACE(::testing::Message() << "size " << size << " of " << which);
      SparseMlaPrefill args = p.args();
      TensorView* const views[] = {&args.q,   &args.kv,         &args.indices, &args.out,
                                   &args.lse, &args.max_logits, &args.q_scale, &args.workspace};
      TensorView& t = *views[which];
      if (t.rank == 0) t = TensorView(p.out.data(), DType::u8, {1});
      for (std::size_t d = 0; d < static_cast<std::size_t>(t.rank); ++d) {
        // How long kv and a row of indices are is the caller's word: nothing contradicts it.
        if (size > 0 && ((&t == &args.kv && d == 0) || (&t == &args.indices && d == 2))) continue;
        if (&t == &args.workspace && size > 0) continue;
        const std::int64_t was = t.shape[d];
        t.shape[d] = size;
        p.poison();
        if (&t != &args.workspace) {
          EXPECT_THROW(sparse_mla_prefill(args, {}, 1), Error) << d;
        }
        static_cast<void>(can_run(args));
        t.shape[d] = was;
      }
    }
  }
}

}  // namespace
}  // namespace serinus
