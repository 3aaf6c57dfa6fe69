// The sglang format on the GPU against the CPU backend, which the oracle has checked: random and
// hostile plans, graphs that are replayed over changing batches, writers that do not wait.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <deque>
#include <random>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include <serinus/canary_sglang.h>

#include "tests/canary/sglang_cases.h"
#include "tests/gpu/device_problem.h"

namespace serinus::canary::sglang {
namespace {

using testing::check_cuda;
using testing::DeviceBuffer;
using testing::kGpu;

cudaStream_t handle(Stream s) {
  return static_cast<cudaStream_t>(s.handle);
}

/// Copies of host tensors on the device, made by their views.
class OnGpu {
 public:
  /// The same tensor on the device; `tail` bytes of poison follow it.
  TensorView operator()(const TensorView& t) {
    const std::int64_t elements = t.numel();
    std::size_t bytes = 0;
    if (elements > 0) {
      std::int64_t last = 0;
      for (std::size_t d = 0; d < static_cast<std::size_t>(t.rank); ++d)
        last += (t.shape[d] - 1) * t.strides[d];
      bytes = static_cast<std::size_t>((last + 1) * size_of(t.dtype));
    }
    buffers_.emplace_back(bytes);
    if (bytes > 0) buffers_.back().upload(t.data, bytes);
    hosts_.push_back({t.data, bytes});
    TensorView view = t;
    view.data = buffers_.back().data();
    view.device = kGpu;
    return view;
  }
  std::optional<TensorView> operator()(const std::optional<TensorView>& t) {
    return t ? std::optional((*this)(*t)) : std::nullopt;
  }
  VerifyPlan operator()(const VerifyPlan& p) {
    return {(*this)(p.verify_slot_indices),       (*this)(p.verify_expected_tokens),
            (*this)(p.verify_expected_positions), (*this)(p.verify_prev_slot_indices),
            (*this)(p.verify_num_valid),          (*this)(p.enable)};
  }
  WritePlan operator()(const WritePlan& p) {
    return {(*this)(p.write_offsets), (*this)(p.write_seed_slot_indices),
            (*this)(p.write_num_valid_reqs)};
  }
  WriteInput operator()(const WriteInput& in) {
    WriteInput out = in;
    for (TensorView* t : {&out.input_ids, &out.positions, &out.out_cache_loc}) *t = (*this)(*t);
    out.expected_input_tokens = (*this)(in.expected_input_tokens);
    out.expected_input_positions = (*this)(in.expected_input_positions);
    out.chain_hashes = (*this)(in.chain_hashes);
    return out;
  }
  PlanInput operator()(const PlanInput& in) {
    PlanInput out = in;
    for (TensorView* t :
         {&out.req_pool_indices, &out.prefix_lens, &out.extend_seq_lens, &out.req_to_token})
      *t = (*this)(*t);
    for (auto* t : {&out.full_to_swa_index_mapping, &out.req_to_verify_expected_tokens,
                    &out.req_to_verify_expected_tokens_valid_lens})
      *t = (*this)(*t);
    return out;
  }
  VerifyOrWriteContext operator()(const VerifyOrWriteContext& c) {
    VerifyOrWriteContext out = c;
    for (TensorView* t :
         {&out.canary_buf, &out.violation_ring, &out.violation_write_index, &out.slot_run_counter,
          &out.kernel_run_counter, &out.enable_chain_position_assert})
      *t = (*this)(*t);
    out.out_of_range_counter = (*this)(c.out_of_range_counter);
    out.violation_entries = (*this)(c.violation_entries);
    for (RealKvSource& s : out.real_kv_sources) s.tensor = (*this)(s.tensor);
    return out;
  }

  /// Brings everything back to where it came from.
  void fetch() {
    check_cuda(cudaDeviceSynchronize());
    for (std::size_t i = 0; i < buffers_.size(); ++i) {
      if (hosts_[i].second > 0)
        check_cuda(cudaMemcpy(hosts_[i].first, buffers_[i].data(), hosts_[i].second,
                              cudaMemcpyDeviceToHost));
    }
  }
  /// Sends everything again.
  void push(Stream stream) {
    for (std::size_t i = 0; i < buffers_.size(); ++i) {
      if (hosts_[i].second > 0)
        check_cuda(cudaMemcpyAsync(buffers_[i].data(), hosts_[i].first, hosts_[i].second,
                                   cudaMemcpyHostToDevice, handle(stream)));
    }
  }

