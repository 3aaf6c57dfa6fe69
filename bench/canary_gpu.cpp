// The canary on the GPU: microseconds, bytes a second, and the share of what the device copies at
// in the same run.
//
//   canary_gpu [--json DIR] [--commit C] [--cases TEXT] [--rounds N]
//
// A pool of 1 048 576 slots and a page for the null slot, in pages of 64, handed out in random
// order, 1024 random bytes a token, unless a case says otherwise. A time is the median of
// event-timed launches; two launches run before each, so that what fits lies in L2 and the host is
// ahead. "cold": 512 MB are overwritten before each.
#include <cuda_runtime.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <initializer_list>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include <serinus/canary_cuda.h>
#include <serinus/canary_sglang.h>

#include "bench/arguments.h"
#include "gpu/device.h"

namespace {

using namespace serinus;

void check(cudaError_t e) {
  if (e == cudaSuccess) return;
  fmt::print(stderr, "CUDA: {}\n", cudaGetErrorString(e));
  std::exit(1);
}

const Device kGpu{DeviceType::cuda, 0};

/// Device memory as a tensor.
class Array {
 public:
  Array(DType dtype, std::initializer_list<std::int64_t> shape)
      : view_(nullptr, dtype, shape, kGpu) {
    check(cudaMalloc(&view_.data, std::max<std::size_t>(bytes(), 16)));
    check(cudaMemset(view_.data, 0, bytes()));
  }
  template <class T>
  Array(DType dtype, const std::vector<T>& v)
      : Array(dtype, {static_cast<std::int64_t>(v.size())}) {
    check(cudaMemcpy(view_.data, v.data(), bytes(), cudaMemcpyHostToDevice));
  }
  ~Array() { cudaFree(view_.data); }
  Array(const Array&) = delete;
  Array& operator=(const Array&) = delete;

  const TensorView& view() const { return view_; }
  TensorView view(std::int64_t rows, std::int64_t columns) const {
    return TensorView(view_.data, view_.dtype, {rows, columns}, kGpu);
  }
  std::size_t bytes() const {
    return static_cast<std::size_t>(view_.numel() * size_of(view_.dtype));
  }
  void fill_random(std::uint64_t seed) const {
    std::vector<std::uint64_t> words(std::size_t{1} << 20);
    std::mt19937_64 random(seed);
    for (std::uint64_t& w : words) w = random();
    for (std::size_t at = 0; at < bytes(); at += words.size() * 8) {
      check(cudaMemcpy(view_.as<std::uint8_t>() + at, words.data(),
                       std::min(words.size() * 8, bytes() - at), cudaMemcpyHostToDevice));
    }
  }
  template <class T>
  T first() const {
    T value;
    check(cudaMemcpy(&value, view_.data, sizeof value, cudaMemcpyDeviceToHost));
    return value;
  }

 private:
  TensorView view_;
};

struct Options {
  std::string json, commit = "unknown", cases;
  int rounds = 15;
};

class Bench {
 public:
  Bench(Options options, std::string device)
      : options_(std::move(options)), device_(std::move(device)), scrub_(DType::u8, {512 << 20}) {
    check(cudaEventCreate(&begin_));
    check(cudaEventCreate(&end_));
    const Array from(DType::u8, {1 << 30}), to(DType::u8, {1 << 30});
    const double us = time([&] {
      check(cudaMemcpyAsync(to.view().data, from.view().data, from.bytes(),
                            cudaMemcpyDeviceToDevice));
    });
    copy_ = 2.0 * static_cast<double>(from.bytes()) / us * 1e-6;
    fmt::print("device copy: {:.2f} TB/s\n", copy_);
  }

  bool wants(const std::string& name) const {
    return options_.cases.empty() || name.find(options_.cases) != std::string::npos;
  }

  /// `bytes`: read and written, what the work cannot do without; `work` does it `times` times.
  void row(const std::string& name, const char* format, const char* mode, double bytes,
           const std::function<void()>& work, bool cold = false, int times = 1) {
    if (!wants(name)) return;
    const double us = time(work, cold) / times;
    const double tb_per_s = bytes / us * 1e-6;
    fmt::print("{:34} {:8} {:8} {:10.2f} us {:7.3f} TB/s {:6.3f} of copy\n", name, format, mode, us,
               tb_per_s, tb_per_s / copy_);
    std::fflush(stdout);
    if (options_.json.empty()) return;
    std::ofstream(options_.json + "/canary-" + format + "-" + name + "-" + mode + ".json")
        << fmt::format(
               "{{\"case\": \"{}\", \"format\": \"{}\", \"mode\": \"{}\", \"median_us\": {:.3f}, "
               "\"bytes\": {:.0f}, \"tb_per_s\": {:.4f}, \"share_of_copy\": {:.4f}, \"device\": "
               "\"{}\", "
               "\"commit\": \"{}\"}}\n",
               name, format, mode, us, bytes, tb_per_s, tb_per_s / copy_, device_, options_.commit);
  }

