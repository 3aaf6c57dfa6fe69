// The course of a token through the CPU backend: collect its valid rows, convert them block by
// block, and let every group of heads score, weigh and accumulate each block. All that is fast is
// behind Kernels; all that is subtle about the semantics is here.
#include <algorithm>
#include <cfloat>
#include <cmath>
#include <limits>
#include <vector>

#include "base/parallel.h"
#include "sparse_mla/cpu/kernels.h"

namespace serinus::sparse_mla {

namespace {

constexpr double kLog2E = 1.4426950408889634074;

// What one thread works in.
class Scratch {
 public:
  Scratch(const Kernels& path, const Params& p)
      : keys_(kBlockRows * kKeyPitch),
        values_(kBlockRows / 2 * kValuePitch),
        coarse_(kBlockRows / 4 * kValuePitch),
        high_(kBlockRows * kMaxGroupHeads),
        low_(kBlockRows / 4 * kMaxGroupHeads),
        low_step_(kMaxGroupHeads),
        low_offset_(kMaxGroupHeads),
        scores_(kBlockRows * kMaxGroupHeads) {
    block.keys = keys_.get();
    block.values = values_.get();
    block.coarse = p.p_bf16 ? nullptr : coarse_.get();
    block.row_bytes = static_cast<int>(p.d_qk);
    weights = {high_.get(), p.p_bf16 ? nullptr : low_.get(), low_step_.get(), low_offset_.get()};
    const std::int64_t lanes = path.lanes;
    const std::int64_t padded_heads = (p.h_q + lanes - 1) / lanes * lanes;
    per_head_ = Aligned<float>(static_cast<std::size_t>(padded_heads * (3 + kDV + p.d_qk)));
    float* at = per_head_.get();
    const auto take = [&at](std::int64_t n) {
      float* const taken = at;
      at += n;
      return taken;
    };
    for (std::int64_t head = 0; head < p.h_q; head += kGroupVectors * lanes) {
      Group g;
      g.heads = static_cast<int>(std::min<std::int64_t>(p.h_q - head, kGroupVectors * lanes));
      g.width = static_cast<int>((g.heads + lanes - 1) / lanes * lanes);
      // The arrays of whole vectors first: all stay aligned to a vector.
      g.accumulated = take(static_cast<std::int64_t>(kDV) * g.width);
      g.q = reinterpret_cast<std::uint32_t*>(take(p.d_qk * g.width));
      g.max_score = take(g.width);
      g.sum = take(g.width);
      g.decay = take(g.width);
      groups.push_back(g);
    }
    constexpr std::int64_t kUsual = 1 << 14;
    rows.reserve(static_cast<std::size_t>(std::min(p.topk, kUsual)));
  }

  float* scores() const noexcept { return scores_.get(); }

  std::vector<Group> groups;
  std::vector<const std::uint8_t*> rows;  // the valid rows of the token
  Block block{};
  Weights weights{};

 private:
  Aligned<std::uint32_t> keys_, values_, coarse_, high_, low_;
  Aligned<float> low_step_;
  Aligned<std::int32_t> low_offset_;
  Aligned<float> scores_, per_head_;
};

// What is the same for every token. The scale is applied to differences of scores, never to the
// scores themselves, so that no finite scale can turn a softmax into inf - inf; its sign goes into
// q.
struct Scale {
  explicit Scale(const Params& p)
      : logit(static_cast<double>(p.sm_scale) * *p.q_scale * *p.kv_scale),
        flip(logit < 0 ? 0x80 : 0),
        // Scores differ by 2^-18 or more, or not at all: a saturated factor still gives 0 or 1.
        factor(static_cast<float>(std::min(std::abs(logit) * kLog2E, double{FLT_MAX}))),
        value(*p.kv_scale) {
    if (std::isnan(logit)) factor = std::numeric_limits<float>::quiet_NaN();
  }

