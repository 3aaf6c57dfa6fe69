// SGLang's text of a violation. Log parsers depend on it.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>

#include "canary/sglang/records.h"

namespace serinus::canary::sglang {

namespace {

constexpr std::array<std::string_view, kNumLaunchTags> kTagNames = {
    "HEAD_K_FULL", "HEAD_V_FULL", "TAIL_K_FULL", "TAIL_V_FULL", "SWEEP_K_FULL", "SWEEP_V_FULL",
    "HEAD_K_SWA",  "HEAD_V_SWA",  "TAIL_K_SWA",  "TAIL_V_SWA",  "SWEEP_K_SWA",  "SWEEP_V_SWA"};

// In bit order.
constexpr std::array<std::string_view, 6> kReasonNames = {"verify_chain_hash",   "verify_position",
                                                          "verify_real_kv_hash", "write_token",
                                                          "write_position",      "verify_token"};

bool has(std::int64_t bits, FailReason reason) {
  return (bits & static_cast<std::int64_t>(reason)) != 0;
}

std::string canary_kind(std::int64_t tag) {
  std::string kind = tag_name(tag);
  if (!within(tag, kNumLaunchTags)) return kind;
  std::ranges::transform(kind, kind.begin(),
                         [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return kind.starts_with("sweep") ? kind : "per_forward_" + kind;
}

}  // namespace

std::string tag_name(std::int64_t value) {
  if (!within(value, kNumLaunchTags)) return fmt::format("unknown({})", value);
  return std::string(kTagNames[static_cast<std::size_t>(value)]);
}

std::string name_of(LaunchTag tag) {
  return tag_name(static_cast<std::int64_t>(tag));
}

std::string fail_reason_names(std::int64_t bits, std::string_view separator) {
  std::string names;
  for (std::size_t bit = 0; bit < kReasonNames.size(); ++bit) {
    if (((bits >> bit) & 1) == 0) continue;
    if (!names.empty()) names += separator;
    names += kReasonNames[bit];
  }
  return names.empty() ? "none" : names;
}

std::string report_text(const ViolationRow& row, std::int64_t total_violations, bool ring_overflow,
                        std::int64_t step_when_pumped) {
  const std::string tag = tag_name(row.kernel_kind);
  const std::int64_t bits = row.fail_reason_bits;
  const bool by_write = has(bits, FailReason::write_token) || has(bits, FailReason::write_position);
  const std::string expected =
      by_write ? fmt::format("token_id={}   position={}", row.expected_token, row.expected_aux)
      : has(bits, FailReason::verify_token)
          ? fmt::format("token_id={} prev_hash=0x{:016x}", row.expected_token,
                        u64(row.expected_aux))
          : fmt::format("prev_hash=0x{:016x}", u64(row.expected_aux));
  return fmt::format(
      "kv_canary violation: launch_tag={} fail_reason={} slot_idx={} position={} stored_token={} "
      "expected_token={} stored_chain_hash=0x{:016x} expected_aux=0x{:016x}\n"
      "KV cache canary violation detected (kernel_kind={}, slot_idx={}, position={})\n"
      "canary_kind:       {}\n"
      "  fail_reasons: {}\n"
      "  {}   token_id={}   position={} prev_hash=0x{:016x}\n"
      "  expected: {}\n"
      "  total_violations={} ring_overflow={} step_when_pumped={}",
      tag, fail_reason_names(bits, "+"), row.slot, row.position, row.stored_token,
      row.expected_token, u64(row.stored_chain_hash), u64(row.expected_aux), tag, row.slot,
      row.position, canary_kind(row.kernel_kind), fail_reason_names(bits, " "),
      by_write ? "actual:" : "stored:", row.stored_token, row.position, u64(row.stored_chain_hash),
      expected, total_violations, ring_overflow ? "True" : "False", step_when_pumped);
}

}  // namespace serinus::canary::sglang