 private:
  double time(const std::function<void()>& work, bool cold = false) {
    std::vector<double> us;
    for (int i = 0; i < options_.rounds; ++i) {
      work();
      work();
      if (cold) check(cudaMemsetAsync(scrub_.view().data, i, scrub_.bytes()));
      check(cudaEventRecord(begin_));
      work();
      check(cudaEventRecord(end_));
      check(cudaEventSynchronize(end_));
      float ms = 0;
      check(cudaEventElapsedTime(&ms, begin_, end_));
      us.push_back(ms * 1e3);
    }
    std::ranges::nth_element(us, us.begin() + static_cast<std::ptrdiff_t>(us.size() / 2));
    return us[us.size() / 2];
  }

  Options options_;
  std::string device_;
  Array scrub_;
  cudaEvent_t begin_ = nullptr, end_ = nullptr;
  double copy_ = 1;
};

constexpr std::int64_t kSlots = 1 << 20, kPage = 64, kRowBytes = 1024;
constexpr std::int64_t kPoolSlots = kSlots + kPage;
constexpr std::int64_t kRequests = 256, kContext = 4096, kChunk = 16384;

/// Slots of the pool in the order in which they are handed out: pages shuffled, slots within a page
/// in order, without the first page, which has the null slot.
std::vector<std::int64_t> handed_out() {
  std::vector<std::int64_t> pages(kSlots / kPage);
  std::iota(pages.begin(), pages.end(), std::int64_t{1});
  std::mt19937_64 random(1);
  std::shuffle(pages.begin(), pages.end(), random);
  std::vector<std::int64_t> slots;
  for (const std::int64_t page : pages) {
    for (std::int64_t i = 0; i < kPage; ++i) slots.push_back(page * kPage + i);
  }
  return slots;
}

std::vector<std::int64_t> counting(std::int64_t n, std::int64_t modulo) {
  std::vector<std::int64_t> v(static_cast<std::size_t>(n));
  for (std::int64_t i = 0; i < n; ++i) v[static_cast<std::size_t>(i)] = i % modulo;
  return v;
}

// ---------------------------------------------------------------- the sglang format

void sglang_rows(Bench& bench, const Array& kv) {
  using namespace canary::sglang;
  const std::vector<std::int64_t> slots = handed_out();
  std::vector<std::int32_t> cells(static_cast<std::size_t>((kRequests + 1) * kContext));
  std::copy(slots.begin(), slots.end(), cells.begin() + kContext);
  const Array table(DType::i32, cells), records(DType::u8, {kPoolSlots, 32}),
      ring(DType::i64, {64, 8}), write_index(DType::i32, {1}), slot_runs(DType::i64, {1}),
      kernel_runs(DType::i64, {1}), skipped(DType::i64, {1}),
      assert_on(DType::i32, std::vector<std::int32_t>{1});
  const auto context = [&](RealKvHashMode mode) {
    VerifyOrWriteContext c{.canary_buf = records.view(),
                           .kernel_kind = LaunchTag::tail_k_full,
                           .violation_ring = ring.view(),
                           .violation_write_index = write_index.view(),
                           .slot_run_counter = slot_runs.view(),
                           .kernel_run_counter = kernel_runs.view(),
                           .real_kv_sources = {{.tensor = kv.view(kPoolSlots, kRowBytes),
                                                .page_size = 1,
                                                .num_bytes_per_token = kRowBytes,
                                                .read_bytes = kRowBytes}},
                           .real_kv_hash_mode = mode,
                           .enable_chain_position_assert = assert_on.view(),
                           .out_of_range_counter = skipped.view()};
    return c;
  };
  const Array v_slots(DType::i64, {kSlots}), v_tokens(DType::i64, {kSlots}),
      v_positions(DType::i64, {kSlots}), v_prev(DType::i64, {kSlots}), v_valid(DType::i32, {1}),
      v_enable(DType::i32, {1});
  const VerifyPlan verify_plan{v_slots.view(), v_tokens.view(), v_positions.view(),
                               v_prev.view(),  v_valid.view(),  v_enable.view()};
  const Array w_offsets(DType::i64, {kRequests + 1}), w_seeds(DType::i64, {kRequests}),
      w_valid(DType::i32, {1});
  const WritePlan write_plan{w_offsets.view(), w_seeds.view(), w_valid.view()};
  std::vector<std::int64_t> request_rows(kRequests);
  std::iota(request_rows.begin(), request_rows.end(), std::int64_t{1});
  const Array rows(DType::i64, request_rows),
      context_lens(DType::i64, std::vector<std::int64_t>(kRequests, kContext)),
      zeros(DType::i64, {kRequests});
  const auto plan_input = [&](const Array& prefix, const Array& extend) {
    return PlanInput{.req_pool_indices = rows.view(),
                     .prefix_lens = prefix.view(),
                     .extend_seq_lens = extend.view(),
                     .req_to_token = table.view(kRequests + 1, kContext),
                     .verify_capacity = kSlots};
  };
  const Array ids(DType::i64, counting(kSlots, 32000)),
      positions(DType::i64, counting(kSlots, kContext)), locations(DType::i64, slots);
  const WriteInput all{
      .input_ids = ids.view(), .positions = positions.view(), .out_cache_loc = locations.view()};
  // One request's chunk, at the head of the same arrays.
  const Array c_offsets(DType::i64, std::vector<std::int64_t>{0, kChunk}),
      c_seeds(DType::i64, std::vector<std::int64_t>{-1}),
      c_valid(DType::i32, std::vector<std::int32_t>{1}),
      c_positions(DType::i64, counting(kChunk, kChunk));
  const WritePlan chunk_plan{c_offsets.view(), c_seeds.view(), c_valid.view()};
  const auto head = [](const Array& a) {
    return TensorView(a.view().data, DType::i64, {kChunk}, kGpu);
  };
  const WriteInput chunk{
      .input_ids = head(ids), .positions = c_positions.view(), .out_cache_loc = head(locations)};

  // Its chain, as the host knows it.
  const std::vector<std::int64_t> chunk_ids = counting(kChunk, 32000),
                                  chunk_positions = counting(kChunk, kChunk);
  std::vector<std::int64_t> hashes(kChunk);
  chain_hashes({}, chunk_ids, chunk_positions, hashes);
  const Array chunk_chain(DType::i64, hashes);

  struct Mode {
    const char* name;
    RealKvHashMode mode;
    double bytes;
  };
  for (const Mode& m :
       {Mode{"none", RealKvHashMode::none, 0}, Mode{"partial", RealKvHashMode::partial, 16},
        Mode{"all", RealKvHashMode::all, kRowBytes}}) {
    const VerifyOrWriteContext c = context(m.mode);
    bench.row("write-chunk16384", "sglang", m.name, kChunk * (32 + 24 + m.bytes),
              [&] { write(c, chunk_plan, chunk); });
    WriteInput with_chain = chunk;
    with_chain.chain_hashes = chunk_chain.view();
    bench.row("write-chunk16384-host-chain", "sglang", m.name, kChunk * (32 + 32 + m.bytes),
              [&] { write(c, chunk_plan, with_chain); });
    plan(verify_plan, write_plan, plan_input(zeros, context_lens));
    bench.row("write-256x4096", "sglang", m.name, kSlots * (32 + 24 + m.bytes),
              [&] { write(c, write_plan, all); });
    write(c, write_plan, all);
    plan(verify_plan, write_plan, plan_input(context_lens, zeros));
    const auto work = [&] { verify(c, verify_plan, false); };
    bench.row("verify-256x4096", "sglang", m.name, kSlots * (32 + 24 + m.bytes), work);
    bench.row("verify-256x4096-cold", "sglang", m.name, kSlots * (32 + 24 + m.bytes), work, true);
  }
  const PlanInput input = plan_input(context_lens, zeros);
  bench.row("plan-256x4096", "sglang", "none", kSlots * (4 + 32),
            [&] { plan(verify_plan, write_plan, input); });
  check(cudaDeviceSynchronize());
  fmt::print("sglang: {} violations, {} skipped\n", write_index.first<std::int32_t>(),
             skipped.first<std::int64_t>());
}

// ---------------------------------------------------------------- the serinus format

/// A pool of `slots` slots with `layers` of one buffer each, `layout` once a layer.
struct SerinusPool {
  SerinusPool(const KvLayout& layout, int layers, std::int64_t slots, canary::Depth depth,
              const Array& kv)
      : records(DType::u8, {slots, 32}), ledger(DType::i32, {slots, 5}) {
    canary::PoolSpec spec;
    spec.layout = layout;
    spec.num_layers = layers;
    spec.num_slots = slots;
    spec.null_slot = canary::NullSlot::scratch;
    const std::int64_t pages = slots / layout.page_size;
    std::int64_t at = 0;
    for (int l = 0; l < layers; ++l) {
      for (const std::int64_t page : layout.page_bytes) {
        spec.buffers.push_back({.data = kv.view().as<std::uint8_t>() + at, .bytes = page * pages});
        at += (page * pages + 255) / 256 * 256;
      }
    }
    if (at > static_cast<std::int64_t>(kv.bytes())) std::exit(2);
    pool = canary::cuda::describe_pool(spec, depth, 0, kRequests + 1);
    pool.records = records.view();
    pool.ledger = ledger.view();
    state = std::make_unique<Array>(
        DType::u8, std::initializer_list<std::int64_t>{
                       static_cast<std::int64_t>(canary::cuda::pool_state_bytes(pool))});
    pool.state = state->view();
    canary::cuda::init_pool(pool, spec);
  }
  Array records, ledger;
  std::unique_ptr<Array> state;
  canary::cuda::DevicePool pool;
};

/// One segment of `bytes` a token.
KvLayout plain_layout(std::int64_t page, std::int64_t bytes) {
  KvLayout l;
  l.name = "plain";
  l.page_size = page;
  l.page_bytes = {page * bytes};
  KvSegment s;
  s.name = "kv";
  s.token_stride = s.bytes = bytes;
  l.segments = {s};
  return l;
}

struct SerinusCase {
  const char* name;
  KvLayout layout;
  int layers;
  std::int64_t slots, requests, context;
};

/// What a decode step adds: head, tail, stamp and sweep of the default budget, ten times over in
/// one graph, so that its launch is not counted. Everybody writes the last token of his context
/// anew.
void decode_step(Bench& bench, const canary::cuda::DevicePool& pool,
                 const canary::cuda::DeviceRing& ring, const canary::cuda::DeviceBatch& all,
                 std::int64_t bs, std::int64_t context, std::int64_t budget, const Array& locations,
                 const Array& workspace, const std::string& name, const char* mode) {
  using namespace canary::cuda;
  const std::string title =
      "decode-step-" + std::to_string(bs) + "x" + std::to_string(context) + name;
  if (!bench.wants(title)) return;
  const auto some = [&](const TensorView& t) { return TensorView(t.data, t.dtype, {bs}, kGpu); };
  const std::vector<std::int64_t> last(static_cast<std::size_t>(bs), context - 1);
  std::vector<std::int64_t> slots(static_cast<std::size_t>(bs));
  for (std::int64_t r = 0; r < bs; ++r) {
    check(cudaMemcpy(&slots[static_cast<std::size_t>(r)],
                     locations.view().as<std::int64_t>() + (r + 1) * context - 1, 8,
                     cudaMemcpyDeviceToHost));
  }
  const Array lasts(DType::i64, last), to(DType::i64, slots),
      ones(DType::i64, std::vector<std::int64_t>(static_cast<std::size_t>(bs), 1)),
      tokens(DType::i64, std::vector<std::int64_t>(static_cast<std::size_t>(bs), 7));
  DeviceBatch b = all;
  b.rows = some(all.rows);
  b.owners = some(all.owners);
  b.prefix_lens = b.positions = lasts.view();
  b.extend_lens = ones.view();
  b.input_ids = tokens.view();
  b.out_cache_loc = to.view();
  cudaStream_t stream = nullptr;
  check(cudaStreamCreate(&stream));
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t run = nullptr;
  constexpr int kSteps = 10;
  check(cudaDeviceSynchronize());
  check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
  for (int i = 0; i < kSteps; ++i) {
    const Stream s{stream};
    const auto moment = [&](canary::Moment m) {
      verify(pool, ring, b, {.moment = m, .records = std::max<std::int64_t>(1, budget / 4)},
             workspace.view(), s);
    };
    moment(canary::Moment::head);
    moment(canary::Moment::tail);
    stamp(pool, ring, b, workspace.view(), s);
    sweep(pool, ring, std::max<std::int64_t>(1, budget / 2), workspace.view(), s);
  }
  check(cudaStreamEndCapture(stream, &graph));
  check(cudaGraphInstantiate(&run, graph, 0));
  bench.row(
      title, "serinus", mode, 0, [&] { check(cudaGraphLaunch(run, nullptr)); }, false, kSteps);
  check(cudaGraphExecDestroy(run));
  check(cudaGraphDestroy(graph));
  check(cudaStreamDestroy(stream));
}

void serinus_rows(Bench& bench, const SerinusCase& c, const Array& kv) {
  using namespace canary::cuda;
  const std::string name = c.name;
  const std::string shape = std::to_string(c.requests) + "x" + std::to_string(c.context) + name;
  if (!bench.wants("write-chunk" + name) && !bench.wants("write-" + shape) &&
      !bench.wants("verify-" + shape) && !bench.wants("rolling-step" + name) &&
      !bench.wants("decode-step-1x" + std::to_string(c.context) + name)) {
    return;
  }
  std::vector<std::int64_t> slots = handed_out();
  std::erase_if(slots, [&](std::int64_t s) { return s >= c.slots; });
  std::vector<std::int32_t> cells(static_cast<std::size_t>((c.requests + 1) * c.context));
  for (std::int64_t i = 0; i < c.requests * c.context; ++i)
    cells[static_cast<std::size_t>(c.context + i)] =
        static_cast<std::int32_t>(slots[static_cast<std::size_t>(i)]);
  const std::int64_t tokens = c.requests * c.context;
  slots.resize(static_cast<std::size_t>(tokens));
  std::vector<std::int64_t> request_rows(static_cast<std::size_t>(c.requests));
  std::iota(request_rows.begin(), request_rows.end(), std::int64_t{1});
  std::vector<std::uint32_t> owner_list(request_rows.begin(), request_rows.end());
  const std::vector<std::int64_t> lens(request_rows.size(), c.context);
  const Array table(DType::i32, cells), rows(DType::i64, request_rows),
      owners(DType::u32, owner_list), context_lens(DType::i64, lens),
      zeros(DType::i64, {c.requests}), ids(DType::i64, counting(tokens, 32000)),
      positions(DType::i64, counting(tokens, c.context)), locations(DType::i64, slots),
      workspace(DType::u8, {static_cast<std::int64_t>(workspace_bytes(c.requests, tokens, 8192))}),
      ring_memory(DType::u8, {static_cast<std::int64_t>(ring_bytes(256))});
  const DeviceRing ring{ring_memory.view(), 256};
  DeviceBatch b;
  b.rows = rows.view();
  b.owners = owners.view();
  b.req_to_token = table.view(c.requests + 1, c.context);
  const auto with = [&](const Array& prefix, const Array& extend, std::int64_t n) {
    DeviceBatch d = b;
    d.prefix_lens = prefix.view();
    d.extend_lens = extend.view();
    const auto head = [&](const Array& a) {
      return TensorView(a.view().data, DType::i64, {n}, kGpu);
    };
    d.input_ids = head(ids);
    d.positions = head(positions);
    d.out_cache_loc = head(locations);
    return d;
  };
  const DeviceBatch all = with(zeros, context_lens, tokens), read = with(context_lens, zeros, 0);
  // One request that writes a chunk: the same slots, numbered through.
  DeviceBatch chunk;
  const std::int64_t n = std::min(kChunk, tokens);
  const Array one(DType::i64, std::vector<std::int64_t>{1}),
      none(DType::i64, std::vector<std::int64_t>{0}),
      length(DType::i64, std::vector<std::int64_t>{n}),
      one_owner(DType::u32, std::vector<std::uint32_t>{1}), c_positions(DType::i64, counting(n, n));
  chunk = with(none, length, n);
  chunk.rows = one.view();
  chunk.owners = one_owner.view();
  chunk.positions = c_positions.view();

  struct Mode {
    const char* name;
    canary::Depth depth;
  };
  for (const Mode& m : {Mode{"none", canary::Depth::none}, Mode{"partial", canary::Depth::partial},
                        Mode{"all", canary::Depth::all}}) {
    SerinusPool p(c.layout, c.layers, c.slots, m.depth, kv);
    clear_ring(ring);
    const auto row_bytes = static_cast<double>(p.pool.slot_bytes);
    // Everything belongs to the request that writes it.
    const Array first(DType::i64, std::vector<std::int64_t>(slots.begin(), slots.begin() + n));
    on_alloc(p.pool, ring, first.view(), 1, 1);
    bench.row("write-chunk" + std::to_string(n) + name, "serinus", m.name,
              static_cast<double>(n) * (32 + 20 + 4 + 24 + row_bytes),
              [&] { stamp(p.pool, ring, chunk, workspace.view()); });
    on_free(p.pool, ring, first.view(), 1);
    for (std::int64_t r = 0; r < c.requests; ++r) {
      const TensorView of_row(locations.view().as<std::int64_t>() + r * c.context, DType::i64,
                              {c.context}, kGpu);
      on_alloc(p.pool, ring, of_row, static_cast<canary::Owner>(r + 1), 2);
    }
    bench.row("write-" + shape, "serinus", m.name,
              static_cast<double>(tokens) * (32 + 20 + 4 + 24 + row_bytes),
              [&] { stamp(p.pool, ring, all, workspace.view()); });
    stamp(p.pool, ring, all, workspace.view());
    const VerifyOptions everything{.policy = canary::VerifyPolicy::all};
    const double verified = static_cast<double>(tokens) * (32 + 4 + 1 + row_bytes);
    const auto work = [&] { verify(p.pool, ring, read, everything, workspace.view()); };
    bench.row("verify-" + shape, "serinus", m.name, verified, work);
    bench.row("verify-" + shape + "-cold", "serinus", m.name, verified, work, true);
    // A step's share: what a rolling check and a sweep of the default budget take.
    const std::int64_t budget =
        std::clamp<std::int64_t>((8 << 20) / std::max<std::int64_t>(1, p.pool.slot_bytes), 1, 4096);
    bench.row("rolling-step" + name, "serinus", m.name,
              static_cast<double>(budget) * (32 + 4 + 4 + row_bytes), [&] {
                const VerifyOptions quarter{.records = budget / 4};
                verify(p.pool, ring, read, quarter, workspace.view());
                verify(p.pool, ring, read, quarter, workspace.view());
                sweep(p.pool, ring, std::max<std::int64_t>(1, budget / 2), workspace.view());
              });
    for (const std::int64_t bs : {1, 64}) {
      if (bs > c.requests) continue;
      decode_step(bench, p.pool, ring, b, bs, c.context, budget, locations, workspace, name,
                  m.name);
    }
    check(cudaDeviceSynchronize());
    std::vector<std::byte> copy(ring_bytes(256));
    check(cudaMemcpy(copy.data(), ring_memory.view().data, copy.size(), cudaMemcpyDeviceToHost));
    const RingContent content = read_ring(copy, 256);
    fmt::print("serinus{} {}: {} violations, {} records verified\n", name, m.name,
               content.counts.violations, content.counts.records_verified);
  }
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  const bench::Arguments given(argc, argv, {"--json", "--commit", "--cases", "--rounds"});
  if (!given.fine()) return 2;
  options.json = given.text("--json");
  options.commit = given.text("--commit", options.commit);
  options.cases = given.text("--cases");
  options.rounds = given.count("--rounds", options.rounds);
  const gpu::Survey survey = gpu::survey();
  if (survey.devices.empty() || !survey.devices[0].usable) {
    fmt::print(stderr, "no GPU: {}\n", survey.problem);
    return 1;
  }
  Bench bench(options, survey.devices[0].name);
  const Array kv(DType::u8, {std::int64_t{4} << 30});
  kv.fill_random(3);
  serinus_rows(bench, {"", plain_layout(kPage, kRowBytes), 1, kPoolSlots, kRequests, kContext}, kv);
  // All layers of a model: a token's bytes lie in 61 or 96 places.
  serinus_rows(bench, {"-61x576", plain_layout(64, 576), 61, 1 << 16, 16, 4080}, kv);
  serinus_rows(bench, {"-61x656", kv_layout("fp8_656"), 61, 1 << 16, 16, 4080}, kv);
  serinus_rows(bench, {"-61x584", kv_layout("dsv4_584"), 61, 1 << 16, 16, 4080}, kv);
  serinus_rows(
      bench,
      {"-mha48",
       kv_layout("mha_nhd", {.page_size = 64, .heads = 4, .head_size = 128, .dtype = DType::bf16}),
       48, 1 << 15, 8, 4080},
      kv);
  sglang_rows(bench, kv);
}
