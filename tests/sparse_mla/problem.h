// A prefill with memory of its own, filled at random, for tests to bend.
#pragma once

#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

#include <serinus/sparse_mla.h>

#include "base/dtypes.h"

namespace serinus::testing {

struct Shape {
  std::int64_t s_q = 2, s_kv = 300, h_q = 64, d_qk = 576, topk = 64;
};

/// Owns what the views of args() point at; everything may be changed between the call of fill() and
/// args(). Outputs are poisoned.
struct Problem {
  static constexpr std::uint16_t kPoisonBf16 = 0x7f12;  // a NaN that no backend writes
  static constexpr float kPoison = -12345.5f;

  explicit Problem(const Shape& s, std::uint32_t seed = 1) : shape(s), random(seed) {
    q.resize(static_cast<std::size_t>(s.s_q * s.h_q * s.d_qk));
    kv.resize(static_cast<std::size_t>(s.s_kv * s.d_qk));
    indices.resize(static_cast<std::size_t>(s.s_q * s.topk));
    fill(q, 1);
    fill(kv, 1);
    for (std::int32_t& i : indices) {
      i = static_cast<std::int32_t>(random() % static_cast<std::uint32_t>(s.s_kv));
    }
    sm_scale = 1 / std::sqrt(static_cast<float>(s.d_qk));
    poison();
  }

  void fill(std::vector<std::uint8_t>& codes, float deviation) {
    std::normal_distribution<float> normal(0, deviation);
    for (std::uint8_t& c : codes) c = e4m3_from_float(normal(random));
  }

  void poison() {
    const auto n = static_cast<std::size_t>(shape.s_q * shape.h_q);
    out.assign(n * 512, kPoisonBf16);
    max_logits.assign(n, kPoison);
    lse.assign(n, kPoison);
  }

  SparseMlaPrefill args() {
    const Shape& s = shape;
    SparseMlaPrefill a;
    a.q = TensorView(q.data(), DType::e4m3, {s.s_q, s.h_q, s.d_qk});
    a.kv = TensorView(kv.data(), DType::e4m3, {s.s_kv, 1, s.d_qk});
    a.indices = TensorView(indices.data(), DType::i32, {s.s_q, 1, s.topk});
    a.sm_scale = sm_scale;
    a.q_scale = TensorView(&q_scale, DType::f32, {1});
    a.kv_scale = TensorView(&kv_scale, DType::f32, {1});
    if (!sink.empty()) a.attn_sink = TensorView(sink.data(), DType::f32, {s.h_q});
    if (!lengths.empty()) a.topk_length = TensorView(lengths.data(), DType::i32, {s.s_q});
    a.out = TensorView(out.data(), DType::bf16, {s.s_q, s.h_q, 512});
    a.max_logits = TensorView(max_logits.data(), DType::f32, {s.s_q, s.h_q});
    a.lse = TensorView(lse.data(), DType::f32, {s.s_q, s.h_q});
    return a;
  }

  Shape shape;
  std::mt19937 random;
  std::vector<std::uint8_t> q, kv;
  std::vector<std::int32_t> indices, lengths;
  std::vector<float> sink;
  float sm_scale = 1, q_scale = 1, kv_scale = 1;
  std::vector<std::uint16_t> out;
  std::vector<float> max_logits, lse;
};

}  // namespace serinus::testing
