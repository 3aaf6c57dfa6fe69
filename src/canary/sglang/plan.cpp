// Plan: from request tables to the lists that verify and write walk; and the token histories that
// give the expected tokens.
#include <algorithm>
#include <array>
#include <vector>

#include "base/parallel.h"
#include "canary/cuda/sglang/run.h"
#include "canary/sglang/records.h"

namespace serinus::canary::sglang {

namespace {

constexpr std::int64_t kGrain = 16384;  // entries a thread takes at a time

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
    const PlanRow row = plan_row(p, r);
    first_entry[static_cast<std::size_t>(r)] = total;
    p.write_offsets[r] = to_write;
    p.write_seeds[r] = seed_of(p, r, row);
    total = add_lengths(total, row.entries());
    to_write = add_lengths(to_write, row.extend);
  }
  first_entry[static_cast<std::size_t>(p.num_requests)] = total;
  p.write_offsets[p.num_requests] = to_write;
  *p.write_num_valid_reqs = static_cast<std::int32_t>(p.num_requests);

  const std::int64_t capacity = plan_capacity(p);
  *p.num_valid = static_cast<std::int32_t>(std::min(total, capacity));
  *p.enable = total <= capacity ? 1 : 0;
  if (total > capacity) return;

  parallel_for(threads, total, kGrain, [&](std::int64_t begin, std::int64_t end) {
    const auto* const firsts = first_entry.data();
    // The last request that starts at or before `begin`: empty ones are passed over.
    std::int64_t r = std::upper_bound(firsts, firsts + p.num_requests, begin) - firsts - 1;
    for (std::int64_t entry = begin; entry < end; ++r) {
      const std::int64_t stop = std::min(end, firsts[r + 1]);
      const std::int64_t start = plan_row(p, r).start - firsts[r];
      if (stop > entry) list_entries(p, r, start + entry, start + stop, entry);
      entry = std::max(entry, stop);
    }
  });
}

void run_scatter(const ScatterParams& p) noexcept {
  for (std::int64_t r = 0; r < p.num_requests; ++r) {
    const ScatterRow row = scatter_row(p, r);
    for (std::int64_t i = 0; i < row.count; ++i) scatter_token(p, row, i);
  }
}

}  // namespace

void plan(const VerifyPlan& verify_plan_out, const WritePlan& write_plan_out,
          const PlanInput& input, Stream stream, int threads) {
  const PlanParams params = check_plan(verify_plan_out, write_plan_out, input);
  const Device device = input.req_pool_indices.device;
  if (device.type == DeviceType::cuda) {
    cuda::plan(params, device, stream);
  } else {
    run_plan(params, threads);
  }
}

void translate_slots(const TensorView& slots, const TensorView& full_to_swa_index_mapping,
                     const TensorView& out, Stream stream) {
  check_translate(slots, full_to_swa_index_mapping, out);
  const auto* const from = slots.as<const std::int64_t>();
  const auto* const mapping = full_to_swa_index_mapping.as<const std::int64_t>();
  const std::int64_t size = full_to_swa_index_mapping.shape[0];
  auto* const to = out.as<std::int64_t>();
  if (slots.device.type == DeviceType::cuda) {
    cuda::translate(from, slots.shape[0], mapping, size, to, slots.device, stream);
    return;
  }
  for (std::int64_t i = 0; i < slots.shape[0]; ++i) to[i] = translate(mapping, size, from[i]);
}

void scatter_req_token_ids(const TensorView& flat_in, const TensorView& offsets,
                           const TensorView& req_pool_indices, const TensorView& pool_out,
                           Stream stream) {
  const ScatterParams params = check_scatter(flat_in, offsets, req_pool_indices, pool_out);
  if (flat_in.device.type == DeviceType::cuda) {
    cuda::scatter(params, flat_in.device, stream);
  } else {
    run_scatter(params);
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
