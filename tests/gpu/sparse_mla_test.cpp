// The Hopper kernel against the float64 oracle. Needs a Hopper GPU; skipped without one.
#include <gtest/gtest.h>

#include <climits>
#include <cmath>
#include <limits>

#include <serinus/error.h>

#include "sparse_mla/oracle.h"
#include "tests/gpu/device_problem.h"

namespace serinus {
namespace {

using oracle::bf16_value;
using oracle::Reference;
using testing::DeviceBuffer;
using testing::DeviceProblem;
using testing::Problem;
using testing::Shape;

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr std::uint8_t kE4m3NanCode = 0x7f;

// Weights are rounded to e4m3: at most 1/16 of a weight, so that no row can be off by more than
// about that however few tokens it has. Over many rows and tokens much less: see Error.
constexpr double kAnyBudget = 0.03;
// Of max_logits and lse, times 1 + |max logit|.
constexpr double kLogitBudget = 3e-3;

class SparseMlaSm90 : public ::testing::Test {
 protected:
  void SetUp() override {
    const gpu::Survey s = gpu::survey();
    if (s.devices.empty() || !s.devices[0].sparse_mla)
      GTEST_SKIP() << "no Hopper GPU: " << s.problem;
  }

  // Runs and compares all three outputs: the same infinities and NaN in the same places, the rest
  // within the budget.
  static double expect_right(DeviceProblem& d, double budget = kAnyBudget,
                             double logit_budget = kLogitBudget) {
    d.run();
    return expect_outputs(d.p, d.empty_row_lse, budget, logit_budget);
  }
  static double expect_right(Problem& p, double budget = kAnyBudget,
                             double logit_budget = kLogitBudget) {
    DeviceProblem d(p);
    return expect_right(d, budget, logit_budget);
  }

  static double expect_outputs(Problem& p, EmptyRowLse empty, double budget,
                               double logit_budget = kLogitBudget) {
    SparseMlaPrefill args = p.args();
    args.empty_row_lse = empty;
    const Reference want = oracle::prefill(args);
    std::vector<double> got_out;
    std::vector<double> want_out;
    int wrong = 0;
    for (std::size_t i = 0; i < want.out.size() && wrong < 5; ++i) {
      const double got = bf16_value(p.out[i]);
      const std::size_t token = i / 512 / static_cast<std::size_t>(p.shape.h_q);
      const std::size_t head = i / 512 % static_cast<std::size_t>(p.shape.h_q);
      if (p.out[i] == Problem::kPoisonBf16 || std::isnan(got) != std::isnan(want.out[i])) {
        ADD_FAILURE() << "out[" << token << ", " << head << ", " << i % 512 << "] is " << got
                      << (p.out[i] == Problem::kPoisonBf16 ? " (not written)" : "") << ", wanted "
                      << want.out[i];
        ++wrong;
      }
      if (std::isnan(got) || std::isnan(want.out[i])) continue;
      got_out.push_back(got);
      want_out.push_back(want.out[i]);
    }
    const double error = oracle::relative_error(got_out, want_out);
    EXPECT_LE(error, budget);
    for (std::size_t i = 0; i < want.lse.size() && wrong < 5; ++i) {
      wrong += expect_logit(p.max_logits[i], want.max_logits[i],
                            logit_budget * (1 + std::abs(want.max_logits[i])), "max_logits", i);
      wrong += expect_logit(p.lse[i], want.lse[i],
                            logit_budget * (1 + std::abs(want.max_logits[i])), "lse", i);
    }
    return error;
  }