 private:
  std::deque<DeviceBuffer> buffers_;
  std::vector<std::pair<void*, std::size_t>> hosts_;
};

// Rows of the ring in any order, where all of them fitted.
std::string difference(Endpoint got, Endpoint want) {
  if (got.violations != want.violations) {
    return "violations " + std::to_string(got.violations) +
           " != " + std::to_string(want.violations);
  }
  if (got.slot_runs != want.slot_runs) return "slot_run_counter";
  if (got.kernel_runs != want.kernel_runs) return "kernel_run_counter";
  if (got.out_of_range != want.out_of_range) return "out_of_range_counter";
  if (got.bytes != want.bytes) return "records";
  const auto rows = [](const Endpoint& e) {
    std::vector<std::array<Int, kViolationFields + 1>> all;
    for (std::size_t i = 0; i < e.ring.size(); ++i) {
      const ViolationRow& r = e.ring[i];
      all.push_back({e.entries[i], r.kernel_kind, r.slot, r.position, r.stored_token,
                     r.expected_token, r.stored_chain_hash, r.expected_aux, r.fail_reason_bits});
    }
    std::ranges::sort(all);
    return all;
  };
  const auto capacity = static_cast<Int>(want.ring.size());
  if (want.violations >= 0 && want.violations <= capacity) {
    if (rows(got) != rows(want)) return "ring rows";
  }
  return "";
}

using CanarySglangGpu = testing::GpuTest;

// ---------------------------------------------------------------- single calls

std::string run(const VerifyCase& c) {
  Rng rng(c.world_seed);
  World world(rng, c.num_slots);
  HostVerifyPlan plan(std::max<Int>(1, static_cast<Int>(c.slots.size())));
  std::ranges::copy(c.slots, plan.slots.begin());
  std::ranges::copy(c.tokens, plan.tokens.begin());
  std::ranges::copy(c.positions, plan.positions.begin());
  std::ranges::copy(c.prev_slots, plan.prev_slots.begin());
  plan.num_valid = c.num_valid;
  plan.enable = c.enable;
  Endpoint want = world.endpoint;
  verify(want.context(), plan.view(), c.check_tokens);
  Endpoint got = world.endpoint;
  OnGpu gpu;
  verify(gpu(got.context()), gpu(plan.view()), c.check_tokens);
  gpu.fetch();
  return difference(got, want);
}

// What the GPU leaves to chance is taken out: two entries with one slot, seeds that are written.
void make_definite(WriteCase& c) {
  std::set<Int> taken(c.plan.seeds.begin(), c.plan.seeds.end());
  for (Int& slot : c.tokens.slots) {
    if (slot >= 0 && !taken.insert(slot).second) slot = -1;
  }
  std::vector<std::pair<Int, Int>> rows;
  for (std::size_t r = 0; r < c.plan.seeds.size(); ++r) {
    const Int begin = c.plan.offsets[r], end = c.plan.offsets[r + 1];
    const auto overlaps = [&](const auto& other) {
      return begin < other.second && other.first < end;
    };
    if (end > begin && std::ranges::any_of(rows, overlaps)) c.plan.offsets[r + 1] = begin;
    rows.emplace_back(begin, c.plan.offsets[r + 1]);
  }
}

std::string run(WriteCase c) {
  Rng rng(c.world_seed);
  World world(rng, c.num_slots);
  world.endpoint.chain_position_assert = c.chain_position_assert;
  world.endpoint.violations = c.violations;
  Endpoint want = world.endpoint;
  write(want.context(), c.plan.view(), c.tokens.input());
  Endpoint got = world.endpoint;
  OnGpu gpu;
  write(gpu(got.context()), gpu(c.plan.view()), gpu(c.tokens.input()));
  gpu.fetch();
  return difference(got, want);
}

std::string run(PlanCase c) {
  std::vector<std::int32_t> cells, expected;
  const PlanInput in = input_of(c, cells, expected);
  HostVerifyPlan want(c.verify_capacity), got(c.verify_capacity);
  HostWritePlan want_write(c.write_capacity), got_write(c.write_capacity);
  plan(want.view(), want_write.view(), in);
  OnGpu gpu;
  plan(gpu(got.view()), gpu(got_write.view()), gpu(in));
  gpu.fetch();
  if (got.enable != want.enable) return "enable";
  if (got.num_valid != want.num_valid) return "num_valid";
  if (got.slots != want.slots) return "slots";
  if (got.positions != want.positions) return "positions";
  if (got.prev_slots != want.prev_slots) return "prev_slots";
  if (got.tokens != want.tokens) return "tokens";
  if (got_write.num_valid_reqs != want_write.num_valid_reqs) return "num_valid_reqs";
  if (got_write.offsets != want_write.offsets) return "offsets";
  if (got_write.seeds != want_write.seeds) return "seeds";
  return "";
}

TEST_F(CanarySglangGpu, VerifyEqualsTheCpu) {
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    Rng rng(seed);
    ASSERT_EQ(run(random_verify(rng, seed % 4 == 0)), "") << "seed " << seed;
  }
}

TEST_F(CanarySglangGpu, WriteEqualsTheCpu) {
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    Rng rng(seed);
    WriteCase c = random_write(rng, seed % 4 == 0, pick(rng, 0, 200));
    make_definite(c);
    ASSERT_EQ(run(c), "") << "seed " << seed;
  }
}

