// Runs the vectors of the sglang format: `canary_vectors [FILE]`. Without an argument the file is
// SERINUS_CANARY_VECTORS, else ../shared/spec/canary_vectors.json beside the source tree, else the
// copy in this folder. Sections may be missing; no case at all is a failure. Exit code 0 when every
// case holds.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include <serinus/canary_sglang.h>
#include <serinus/canary_sglang_host.h>
#include <serinus/error.h>

#include "canary/sglang/hash.h"
#include "tests/canary/sglang_endpoint.h"

namespace serinus::canary::sglang {
namespace {

using Json = nlohmann::json;

[[noreturn]] void fail(const std::string& what) {
  throw std::runtime_error(what);
}

std::string show(const std::string& s) {
  return s;
}
std::string show(std::int64_t v) {
  return std::to_string(v);
}
template <class T>
std::string show(const std::vector<T>& values) {
  std::string out = "[";
  for (const auto& v : values) {
    if (out.size() > 1) out += ", ";
    out += show(v);
  }
  out += "]";
  return out;
}

template <class T>
void expect_equal(const std::string& what, const T& got, const T& want) {
  if (got != want) fail(what + ": expected " + show(want) + ", got " + show(got));
}

const Json& at(const Json& object, const char* key) {
  if (!object.is_object()) fail(std::string("expected an object with \"") + key + "\"");
  const auto found = object.find(key);
  if (found == object.end()) fail(std::string("\"") + key + "\" is missing");
  return *found;
}

// A number, a decimal string, or 0x and hexadecimal digits of the unsigned value.
std::int64_t integer(const Json& value) {
  if (value.is_number_unsigned()) {
    if (value.get<std::uint64_t>() > INT64_MAX) fail("integer out of range: " + value.dump());
    return value.get<std::int64_t>();
  }
  if (value.is_number_integer()) return value.get<std::int64_t>();
  if (!value.is_string()) fail("expected an integer, got " + value.dump());
  const auto text = value.get<std::string>();
  std::size_t used = 0;
  std::int64_t result = 0;
  try {
    result = text.starts_with("0x") ? static_cast<std::int64_t>(std::stoull(text, &used, 16))
                                    : std::stoll(text, &used, 10);
  } catch (const std::exception&) {
    used = 0;
  }
  if (text.empty() || used != text.size()) fail("not an integer: " + value.dump());
  return result;
}

std::int64_t integer(const Json& object, const char* key) {
  return integer(at(object, key));
}

// A size that the test allocates: hostile files must not make it take gigabytes.
std::int64_t count(const Json& object, const char* key) {
  const std::int64_t n = integer(object, key);
  if (n < 0 || n > 1 << 20) fail(std::string(key) + " out of range: " + std::to_string(n));
  return n;
}

const Json& array(const Json& value) {
  if (!value.is_array()) fail("expected an array, got " + value.dump().substr(0, 80));
  return value;
}

std::vector<std::int64_t> integers(const Json& value) {
  std::vector<std::int64_t> out;
  for (const Json& v : array(value)) out.push_back(integer(v));
  return out;
}

std::vector<std::int64_t> integers(const Json& object, const char* key) {
  return integers(at(object, key));
}

// As integers(), grown with zeros to `size`.
std::vector<std::int64_t> padded(const Json& object, const char* key, std::int64_t size) {
  std::vector<std::int64_t> out = integers(object, key);
  if (static_cast<std::int64_t>(out.size()) > size) fail(std::string(key) + " is too long");
  out.resize(static_cast<std::size_t>(size));
  return out;
}

bool boolean(const Json& object, const char* key) {
  const Json& value = at(object, key);
  if (!value.is_boolean()) fail(std::string(key) + ": expected true or false");
  return value.get<bool>();
}

std::string text(const Json& value) {
  if (!value.is_string()) fail("expected a string, got " + value.dump().substr(0, 80));
  return value.get<std::string>();
}

std::string text(const Json& object, const char* key) {
  return text(at(object, key));
}

std::string hex(std::uint64_t value) {
  char out[19];
  std::snprintf(out, sizeof out, "0x%016llx", static_cast<unsigned long long>(value));
  return out;
}

// A rectangular table of int32.
struct Table {
  std::vector<std::int32_t> cells;
  std::int64_t rows = 0, width = 0;