  static int expect_logit(float got, double want, double tolerance, const char* name,
                          std::size_t i) {
    bool right = std::abs(got - want) <= tolerance;
    if (std::isnan(want)) right = std::isnan(got);
    if (std::isinf(want)) right = static_cast<double>(got) == want;
    EXPECT_TRUE(right) << name << "[" << i << "] is " << got << ", wanted " << want;
    return right ? 0 : 1;
  }
};

TEST_F(SparseMlaSm90, EveryShape) {
  for (const std::int64_t d_qk : {576, 512}) {
    for (const std::int64_t h_q : {1, 8, 16, 24, 63, 64, 65, 128, 129, 256}) {
      for (const std::int64_t topk : {1, 2, 63, 64, 65, 127, 128, 129, 333, 640}) {
        SCOPED_TRACE(::testing::Message() << "d_qk " << d_qk << " h_q " << h_q << " topk " << topk);
        Problem p({.s_q = 3, .s_kv = 500, .h_q = h_q, .d_qk = d_qk, .topk = topk});
        expect_right(p);
        if (HasFailure()) return;
      }
    }
  }
}

TEST_F(SparseMlaSm90, ManyTokensShareTheSms) {
  for (const std::int64_t h_q : {8, 16, 20, 64, 128}) {  // many work items a CTA, no splits
    Problem p({.s_q = 700, .s_kv = 900, .h_q = h_q, .d_qk = 576, .topk = 70});
    DeviceProblem d(p);
    EXPECT_EQ(d.workspace.bytes(), 0u);
    expect_right(d);
  }
}

TEST_F(SparseMlaSm90, FewTokensAreSplit) {
  for (const std::int64_t h_q : {16, 64, 128, 200}) {
    for (const std::int64_t s_q : {1, 5, 16}) {
      SCOPED_TRACE(::testing::Message() << "h_q " << h_q << " s_q " << s_q);
      Problem p({.s_q = s_q, .s_kv = 3000, .h_q = h_q, .d_qk = 576, .topk = 2048});
      for (std::int64_t t = 0; t < s_q; ++t) {
        p.lengths.push_back(static_cast<std::int32_t>(t % 4 == 3 ? 130 : 2048 - 50 * t));
      }
      DeviceProblem d(p);
      EXPECT_GT(d.workspace.bytes(), 0u);
      expect_right(d);
    }
  }
}

// Of many work items, those that would not fill the SMs once more.
TEST_F(SparseMlaSm90, TheLastTokensAreSplit) {
  int sms = 0;
  testing::check_cuda(cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, 0));
  for (const std::int64_t h_q : {16, 64, 128}) {
    SCOPED_TRACE(::testing::Message() << "h_q " << h_q);
    Problem p({.s_q = sms + 8, .s_kv = 3000, .h_q = h_q, .d_qk = 576, .topk = 640});
    p.lengths.assign(static_cast<std::size_t>(sms + 8), 640);
    const std::size_t tail = static_cast<std::size_t>(sms) + 2;
    p.lengths[tail] = 0;
    p.lengths[tail + 1] = 1;
    p.lengths[tail + 2] = 130;
    DeviceProblem d(p);
    EXPECT_GT(d.workspace.bytes(), 0u);
    // Less than were all of them split in two.
    EXPECT_LT(d.workspace.bytes(), p.lengths.size() * static_cast<std::size_t>(h_q) * 2048);
    expect_right(d);
  }
}

// Design budget: unit-normal q and kv, topk 2048, at most 0.0185 (goal 0.0165); flat scores 0.0085.
TEST_F(SparseMlaSm90, Error) {
  for (const std::int64_t h_q : {8, 16, 32, 64, 128}) {
    Problem unit({.s_q = 8, .s_kv = 8192, .h_q = h_q, .d_qk = 576, .topk = 2048});
    std::printf("h_q %d unit normal: %.5f\n", static_cast<int>(h_q), expect_right(unit, 0.0170));
    Problem flat({.s_q = 4, .s_kv = 8192, .h_q = h_q, .d_qk = 576, .topk = 2048});
    flat.fill(flat.q, 0.05f);
    flat.fill(flat.kv, 0.05f);
    std::printf("h_q %d flat: %.5f\n", static_cast<int>(h_q), expect_right(flat, 0.0085));
    for (const float deviation : {0.3f, 2.0f, 4.0f, 16.0f}) {
      Problem p({.s_q = 4, .s_kv = 8192, .h_q = h_q, .d_qk = 576, .topk = 2048});
      p.fill(p.q, deviation);
      std::printf("h_q %d q std %.1f: %.5f\n", static_cast<int>(h_q),
                  static_cast<double>(deviation), expect_right(p, 0.022));
    }
  }
}

TEST_F(SparseMlaSm90, RisingAndFallingLogits) {
  // Sorted tokens move the running maximum with every block, or never.
  for (const bool rising : {true, false}) {
    for (const std::int64_t h_q : {8, 32, 64, 128}) {
      Problem p({.s_q = 2, .s_kv = 1024, .h_q = h_q, .d_qk = 576, .topk = 1024});
      p.sm_scale *= 4;
      for (std::int64_t r = 0; r < 1024; ++r) {  // row r ~ r along the first head's query
        for (std::int64_t k = 0; k < 576; ++k) {
          const double q = oracle::e4m3_value(p.q[static_cast<std::size_t>(k)]);
          p.kv[static_cast<std::size_t>(r * 576 + k)] = e4m3_from_float(
              static_cast<float>(q * static_cast<double>(rising ? r : 1023 - r) / 2000));
        }
      }
      for (std::size_t i = 0; i < p.indices.size(); ++i) {
        p.indices[i] = static_cast<std::int32_t>(i % 1024);
      }
      // The tensor cores cut a sum of fp8 products off at 13 bits below its largest term: where all
      // products have one sign, as in q k with k ~ q, a score of 64 heads comes out up to half a
      // percent small; of fewer, which are summed in two halves, a quarter.
      expect_right(p, kAnyBudget, h_q < 64 ? kLogitBudget : 8e-3);
    }
  }
}

TEST_F(SparseMlaSm90, InvalidIndicesAreNeverLoaded) {
  for (const std::int64_t h_q : {16, 64, 128}) {
    for (const std::int64_t s_q : {4, 200}) {  // split and not
      Problem p({.s_q = s_q, .s_kv = 300, .h_q = h_q, .d_qk = 576, .topk = 384});
      // Row 7 is NaN, and nobody names it.
      for (std::size_t k = 0; k < 576; ++k) p.kv[7 * 576 + k] = kE4m3NanCode;
      const std::int32_t invalid[] = {-1, 300, 301, INT_MIN, INT_MAX, -2};
      for (std::size_t i = 0; i < p.indices.size(); ++i) {
        if (p.indices[i] == 7) p.indices[i] = 8;
        if (p.random() % 5 == 0) p.indices[i] = invalid[p.random() % 6];
      }
      const auto row = [&](std::int64_t t) {
        return &p.indices[static_cast<std::size_t>(t * 384)];
      };
      std::fill_n(row(0), 384, -1);  // nothing valid
      std::fill_n(row(1), 384, -1);  // one valid, at the end
      row(1)[383] = 17;
      std::fill_n(row(2), 128, INT_MAX);   // first pair empty
      std::fill_n(row(3) + 64, 320, 300);  // all but the first block empty
      DeviceProblem d(p, {.kv_row = 64});  // and what lies between the rows is NaN
      expect_right(d);
      d.empty_row_lse = EmptyRowLse::minus_inf;
      expect_right(d);
    }
  }
}

TEST_F(SparseMlaSm90, Duplicates) {
  Problem p({.s_q = 2, .s_kv = 5, .h_q = 128, .d_qk = 512, .topk = 256});
  expect_right(p, 0.04);
}

TEST_F(SparseMlaSm90, LengthsAreClamped) {
  for (const std::int64_t h_q : {8, 32, 64, 128}) {
    Problem p({.s_q = 9, .s_kv = 800, .h_q = h_q, .d_qk = 576, .topk = 300});
    p.lengths = {0, 1, 77, 299, 300, 301, INT_MAX, -1, INT_MIN};
    for (const std::size_t past : {1u, 77u, 299u}) {  // past the length there may be anything
      p.indices[(past == 1 ? 1 : past == 77 ? 2 : 3) * 300 + past] = 5;
    }
    expect_right(p);
  }
}

TEST_F(SparseMlaSm90, Sinks) {
  for (const bool with_lengths : {false, true}) {
    for (const std::int64_t s_q : {2, 200}) {
      Problem p({.s_q = s_q, .s_kv = 500, .h_q = 128, .d_qk = 576, .topk = 200});
      p.sink.assign(128, 0.7f);
      p.sink[1] = kInf;
      p.sink[2] = -kInf;
      p.sink[3] = kNan;
      p.sink[4] = 5;
      p.sink[5] = -1e30f;
      p.sink[6] = 1e30f;
      if (with_lengths) p.lengths.assign(static_cast<std::size_t>(s_q), 150);
      if (with_lengths) p.lengths[1] = 0;
      expect_right(p);
    }
  }
}

TEST_F(SparseMlaSm90, Scales) {
  for (const float q_scale : {-1.5f, 0.0f, 1e-3f, 3.0f}) {
    for (const float kv_scale : {-0.5f, 0.0f, 2.0f}) {
      SCOPED_TRACE(::testing::Message() << q_scale << " " << kv_scale);
      for (const std::int64_t h_q : {16, 128}) {
        Problem p({.s_q = 2, .s_kv = 500, .h_q = h_q, .d_qk = 576, .topk = 260});
        p.indices[3] = -1;
        p.q_scale = q_scale;
        p.kv_scale = kv_scale;
        expect_right(p);
        p.sm_scale = -p.sm_scale;
        expect_right(p);
        p.sm_scale = 0;
        expect_right(p);
      }
    }
  }
}

TEST_F(SparseMlaSm90, HugeLogitsAndSaturatedCodes) {
  for (const std::int64_t h_q : {16, 64}) {
    for (const float sm_scale : {0.4f, -0.4f}) {
      Problem p({.s_q = 2, .s_kv = 500, .h_q = h_q, .d_qk = 576, .topk = 300});
      p.fill(p.q, 300);
      p.fill(p.kv, 1);
      p.sm_scale = sm_scale;  // logits of +-1e4 and more
      // Two scores near the maximum differ by what float32 sums of fp8 products cannot tell.
      expect_right(p, 0.15);
    }
  }
}

TEST_F(SparseMlaSm90, NanThatIsReadStaysInItsRow) {
  for (const std::int64_t h_q : {16, 128}) {
    for (const std::int64_t s_q : {3, 200}) {
      Problem p({.s_q = s_q, .s_kv = 500, .h_q = h_q, .d_qk = 576, .topk = 200});
      // One head of token 1.
      p.q[static_cast<std::size_t>((h_q + h_q / 2 + 6) * 576 + 575)] = kE4m3NanCode;
      for (std::int32_t& i : p.indices) i = i == 9 ? 10 : i;
      p.kv[9 * 576 + 100] = 0xff;  // all heads of token 2
      p.indices[2 * 200 + 150] = 9;
      expect_right(p);
    }
  }
}

TEST_F(SparseMlaSm90, StridesAreHonoured) {
  for (const std::int64_t h_q : {5, 64, 128}) {
    Problem p({.s_q = 3, .s_kv = 400, .h_q = h_q, .d_qk = 576, .topk = 150});
    DeviceProblem aligned(p, {.q_token = 32, .q_head = 64, .q_start = 16, .kv_row = 80});
    expect_right(aligned);
    DeviceProblem odd(p, {.q_token = 3, .q_head = 1, .q_start = 5, .kv_row = 16});
    expect_right(odd);
  }
}

TEST_F(SparseMlaSm90, RowsBeyondTwoGigabytes) {
  // A pool of 5 GB whose rows lie 64 KB apart, read at both ends.
  constexpr std::int64_t kRows = 80'000, kStride = 65'536;
  Problem p({.s_q = 2, .s_kv = 300, .h_q = 64, .d_qk = 576, .topk = 128});
  DeviceProblem d(p);
  const DeviceBuffer pool(static_cast<std::size_t>(kRows * kStride));
  testing::check_cuda(cudaMemcpy2D(pool.data() + (kRows - 300) * kStride, kStride, p.kv.data(), 576,
                                   576, 300, cudaMemcpyHostToDevice));
  std::vector<std::int32_t> shifted = p.indices;
  for (std::int32_t& i : shifted) i += kRows - 300;
  d.indices.upload(shifted.data(), shifted.size() * 4);
  SparseMlaPrefill args = d.args();
  args.kv =
      TensorView(pool.data(), DType::e4m3, {kRows, 1, 576}, {kStride, kStride, 1}, testing::kGpu);
  d.poison();
  sparse_mla_prefill(args);
  testing::check_cuda(cudaDeviceSynchronize());
  d.fetch();
  expect_outputs(p, EmptyRowLse::plus_inf, kAnyBudget);
}

TEST_F(SparseMlaSm90, AMillionTokens) {
  constexpr std::int64_t kTokens = 1 << 20;
  const Shape shape{.s_q = 4, .s_kv = 64, .h_q = 16, .d_qk = 512, .topk = 8};
  Problem p(shape);
  DeviceProblem d(p);
  // q and indices repeat every 4 tokens, by strides of 0 where a view can; here by copies.
  const DeviceBuffer q(kTokens * 16 * 512), indices(kTokens * 8 * 4), out(kTokens * 16 * 1024),
      max_logits(kTokens * 16 * 4), lse(kTokens * 16 * 4);
  for (std::int64_t done = 4; done <= kTokens; done *= 2) {
    const auto bytes = [&](std::int64_t each) { return static_cast<std::size_t>(done / 2 * each); };
    const std::size_t offset = done == 4 ? 0 : bytes(1);
    const auto grow = [&](const DeviceBuffer& to, const DeviceBuffer& from, std::int64_t each) {
      const DeviceBuffer& source = done == 4 ? from : to;
      testing::check_cuda(cudaMemcpy(to.data() + offset * static_cast<std::size_t>(each),
                                     source.data(), done == 4 ? bytes(each) * 2 : bytes(each),
                                     cudaMemcpyDeviceToDevice));
    };
    grow(q, d.q, 16 * 512);
    grow(indices, d.indices, 8 * 4);
  }
  SparseMlaPrefill args = d.args();
  args.q = TensorView(q.data(), DType::e4m3, {kTokens, 16, 512}, testing::kGpu);
  args.indices = TensorView(indices.data(), DType::i32, {kTokens, 1, 8}, testing::kGpu);
  args.out = TensorView(out.data(), DType::bf16, {kTokens, 16, 512}, testing::kGpu);
  args.max_logits = TensorView(max_logits.data(), DType::f32, {kTokens, 16}, testing::kGpu);
  args.lse = TensorView(lse.data(), DType::f32, {kTokens, 16}, testing::kGpu);
  sparse_mla_prefill(args);
  testing::check_cuda(cudaDeviceSynchronize());
  // The first four are right, and the rest are the same.
  testing::check_cuda(
      cudaMemcpy(p.out.data(), out.data(), p.out.size() * 2, cudaMemcpyDeviceToHost));
  testing::check_cuda(
      cudaMemcpy(p.max_logits.data(), max_logits.data(), p.lse.size() * 4, cudaMemcpyDeviceToHost));
  testing::check_cuda(
      cudaMemcpy(p.lse.data(), lse.data(), p.lse.size() * 4, cudaMemcpyDeviceToHost));
  expect_outputs(p, EmptyRowLse::plus_inf, 0.04);
  const auto all = out.download<std::uint16_t>();
  for (std::size_t at = p.out.size(); at < all.size(); at += p.out.size()) {
    ASSERT_EQ(std::memcmp(&all[at], all.data(), p.out.size() * 2), 0)
        << "tokens from " << at / (16 * 512);
  }
}

TEST_F(SparseMlaSm90, NothingToDo) {
  Problem p({.s_q = 0, .s_kv = 10, .h_q = 64, .d_qk = 576, .topk = 64});
  DeviceProblem d(p);
  EXPECT_NO_THROW(d.run());
  Problem empty({.s_q = 2, .s_kv = 1, .h_q = 64, .d_qk = 576, .topk = 64});
  empty.shape.s_kv = 0;  // every index is out of range
  expect_right(empty);
}

// ---- Streams, graphs, repetition.

bool same_bits(const Problem& a, const std::vector<std::uint16_t>& out,
               const std::vector<float>& lse) {
  return a.out == out && std::memcmp(a.lse.data(), lse.data(), lse.size() * 4) == 0;
}

struct OwnStream {
  OwnStream() { testing::check_cuda(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking)); }
  ~OwnStream() { cudaStreamDestroy(s); }
  Stream view() const { return {s}; }
  cudaStream_t s = nullptr;
};

