// The CPU backend against the float64 oracle, on every path that this CPU has.
//
// Error budget, relative Frobenius norm of `out` before its rounding to bf16 is counted: weights
// are kept in float32 (16 bits where bf16 dot products do the work), so what is left is that
// rounding, at most 2^-9 and about 2^-9 / sqrt(3) = 0.0011 ... 0.0017 over many values.
#include <gtest/gtest.h>

#include <climits>
#include <limits>
#include <string>

#include "sparse_mla/check.h"
#include "sparse_mla/cpu/kernels.h"
#include "sparse_mla/oracle.h"
#include "tests/sparse_mla/problem.h"

namespace serinus {
namespace {

using oracle::bf16_value;
using oracle::Reference;
using sparse_mla::Kernels;
using testing::Problem;
using testing::Shape;

constexpr double kOutBudget = 0.0018;
constexpr double kOutBudgetPBf16 = 0.0022;  // sqrt(0.0017^2 + 0.0011^2) and some
constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr std::uint8_t kE4m3NanCode = 0x7f;

class CpuPath : public ::testing::TestWithParam<std::size_t> {
 protected:
  static const Kernels& path() { return *sparse_mla::cpu_paths()[GetParam()]; }

  static void run(const SparseMlaPrefill& args, int threads = 1) {
    sparse_mla::check(args);
    sparse_mla::run_cpu_on(path(), sparse_mla::describe(args), threads);
  }

  // Runs `args`, whose outputs are p's, and compares all three outputs with the oracle: the same
  // infinities and NaN in the same places, everything else within the budget.
  static void expect_right(Problem& p, const SparseMlaPrefill& args,
                           double out_budget = kOutBudget) {
    p.poison();
    run(args);
    const Reference want = oracle::prefill(args);
    std::vector<double> got_out;
    std::vector<double> want_out;
    for (std::size_t i = 0; i < want.out.size(); ++i) {
      const double got = bf16_value(p.out[i]);
      ASSERT_NE(p.out[i], Problem::kPoisonBf16) << "out[" << i << "] was not written";
      ASSERT_EQ(std::isnan(got), std::isnan(want.out[i])) << "out[" << i << "]";
      if (std::isnan(got)) continue;
      got_out.push_back(got);
      want_out.push_back(want.out[i]);
    }
    EXPECT_LE(oracle::relative_error(got_out, want_out), out_budget);
    for (std::size_t i = 0; i < want.lse.size(); ++i) {
      expect_logit(p.max_logits[i], want.max_logits[i], "max_logits", i);
      expect_logit(p.lse[i], want.lse[i], "lse", i);
    }
  }