  TensorView tensor() { return view(cells, rows, width); }
};

Table table(const Json& value) {
  Table t;
  for (const Json& row : array(value)) {
    const std::vector<std::int64_t> cells = integers(row);
    if (t.rows++ == 0) t.width = static_cast<std::int64_t>(cells.size());
    if (static_cast<std::int64_t>(cells.size()) != t.width) fail("rows of different length");
    for (const std::int64_t c : cells) {
      if (c < INT32_MIN || c > INT32_MAX) fail("cell out of range: " + std::to_string(c));
      t.cells.push_back(static_cast<std::int32_t>(c));
    }
  }
  return t;
}

RealKvHashMode mode_of(const std::string& name) {
  if (name == "NONE") return RealKvHashMode::none;
  if (name == "PARTIAL") return RealKvHashMode::partial;
  if (name == "ALL") return RealKvHashMode::all;
  fail("unknown mode " + name);
}

std::vector<std::uint8_t> unhex(const std::string& digits) {
  std::vector<std::uint8_t> out;
  if (digits.size() % 2 != 0 || digits.find_first_not_of("0123456789abcdef") != std::string::npos)
    fail("not hexadecimal bytes: " + digits.substr(0, 80));
  for (std::size_t i = 0; i < digits.size(); i += 2)
    out.push_back(static_cast<std::uint8_t>(std::stoi(digits.substr(i, 2), nullptr, 16)));
  return out;
}

// Sources and their bytes.
struct Sources {
  std::vector<std::vector<std::uint8_t>> bytes;
  std::vector<RealKvSource> list;
};

Sources sources(const Json& value) {
  Sources out;
  for (const Json& s : array(value)) {
    const std::int64_t width = count(s, "row_stride_bytes");
    std::vector<std::uint8_t> bytes;
    for (const Json& row : array(at(s, "rows_hex"))) {
      const std::vector<std::uint8_t> one = unhex(text(row));
      if (static_cast<std::int64_t>(one.size()) != width)
        fail("a row of " + std::to_string(one.size()) + " bytes, row_stride_bytes is " +
             std::to_string(width));
      bytes.insert(bytes.end(), one.begin(), one.end());
    }
    const auto rows = static_cast<std::int64_t>(at(s, "rows_hex").size());
    out.bytes.push_back(std::move(bytes));
    out.list.push_back({.tensor = TensorView(out.bytes.back().data(), DType::u8, {rows, width}),
                        .page_size = integer(s, "page_size"),
                        .num_bytes_per_token = integer(s, "num_bytes_per_token"),
                        .read_bytes = integer(s, "read_bytes")});
  }
  return out;
}

Record record(const Json& r) {
  return {.token = integer(r, "token"),
          .position = integer(r, "position"),
          .prev_hash = integer(r, "prev_hash"),
          .real_kv_hash = integer(r, "real_kv_hash")};
}

std::map<std::int64_t, Record> records(const Json& value, std::int64_t num_slots) {
  std::map<std::int64_t, Record> out;
  if (!value.is_object()) fail("expected records by slot");
  for (const auto& [slot, r] : value.items()) {
    const std::int64_t s = integer(Json(slot));
    if (s < 0 || s >= num_slots) fail("record of slot " + slot + " outside the buffer");
    out[s] = record(r);
  }
  return out;
}

void expect_records(const Endpoint& endpoint, const std::map<std::int64_t, Record>& want) {
  for (std::int64_t slot = 0; slot < endpoint.num_slots(); ++slot) {
    const auto found = want.find(slot);
    const Record r = found == want.end() ? Record{} : found->second;
    const Record got = endpoint.record(slot);
    const std::string what = "record of slot " + std::to_string(slot) + " ";
    expect_equal(what + "token", got.token, r.token);
    expect_equal(what + "position", got.position, r.position);
    expect_equal(what + "prev_hash", got.prev_hash, r.prev_hash);
    expect_equal(what + "real_kv_hash", got.real_kv_hash, r.real_kv_hash);
  }
}

std::vector<std::int64_t> fields(const ViolationRow& r) {
  return {r.kernel_kind,       r.slot,         r.position,        r.stored_token, r.expected_token,
          r.stored_chain_hash, r.expected_aux, r.fail_reason_bits};
}

ViolationRow row_of(const std::vector<std::int64_t>& f) {
  if (f.size() != kViolationFields) fail("a violation row has 8 fields");
  return {f[0], f[1], f[2], f[3], f[4], f[5], f[6], f[7]};
}

bool by_write(std::int64_t bits) {
  return (bits & 24) != 0;
}

// The log's named fields against its strings, so that neither can be wrong alone.
ViolationRow log_row(const Json& row) {
  const std::vector<std::int64_t> f = integers(row, "row_i64_as_strings");
  const ViolationRow r = row_of(f);
  const char* const names[] = {"kernel_kind",  "slot_idx",        "position",
                               "stored_token", "expected_token",  "stored_chain_hash",
                               "expected_aux", "fail_reason_bits"};
  for (std::size_t i = 0; i < f.size(); ++i)
    expect_equal(std::string("field ") + names[i] + " of the row", f[i], integer(row, names[i]));
  expect_equal<std::string>("kernel_kind_name", tag_name(r.kernel_kind),
                            text(row, "kernel_kind_name"));
  expect_equal<std::string>(
      "expected_aux_meaning",
      by_write(r.fail_reason_bits) ? "expected_position" : "expected_prev_hash",
      text(row, "expected_aux_meaning"));
  return r;
}

void expect_log(const Endpoint& endpoint, const Json& log, bool ordered) {
  expect_equal<std::int64_t>("violation_write_index", endpoint.violations,
                             integer(log, "violation_write_index"));
  expect_equal("slot_run_counter", endpoint.slot_runs, integer(log, "slot_run_counter"));
  expect_equal("kernel_run_counter", endpoint.kernel_runs, integer(log, "kernel_run_counter"));
  std::vector<std::vector<std::int64_t>> want(endpoint.ring.size(), fields({}));
  for (const Json& row : array(at(log, "ring_rows_written"))) {
    const std::int64_t index = integer(row, "ring_index");
    if (index < 0 || index >= static_cast<std::int64_t>(want.size())) fail("ring_index");
    want[static_cast<std::size_t>(index)] = fields(log_row(row));
  }
  std::vector<std::vector<std::int64_t>> got;
  for (const ViolationRow& r : endpoint.ring) got.push_back(fields(r));
  if (!ordered) {
    std::ranges::sort(got);
    std::ranges::sort(want);
  }
  expect_equal("ring", got, want);
}

Endpoint endpoint_of(const Json& in, const Json& log, const std::map<std::int64_t, Record>& before,
                     const Sources& src) {
  Endpoint e(count(in, "num_slots"), count(log, "ring_capacity"));
  for (const auto& [slot, r] : before) e.set(slot, r);
  const std::int64_t tag = integer(in, "kernel_kind");
  if (tag < 0 || tag >= kNumLaunchTags) fail("kernel_kind");
  e.tag = static_cast<LaunchTag>(tag);
  e.mode = mode_of(text(in, "mode"));
  e.sources = src.list;
  e.violations = static_cast<std::int32_t>(integer(in, "violation_write_index_before"));
  return e;
}

// ---------------------------------------------------------------- sections

void run_constants(const Json& c) {
  const auto number = [&](const char* key, std::uint64_t have) {
    expect_equal<std::string>(key, hex(have), hex(static_cast<std::uint64_t>(integer(c, key))));
  };
  number("chain_anchor", kChainAnchor);
  number("chain_anchor_hash", splitmix64(kChainAnchor));
  number("chain_anchor_hash_i64", splitmix64(kChainAnchor));
  number("splitmix_mul1", hash::kMul1);
  number("splitmix_mul2", hash::kMul2);
  number("slot_bytes", static_cast<std::uint64_t>(kSlotBytes));
  number("padding_slot", static_cast<std::uint64_t>(kPaddingSlot));
  number("padding_req_row", static_cast<std::uint64_t>(kPaddingRow));
  number("max_real_kv_sources", kMaxRealKvSources);

  // The names of the fields, in the order in which they lie in memory.
  const Record r{1, 2, 3, 4};
  const std::map<std::string, std::int64_t> record_fields = {{"token", r.token},
                                                             {"position", r.position},
                                                             {"prev_hash", r.prev_hash},
                                                             {"real_kv_hash", r.real_kv_hash}};
  const ViolationRow v{1, 2, 3, 4, 5, 6, 7, 8};
  const std::map<std::string, std::int64_t> row_fields = {
      {"kernel_kind", v.kernel_kind},
      {"slot_idx", v.slot},
      {"position", v.position},
      {"stored_token", v.stored_token},
      {"expected_token", v.expected_token},
      {"stored_chain_hash", v.stored_chain_hash},
      {"expected_aux", v.expected_aux},
      {"fail_reason_bits", v.fail_reason_bits}};
  const auto in_order = [&](const char* key, const std::map<std::string, std::int64_t>& have) {
    std::vector<std::int64_t> order;
    for (const Json& name : array(at(c, key))) {
      if (!have.contains(text(name))) fail(std::string(key) + ": unknown " + text(name));
      order.push_back(have.at(text(name)));
    }
    std::vector<std::int64_t> want(have.size());
    for (std::size_t i = 0; i < want.size(); ++i) want[i] = static_cast<std::int64_t>(i) + 1;
    expect_equal(key, order, want);
  };
  in_order("fields_per_slot", record_fields);
  in_order("violation_row", row_fields);

  const auto named = [&](const char* key, std::size_t size,
                         const std::function<std::string(std::int64_t)>& name_of_value) {
    const Json& values = at(c, key);
    if (!values.is_object()) fail(std::string(key) + " is not an object");
    expect_equal<std::int64_t>(std::string("number of ") + key,
                               static_cast<std::int64_t>(values.size()),
                               static_cast<std::int64_t>(size));
    for (const auto& [name, value] : values.items())
      expect_equal<std::string>(key, name_of_value(integer(value)), name);
  };
  named("launch_tags", kNumLaunchTags, tag_name);
  named("fail_reason_bits", 6, [](std::int64_t bit) { return fail_reason_names(bit, "+"); });
  named("real_kv_hash_mode", 3, [](std::int64_t value) -> std::string {
    for (const char* name : {"NONE", "PARTIAL", "ALL"}) {
      if (static_cast<std::int64_t>(mode_of(name)) == value) return name;
    }
    return "unknown";
  });
}

void run_splitmix64(const Json& c) {
  expect_equal<std::string>(
      "splitmix64", hex(splitmix64(static_cast<std::uint64_t>(integer(c, "in")))), text(c, "out"));
}

void run_mix3(const Json& c) {
  const auto u = [&](const char* key) { return static_cast<std::uint64_t>(integer(c, key)); };
  for (const char* const name : {"b", "c"}) {
    expect_equal(std::string(name) + "_i64", integer(c, name),
                 integer(c, (std::string(name) + "_i64").c_str()));
  }
  expect_equal<std::string>("mix3", hex(splitmix64_mix3(u("a"), u("b"), u("c"))), text(c, "out"));
}

// One case: the chain as a whole, each token's hash carried to the next.
void run_chain(const Json& tokens) {
  std::uint64_t h = splitmix64(kChainAnchor);
  for (const Json& t : array(tokens)) {
    expect_equal<std::string>("stored_prev_hash", hex(h), text(t, "stored_prev_hash"));
    expect_equal("stored_prev_hash_i64", static_cast<std::int64_t>(h),
                 integer(t, "stored_prev_hash_i64"));
    h = chain_hash({.token = integer(t, "token"),
                    .position = integer(t, "position"),
                    .prev_hash = static_cast<std::int64_t>(h)});
    expect_equal<std::string>("hash_after_this_token", hex(h), text(t, "hash_after_this_token"));
  }
}

void run_all_zero(const Json& c) {
  expect_equal<std::string>("slot_hash_of_all_zero_record", hex(chain_hash({})),
                            text(c, "slot_hash_of_all_zero_record"));
  std::vector<std::uint8_t> zeros(32);
  const RealKvSource source{TensorView(zeros.data(), DType::u8, {1, 32}), 1, 32, 32};
  expect_equal<std::string>("fold_of_32_zero_bytes_one_source_ALL",
                            hex(real_kv_hash({&source, 1}, RealKvHashMode::all, 0).value()),
                            text(c, "fold_of_32_zero_bytes_one_source_ALL"));
}

void run_fold(const Json& c) {
  const Sources src = sources(at(c, "sources"));
  const RealKvHashMode mode = mode_of(text(c, "mode"));
  const std::int64_t slot = integer(c, "slot");
  const auto per_source = mode == RealKvHashMode::none ? std::span<const RealKvSource>{}
                                                       : std::span<const RealKvSource>(src.list);
  std::vector<std::string> hashes;
  std::vector<std::string> bytes_read;
  for (std::size_t i = 0; i < per_source.size(); ++i) {
    const RealKvSource& s = per_source[i];
    const std::optional<std::uint64_t> h = source_hash(s, mode, slot);
    if (!h) fail("slot outside the source");
    hashes.push_back(hex(*h));
    // What the file says was read, from the file's own bytes.
    const std::int64_t n = mode == RealKvHashMode::partial ? kPartialBytes : s.read_bytes;
    const std::int64_t begin =
        slot / s.page_size * s.tensor.shape[1] + slot % s.page_size * s.num_bytes_per_token;
    std::string read;
    for (std::int64_t b = begin; b < begin + n; ++b) {
      char digits[3];
      std::snprintf(digits, sizeof digits, "%02x", src.bytes[i][static_cast<std::size_t>(b)]);
      read += digits;
    }
    bytes_read.push_back(read);
  }
  std::vector<std::string> want_hashes;
  for (const Json& h : array(at(c, "per_source_hash"))) want_hashes.push_back(text(h));
  std::vector<std::string> want_bytes;
  for (const Json& b : array(at(c, "bytes_read_hex"))) want_bytes.push_back(text(b));
  expect_equal("bytes_read_hex", bytes_read, want_bytes);
  expect_equal("per_source_hash", hashes, want_hashes);
  expect_equal<std::string>("real_kv_hash", hex(real_kv_hash(src.list, mode, slot).value()),
                            text(c, "real_kv_hash"));
}

void run_request_id(const Json& c) {
  expect_equal("hash of the request id", request_id_hash(text(c, "rid")), integer(c, "i64"));
}

void run_oracle_token(const Json& c) {
  expect_equal("token",
               oracle_token(integer(c, "generalized_req_id_i64"), integer(c, "position"),
                            integer(c, "vocab_size")),
               integer(c, "token"));
}

void run_plan(const Json& c) {
  const Json& in = at(c, "in");
  const Json& out = at(c, "out");
  std::vector<std::int64_t> rows = integers(in, "req_pool_indices");
  std::vector<std::int64_t> prefix_lens = integers(in, "prefix_lens");
  std::vector<std::int64_t> extend_lens = integers(in, "extend_seq_lens");
  Table tokens = table(at(in, "req_to_token"));
  PlanInput input{.req_pool_indices = view(rows),
                  .prefix_lens = view(prefix_lens),
                  .extend_seq_lens = view(extend_lens),
                  .req_to_token = tokens.tensor(),
                  .swa_window_size = integer(in, "swa_window_size"),
                  .verify_capacity = count(in, "verify_capacity"),
                  .kv_token_id_vs_position_offset = integer(in, "kv_token_id_vs_position_offset")};
  std::vector<std::int64_t> mapping;
  if (const Json& m = at(in, "full_to_swa_index_mapping"); !m.is_null()) {
    mapping = integers(m);
    input.full_to_swa_index_mapping = view(mapping);
  }
  Table expected;
  std::vector<std::int64_t> valid_lens;
  if (const Json& e = at(in, "req_to_verify_expected_tokens"); !e.is_null()) {
    expected = table(e);
    valid_lens = integers(in, "valid_lens");
    input.req_to_verify_expected_tokens = expected.tensor();
    input.req_to_verify_expected_tokens_valid_lens = view(valid_lens);
  }
  // With room to spare the count is the total.
  const std::int64_t total = count(out, "total_requested");
  PlanInput roomy = input;
  roomy.verify_capacity = total + 1;
  HostVerifyPlan all(roomy.verify_capacity);
  HostWritePlan unused(count(in, "write_req_capacity"));
  plan(all.view(), unused.view(), roomy);
  expect_equal<std::int64_t>("total_requested", all.num_valid, total);

  for (const int threads : {1, 3}) {
    HostVerifyPlan verify_plan(input.verify_capacity);
    HostWritePlan write_plan(count(in, "write_req_capacity"));
    constexpr std::int64_t kUntouched = -777;
    for (auto* const a : {&verify_plan.slots, &verify_plan.positions, &verify_plan.prev_slots,
                          &verify_plan.tokens, &write_plan.offsets, &write_plan.seeds})
      std::ranges::fill(*a, kUntouched);
    plan(verify_plan.view(), write_plan.view(), input, {}, threads);
    expect_equal<std::int64_t>("verify_num_valid", verify_plan.num_valid,
                               integer(out, "verify_num_valid"));
    expect_equal<std::int64_t>("enable", verify_plan.enable, integer(out, "enable"));
    expect_equal<std::int64_t>("write_num_valid_reqs", write_plan.num_valid_reqs,
                               integer(out, "write_num_valid_reqs"));
    expect_equal<std::int64_t>("total_requested fits", verify_plan.enable,
                               total <= input.verify_capacity ? 1 : 0);
    const auto entries = [&](const char* key, const std::vector<std::int64_t>& got) {
      const Json& want = at(out, key);
      const std::size_t n =
          want.is_null() ? got.size() : static_cast<std::size_t>(verify_plan.num_valid);
      expect_equal(
          key, std::vector<std::int64_t>(got.begin(), got.begin() + static_cast<std::ptrdiff_t>(n)),
          want.is_null() ? std::vector<std::int64_t>(n, kUntouched) : integers(want));
    };
    entries("verify_slot_indices", verify_plan.slots);
    entries("verify_expected_positions", verify_plan.positions);
    entries("verify_prev_slot_indices", verify_plan.prev_slots);
    entries("verify_expected_tokens", verify_plan.tokens);
    expect_equal("write_offsets", write_plan.offsets, integers(out, "write_offsets"));
    write_plan.seeds.resize(rows.size());
    expect_equal("write_seed_slot_indices_first_bs", write_plan.seeds,
                 integers(out, "write_seed_slot_indices_first_bs"));
  }
}

void run_write(const Json& c) {
  const Json& in = at(c, "in");
  const Json& log = at(at(c, "out"), "log");
  const std::int64_t num_slots = count(in, "num_slots");
  const std::map<std::int64_t, Record> before =
      records(at(in, "nonzero_records_before"), num_slots);
  const Sources src = sources(at(in, "sources"));
  Endpoint e = endpoint_of(in, log, before, src);
  e.chain_position_assert = static_cast<std::int32_t>(integer(in, "enable_chain_position_assert"));

  const std::int64_t capacity = count(in, "write_req_capacity");
  HostWritePlan write_plan(capacity);
  write_plan.offsets = padded(in, "write_offsets", capacity + 1);
  write_plan.seeds = padded(in, "write_seed_slot_indices", capacity);
  write_plan.num_valid_reqs = static_cast<std::int32_t>(integer(in, "write_num_valid_reqs"));
  std::vector<std::int64_t> ids = integers(in, "input_ids");
  std::vector<std::int64_t> positions = integers(in, "positions");
  std::vector<std::int64_t> slots = integers(in, "out_cache_loc");
  WriteInput input{
      .input_ids = view(ids), .positions = view(positions), .out_cache_loc = view(slots)};
  std::vector<std::int64_t> expected_tokens;
  std::vector<std::int64_t> expected_positions;
  if (const Json& expected = at(in, "expected_inputs"); !expected.is_null()) {
    expected_tokens = integers(expected, "tokens");
    expected_positions = integers(expected, "positions");
    input.enable_write_input_assert = true;
    input.expected_input_tokens = view(expected_tokens);
    input.expected_input_positions = view(expected_positions);
  }
  write(e.context(), write_plan.view(), input);
  std::map<std::int64_t, Record> after = before;
  for (const auto& [slot, r] : records(at(at(c, "out"), "changed_records"), num_slots))
    after[slot] = r;
  expect_records(e, after);
  expect_log(e, log, boolean(c, "ordered"));
  expect_equal<std::int64_t>("out of range", e.out_of_range, 0);
}

void run_verify(const Json& c) {
  const Json& in = at(c, "in");
  const Json& log = at(at(c, "out"), "log");
  const std::map<std::int64_t, Record> before =
      records(at(in, "nonzero_records"), count(in, "num_slots"));
  const Sources src = sources(at(in, "sources"));
  const std::int64_t capacity = count(in, "verify_capacity");
  HostVerifyPlan verify_plan(capacity);
  verify_plan.slots = padded(in, "verify_slot_indices", capacity);
  verify_plan.positions = padded(in, "verify_expected_positions", capacity);
  verify_plan.prev_slots = padded(in, "verify_prev_slot_indices", capacity);
  verify_plan.tokens = padded(in, "verify_expected_tokens", capacity);
  verify_plan.num_valid = static_cast<std::int32_t>(integer(in, "verify_num_valid"));
  verify_plan.enable = static_cast<std::int32_t>(integer(in, "enable"));
  for (const int threads : {1, 3}) {
    Endpoint e = endpoint_of(in, log, before, src);
    verify(e.context(), verify_plan.view(), boolean(in, "check_verify_expected_token"), {},
           threads);
    expect_records(e, before);
    expect_log(e, log, boolean(c, "ordered"));
    expect_equal<std::int64_t>("out of range", e.out_of_range, 0);
  }
}

// One request of one row: its tokens and slots come from the records that each step leaves.
void run_pipeline(const Json& steps) {
  std::map<std::int64_t, std::pair<std::int64_t, Record>> by_position;  // slot, record
  if (array(steps).empty()) fail("no step");
  for (const auto& [slot, r] : records(at(steps.back(), "records_after"), 1 << 16))
    by_position[r.position] = {slot, r};
  std::vector<std::int32_t> cells(static_cast<std::size_t>(2 * by_position.size()));
  std::int64_t num_slots = 1;
  for (const auto& [position, entry] : by_position) {
    if (position < 0 || position >= static_cast<std::int64_t>(by_position.size())) fail("position");
    cells[by_position.size() + static_cast<std::size_t>(position)] =
        static_cast<std::int32_t>(entry.first);
    num_slots = std::max(num_slots, entry.first + 1);
  }
  Endpoint e(num_slots);
  for (const Json& step : steps) {
    std::vector<std::int64_t> rows{1};
    std::vector<std::int64_t> prefix{integer(step, "prefix_len")};
    std::vector<std::int64_t> extend{integer(step, "extend_len")};
    HostVerifyPlan verify_plan(1024);
    HostWritePlan write_plan(1);
    plan(verify_plan.view(), write_plan.view(),
         {.req_pool_indices = view(rows),
          .prefix_lens = view(prefix),
          .extend_seq_lens = view(extend),
          .req_to_token = view(cells, 2, static_cast<std::int64_t>(by_position.size())),
          .verify_capacity = 1024});
    expect_equal("seed", write_plan.seeds[0], integer(step, "seed"));
    expect_equal<std::int64_t>("verify_entries", verify_plan.num_valid,
                               integer(step, "verify_entries"));
    verify(e.context(), verify_plan.view(), false);
    expect_equal<std::int64_t>("verify_violations", e.violations,
                               integer(step, "verify_violations"));
    e.violations = 0;
    std::vector<std::int64_t> ids;
    std::vector<std::int64_t> positions;
    std::vector<std::int64_t> slots;
    for (std::int64_t p = prefix[0]; p < prefix[0] + extend[0]; ++p) {
      const auto found = by_position.find(p);
      if (found == by_position.end()) fail("no record for position " + std::to_string(p));
      ids.push_back(found->second.second.token);
      positions.push_back(p);
      slots.push_back(found->second.first);
    }
    write(e.context(), write_plan.view(),
          {.input_ids = view(ids), .positions = view(positions), .out_cache_loc = view(slots)});
    expect_equal<std::int64_t>("write_violations", e.violations, integer(step, "write_violations"));
    e.violations = 0;
    expect_records(e, records(at(step, "records_after"), num_slots));
  }
}

// Adds the node and all below it; the storage of slots must outlive the tree.
std::int32_t add_node(const Json& node, PrefixTree& tree,
                      std::vector<std::vector<std::int64_t>>& storage) {
  const auto index = static_cast<std::int32_t>(tree.nodes.size());
  tree.nodes.emplace_back();
  storage.push_back(integers(node, "slots"));
  PrefixNode n;
  n.slots = storage.back();
  n.key_length = static_cast<std::int64_t>(n.slots.size());
  if (node.contains("lock")) n.full_lock = n.swa_lock = integer(node, "lock");
  if (node.contains("tomb")) n.swa_resident = !boolean(node, "tomb");
  if (node.contains("children")) {
    for (const Json& child : array(at(node, "children")))
      n.children.push_back(add_node(child, tree, storage));
  }
  tree.nodes[static_cast<std::size_t>(index)] = std::move(n);
  return index;
}

std::vector<std::vector<std::int64_t>> listed(const std::vector<SweepEntry>& entries) {
  std::vector<std::vector<std::int64_t>> out;
  for (const SweepEntry& e : entries) out.push_back({e.slot, e.position, e.prev_slot});
  return out;
}

std::vector<std::vector<std::int64_t>> lists(const Json& value) {
  std::vector<std::vector<std::int64_t>> out;
  for (const Json& entry : array(value)) out.push_back(integers(entry));
  return out;
}

void run_sweep(const Json& c) {
  PrefixTree tree{.kind = PrefixTreeKind::swa, .nodes = {}};
  std::vector<std::vector<std::int64_t>> storage;
  add_node(at(c, "tree"), tree, storage);
  const Json want_fields = {"slot", "position", "prev_slot"};
  if (at(c, "entry_fields") != want_fields) fail("entry_fields");
  expect_equal("entries_all", listed(sweep_entries(tree)), lists(at(c, "entries_all")));
  expect_equal("entries_unlocked_only", listed(sweep_entries(tree, {.unlocked_only = true})),
               lists(at(c, "entries_unlocked_only")));
  expect_equal("entries_swa_resident_only",
               listed(sweep_entries(tree, {.swa_resident_only = true})),
               lists(at(c, "entries_swa_resident_only")));
  std::vector<std::int64_t> mapping(1);
  if (!at(c, "swa_lut_nonzero").is_object()) fail("swa_lut_nonzero");
  for (const SweepEntry& e : sweep_entries(tree))
    mapping.resize(std::max(mapping.size(), static_cast<std::size_t>(e.slot) + 1));
  for (const auto& [slot, value] : at(c, "swa_lut_nonzero").items()) {
    const std::int64_t s = integer(Json(slot));
    if (s < 0 || s > 1 << 20) fail("swa_lut_nonzero");
    mapping.resize(std::max(mapping.size(), static_cast<std::size_t>(s) + 1));
    mapping[static_cast<std::size_t>(s)] = integer(value);
  }
  std::vector<SweepEntry> translated = sweep_entries(tree);
  translate_sweep(translated, 1, mapping);
  expect_equal("entries_after_swa_translation", listed(translated),
               lists(at(c, "entries_after_swa_translation")));
}

void run_scatter(const Json& c) {
  std::vector<std::int64_t> flat = integers(c, "flat_in");
  std::vector<std::int64_t> offsets = integers(c, "offsets");
  std::vector<std::int64_t> rows = integers(c, "req_pool_indices");
  const std::int64_t num_rows = count(c, "pool_rows");
  const std::int64_t width = count(c, "pool_cols");
  std::vector<std::int32_t> pool(static_cast<std::size_t>(num_rows * width),
                                 static_cast<std::int32_t>(integer(c, "pool_before_fill")));
  scatter_req_token_ids(view(flat), view(offsets), view(rows), view(pool, num_rows, width));
  const Table want = table(at(c, "pool_after"));
  expect_equal("pool_after", std::vector<std::int64_t>(pool.begin(), pool.end()),
               std::vector<std::int64_t>(want.cells.begin(), want.cells.end()));
}

// Buffers by name: the address is the name's index.
void run_splice(const Json& c, bool with_v) {
  std::vector<std::string> names = {"k_head", "k_tail", "v_head", "v_tail"};
  std::vector<TransferBuffer> in;
  for (const Json& name : array(at(c, "in"))) {
    in.push_back({.address = names.size()});
    names.push_back(text(name));
  }
  const TransferBuffer ends[] = {{.address = 0}, {.address = 1}, {.address = 2}, {.address = 3}};
  const std::vector<TransferBuffer> out =
      with_v ? splice_kv(in, ends[0], ends[1], ends[2], ends[3]) : splice_k(in, ends[0], ends[1]);
  std::vector<std::string> got;
  for (const TransferBuffer& b : out) got.push_back(names[b.address]);
  std::vector<std::string> want;
  for (const Json& name : array(at(c, "out"))) want.push_back(text(name));
  expect_equal("out", got, want);
}

void run_transfer_entry(const Json& c) {
  Endpoint e(count(c, "num_slots"));
  const VerifyOrWriteContext context = e.context();
  const TransferBuffer b = transfer_buffer(context.canary_buf, integer(c, "page_size"));
  expect_equal<std::string>("address", hex(b.address),
                            hex(reinterpret_cast<std::uintptr_t>(e.bytes.data())));
  expect_equal("len_bytes", b.bytes, integer(c, "len_bytes"));
  expect_equal("item_len_bytes", b.item_bytes, integer(c, "item_len_bytes"));
}

void run_report(const Json& c) {
  expect_equal<std::string>(
      "text",
      report_text(row_of(integers(c, "row_i64_as_strings")), integer(c, "total_violations"),
                  boolean(c, "ring_overflow"), integer(c, "step_when_pumped")),
      text(c, "text"));
}

void run_flip(const Json& c) {
  std::int64_t slot = integer(c, "slot");
  if (c.contains("swa_lut")) {
    std::vector<std::int64_t> mapping = integers(c, "swa_lut");
    std::vector<std::int64_t> slots{slot};
    translate_slots(view(slots), view(mapping), view(slots));
    slot = slots[0];
  }
  const std::int64_t page_size = count(c, "page_size");
  const std::int64_t token_bytes = count(c, "num_bytes_per_token");
  const std::int64_t row = count(c, "row");
  const std::int64_t width = page_size * token_bytes;
  if (width > 1 << 20 || row > 1 << 10) fail("too large");
  std::vector<std::uint8_t> bytes(static_cast<std::size_t>((row + 1) * width), 0x5A);
  const RealKvSource source{TensorView(bytes.data(), DType::u8, {row + 1, width}), page_size,
                            token_bytes, token_bytes};
  const std::optional<FlippedByte> flipped = flip_first_byte(source, slot);
  if (!flipped) fail("slot outside the source");
  expect_equal("row", flipped->row, row);
  expect_equal("col", flipped->column, integer(c, "col"));
  expect_equal<std::string>("new_byte", "old XOR 0xff", text(c, "new_byte"));
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    const bool is_it = static_cast<std::int64_t>(i) == row * width + integer(c, "col");
    expect_equal<std::int64_t>("byte " + std::to_string(i), bytes[i], is_it ? 0x5A ^ 0xFF : 0x5A);
  }
}

void run_capacities(const Json& c) {
  const Json& in = at(c, "in");
  const auto optional = [&](const char* key) {
    const Json& value = at(in, key);
    return value.is_null() ? std::optional<std::int64_t>() : integer(value);
  };
  CapacityInput input;
  input.cuda_graph_max_bs = integer(in, "cuda_graph_max_bs");
  input.req_to_token_pool_size = integer(in, "req_to_token_pool_size");
  input.max_prefill_tokens = integer(in, "max_prefill_tokens");
  input.chunked_prefill_size = optional("chunked_prefill_size");
  input.speculative_num_draft_tokens = optional("speculative_num_draft_tokens");
  input.pool_slot_count = integer(in, "pool_slot_count");
  const LaunchCapacities got = launch_capacities(input);
  const Json& out = at(c, "out");
  expect_equal("per_forward_verify_capacity", got.per_forward_verify_capacity,
               integer(out, "per_forward_verify_capacity"));
  expect_equal("per_forward_write_req_capacity", got.per_forward_write_req_capacity,
               integer(out, "per_forward_write_req_capacity"));
  expect_equal("per_forward_write_entry_capacity", got.per_forward_write_entry_capacity,
               integer(out, "per_forward_write_entry_capacity"));
}

ForwardMode mode_named(const std::string& name) {
  for (int m = 0; m <= static_cast<int>(ForwardMode::prebuilt); ++m) {
    if (name == name_of(static_cast<ForwardMode>(m))) return static_cast<ForwardMode>(m);
  }
  fail("no such mode: " + name);
}

void run_plan_input(const Json& c) {
  const auto optional = [&](const char* key) {
    return c.contains(key) ? integers(c, key) : std::vector<std::int64_t>();
  };
  const Json& out = at(c, "out");
  const std::vector<std::int64_t> prefix = integers(out, "prefix_lens"),
                                  extend = integers(out, "extend_seq_lens");
  const std::vector<std::int64_t> positions = optional("positions"), seq = optional("seq_lens"),
                                  extend_prefix = optional("extend_prefix_lens"),
                                  extend_seq = optional("extend_seq_lens");
  ForwardInput in;
  in.mode = mode_named(text(c, "mode"));
  in.batch_size = static_cast<std::int64_t>(prefix.size());
  const std::vector<std::int64_t> rows(prefix.size(), 1);
  in.rows = rows;
  in.positions = positions;
  in.seq_lens = seq;
  in.extend_prefix_lens = extend_prefix;
  in.extend_seq_lens = extend_seq;
  if (c.contains("draft_token_num")) in.draft_token_num = integer(c, "draft_token_num");
  // The static arrays are longer and hold the last step's values.
  std::vector<std::int64_t> arrays[4];
  for (auto& a : arrays) a.assign(prefix.size() + 3, 77);
  fill_plan_lengths(in, {arrays[0], arrays[1], arrays[2], arrays[3]});
  const auto grown = [](std::vector<std::int64_t> v) {
    v.resize(v.size() + 3);
    return v;
  };
  expect_equal("req_pool_indices", arrays[0], grown(rows));
  expect_equal("prefix_lens", arrays[1], grown(prefix));
  expect_equal("extend_seq_lens", arrays[2], grown(extend));
  expect_equal("valid_lens", arrays[3], std::vector<std::int64_t>(prefix.size() + 3));
}

void run_swa_divergence(const Json& c) {
  Table cells = table(at(c, "req_to_token"));
  const std::vector<std::int64_t> mapping = integers(c, "full_to_swa_index_mapping");
  const SwaDivergence got =
      swa_divergence(view(cells.cells, cells.rows, cells.width), mapping,
                     integers(c, "req_pool_indices"), integers(c, "seq_lens"));
  expect_equal("swa_full_idx_divergence", got.swa_full_idx_divergence,
               integer(c, "swa_full_idx_divergence"));
  expect_equal("swa_out_of_window_tokens", got.swa_out_of_window_tokens,
               integer(c, "swa_out_of_window_tokens"));
  const std::string line = text(c, "log_line_example");
  const std::vector<SwaDivergence> found = find_swa_divergence("INFO " + line + "\n");
  if (found.size() != 1) fail("the example line was not found");
  expect_equal("log_line_example", swa_divergence_line(found[0]), line);
}

// Steps the timeline to its end with every counter running, and notes after which steps what shows.
void run_timeline(const Json& c) {
  const std::int64_t produced = integer(c, "violation_produced_in_outer_step_1based");
  const Json& stats = at(c, "stats_every_5");
  const std::vector<std::int64_t> printed = integers(stats, "printed_after_steps");
  const std::vector<std::int64_t> evaluated =
      integers(at(c, "health_check"), "evaluated_after_steps");
  const std::vector<std::int64_t> sweeps = integers(c, "sweep_interval_4_runs_at_0based_steps");
  if (printed.empty() || evaluated.empty() || sweeps.empty() || evaluated.back() > 10000) {
    fail("nothing to check");
  }
  const ViolationRow row{.kernel_kind = 0, .slot = 5, .fail_reason_bits = 1};
  const std::vector<ViolationRow> ring(8, row);
  std::vector<std::int64_t> swept, reported, printed_at, line_steps, stalled_at;
  HostOptions options;
  options.sweep_interval = 4;
  options.stats_interval = 5;
  options.tags = {LaunchTag::head_k_full};
  HostTimeline lively(options);
  HostTimeline dead(options);  // its kernels never run: each evaluation says so
  for (std::int64_t step = 1; step <= evaluated.back(); ++step) {
    std::vector<std::int64_t> runs(kNumLaunchTags, step), none(kNumLaunchTags, 0);
    DeviceState now;
    now.violations = step >= produced ? 1 : 0;
    now.ring = ring;
    now.kernel_run_counters = now.slot_run_counters = runs;
    if (lively.sweep_due() && step - 1 <= sweeps.back()) swept.push_back(step - 1);
    const HostReport report = lively.end_outer_step(now);
    for (const std::string& text : report.violations) {
      reported.push_back(step);
      const std::string want = "step_when_pumped=" + std::to_string(integer(c, "step_when_pumped"));
      if (!text.ends_with(want)) fail("expected " + want + " at the end of:\n" + text);
    }
    if (!report.stats_line.empty() && step <= printed.back()) {
      printed_at.push_back(step);
      line_steps.push_back(std::stoll(report.stats_line.substr(std::strlen("[canary] step="))));
    }
    now.kernel_run_counters = none;
    try {
      dead.end_outer_step(now);
    } catch (const RuntimeError&) {
      stalled_at.push_back(step);
    }
  }
  expect_equal("sweeps", swept, sweeps);
  expect_equal("reported_after_step", reported, {integer(c, "reported_after_step")});
  expect_equal("printed_after_steps", printed_at, printed);
  expect_equal("staged_after_steps", line_steps, integers(stats, "staged_after_steps"));
  expect_equal("evaluated_after_steps", stalled_at, evaluated);
}

// ---------------------------------------------------------------- running them

class Runner {
 public:
  explicit Runner(const Json& file) : file_(file) {}

