#include "canary/tables.h"

#include <string>

#include "base/checks.h"
#include "base/raise.h"

namespace serinus::canary {

namespace {

void check_table(const TensorView& view, const char* name, Device device) {
  if (view.data == nullptr) return;
  if (view.rank == 2 && view.dtype == DType::i32 && view.device == device) {
    check_rank(name, view, 2, "(rows, max_len)");  // and its sizes
    return;
  }
  raise(errors::Page::canary_table,
        {{"name", name},
         {"device", device_string(device)},
         {"got", "rank " + std::to_string(view.rank) + " " + serinus::name_of(view.dtype) + " on " +
                     device_string(view.device)}});
}

}  // namespace

Table table_of(const TensorView& view, const char* name) {
  check_table(view, name, {});
  if (view.data == nullptr || view.numel() == 0) return {};
  return {view.as<const std::int32_t>(), view.shape[0], view.shape[1], view.strides[0],
          view.strides[1]};
}

void check_batch(const Batch& b, std::size_t num_pools, Device device) {
  const auto same = [](const char* name, std::size_t got, const char* as, std::size_t want) {
    if (got == want) return;
    raise(
        errors::Page::canary_lengths_differ,
        {{"name", name}, {"got", std::to_string(got)}, {"as", as}, {"want", std::to_string(want)}});
  };
  same("prefix_lens", b.prefix_lens.size(), "rows", b.rows.size());
  same("extend_lens", b.extend_lens.size(), "rows", b.rows.size());
  same("owners", b.owners.size(), "rows", b.rows.size());
  if (!b.valid_lens.empty()) same("valid_lens", b.valid_lens.size(), "rows", b.rows.size());
  same("input_ids", b.input_ids.size(), "out_cache_loc", b.out_cache_loc.size());
  same("positions", b.positions.size(), "out_cache_loc", b.out_cache_loc.size());
  if (!b.parents.empty()) {
    same("parents", b.parents.size(), "out_cache_loc", b.out_cache_loc.size());
  }
  for (const int pool : b.pools) {
    if (pool < 0 || static_cast<std::size_t>(pool) >= num_pools) {
      raise(errors::Page::canary_no_such_pool,
            {{"got", std::to_string(pool)}, {"count", std::to_string(num_pools)}});
    }
  }
  check_table(b.req_to_token, "req_to_token", device);
  check_table(b.expected_tokens, "expected_tokens", device);
}

}  // namespace serinus::canary
