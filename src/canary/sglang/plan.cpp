// Plan: from request tables to the lists that verify and write walk; and the token histories that
// give the expected tokens.
#include <algorithm>
#include <array>
#include <limits>
#include <vector>

#include "base/parallel.h"
#include "canary/sglang/records.h"

namespace serinus::canary::sglang {

namespace {

constexpr std::int64_t kGrain = 16384;  // entries a thread takes at a time

// Sums of lengths from outside saturate: "more than fits" stays that.
std::int64_t add_lengths(std::int64_t a, std::int64_t b) noexcept {
  std::int64_t sum = 0;
  return __builtin_add_overflow(a, b, &sum) ? std::numeric_limits<std::int64_t>::max() : sum;
}

// The translated slot at (row, column), kOutOfRangeSlot where the table has no such cell.
std::int64_t slot_at(const PlanParams& p, std::int64_t row, std::int64_t column) noexcept {
  const TableParams& t = p.req_to_token;
  if (!within(row, t.rows) || !within(column, t.width)) return kOutOfRangeSlot;
  const std::int64_t slot = t.cells[row * t.width + column];
  return p.full_to_swa == nullptr ? slot : translate(p.full_to_swa, p.full_to_swa_size, slot);
}

std::int64_t window_start(const PlanParams& p, std::int64_t prefix_len) noexcept {
  return p.window > 0 ? std::max<std::int64_t>(0, prefix_len - p.window) : 0;
}

std::int64_t expected_token(const PlanParams& p, std::int64_t request,
                            std::int64_t position) noexcept {
  const TableParams& t = p.expected_tokens;
  std::int64_t column = 0;
  if (t.cells == nullptr || __builtin_add_overflow(position, p.token_offset, &column) ||
      column < 0 || column >= p.valid_lens[request] || column >= t.width ||
      !within(p.rows[request], t.rows))
    return kNoToken;
  return t.cells[p.rows[request] * t.width + column];
}

// Entries [first, last) of one request, which go to out[first_entry...].
void list_entries(const PlanParams& p, std::int64_t request, std::int64_t first_position,
                  std::int64_t last_position, std::int64_t entry) noexcept {
  const std::int64_t row = p.rows[request];
  std::int64_t prev = first_position == 0 ? kChainHead : slot_at(p, row, first_position - 1);
  for (std::int64_t position = first_position; position < last_position; ++position, ++entry) {
    const std::int64_t slot = slot_at(p, row, position);
    p.slots[entry] = slot;
    p.positions[entry] = position;
    p.prev_slots[entry] = prev;
    p.tokens[entry] = expected_token(p, request, position);
    prev = slot;
  }
}

void run_plan(const PlanParams& p, int threads) {
  // first_entry[r]: verify entries before request r.
  std::array<std::int64_t, kMaxPlanRequests + 1> first_entry;
  std::int64_t total = 0;
  std::int64_t to_write = 0;
  std::fill(p.write_offsets, p.write_offsets + p.write_req_capacity + 1, std::int64_t{0});
  for (std::int64_t r = 0; r < p.num_requests; ++r) {
    const bool active = p.rows[r] != kPaddingRow;
    const std::int64_t prefix = active ? std::max<std::int64_t>(0, p.prefix_lens[r]) : 0;
    const std::int64_t extend = active ? std::max<std::int64_t>(0, p.extend_lens[r]) : 0;
    first_entry[static_cast<std::size_t>(r)] = total;
    p.write_offsets[r] = to_write;
    p.write_seeds[r] = prefix > 0 && extend > 0 ? slot_at(p, p.rows[r], prefix - 1) : kChainHead;
    total = add_lengths(total, prefix - window_start(p, prefix));
    to_write = add_lengths(to_write, extend);
  }
  first_entry[static_cast<std::size_t>(p.num_requests)] = total;
  p.write_offsets[p.num_requests] = to_write;
  *p.write_num_valid_reqs = static_cast<std::int32_t>(p.num_requests);

  const std::int64_t capacity =
      std::min<std::int64_t>(p.verify_capacity, std::numeric_limits<std::int32_t>::max());
  *p.num_valid = static_cast<std::int32_t>(std::min(total, capacity));
  *p.enable = total <= capacity ? 1 : 0;
  if (total > capacity) return;

  parallel_for(threads, total, kGrain, [&](std::int64_t begin, std::int64_t end) {
    const auto* const firsts = first_entry.data();
    // The last request that starts at or before `begin`: empty ones are passed over.
    std::int64_t r = std::upper_bound(firsts, firsts + p.num_requests, begin) - firsts - 1;
    for (std::int64_t entry = begin; entry < end; ++r) {
      const std::int64_t stop = std::min(end, firsts[r + 1]);
      const std::int64_t start =
          window_start(p, std::max<std::int64_t>(0, p.prefix_lens[r])) - firsts[r];
      if (stop > entry) list_entries(p, r, start + entry, start + stop, entry);
      entry = std::max(entry, stop);
    }
  });
}

}  // namespace

void plan(const VerifyPlan& verify_plan_out, const WritePlan& write_plan_out,
          const PlanInput& input, Stream stream, int threads) {
  const PlanParams params = check_plan(verify_plan_out, write_plan_out, input);
  require_cpu("req_pool_indices", input.req_pool_indices);
  static_cast<void>(stream);
  run_plan(params, threads);
}

void translate_slots(const TensorView& slots, const TensorView& full_to_swa_index_mapping,
                     const TensorView& out, Stream stream) {
  check_translate(slots, full_to_swa_index_mapping, out);
  require_cpu("slots", slots);
  static_cast<void>(stream);
  const auto* const from = slots.as<const std::int64_t>();
  auto* const to = out.as<std::int64_t>();
  for (std::int64_t i = 0; i < slots.shape[0]; ++i)
    to[i] = translate(full_to_swa_index_mapping.as<const std::int64_t>(),
                      full_to_swa_index_mapping.shape[0], from[i]);
}

void scatter_req_token_ids(const TensorView& flat_in, const TensorView& offsets,
                           const TensorView& req_pool_indices, const TensorView& pool_out,
                           Stream stream) {
  check_scatter(flat_in, offsets, req_pool_indices, pool_out);
  require_cpu("scatter_req_token_ids flat_in", flat_in);
  static_cast<void>(stream);
  const auto at = [](const TensorView& t, std::int64_t i) {
    return t.as<const std::int64_t>()[i * t.strides[0]];
  };
  for (std::int64_t r = 0; r < req_pool_indices.shape[0]; ++r) {
    const std::int64_t row = at(req_pool_indices, r);
    if (!within(row, pool_out.shape[0])) continue;
    auto* const cells = pool_out.as<std::int32_t>() + row * pool_out.strides[0];
    const std::int64_t begin = at(offsets, r);
    const std::int64_t end = std::min(at(offsets, r + 1), flat_in.shape[0]);
    if (begin < 0) continue;
    for (std::int64_t i = begin; i < end && i - begin < pool_out.shape[1]; ++i)
      cells[(i - begin) * pool_out.strides[1]] = static_cast<std::int32_t>(at(flat_in, i));
  }
}

HostVerifyPlan::HostVerifyPlan(std::int64_t verify_capacity) {
  check_verify_capacity(verify_capacity);
  const auto n = static_cast<std::size_t>(verify_capacity);
  for (std::vector<std::int64_t>* const array : {&slots, &tokens, &positions, &prev_slots})
    array->resize(n);
}

VerifyPlan HostVerifyPlan::view() noexcept {
  const auto array = [](std::vector<std::int64_t>& v) {
    return TensorView(v.data(), DType::i64, {static_cast<std::int64_t>(v.size())});
  };
  return {.verify_slot_indices = array(slots),
          .verify_expected_tokens = array(tokens),
          .verify_expected_positions = array(positions),
          .verify_prev_slot_indices = array(prev_slots),
          .verify_num_valid = TensorView(&num_valid, DType::i32, {1}),
          .enable = TensorView(&enable, DType::i32, {1})};
}

HostWritePlan::HostWritePlan(std::int64_t write_req_capacity) {
  check_write_req_capacity(write_req_capacity);
  seeds.resize(static_cast<std::size_t>(write_req_capacity));
  offsets.resize(seeds.size() + 1);
}

WritePlan HostWritePlan::view() noexcept {
  const auto array = [](std::vector<std::int64_t>& v) {
    return TensorView(v.data(), DType::i64, {static_cast<std::int64_t>(v.size())});
  };
  return {.write_offsets = array(offsets),
          .write_seed_slot_indices = array(seeds),
          .write_num_valid_reqs = TensorView(&num_valid_reqs, DType::i32, {1})};
}

}  // namespace serinus::canary::sglang
