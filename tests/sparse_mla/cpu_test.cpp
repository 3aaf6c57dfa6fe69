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
#include "tests/sparse_mla/oracle.h"
#include "tests/sparse_mla/problem.h"

namespace serinus {
namespace {

using sparse_mla::Kernels;
using testing::bf16_value;
using testing::Problem;
using testing::Reference;
using testing::Shape;

constexpr double kOutBudget = 0.0018;
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
    const Reference want = testing::reference_prefill(args);
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
    EXPECT_LE(testing::relative_error(got_out, want_out), out_budget);
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
        Problem p({.s_q = 2, .s_kv = 500, .h_q = h_q, .d_qk = d_qk, .topk = topk});
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