TEST_F(CanarySglangGpu, WriteOfManyTokensEqualsTheCpu) {
  for (std::uint64_t seed = 0; seed < 6; ++seed) {
    Rng rng(seed);
    WriteCase c = random_write(rng, false, 4000);
    make_definite(c);
    ASSERT_EQ(run(c), "") << "seed " << seed;
  }
}

TEST_F(CanarySglangGpu, WriteAlongAChainFromTheHostEqualsTheCpu) {
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    Rng rng(seed);
    WriteCase c = random_write(rng, seed % 4 == 0, seed % 10 == 0 ? 4000 : pick(rng, 1, 200));
    make_definite(c);
    for (std::size_t i = 0; i < c.tokens.ids.size(); ++i) {
      c.tokens.chain_hashes.push_back(hostile(rng));
    }
    ASSERT_EQ(run(c), "") << "seed " << seed;
  }
}

// One request's rows, of wrong inputs and of jumps, lie in the ring as one thread would have put
// them there.
TEST_F(CanarySglangGpu, RowsOfARequestComeInTheOrderOfItsEntries) {
  std::int64_t rows = 0;
  for (std::uint64_t seed = 0; seed < 8; ++seed) {
    Rng rng(seed);
    WriteCase c = random_write(rng, false, 1500);
    std::ranges::fill(c.plan.offsets, 1500);
    c.plan.offsets[0] = 0;
    c.plan.seeds[0] = 3;
    c.plan.num_valid_reqs = 1;
    c.tokens.compare = true;
    c.chain_position_assert = 1;
    c.violations = 0;
    make_definite(c);
    World world(rng, c.num_slots);
    world.endpoint.ring.resize(2000);
    world.endpoint.entries.resize(2000);
    Endpoint want = world.endpoint, got = world.endpoint;
    write(want.context(), c.plan.view(), c.tokens.input());
    OnGpu gpu;
    write(gpu(got.context()), gpu(c.plan.view()), gpu(c.tokens.input()));
    gpu.fetch();
    ASSERT_EQ(got.violations, want.violations);
    ASSERT_EQ(got.ring, want.ring) << "seed " << seed;
    ASSERT_EQ(got.entries, want.entries) << "seed " << seed;
    rows += want.violations;
  }
  EXPECT_GT(rows, 100);
}

TEST_F(CanarySglangGpu, PlanEqualsTheCpu) {
  for (std::uint64_t seed = 0; seed < 600; ++seed) {
    Rng rng(seed);
    ASSERT_EQ(run(random_plan(rng, seed % 3 == 0)), "") << "seed " << seed;
  }
}

TEST_F(CanarySglangGpu, PlanOfAsManyRequestsAsThereMayBeEqualsTheCpu) {
  Rng rng(3);
  PlanCase c{.verify_capacity = 300000, .write_capacity = kMaxPlanRequests};
  c.tables.req_to_token = random_table(rng, 9, 500, false);
  for (Int r = 0; r < kMaxPlanRequests; ++r) {
    c.tables.rows.push_back(pick(rng, 0, 8));
    c.tables.prefix_lens.push_back(pick(rng, 0, 3) == 0 ? 0 : pick(rng, 0, 120));
    c.tables.extend_lens.push_back(pick(rng, 0, 2));
  }
  EXPECT_EQ(run(c), "");
}