TEST_F(SparseMlaSm90, AThousandLaunchesGiveTheSameBits) {
  for (const Shape& shape : {Shape{.s_q = 150, .s_kv = 2000, .h_q = 128, .topk = 512},
                             Shape{.s_q = 4, .s_kv = 2000, .h_q = 128, .topk = 1000},
                             Shape{.s_q = 300, .s_kv = 2000, .h_q = 64, .topk = 200},
                             Shape{.s_q = 300, .s_kv = 2000, .h_q = 16, .topk = 500}}) {
    Problem p(shape);
    p.indices[5] = -1;
    DeviceProblem d(p);
    const OwnStream stream, other;
    d.run(stream.view());
    const auto out = p.out;
    const auto lse = p.lse;
    const DeviceBuffer busy(1 << 26);
    for (int round = 0; round < 10; ++round) {
      for (int i = 0; i < 100; ++i) {
        // Other work, of odd sizes, so that CTAs start in another order each time.
        testing::check_cuda(
            cudaMemsetAsync(busy.data(), i, static_cast<std::size_t>(1) << (12 + i % 15), other.s));
        if (i == 99) d.poison();
        sparse_mla_prefill(d.args(), stream.view());
      }
      testing::check_cuda(cudaDeviceSynchronize());
      d.fetch();
      ASSERT_TRUE(same_bits(p, out, lse)) << "round " << round;
    }
  }
}

