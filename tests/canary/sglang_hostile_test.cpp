// The functions of the sglang format on values and views that nobody would pass on purpose, in
// memory that is exactly as large as the views say: under AddressSanitizer a single byte beyond it
// stops the test. sglang_random_test compares verify, write, plan and scatter with an oracle, also
// on hostile values; here are empty and oddly strided tensors, and everything around those calls.
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include <serinus/canary_sglang.h>
#include <serinus/error.h>

#include "tests/canary/sglang_cases.h"

namespace serinus::canary::sglang {
namespace {

bool chance(Rng& rng, Int one_in) {
  return pick(rng, 1, one_in) == 1;
}

// Strides that stay within the memory of `t`, whatever they are.
TensorView bent(Rng& rng, TensorView t) {
  for (int d = 0; d < t.rank; ++d) {
    const auto at = static_cast<std::size_t>(d);
    if (t.numel() != 0 && t.shape[at] > 1) continue;
    if (chance(rng, 3)) t.strides[at] = hostile(rng);
  }
  if (t.numel() == 0 && chance(rng, 2)) t.data = nullptr;
  return t;
}

// Runs a call that may refuse; whether it did not.
template <class F>
bool goes_through(F&& f) {
  try {
    f();
    return true;
  } catch (const Error&) {
    return false;
  }
}

TEST(SglangHostile, VerifyAndWriteOnOddViews) {
  int through = 0;
  for (std::uint64_t seed = 1; seed <= 600; ++seed) {
    SCOPED_TRACE(seed);
    Rng rng(seed);
    const Int slots = pick(rng, 0, 3), ring = pick(rng, 0, 2), capacity = pick(rng, 1, 4);
    Endpoint e(slots, ring, kSlotBytes * pick(rng, 1, 2));
    e.violations = static_cast<std::int32_t>(hostile(rng));
    e.chain_position_assert = static_cast<std::int32_t>(pick(rng, 0, 1));
    const Int token_bytes = 16 * pick(rng, 1, 2), page = pick(rng, 1, 2);
    std::vector<std::uint8_t> bytes(static_cast<std::size_t>(pick(rng, 0, 2) * page * token_bytes));
    if (chance(rng, 2)) {
      const auto rows = static_cast<Int>(bytes.size()) / (page * token_bytes);
      e.sources = {{bent(rng, TensorView(bytes.data(), DType::u8, {rows, page * token_bytes})),
                    page, token_bytes, token_bytes}};
      e.mode = pick(rng, 0, 1) == 0 ? RealKvHashMode::partial : RealKvHashMode::all;
    }
    VerifyOrWriteContext c = e.context();
    c.canary_buf = bent(rng, c.canary_buf);
    c.violation_ring = bent(rng, c.violation_ring);
    HostVerifyPlan plan(capacity);
    HostWritePlan write_plan(capacity);
    for (auto* v : {&plan.slots, &plan.tokens, &plan.positions, &plan.prev_slots, &write_plan.seeds,
                    &write_plan.offsets}) {
      for (Int& x : *v) x = chance(rng, 2) ? hostile(rng) : pick(rng, -1, 4);
    }
    plan.num_valid = static_cast<std::int32_t>(hostile(rng));
    write_plan.num_valid_reqs = static_cast<std::int32_t>(hostile(rng));
    VerifyPlan view_of_plan = plan.view();
    view_of_plan.verify_num_valid = bent(rng, view_of_plan.verify_num_valid);
    through += goes_through([&] { verify(c, view_of_plan, chance(rng, 2)); });

    std::vector<Int> ids(static_cast<std::size_t>(pick(rng, 0, 4)));
    std::vector<Int> positions(ids.size()), loc(ids.size());
    for (auto* v : {&ids, &positions, &loc}) {
      for (Int& x : *v) x = chance(rng, 2) ? hostile(rng) : pick(rng, -1, 4);
    }
    WriteInput in{.input_ids = bent(rng, view(ids)),
                  .positions = bent(rng, view(positions)),
                  .out_cache_loc = bent(rng, view(loc))};
    if (chance(rng, 2)) {
      in.enable_write_input_assert = true;
      in.expected_input_tokens = bent(rng, view(positions));
      in.expected_input_positions = bent(rng, view(loc));
    }
    through += goes_through([&] { write(c, write_plan.view(), in); });
  }
  EXPECT_GE(through, 200);
}

TEST(SglangHostile, PlanTranslateAndScatterOnOddViews) {
  int through = 0;
  for (std::uint64_t seed = 1; seed <= 600; ++seed) {
    SCOPED_TRACE(seed);
    Rng rng(seed);
    const Int bs = pick(rng, 0, 3), rows = pick(rng, 0, 3), width = pick(rng, 0, 3);
    std::vector<std::int32_t> table(static_cast<std::size_t>(rows * width));
    for (std::int32_t& x : table) x = static_cast<std::int32_t>(hostile(rng));
    std::vector<Int> row(static_cast<std::size_t>(bs)), prefix(row.size()), extend(row.size());
    std::vector<Int> valid(row.size()), mapping(static_cast<std::size_t>(pick(rng, 0, 3)));
    for (auto* v : {&row, &prefix, &extend, &valid, &mapping}) {
      for (Int& x : *v) x = chance(rng, 2) ? hostile(rng) : pick(rng, -1, 4);
    }
    HostVerifyPlan plan_out(pick(rng, 1, 5));
    HostWritePlan write_out(pick(rng, 1, 4));
    PlanInput in;
    in.req_pool_indices = bent(rng, view(row));
    in.prefix_lens = bent(rng, view(prefix));
    in.extend_seq_lens = bent(rng, view(extend));
    in.req_to_token = bent(rng, view(table, rows, width));
    in.swa_window_size = chance(rng, 2) ? 0 : hostile(rng);
    if (chance(rng, 2)) in.full_to_swa_index_mapping = bent(rng, view(mapping));
    in.verify_capacity = chance(rng, 4) ? hostile(rng) : static_cast<Int>(plan_out.slots.size());
    if (chance(rng, 2)) {
      in.req_to_verify_expected_tokens = bent(rng, view(table, rows, width));
      if (chance(rng, 2)) in.req_to_verify_expected_tokens_valid_lens = bent(rng, view(valid));
      in.kv_token_id_vs_position_offset = hostile(rng);
    }
    through += goes_through([&] { plan(plan_out.view(), write_out.view(), in); });
    std::vector<Int> out(row.size());
    through += goes_through(
        [&] { translate_slots(view(row), bent(rng, view(mapping)), bent(rng, view(out))); });
    std::vector<Int> offsets(row.size() + 1);
    for (Int& x : offsets) x = chance(rng, 2) ? hostile(rng) : pick(rng, 0, 4);
    through += goes_through([&] {
      scatter_req_token_ids(bent(rng, view(mapping)), view(offsets), bent(rng, view(row)),
                            bent(rng, view(table, rows, width)));
    });
  }
  EXPECT_GE(through, 300);
}

TEST(SglangHostile, SourcesOfAnyKind) {
  int through = 0;
  for (std::uint64_t seed = 1; seed <= 3000; ++seed) {
    SCOPED_TRACE(seed);
    Rng rng(seed);
    const Int rows = pick(rng, 0, 3), width = 16 * pick(rng, 0, 4);
    std::vector<std::uint8_t> bytes(static_cast<std::size_t>(rows * width));
    const auto size = [&] { return chance(rng, 5) ? hostile(rng) : 16 * pick(rng, 0, 4); };
    const RealKvSource source{bent(rng, TensorView(bytes.data(), DType::u8, {rows, width})),
                              chance(rng, 5) ? hostile(rng) : pick(rng, 0, 4), size(), size()};
    for (const Int slot : {hostile(rng), hostile(rng), Int{0}, pick(rng, 0, 12)}) {
      for (const RealKvHashMode mode :
           {RealKvHashMode::none, RealKvHashMode::partial, RealKvHashMode::all}) {
        through += goes_through([&] { static_cast<void>(source_hash(source, mode, slot)); });
      }
      through += goes_through([&] { static_cast<void>(flip_first_byte(source, slot)); });
    }
  }
  EXPECT_GE(through, 1000);
}

TEST(SglangHostile, SweepsOfTreesThatAreNone) {
  int through = 0;
  for (std::uint64_t seed = 1; seed <= 2000; ++seed) {
    SCOPED_TRACE(seed);
    Rng rng(seed);
    std::vector<Int> slots;
    for (int i = 0; i < 8; ++i) slots.push_back(hostile(rng));
    PrefixTree tree;
    tree.kind = static_cast<PrefixTreeKind>(pick(rng, 0, 2));
    tree.has_swa_component = chance(rng, 2);
    const Int n = pick(rng, 0, 5);
    tree.nodes.resize(static_cast<std::size_t>(n));
    for (Int i = 0; i < n; ++i) {
      PrefixNode& node = tree.nodes[static_cast<std::size_t>(i)];
      node.slots = std::span(slots).first(static_cast<std::size_t>(pick(rng, 0, 8)));
      node.key_length = hostile(rng);
      node.full_lock = hostile(rng);
      node.swa_lock = hostile(rng);
      node.swa_resident = chance(rng, 2);
      // A sound tree as often as not: each node the child of the one before.
      const bool odd = chance(rng, 12);
      if (odd || i + 1 < n)
        node.children.push_back(static_cast<std::int32_t>(odd ? hostile(rng) : i + 1));
    }
    through += goes_through([&] {
      std::vector<SweepEntry> entries = sweep_entries(tree, {chance(rng, 2), chance(rng, 2)});
      std::vector<Int> mapping(static_cast<std::size_t>(pick(rng, 0, 3)), hostile(rng));
      translate_sweep(entries, hostile(rng), std::span<const Int>(mapping));
      const HostVerifyPlan plan = sweep_plan(entries);
      EXPECT_EQ(plan.num_valid, static_cast<std::int32_t>(entries.size()));
    });
  }
  EXPECT_GE(through, 300);
}

TEST(SglangHostile, WordsForAnyNumber) {
  Rng rng(1);
  for (int i = 0; i < 2000; ++i) {
    ViolationRow row{hostile(rng), hostile(rng), hostile(rng), hostile(rng),
                     hostile(rng), hostile(rng), hostile(rng), hostile(rng)};
    EXPECT_FALSE(report_text(row, hostile(rng), chance(rng, 2), hostile(rng)).empty());
    EXPECT_FALSE(fail_reason_names(hostile(rng), "+").empty());
    EXPECT_FALSE(tag_name(hostile(rng)).empty());
    EXPECT_FALSE(name_of(static_cast<LaunchTag>(pick(rng, 0, 255))).empty());
    const Int vocab = hostile(rng), id = hostile(rng), position = hostile(rng);
    Int token = -1;
    if (goes_through([&] { token = oracle_token(id, position, vocab); })) {
      EXPECT_GE(token, 0);
      EXPECT_LT(token, vocab);
    } else {
      EXPECT_LE(vocab, 0);
    }
    std::vector<std::uint8_t> records(64);
    static_cast<void>(
        transfer_buffer(TensorView(records.data(), DType::u8, {2, kSlotBytes}), hostile(rng)));
    const std::vector<TransferBuffer> buffers(static_cast<std::size_t>(pick(rng, 0, 3)));
    EXPECT_EQ(goes_through([&] { static_cast<void>(splice_kv(buffers, {}, {}, {}, {})); }),
              buffers.size() % 2 == 0);
    EXPECT_GE(request_id_hash(std::string(static_cast<std::size_t>(pick(rng, 0, 300)), '\xff')),
              INT64_MIN);
  }
}

}  // namespace
}  // namespace serinus::canary::sglang