TEST_F(CanarySglangGpu, TranslateAndScatterEqualTheCpu) {
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    Rng rng(seed);
    std::vector<Int> slots, mapping, flat_in, offsets{0}, rows;
    for (Int i = pick(rng, 0, 300); i > 0; --i) slots.push_back(hostile(rng));
    for (Int i = pick(rng, 1, 50); i > 0; --i) mapping.push_back(hostile(rng));
    std::vector<Int> want(slots.size()), got(slots.size());
    translate_slots(view(slots), view(mapping), view(want));
    OnGpu gpu;
    const TensorView out = gpu(view(got));
    translate_slots(gpu(view(slots)), gpu(view(mapping)), out);
    // Rows of the pool are distinct: which of two histories wins is left to chance.
    const Int bs = pick(rng, 0, 40), width = pick(rng, 1, 60);
    for (Int i = pick(rng, 0, 900); i > 0; --i) flat_in.push_back(hostile(rng));
    for (Int r = 0; r < bs; ++r) {
      rows.push_back(pick(rng, 0, 7) == 0 ? -r - 1 : r);
      offsets.push_back(pick(rng, 0, 9) == 0 ? hostile(rng) : pick(rng, 0, 900));
    }
    std::vector<std::int32_t> want_pool(static_cast<std::size_t>(45 * width), 7);
    std::vector<std::int32_t> got_pool = want_pool;
    scatter_req_token_ids(view(flat_in), view(offsets), view(rows), view(want_pool, 45, width));
    const TensorView pool = gpu(view(got_pool, 45, width));
    scatter_req_token_ids(gpu(view(flat_in)), gpu(view(offsets)), gpu(view(rows)), pool);
    gpu.fetch();
    ASSERT_EQ(got, want) << "seed " << seed;
    ASSERT_EQ(got_pool, want_pool) << "seed " << seed;
  }
}

// ---------------------------------------------------------------- a step in a graph

// Requests that grow, end and begin again in a pool of slots, as a batch's tensors say it.
class Steps {
 public:
  static constexpr Int kRequests = 12, kWidth = 40, kSlots = 700, kRow = 48, kTokens = 64;

  explicit Steps(std::uint64_t seed) : rng_(seed), endpoint(kSlots, 256, 48) {
    for (Int s = 1; s < kSlots; ++s) free_.push_back(s);
    std::ranges::shuffle(free_, rng_);
    for (std::uint8_t& b : kv) b = static_cast<std::uint8_t>(rng_());
    endpoint.mode = RealKvHashMode::all;
    endpoint.sources = {{.tensor = TensorView(kv.data(), DType::u8, {kSlots / 4, 4 * kRow}),
                         .page_size = 4,
                         .num_bytes_per_token = kRow,
                         .read_bytes = kRow}};
    for (Int r = 0; r < kRequests; ++r) rows[static_cast<std::size_t>(r)] = r + 1;
  }

  /// The next batch; sometimes a byte of what it reads has changed.
  void next() {
    std::ranges::fill(slots, -1);
    std::size_t n = 0;
    for (std::size_t r = 0; r < rows.size(); ++r) {
      Int& prefix = prefixes[r];
      prefix += extends[r];
      Int extend = pick(rng_, 0, 5);
      std::int32_t* const cells = &table[(r + 1) * kWidth];
      if (prefix + extend > kWidth) {
        for (Int i = 0; i < prefix; ++i) free_.push_back(cells[i]);
        prefix = 0;
      }
      extends[r] = extend;
      for (Int i = 0; i < extend; ++i, ++n) {
        const Int slot = free_.front();
        free_.erase(free_.begin());
        cells[prefix + i] = static_cast<std::int32_t>(slot);
        ids[n] = pick(rng_, 0, 1000);
        tokens[(r + 1) * kWidth + static_cast<std::size_t>(prefix + i)] =
            static_cast<std::int32_t>(ids[n]);
        positions[n] = prefix + i;
        slots[n] = slot;
      }
      valid[r] = prefix + extend;
    }
    if (pick(rng_, 0, 3) == 0) kv[static_cast<std::size_t>(pick(rng_, 0, kSlots * kRow - 1))] ^= 1;
  }

  PlanInput plan_input() {
    return {.req_pool_indices = view(rows),
            .prefix_lens = view(prefixes),
            .extend_seq_lens = view(extends),
            .req_to_token = view(table, kRequests + 1, kWidth),
            .verify_capacity = kRequests * kWidth,
            .req_to_verify_expected_tokens = view(tokens, kRequests + 1, kWidth),
            .req_to_verify_expected_tokens_valid_lens = view(valid)};
  }
  WriteInput write_input() {
    return {.input_ids = view(ids), .positions = view(positions), .out_cache_loc = view(slots)};
  }

 private:
  Rng rng_;
  std::vector<Int> free_;

