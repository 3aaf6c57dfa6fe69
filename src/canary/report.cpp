// Names, and a violation as a line of text or JSON. Both formats are frozen by tests.
#include <fmt/format.h>

#include <serinus/canary.h>

#include "base/json.h"
#include "base/raise.h"

namespace serinus::canary {

namespace {
constexpr std::size_t kMostOfAName = 200;  // that anybody may have chosen: a line stays a line
}

const char* name_of(Format f) noexcept {
  return f == Format::serinus ? "serinus" : "sglang";
}

const char* name_of(Depth d) noexcept {
  switch (d) {
    case Depth::none:
      return "none";
    case Depth::partial:
      return "partial";
    case Depth::all:
      return "all";
  }
  return "?";
}

const char* name_of(Moment m) noexcept {
  switch (m) {
    case Moment::head:
      return "head";
    case Moment::tail:
      return "tail";
    case Moment::sweep:
      return "sweep";
  }
  return "?";
}

const char* name_of(PoolKind k) noexcept {
  switch (k) {
    case PoolKind::full:
      return "full";
    case PoolKind::swa:
      return "swa";
    case PoolKind::draft:
      return "draft";
  }
  return "?";
}

const char* name_of(SlotState s) noexcept {
  switch (s) {
    case SlotState::free:
      return "free";
    case SlotState::empty:
      return "empty";
    case SlotState::written:
      return "written";
  }
  return "?";
}

const char* name_of(Mode m) noexcept {
  switch (m) {
    case Mode::none:
      return "none";
    case Mode::log:
      return "log";
    case Mode::raise:
      return "raise";
    case Mode::quarantine:
      return "quarantine";
  }
  return "?";
}

const char* name_of(LedgerEventKind k) noexcept {
  switch (k) {
    case LedgerEventKind::alloc:
      return "alloc";
    case LedgerEventKind::free:
      return "free";
    case LedgerEventKind::transfer:
      return "transfer";
    case LedgerEventKind::moved_from:
      return "moved_from";
    case LedgerEventKind::moved_to:
      return "moved_to";
    case LedgerEventKind::store:
      return "store";
    case LedgerEventKind::load:
      return "load";
  }
  return "?";
}

std::string names_of(Reason reasons) {
  static constexpr const char* kNames[] = {"token",           "position",
                                           "chain",           "kv_bytes",
                                           "stale",           "foreign_write",
                                           "double_owner",    "out_of_range",
                                           "null_slot_dirty", "digest_differs_across_ranks"};
  std::string out;
  for (std::size_t bit = 0; bit < std::size(kNames); ++bit) {
    if (!any(reasons & static_cast<Reason>(1u << bit))) continue;
    if (!out.empty()) out += '+';
    out += kNames[bit];
  }
  return out.empty() ? "none" : out;
}

std::string to_text(const Stall& s, std::string_view pool_name) {
  return error_message(errors::Page::canary_check_stopped,
                       {{"got", name_of(s.moment)},
                        {"pool", printable(pool_name, kMostOfAName)},
                        {"step", std::to_string(s.since_step)}});
}

std::string to_text(const LedgerEvent& e) {
  std::string out = fmt::format("{}:", name_of(e.kind));
  if (e.owner != 0) out += std::to_string(e.owner);
  if (e.peer >= 0) out += fmt::format(">{}", e.peer);
  return out + fmt::format("@{}", e.step);
}

std::string to_text(const Violation& v, std::string_view pool_name) {
  std::string out = fmt::format(
      "kv-canary violation: reasons={} moment={} format={} pool={} slot={} request={} row={} "
      "position={}/{} token={}/{} chain={:016x}/{:016x} digest={:016x}/{:016x} owner={}/{} "
      "generation={}/{} prev_slot={} steps={}..{} count={}",
      names_of(v.reasons), name_of(v.moment), name_of(v.format), printable(pool_name, kMostOfAName),
      v.slot, v.request, v.row, v.expected_position, v.stored_position, v.expected_token,
      v.stored_token, v.expected_chain, v.stored_chain, v.expected_digest, v.stored_digest,
      v.expected_owner, v.stored_owner, v.expected_generation, v.stored_generation, v.prev_slot,
      v.first_step, v.last_step, v.count);
  if (v.layer >= 0)
    out += fmt::format(" layer={} segment={}", v.layer, printable(v.segment, kMostOfAName));
  for (const LedgerEvent& e : v.events) {
    out += (&e == v.events.data() ? " events=" : ",") + to_text(e);
  }
  return out;
}

std::string to_json(const Violation& v, std::string_view pool_name) {
  std::string reasons = names_of(v.reasons);
  std::string list;
  for (std::size_t i = 0; i <= reasons.size();) {
    const std::size_t end = std::min(reasons.find('+', i), reasons.size());
    list += (list.empty() ? "\"" : ",\"") + reasons.substr(i, end - i) + '"';
    i = end + 1;
  }
  std::string events;
  for (const LedgerEvent& e : v.events) {
    events += fmt::format(R"({}{{"event":"{}","owner":{},"peer":{},"step":{}}})",
                          events.empty() ? "" : ",", name_of(e.kind), e.owner, e.peer, e.step);
  }
  // 64-bit hashes are strings: JSON's readers round large numbers.
  return fmt::format(
      R"({{"reasons":[{}],"moment":"{}","format":"{}","pool":{},"slot":{},"request":{},"row":{},)"
      R"("expected_position":{},"stored_position":{},"expected_token":{},"stored_token":{},)"
      R"("expected_chain":"{:016x}","stored_chain":"{:016x}","expected_digest":"{:016x}",)"
      R"("stored_digest":"{:016x}","expected_owner":{},"stored_owner":{},)"
      R"("expected_generation":{},"stored_generation":{},"prev_slot":{},"layer":{},)"
      R"("segment":{},"first_step":{},"last_step":{},"count":{},"events":[{}]}})",
      list, name_of(v.moment), name_of(v.format), json_string(pool_name), v.slot, v.request, v.row,
      v.expected_position, v.stored_position, v.expected_token, v.stored_token, v.expected_chain,
      v.stored_chain, v.expected_digest, v.stored_digest, v.expected_owner, v.stored_owner,
      v.expected_generation, v.stored_generation, v.prev_slot, v.layer, json_string(v.segment),
      v.first_step, v.last_step, v.count, events);
}

}  // namespace serinus::canary