  /// `split` makes cases of the section: calls its argument with each.
  using Case = std::function<void(const Json&)>;
  void section(const std::string& name, const std::function<void(const Json&, const Case&)>& split,
               const Case& run) {
    const auto found = file_.find(name);
    if (found == file_.end()) return;
    int count = 0;
    attempt(name, [&] {
      split(*found, [&](const Json& c) {
        ++count;
        const bool named = c.is_object() && c.contains("name") && c["name"].is_string();
        attempt(name + " " + (named ? c["name"].get<std::string>() : std::to_string(count)),
                [&] { run(c); });
      });
    });
    cases_ += count;
    std::printf("%s: %d cases\n", name.c_str(), count);
  }

  int finish() const {
    if (cases_ == 0) std::fprintf(stderr, "no case ran\n");
    std::printf("%d cases, %d failed\n", cases_, failures_);
    return cases_ > 0 && failures_ == 0 ? 0 : 1;
  }

 private:
  void attempt(const std::string& what, const std::function<void()>& body) {
    try {
      body();
    } catch (const std::exception& e) {
      ++failures_;
      std::fprintf(stderr, "FAILED %s: %s\n", what.c_str(), e.what());
    }
  }

  const Json& file_;
  int cases_ = 0, failures_ = 0;
};

void each(const Json& section, const Runner::Case& run) {
  for (const Json& c : array(section)) run(c);
}
void whole(const Json& section, const Runner::Case& run) {
  if (!section.empty()) run(section);
}

int run_file(const std::filesystem::path& path) {
  std::ifstream in(path);
  if (!in) {
    std::fprintf(stderr, "cannot read %s\n", path.c_str());
    return 1;
  }
  Json file;
  try {
    file = Json::parse(in);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "%s: %s\n", path.c_str(), e.what());
    return 1;
  }
  if (!file.is_object()) {
    std::fprintf(stderr, "%s: not an object of sections\n", path.c_str());
    return 1;
  }
  std::printf("%s\n", path.c_str());
  Runner runner(file);
  runner.section("constants", whole, run_constants);
  runner.section("splitmix64", each, run_splitmix64);
  runner.section("mix3", each, run_mix3);
  runner.section("chain_three_tokens", whole, run_chain);
  runner.section("all_zero_record", whole, run_all_zero);
  runner.section("real_kv_fold", each, run_fold);
  runner.section(
      "token_oracle",
      [](const Json& s, const Runner::Case& run) {
        each(at(s, "rid_to_i64"), run);
        each(at(s, "tokens"), run);
      },
      [](const Json& c) { c.contains("rid") ? run_request_id(c) : run_oracle_token(c); });
  runner.section("plan", each, run_plan);
  runner.section("write", each, run_write);
  runner.section("verify", each, run_verify);
  runner.section("pipeline_prefill_then_two_decodes", whole, run_pipeline);
  runner.section("radix_sweep", whole, run_sweep);
  runner.section("scatter_req_token_ids", whole, run_scatter);
  runner.section(
      "pd_splice",
      [](const Json& s, const Runner::Case& run) {
        run({{"with_v", true}, {"case", at(s, "kv_split")}});
        run({{"with_v", false}, {"case", at(s, "no_v_half")}});
        run({{"entry", at(s, "entry_for_canary_buffer")}});
      },
      [](const Json& c) {
        if (c.contains("entry"))
          run_transfer_entry(c["entry"]);
        else
          run_splice(c["case"], c["with_v"]);
      });
  runner.section("report_text", each, run_report);
  runner.section("flip_first_byte", each, run_flip);
  runner.section("capacities", each, run_capacities);
  runner.section("plan_input", each, run_plan_input);
  runner.section("swa_divergence", whole, run_swa_divergence);
  runner.section("timeline", whole, run_timeline);
  return runner.finish();
}

std::filesystem::path default_file() {
  // NOLINTNEXTLINE(concurrency-mt-unsafe): nothing sets the environment
  if (const char* const named = std::getenv("SERINUS_CANARY_VECTORS")) return named;
  const std::filesystem::path source_dir = SERINUS_SOURCE_DIR;
  const auto shared = source_dir / ".." / "shared" / "spec" / "canary_vectors.json";
  return std::filesystem::exists(shared)
             ? shared
             : source_dir / "tests" / "canary" / "data" / "canary_vectors.json";
}

}  // namespace
}  // namespace serinus::canary::sglang

int main(int argc, char** argv) {
  using namespace serinus::canary::sglang;
  try {
    return run_file(argc > 1 ? std::filesystem::path(argv[1]) : default_file());
  } catch (const std::exception& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return 1;
  }
}