 public:
  Endpoint endpoint;
  std::vector<std::uint8_t> kv = std::vector<std::uint8_t>(kSlots * kRow);
  std::vector<Int> rows = std::vector<Int>(kRequests), prefixes = rows, extends = rows,
                   valid = rows;
  std::vector<std::int32_t> table = std::vector<std::int32_t>((kRequests + 1) * kWidth),
                            tokens = table;
  std::vector<Int> ids = std::vector<Int>(kTokens), positions = ids, slots = ids;
};

TEST_F(CanarySglangGpu, AStepCapturedOnceIsReplayedOverAChangingBatch) {
  Steps batch(1);
  Endpoint cpu = batch.endpoint;
  HostVerifyPlan cpu_plan(Steps::kRequests * Steps::kWidth), gpu_plan = cpu_plan;
  HostWritePlan cpu_write(Steps::kRequests), gpu_write(Steps::kRequests);

  OnGpu state;  // stays on the device
  const VerifyOrWriteContext context = [&] {
    VerifyOrWriteContext c = batch.endpoint.context();
    c.real_kv_sources.clear();
    return state(c);
  }();
  const VerifyPlan verify_plan = state(gpu_plan.view());
  const WritePlan write_plan = state(gpu_write.view());
  OnGpu inputs;  // sent anew every step
  VerifyOrWriteContext with_bytes = context;
  for (RealKvSource s : batch.endpoint.sources) {
    s.tensor = inputs(s.tensor);
    with_bytes.real_kv_sources.push_back(s);
  }
  const PlanInput plan_input = inputs(batch.plan_input());
  const WriteInput write_input = inputs(batch.write_input());

  cudaStream_t stream = nullptr;
  check_cuda(cudaStreamCreate(&stream));
  check_cuda(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
  const Stream s{stream};
  plan(verify_plan, write_plan, plan_input, s);
  verify(with_bytes, verify_plan, true, s);
  write(with_bytes, write_plan, write_input, s);
  cudaGraph_t graph = nullptr;
  check_cuda(cudaStreamEndCapture(stream, &graph));
  cudaGraphExec_t exec = nullptr;
  check_cuda(cudaGraphInstantiate(&exec, graph, 0));

  for (int step = 0; step < 1000; ++step) {
    batch.next();
    const VerifyPlan on_cpu = cpu_plan.view();
    plan(on_cpu, cpu_write.view(), batch.plan_input());
    verify(cpu.context(), on_cpu, true);
    write(cpu.context(), cpu_write.view(), batch.write_input());
    inputs.push(s);
    check_cuda(cudaGraphLaunch(exec, stream));
    if (step % 100 == 99) {
      check_cuda(cudaStreamSynchronize(stream));
      state.fetch();
      ASSERT_EQ(difference(batch.endpoint, cpu), "") << "step " << step;
    }
  }
  EXPECT_GT(cpu.violations, 0);
  check_cuda(cudaGraphExecDestroy(exec));
  check_cuda(cudaGraphDestroy(graph));
  check_cuda(cudaStreamDestroy(stream));
}

// Whatever a verify reads while others write, it ends, and stays within the buffers.
TEST_F(CanarySglangGpu, WritersThatDoNotWaitAreHarmless) {
  Steps batch(2);
  OnGpu gpu;
  const VerifyOrWriteContext context = gpu(batch.endpoint.context());
  HostVerifyPlan host_plan(Steps::kRequests * Steps::kWidth);
  HostWritePlan host_write(Steps::kRequests);
  const VerifyPlan verify_plan = gpu(host_plan.view());
  const WritePlan write_plan = gpu(host_write.view());
  for (int i = 0; i < 8; ++i) batch.next();
  const PlanInput plan_input = gpu(batch.plan_input());
  const WriteInput write_input = gpu(batch.write_input());
  cudaStream_t streams[2] = {};
  for (cudaStream_t& s : streams) check_cuda(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
  plan(verify_plan, write_plan, plan_input, {streams[0]});
  check_cuda(cudaStreamSynchronize(streams[0]));
  for (int i = 0; i < 200; ++i) {
    verify(context, verify_plan, true, {streams[0]});
    write(context, write_plan, write_input, {streams[1]});
    if (i % 10 == 0)
      check_cuda(cudaMemsetAsync(context.canary_buf.data, i, Steps::kSlots * 48, streams[1]));
  }
  for (cudaStream_t s : streams) {
    check_cuda(cudaStreamSynchronize(s));
    check_cuda(cudaStreamDestroy(s));
  }
  gpu.fetch();
  EXPECT_EQ(batch.endpoint.kernel_runs, 400);
}

}  // namespace
}  // namespace serinus::canary::sglang
