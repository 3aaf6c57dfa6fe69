// The host's side of SGLang's canary: sizes, what a forward mode feeds the plan, and the report on
// the sliding-window pool. When the host looks is in timeline.cpp.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <limits>

#include <serinus/canary_sglang_host.h>

#include "base/raise.h"
#include "canary/sglang/records.h"
#include "canary/tables.h"

namespace serinus::canary::sglang {

namespace {

using errors::Page;

void require_positive(const char* name, std::int64_t got) {
  if (got > 0) return;
  raise(Page::canary_capacity_not_positive, {{"name", name}, {"got", std::to_string(got)}});
}

void require_not_negative(const char* name, std::int64_t got) {
  if (got >= 0) return;
  raise(Page::canary_capacity_negative, {{"name", name}, {"got", std::to_string(got)}});
}

// Both factors are positive. A capacity beyond 63 bits is as wrong as a negative one.
std::int64_t product(const char* name, std::int64_t a, std::int64_t b) {
  std::int64_t out = 0;
  if (!__builtin_mul_overflow(a, b, &out)) return out;
  raise(Page::canary_capacity_not_positive,
        {{"name", name}, {"got", fmt::format("{} x {}, which wraps", a, b)}});
}

}  // namespace

// ---------------------------------------------------------------- capacities

LaunchCapacities launch_capacities(const CapacityInput& in) {
  require_positive("req_to_token_pool_size", in.req_to_token_pool_size);
  require_positive("max_seq_len_per_req", in.max_seq_len_per_req);
  require_positive("pool_slot_count", in.pool_slot_count);
  require_positive("max_prefill_tokens", in.max_prefill_tokens);
  require_not_negative("cuda_graph_max_bs", in.cuda_graph_max_bs);
  const std::int64_t drafts = in.speculative_num_draft_tokens.value_or(0);
  require_not_negative("speculative_num_draft_tokens", drafts);

  const std::int64_t max_bs = std::max(in.cuda_graph_max_bs, in.req_to_token_pool_size);
  const std::int64_t chunk = in.chunked_prefill_size.value_or(-1);
  const std::int64_t prefill =
      chunk >= 0 ? std::min(in.max_prefill_tokens, chunk) : in.max_prefill_tokens;
  return {
      .per_forward_verify_capacity = product("per_forward_verify_capacity", 3, in.pool_slot_count),
      .per_forward_write_req_capacity = max_bs,
      .per_forward_write_entry_capacity = std::max(
          product("per_forward_write_entry_capacity", max_bs, std::max<std::int64_t>(1, drafts)),
          prefill)};
}

void check_forward(const LaunchCapacities& capacities, std::int64_t batch_size,
                   std::int64_t num_tokens) {
  if (batch_size > capacities.per_forward_write_req_capacity) {
    raise(Page::canary_batch_over_capacity,
          {{"argument", "batch_size"},
           {"got", std::to_string(batch_size)},
           {"size", std::to_string(capacities.per_forward_write_req_capacity)}});
  }
  if (num_tokens > capacities.per_forward_write_entry_capacity) {
    raise(Page::canary_tokens_over_capacity,
          {{"argument", "num_tokens"},
           {"got", std::to_string(num_tokens)},
           {"size", std::to_string(capacities.per_forward_write_entry_capacity)}});
  }
}

// ---------------------------------------------------------------- plan input

const char* name_of(ForwardMode mode) noexcept {
  switch (mode) {
    case ForwardMode::extend:
      return "EXTEND";
    case ForwardMode::decode:
      return "DECODE";
    case ForwardMode::mixed:
      return "MIXED";
    case ForwardMode::idle:
      return "IDLE";
    case ForwardMode::target_verify:
      return "TARGET_VERIFY";
    case ForwardMode::draft_extend_v2:
      return "DRAFT_EXTEND_V2";
    case ForwardMode::split_prefill:
      return "SPLIT_PREFILL";
    case ForwardMode::dllm_extend:
      return "DLLM_EXTEND";
    case ForwardMode::prebuilt:
      return "PREBUILT";
  }
  return "?";
}

void fill_plan_lengths(const ForwardInput& in, const PlanLengths& out) {
  const auto capacity =
      static_cast<std::int64_t>(std::min({out.req_pool_indices.size(), out.prefix_lens.size(),
                                          out.extend_seq_lens.size(), out.valid_lens.size()}));
  require_not_negative("batch_size", in.batch_size);
  if (in.batch_size > capacity) {
    raise(Page::canary_batch_over_plan_input, {{"argument", "batch_size"},
                                               {"got", std::to_string(in.batch_size)},
                                               {"size", std::to_string(capacity)}});
  }
  const auto bs = static_cast<std::size_t>(in.batch_size);
  const auto all = [&](const char* name, std::span<const std::int64_t> values) {
    if (values.size() < bs) {
      raise(Page::canary_too_short,
            {{"name", name}, {"want", std::to_string(bs)}, {"got", std::to_string(values.size())}});
    }
    return values.first(bs);
  };

  std::span<const std::int64_t> prefix, extend;
  std::int64_t each = 0;  // what every request extends by, where `extend` is empty
  bool bumped = false;
  switch (in.mode) {
    case ForwardMode::decode:
    case ForwardMode::idle:
      prefix = in.positions.first(std::min(bs, in.positions.size()));
      each = 1;
      break;
    case ForwardMode::target_verify:
      prefix = all("seq_lens", in.seq_lens);
      each = in.draft_token_num;
      break;
    case ForwardMode::draft_extend_v2:
      prefix = all("seq_lens", in.seq_lens);
      extend = all("extend_seq_lens", in.extend_seq_lens);
      bumped = true;
      break;
    case ForwardMode::extend:
    case ForwardMode::mixed:
    case ForwardMode::split_prefill:
    case ForwardMode::dllm_extend:
      prefix = all("extend_prefix_lens", in.extend_prefix_lens);
      extend = all("extend_seq_lens", in.extend_seq_lens);
      break;
    case ForwardMode::prebuilt:
      raise(Page::canary_forward_mode, {{"argument", "mode"}, {"got", name_of(in.mode)}});
  }
  const std::span<const std::int64_t> rows = all("req_pool_indices", in.rows);

  for (const auto& array :
       {out.req_pool_indices, out.prefix_lens, out.extend_seq_lens, out.valid_lens}) {
    std::ranges::fill(array, 0);
  }
  std::ranges::copy(rows, out.req_pool_indices.begin());
  std::ranges::copy(prefix, out.prefix_lens.begin());
  std::ranges::copy(in.history_lens.first(std::min(bs, in.history_lens.size())),
                    out.valid_lens.begin());
  for (std::size_t i = 0; i < bs; ++i) {
    out.extend_seq_lens[i] = extend.empty() ? each : extend[i];
    if (bumped) out.prefix_lens[i] = i64(u64(prefix[i]) - u64(extend[i]));
  }
}

// ---------------------------------------------------------------- SWA divergence

SwaDivergence swa_divergence(const TensorView& req_to_token,
                             std::span<const std::int64_t> full_to_swa_index_mapping,
                             std::span<const std::int64_t> req_pool_indices,
                             std::span<const std::int64_t> seq_lens) {
  const canary::Table table = table_of(req_to_token, "req_to_token");
  const std::span<const std::int64_t> map = full_to_swa_index_mapping;
  if (map.empty()) {
    raise(Page::canary_mapping_empty, {{"argument", "full_to_swa_index_mapping"}});
  }
  if (seq_lens.size() != req_pool_indices.size()) {
    raise(Page::canary_wrong_length, {{"name", "seq_lens"},
                                      {"want", std::to_string(req_pool_indices.size())},
                                      {"got", std::to_string(seq_lens.size())}});
  }
  SwaDivergence d;
  for (std::size_t r = 0; r < seq_lens.size(); ++r) {
    if (!table.has_row(req_pool_indices[r])) continue;
    const std::int64_t length = std::min(seq_lens[r], table.columns);
    for (std::int64_t position = 0; position < length; ++position) {
      const std::int64_t full = table.at(req_pool_indices[r], position);
      const std::int64_t swa = translate(map.data(), std::ssize(map), full);
      if (swa == 0) {
        ++d.swa_out_of_window_tokens;
      } else if (swa != full) {
        ++d.swa_full_idx_divergence;
      }
    }
  }
  return d;
}

namespace {

constexpr std::string_view kDivergence = "kv_canary_swa_divergence={";

struct DivergenceKey {
  std::string_view name;
  std::int64_t SwaDivergence::* value;
};
constexpr DivergenceKey kDivergenceKeys[] = {
    {"forward_ct", &SwaDivergence::forward_ct},
    {"verify_full", &SwaDivergence::verify_full},
    {"verify_swa", &SwaDivergence::verify_swa},
    {"swa_full_idx_divergence", &SwaDivergence::swa_full_idx_divergence},
    {"swa_out_of_window_tokens", &SwaDivergence::swa_out_of_window_tokens},
};

bool take(std::string_view& text, std::string_view word) {
  if (!text.starts_with(word)) return false;
  text.remove_prefix(word.size());
  return true;
}

// The object after its opening brace; false where it is not whole.
bool read_divergence(std::string_view text, SwaDivergence& d) {
  for (std::size_t i = 0; i < std::size(kDivergenceKeys); ++i) {
    const DivergenceKey& key = kDivergenceKeys[i];
    if (i + 1 == std::size(kDivergenceKeys) && text.starts_with('}')) return true;
    if (i > 0 && !take(text, ",")) return false;
    if (!take(text, "\"") || !take(text, key.name) || !take(text, "\":")) return false;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), d.*key.value);
    if (error != std::errc{}) return false;
    text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  }
  return text.starts_with('}');
}

}  // namespace

std::string swa_divergence_line(const SwaDivergence& d) {
  std::string out(kDivergence);
  for (const DivergenceKey& key : kDivergenceKeys) {
    if (out.size() > kDivergence.size()) out += ',';
    out += fmt::format("\"{}\":{}", key.name, d.*key.value);
  }
  return out + '}';
}

std::vector<SwaDivergence> find_swa_divergence(std::string_view log) {
  std::vector<SwaDivergence> found;
  for (std::size_t at = log.find(kDivergence); at != std::string_view::npos;
       at = log.find(kDivergence, at)) {
    at += kDivergence.size();
    SwaDivergence d;
    if (read_divergence(log.substr(at, 256), d)) found.push_back(d);
  }
  return found;
}

}  // namespace serinus::canary::sglang