TEST_F(SparseMlaSm90, TwoLaunchesInFlight) {
  Problem a({.s_q = 100, .s_kv = 2000, .h_q = 128, .topk = 512}, 1);
  Problem b({.s_q = 100, .s_kv = 2000, .h_q = 64, .topk = 512}, 2);
  DeviceProblem da(a), db(b);
  const OwnStream sa, sb;
  da.run();
  db.run();
  const auto out_a = a.out, out_b = b.out;
  const auto lse_a = a.lse, lse_b = b.lse;
  for (int round = 0; round < 20; ++round) {
    da.poison();
    db.poison();
    sparse_mla_prefill(da.args(), sa.view());
    sparse_mla_prefill(db.args(), sb.view());
    testing::check_cuda(cudaDeviceSynchronize());
    da.fetch();
    db.fetch();
    ASSERT_TRUE(same_bits(a, out_a, lse_a));
    ASSERT_TRUE(same_bits(b, out_b, lse_b));
  }
}

TEST_F(SparseMlaSm90, CapturedInAGraph) {
  for (const std::int64_t s_q : {4, 150}) {  // with a merge and without
    Problem p({.s_q = s_q, .s_kv = 2000, .h_q = 128, .topk = 700});
    p.lengths.assign(static_cast<std::size_t>(s_q), 700);
    DeviceProblem d(p);
    const OwnStream stream;
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t exec = nullptr;
    testing::check_cuda(cudaStreamBeginCapture(stream.s, cudaStreamCaptureModeThreadLocal));
    sparse_mla_prefill(d.args(), stream.view());
    testing::check_cuda(cudaStreamEndCapture(stream.s, &graph));
    testing::check_cuda(cudaGraphInstantiate(&exec, graph, 0));
    for (const std::int32_t length : {700, 65, 0}) {  // a replay reads what lies there then
      p.lengths.assign(static_cast<std::size_t>(s_q), length);
      d.lengths.upload(p.lengths.data(), p.lengths.size() * 4);
      d.poison();
      testing::check_cuda(cudaGraphLaunch(exec, stream.s));
      testing::check_cuda(cudaStreamSynchronize(stream.s));
      d.fetch();
      expect_outputs(p, EmptyRowLse::plus_inf, kAnyBudget);
    }
    cudaGraphExecDestroy(exec);
    cudaGraphDestroy(graph);
  }
}

TEST_F(SparseMlaSm90, CanRunSaysWhyNot) {
  Problem p({.s_q = 2, .s_kv = 50, .h_q = 64, .topk = 64});
  DeviceProblem d(p);
  SparseMlaPrefill args = d.args();
  EXPECT_TRUE(can_run(args)) << can_run(args).message;
  args.out.data = static_cast<std::byte*>(args.out.data) + 2;
  EXPECT_EQ(can_run(args).error_id, "SRN1010") << can_run(args).message;
  EXPECT_THROW(sparse_mla_prefill(args), ValueError);
}

}  // namespace
}  // namespace serinus