  static void expect_logit(float got, double want, const char* name, std::size_t i) {
    if (std::isnan(want) || std::isinf(want)) {
      ASSERT_EQ(std::isnan(got), std::isnan(want)) << name << "[" << i << "] is " << got;
      if (!std::isnan(want)) {
        ASSERT_EQ(static_cast<double>(got), want) << name << "[" << i << "]";
      }
      return;
    }
    ASSERT_NEAR(got, want, 3e-6 * (1 + std::abs(want))) << name << "[" << i << "]";
  }
};

TEST_P(CpuPath, EveryShape) {
  for (const std::int64_t d_qk : {576, 512}) {
    for (const std::int64_t h_q : {1, 3, 16, 64, 65, 128}) {
      for (const std::int64_t topk : {1, 7, 64, 333}) {
        SCOPED_TRACE(::testing::Message() << "d_qk " << d_qk << " h_q " << h_q << " topk " << topk);
        Problem p({.s_q = 1, .s_kv = 500, .h_q = h_q, .d_qk = d_qk, .topk = topk});
        expect_right(p, p.args());
      }
    }
  }
}

TEST_P(CpuPath, LongRows) {
  for (const std::int64_t topk : {128, 2048}) {
    Problem p({.s_q = 1, .s_kv = 4096, .h_q = 16, .d_qk = 576, .topk = topk});
    expect_right(p, p.args());
  }
}

TEST_P(CpuPath, ManyHeadsLongRows) {
  Problem p({.s_q = 1, .s_kv = 3000, .h_q = 64, .d_qk = 576, .topk = 2048});
  expect_right(p, p.args());
}

// Two rows that all but cancel: what is left is the difference of two weights near one, and shows
// how many bits of them count. One bf16 would leave 2^-9.
TEST_P(CpuPath, WeightsKeepSixteenBits) {
  Problem p({.s_q = 1, .s_kv = 2, .h_q = 16, .d_qk = 576, .topk = 2});
  std::ranges::fill(p.q, std::uint8_t{0});
  std::ranges::fill(p.kv, std::uint8_t{0});
  for (std::size_t c = 0; c < 512; ++c) {
    p.kv[c] = e4m3_from_float(1.75f);
    p.kv[576 + c] = e4m3_from_float(-1.75f);
  }
  p.kv[576 + 512] = e4m3_from_float(-1);
  for (std::size_t h = 0; h < 16; ++h) {
    p.q[h * 576 + 512] = e4m3_from_float(static_cast<float>(h + 1));
  }
  p.indices = {0, 1};
  p.sm_scale = 0x1p-10f;
  const SparseMlaPrefill args = p.args();
  run(args);
  const Reference want = oracle::prefill(args);
  for (std::size_t i = 0; i < want.out.size(); ++i) {
    ASSERT_NEAR(bf16_value(p.out[i]), want.out[i], 0x1p-15) << "out[" << i << "]";
  }
}

// P in one bf16 costs error, and not more than its rounding: 2^-9 at most, on top of that of `out`.
// Paths in float32 have nothing to gain and do not change a bit.
TEST_P(CpuPath, PInBf16) {
  for (const float deviation : {1.0f, 0.05f}) {  // of q: unit normal, and flat scores
    for (const std::int64_t topk : {33, 2048}) {
      SCOPED_TRACE(::testing::Message() << "deviation " << deviation << " topk " << topk);
      Problem p({.s_q = 3, .s_kv = 3000, .h_q = 40, .d_qk = 576, .topk = topk});
      p.fill(p.q, deviation);
      p.sink.assign(40, 0.5f);
      SparseMlaPrefill args = p.args();
      run(args);
      const std::vector<std::uint16_t> in_f32 = p.out;
      const std::vector<float> max_logits = p.max_logits;
      args.p_dtype = DType::bf16;
      p.poison();
      run(args);
      EXPECT_EQ(p.max_logits, max_logits);
      EXPECT_EQ(p.out != in_f32, std::string(path().name) == "bf16 AVX-512");
      const Reference want = oracle::prefill(args);
      std::vector<double> got;
      for (const std::uint16_t x : p.out) got.push_back(bf16_value(x));
      EXPECT_LE(oracle::relative_error(got, want.out), kOutBudgetPBf16);
      for (std::size_t i = 0; i < want.lse.size(); ++i) {
        ASSERT_NEAR(p.lse[i], want.lse[i], 0x1p-9 + 3e-6 * (1 + std::abs(want.lse[i])));
      }
    }
  }
}

// The denominator is the sum of what multiplies V: where all rows are the same, `out` is that row,
// exactly, however their weights were rounded.
TEST_P(CpuPath, PInBf16AddsUpToOne) {
  Problem p({.s_q = 1, .s_kv = 600, .h_q = 16, .d_qk = 576, .topk = 600});
  for (std::size_t i = 0; i < p.indices.size(); ++i) p.indices[i] = static_cast<std::int32_t>(i);
  for (std::size_t r = 0; r < 600; ++r) {
    // V is 1.5 throughout; the last columns, which are no part of V, make the scores differ.
    std::fill_n(p.kv.begin() + static_cast<std::ptrdiff_t>(r * 576), 512, e4m3_from_float(1.5f));
  }
  SparseMlaPrefill args = p.args();
  args.p_dtype = DType::bf16;
  run(args);
  for (const std::uint16_t x : p.out) ASSERT_EQ(bf16_value(x), 1.5);
}

// One row has weight 1, so `out` is that row, exactly: every finite code, in every column's place.
TEST_P(CpuPath, EveryCodeIsConvertedExactly) {
  for (const std::int64_t d_qk : {576, 512}) {
    Problem p({.s_q = 256, .s_kv = 256, .h_q = 3, .d_qk = d_qk, .topk = 1});
    for (std::size_t row = 0; row < 256; ++row) {
      p.indices[row] = static_cast<std::int32_t>(row);
      for (std::size_t c = 0; c < static_cast<std::size_t>(d_qk); ++c) {
        const auto code = static_cast<std::uint8_t>(row + 7 * c);
        p.kv[row * static_cast<std::size_t>(d_qk) + c] =
            (code & 0x7f) == kE4m3NanCode ? std::uint8_t{0x80} : code;
      }
    }
    run(p.args());
    for (std::size_t row = 0; row < 256; ++row) {
      for (std::size_t i = 0; i < 3 * 512; ++i) {
        const std::uint8_t code = p.kv[row * static_cast<std::size_t>(d_qk) + i % 512];
        ASSERT_EQ(bf16_value(p.out[row * 3 * 512 + i]), oracle::e4m3_value(code))
            << "row " << row << " column " << i % 512 << " code " << int{code};
      }
    }
  }
}

TEST_P(CpuPath, InvalidIndicesAreNeverLoaded) {
  Problem p({.s_q = 4, .s_kv = 400, .h_q = 5, .d_qk = 576, .topk = 300});
  // Rows 100 and beyond are unread memory: NaN.
  std::fill(p.kv.begin() + 100 * 576, p.kv.end(), kE4m3NanCode);
  const std::int32_t bad[] = {INT_MIN, INT_MIN + 1, -1, -2, 400, 401, INT_MAX - 1, INT_MAX};
  for (std::size_t i = 0; i < p.indices.size(); ++i) {
    p.indices[i] = i % 3 == 0 ? bad[i / 3 % std::size(bad)] : p.indices[i] % 100;
  }
  expect_right(p, p.args());
}

TEST_P(CpuPath, RowsBeyondTheLengthAreNeverLoaded) {
  Problem p({.s_q = 6, .s_kv = 400, .h_q = 5, .d_qk = 512, .topk = 250});
  std::fill(p.kv.begin() + 200 * 512, p.kv.end(), kE4m3NanCode);
  p.lengths = {0, 1, 249, 250, 251, -5};
  p.lengths[4] = INT_MAX;
  for (std::size_t t = 0; t < 6; ++t) {
    for (std::size_t i = 0; i < 250; ++i) {
      const bool counts = static_cast<std::int64_t>(i) < p.lengths[t];
      std::int32_t& index = p.indices[t * 250 + i];
      index = counts ? index % 200 : 200 + index % 200;
    }
  }
  expect_right(p, p.args());
}

TEST_P(CpuPath, DuplicatesCountAsOftenAsTheyStand) {
  Problem p({.s_q = 3, .s_kv = 10, .h_q = 16, .d_qk = 576, .topk = 200});
  expect_right(p, p.args());
}

TEST_P(CpuPath, NothingValid) {
  for (const bool plus : {true, false}) {
    Problem p({.s_q = 2, .s_kv = 10, .h_q = 5, .d_qk = 512, .topk = 9});
    std::fill(p.indices.begin(), p.indices.end(), -1);
    p.indices[9] = 3;  // the second token has one row: its neighbour must not matter
    p.sink = {0, kInf, -kInf, 3, kNan};
    SparseMlaPrefill args = p.args();
    args.empty_row_lse = plus ? EmptyRowLse::plus_inf : EmptyRowLse::minus_inf;
    expect_right(p, args);
    EXPECT_EQ(p.max_logits[0], -kInf);
    EXPECT_EQ(p.lse[0], plus ? kInf : -kInf);
    EXPECT_EQ(p.out[0], 0);
  }
}

TEST_P(CpuPath, NoRowsAtAll) {
  Problem p({.s_q = 2, .s_kv = 5, .h_q = 3, .d_qk = 576, .topk = 4});
  SparseMlaPrefill args = p.args();
  args.kv = TensorView(nullptr, DType::e4m3, {0, 1, 576});
  expect_right(p, args);
}

TEST_P(CpuPath, NoTokens) {
  Problem p({.s_q = 1, .s_kv = 5, .h_q = 3, .d_qk = 576, .topk = 4});
  p.shape.s_q = 0;
  run(p.args());
  EXPECT_EQ(p.lse[0], Problem::kPoison);
}

TEST_P(CpuPath, Sinks) {
  for (const bool with_length : {false, true}) {
    Problem p({.s_q = 3, .s_kv = 100, .h_q = 8, .d_qk = 576, .topk = 40});
    p.sink = {0, 4.5f, -2, 100, -100, kInf, -kInf, kNan};
    if (with_length) p.lengths = {40, 0, 17};
    expect_right(p, p.args());
    for (std::size_t c = 0; c < 512; ++c) {
      EXPECT_EQ(bf16_value(p.out[5 * 512 + c]), 0) << "an infinite sink leaves nothing";
    }
    EXPECT_TRUE(std::isfinite(p.lse[7])) << "a sink does not change lse";
  }
}

TEST_P(CpuPath, NanStaysWhereItWasRead) {
  Problem p({.s_q = 5, .s_kv = 60, .h_q = 20, .d_qk = 576, .topk = 30});
  for (std::size_t i = 0; i < p.indices.size(); ++i) p.indices[i] %= 50;
  p.indices[1 * 30 + 29] = 55;           // token 1 reads row 55
  p.kv[55 * 576 + 575] = kE4m3NanCode;   // outside V
  p.q[(3 * 20 + 4) * 576 + 100] = 0xff;  // token 3, head 4
  p.indices[4 * 30] = 56;                // token 4 reads row 56 first
  p.kv[56 * 576 + 3] = 0xff;             // inside V
  expect_right(p, p.args());
  int nan_rows = 0;
  for (std::size_t i = 0; i < 5 * 20; ++i) nan_rows += std::isnan(bf16_value(p.out[i * 512]));
  EXPECT_EQ(nan_rows, 20 + 1 + 20);
}

TEST_P(CpuPath, StridedViews) {
  // q: heads in reverse, 3 bytes between them; kv: the first 576 bytes of 656-byte rows; indices:
  // every other row of a wider table. What lies between is NaN, or an index that would be valid.
  const Shape s{.s_q = 3, .s_kv = 50, .h_q = 7, .d_qk = 576, .topk = 33};
  Problem p(s);
  std::vector<std::uint8_t> q(3 * 7 * 579 + 576, kE4m3NanCode);
  std::vector<std::uint8_t> kv(50 * 656, kE4m3NanCode);
  std::vector<std::int32_t> indices(3 * 70, 1);
  std::uint8_t* const last_head = q.data() + 6 * 579;
  for (std::int64_t t = 0; t < 3; ++t) {
    for (std::int64_t h = 0; h < 7; ++h) {
      std::copy_n(p.q.data() + (t * 7 + h) * 576, 576, last_head + t * 7 * 579 - h * 579);
    }
    std::copy_n(p.indices.data() + t * 33, 33, indices.data() + t * 70);
  }
  for (std::int64_t r = 0; r < 50; ++r)
    std::copy_n(p.kv.data() + r * 576, 576, kv.data() + r * 656);
  SparseMlaPrefill args = p.args();
  run(args);
  const std::vector<std::uint16_t> dense = p.out;
  args.q = TensorView(last_head, DType::e4m3, {3, 7, 576}, {7 * 579, -579, 1});
  args.kv = TensorView(kv.data(), DType::e4m3, {50, 1, 576}, {656, 1, 1});
  args.indices = TensorView(indices.data(), DType::i32, {3, 1, 33}, {70, 1, 1});
  expect_right(p, args);
  EXPECT_EQ(p.out, dense);
  // All rows the same one.
  args.kv = TensorView(kv.data(), DType::e4m3, {50, 1, 576}, {0, 0, 1});
  expect_right(p, args);
}

TEST_P(CpuPath, AnyDistributionOfLogits) {
  for (const float deviation : {0.05f, 1.0f, 16.0f, 100.0f}) {  // flat ... one row takes it all
    for (const float scale : {1.0f, -1.0f, 0.0f, 30.0f, -0.01f}) {
      SCOPED_TRACE(::testing::Message() << "deviation " << deviation << " scale " << scale);
      Problem p({.s_q = 2, .s_kv = 300, .h_q = 9, .d_qk = 576, .topk = 260});
      p.fill(p.q, deviation);
      p.sm_scale *= scale;
      p.q_scale = 0.7f;
      p.kv_scale = -1.3f;
      expect_right(p, p.args(), kOutBudget * 1.2);  // few values count where one row takes it all
    }
  }
}

// The running maximum rises in every block, or never again after the first.
TEST_P(CpuPath, SortedRows) {
  for (const bool rising : {true, false}) {
    Problem p({.s_q = 1, .s_kv = 700, .h_q = 4, .d_qk = 512, .topk = 700});
    for (std::size_t r = 0; r < 700; ++r) {
      p.indices[r] = static_cast<std::int32_t>(rising ? r : 699 - r);
      const float x = static_cast<float>(r) / 64;
      for (std::size_t c = 0; c < 256; ++c) p.kv[r * 512 + c] = e4m3_from_float(x);
    }
    std::fill(p.q.begin(), p.q.end(), e4m3_from_float(0.5f));
    expect_right(p, p.args());
  }
}

TEST_P(CpuPath, LargestAndSmallestScales) {
  const float huge = std::numeric_limits<float>::max();
  const float tiny = std::numeric_limits<float>::denorm_min();
  for (const float sm : {huge, -huge, tiny}) {
    for (const float q : {huge, 1.0f, tiny}) {
      SCOPED_TRACE(::testing::Message() << "sm_scale " << sm << " q_scale " << q);
      Problem p({.s_q = 1, .s_kv = 100, .h_q = 5, .d_qk = 576, .topk = 90});
      p.sm_scale = sm;
      p.q_scale = q;
      p.poison();
      run(p.args());
      const Reference want = oracle::prefill(p.args());
      for (std::size_t i = 0; i < p.out.size(); ++i) {
        // Logits beyond float32 are infinite, their softmax is not.
        ASSERT_NEAR(bf16_value(p.out[i]), want.out[i], 0.004 * std::abs(want.out[i]) + 1e-5);
      }
      for (std::size_t i = 0; i < 5; ++i) {
        ASSERT_FALSE(std::isnan(p.max_logits[i]));
        ASSERT_EQ(std::isinf(p.max_logits[i]), std::isinf(static_cast<float>(want.max_logits[i])));
      }
    }
  }
}

TEST_P(CpuPath, BitwiseRepeatableOnAnyNumberOfThreads) {
  Problem p({.s_q = 23, .s_kv = 500, .h_q = 20, .d_qk = 576, .topk = 130});
  run(p.args(), 1);
  const auto out = p.out;
  const auto max_logits = p.max_logits;
  const auto lse = p.lse;
  for (const int threads : {1, 2, 3, 8, 0}) {
    p.poison();
    run(p.args(), threads);
    EXPECT_EQ(p.out, out) << threads << " threads";
    EXPECT_EQ(p.max_logits, max_logits) << threads << " threads";
    EXPECT_EQ(p.lse, lse) << threads << " threads";
  }
}

// Token by token or all at once, with 3 heads or as a part of 80: the same bits.
TEST_P(CpuPath, TokensDoNotMeet) {
  Problem p({.s_q = 5, .s_kv = 200, .h_q = 6, .d_qk = 576, .topk = 150});
  run(p.args());
  const auto out = p.out;
  p.poison();
  for (std::int64_t t = 0; t < 5; ++t) {
    SparseMlaPrefill args = p.args();
    const auto only = [t](TensorView& v) {
      v.data = v.as<char>() + t * v.strides[0] * size_of(v.dtype);
      v.shape[0] = 1;
    };
    for (TensorView* v : {&args.q, &args.indices, &args.out, &args.max_logits, &args.lse}) only(*v);
    run(args);
  }
  EXPECT_EQ(p.out, out);
}

TEST(CpuPaths, ThePortableOneIsAlwaysThere) {
  ASSERT_FALSE(sparse_mla::cpu_paths().empty());
  EXPECT_STREQ(sparse_mla::cpu_paths().back()->name, "f32 portable");
}

INSTANTIATE_TEST_SUITE_P(All, CpuPath,
                         ::testing::Range<std::size_t>(0, sparse_mla::cpu_paths().size()),
                         [](const auto& which) {
                           std::string name = sparse_mla::cpu_paths()[which.param]->name;
                           for (char& c : name)
                             c = std::isalnum(static_cast<unsigned char>(c)) ? c : '_';
                           return name;
                         });

}  // namespace
}  // namespace serinus