  double logit;
  std::uint8_t flip;
  float factor;  // exp(logit * d) = exp2(factor * d)
  double value;
};

void collect_rows(const Params& p, std::int64_t token, std::vector<const std::uint8_t*>& rows) {
  std::int64_t n = p.topk;
  if (p.topk_length != nullptr) {
    n = std::clamp<std::int64_t>(p.topk_length[token], 0, p.topk);
  }
  const std::int32_t* index = p.indices + token * p.stride_indices_s_q;
  rows.clear();
  for (std::int64_t i = 0; i < n; ++i) {
    if (index[i] >= 0 && index[i] < p.s_kv) rows.push_back(p.kv + index[i] * p.stride_kv_s_kv);
  }
}

void write_group(const Params& p, const Scale& scale, std::int64_t token, std::int64_t head,
                 const Kernels& path, const Group& g) {
  alignas(64) std::array<float, kMaxGroupHeads> factor{};
  for (int h = 0; h < g.heads; ++h) {
    const double sum = g.sum[h];
    double max_logit = std::abs(scale.logit) * g.max_score[h];
    if (std::isnan(sum)) max_logit = sum;
    const double lse = max_logit + std::log(sum);
    const std::int64_t at = token * p.h_q + head + h;
    p.max_logits[at] = static_cast<float>(max_logit);
    p.lse[at] = static_cast<float>(lse);
    // exp(lse) / (exp(lse) + exp(sink)) without either exponential.
    const double kept =
        p.attn_sink != nullptr ? 1 / (1 + std::exp(p.attn_sink[head + h] - lse)) : 1.0;
    factor[static_cast<std::size_t>(h)] = static_cast<float>(scale.value / sum * kept);
  }
  path.finish(g, factor.data(), p.out + (token * p.h_q + head) * kDV);
}

void write_empty(const Params& p, std::int64_t token) {
  for (std::int64_t h = 0; h < p.h_q; ++h) {
    const std::int64_t at = token * p.h_q + h;
    p.max_logits[at] = -std::numeric_limits<float>::infinity();
    p.lse[at] = p.empty_row_lse;
    const bool nan = p.attn_sink != nullptr && std::isnan(p.attn_sink[h]);
    constexpr std::uint16_t kNan = 0x7fc0;
    std::fill_n(p.out + at * kDV, kDV, nan ? kNan : std::uint16_t{0});
  }
}

void attend(const Params& p, const Scale& scale, const Kernels& path, std::int64_t token,
            Scratch& s) {
  collect_rows(p, token, s.rows);
  if (s.rows.empty()) {
    write_empty(p, token);
    return;
  }
  const auto d_qk = static_cast<int>(p.d_qk);
  std::array<const std::uint8_t*, kMaxGroupHeads> query;
  std::int64_t head = 0;
  for (Group& g : s.groups) {
    for (int h = 0; h < g.heads; ++h) {
      query[static_cast<std::size_t>(h)] =
          p.q + token * p.stride_q_s_q + (head + h) * p.stride_q_h_q;
    }
    path.pack_query(std::span(query).first(static_cast<std::size_t>(g.heads)), d_qk, scale.flip, g);
    g.started = false;
    head += g.heads;
  }
  const std::span<const std::uint8_t* const> rows(s.rows);
  for (std::size_t begin = 0; begin < rows.size(); begin += kBlockRows) {
    const auto rest = rows.subspan(begin);
    const auto now = rest.first(std::min<std::size_t>(rest.size(), kBlockRows));
    path.load_rows(now, d_qk, s.block);
    const auto later = rest.subspan(now.size());
    s.block.upcoming = later.first(std::min<std::size_t>(later.size(), kBlockRows));
    for (Group& g : s.groups) {
      path.score(s.block, d_qk, g, s.scores());
      path.weigh(s.block, scale.factor, s.scores(), g, s.weights);
      path.accumulate(s.block, s.weights, g);
      g.started = true;
      s.block.upcoming = {};  // once is enough
    }
  }
  head = 0;
  for (const Group& g : s.groups) {
    write_group(p, scale, token, head, path, g);
    head += g.heads;
  }
}

}  // namespace

std::span<const Kernels* const> cpu_paths() {
  static const std::vector<const Kernels*> paths = [] {
    std::vector<const Kernels*> found;
    if (const Kernels* k = avx512_bf16_path()) found.push_back(k);
    for (const Kernels* k : highway_paths()) found.push_back(k);
    found.push_back(&portable_path());
    return found;
  }();
  return paths;
}

void run_cpu_on(const Kernels& path, const Params& p, int threads) {
  if (p.s_q == 0) return;
  const Scale scale(p);
  // A few tokens at a time: a thread's scratch is worth keeping, and no thread should wait long for
  // the last one.
  const std::int64_t grain =
      std::clamp<std::int64_t>(p.s_q / (std::int64_t{8} * resolve_threads(threads)), 1, 64);
  parallel_for(threads, p.s_q, grain, [&](std::int64_t begin, std::int64_t end) {
    Scratch scratch(path, p);
    for (std::int64_t token = begin; token < end; ++token) attend(p, scale, path, token, scratch);
  });
}

void run_cpu(const Params& p, int threads) {
  run_cpu_on(*cpu_paths().front(), p, threads);
}

}  // namespace serinus::sparse_mla
