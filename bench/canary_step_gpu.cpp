// What the Monitor costs a step on the GPU, captured in a graph with the forward that it watches.
//
//   bench_canary_step_gpu [--json DIR] [--commit C] [--layers N] [--rounds N]
//
// KV of Qwen3-30B-A3B: 48 layers, K and V of 4 heads x 128 bf16 values each, so 98 304 bytes a
// token in 96 buffers; pages of 64 tokens in random order. Depth all, the default budgets, expected
// tokens given. A decode graph holds 20 steps, begin_step() and end_step() of each, and nothing
// else; its time is divided by 20: what the canary keeps for itself lies in L2, the KV that it
// checks does not. "between": the same with 256 MB overwritten before each of the two, as a forward
// would do, less the time of a graph of the overwriting alone; nothing lies in L2. "replayed": one
// step a graph, with begin_replay() before it, a slot announced a request, and poll() after it: as
// an engine runs, the time of a step until the device is done with all of them.
#include <cuda_runtime.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <fstream>
#include <functional>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include <serinus/canary.h>
#include <serinus/canary_cuda.h>

#include "bench/arguments.h"

namespace {

using namespace serinus;
using canary::Monitor;
using Int = std::int64_t;
using Ints = std::vector<Int>;

const Device kGpu{DeviceType::cuda, 0};
constexpr Int kPage = 64, kTokenBytes = 1024;

void check(cudaError_t e) {
  if (e == cudaSuccess) return;
  fmt::print(stderr, "CUDA: {}\n", cudaGetErrorString(e));
  std::exit(1);
}

class Array {
 public:
  explicit Array(std::size_t bytes) : bytes_(bytes) { check(cudaMalloc(&data_, bytes)); }
  template <class T>
  explicit Array(const std::vector<T>& v) : Array(std::max<std::size_t>(v.size() * sizeof(T), 16)) {
    check(cudaMemcpy(data_, v.data(), v.size() * sizeof(T), cudaMemcpyHostToDevice));
  }
  ~Array() { cudaFree(data_); }
  Array(const Array&) = delete;
  Array& operator=(const Array&) = delete;
  void* data() const { return data_; }
  std::size_t bytes() const { return bytes_; }

 private:
  void* data_ = nullptr;
  std::size_t bytes_;
};

/// K and V of all layers.
class Kv {
 public:
  Kv(int layers, Int slots) : layers_(layers), slots_(slots) {
    std::vector<std::uint64_t> noise(std::size_t{64} << 17);  // 64 MiB
    std::mt19937_64 random(1);
    for (std::uint64_t& w : noise) w = random();
    const Array block(noise);
    for (int i = 0; i < 2 * layers; ++i) {
      const Array& b = buffers_.emplace_back(static_cast<std::size_t>(slots * kTokenBytes));
      for (std::size_t at = 0; at < b.bytes(); at += block.bytes()) {
        check(cudaMemcpy(static_cast<std::byte*>(b.data()) + at, block.data(),
                         std::min(block.bytes(), b.bytes() - at), cudaMemcpyDeviceToDevice));
      }
    }
  }
  canary::PoolSpec spec() const {
    canary::PoolSpec s;
    s.device = kGpu;
    s.layout.name = "k and v";
    s.layout.page_size = kPage;
    for (int b = 0; b < 2; ++b) {
      s.layout.page_bytes.push_back(kPage * kTokenBytes);
      KvSegment segment;
      segment.name = b == 0 ? "k" : "v";
      segment.buffer = b;
      segment.token_stride = segment.bytes = kTokenBytes;
      s.layout.segments.push_back(segment);
    }
    s.num_layers = layers_;
    s.num_slots = slots_;
    for (const Array& b : buffers_) {
      s.buffers.push_back(
          {.data = static_cast<std::uint8_t*>(b.data()), .bytes = static_cast<Int>(b.bytes())});
    }
    return s;
  }
  Int slots() const { return slots_; }

 private:
  int layers_;
  Int slots_;
  std::deque<Array> buffers_;
};

/// `requests` of `prefix` tokens each in the pool, that write `extend` more.
struct Step {
  Step(const Kv& kv, Int requests, Int prefix, Int extend)
      : bs(requests), length(prefix + extend), monitor(canary::Options{}) {
    Ints pages(static_cast<std::size_t>(kv.slots() / kPage - 1));
    std::iota(pages.begin(), pages.end(), 1);
    std::ranges::shuffle(pages, std::mt19937_64(2));
    const Int each = (length + kPage - 1) / kPage;
    std::vector<std::int32_t> cells(static_cast<std::size_t>((bs + 1) * length));
    std::vector<std::int32_t> tokens(cells.size(), -1);
    canary::PoolSpec spec = kv.spec();
    spec.table_rows = bs + 1;
    monitor.add_pool(std::move(spec));
    Ints ids, positions, locations;
    for (Int r = 0; r < bs; ++r) {
      Ints own;
      for (Int i = 0; i < length; ++i) {
        const Int slot = pages[static_cast<std::size_t>(r * each + i / kPage)] * kPage + i % kPage;
        const auto cell = static_cast<std::size_t>((r + 1) * length + i);
        cells[cell] = static_cast<std::int32_t>(slot);
        tokens[cell] = static_cast<std::int32_t>((r * 7919 + i * 31) % 150000);
        own.push_back(slot);
        slots.push_back(slot);
        ids.push_back(tokens[cell]);
        positions.push_back(i);
        locations.push_back(slot);
      }
      monitor.on_alloc(0, own, static_cast<canary::Owner>(r + 1));
      rows.push_back(r + 1);
      owners.push_back(static_cast<canary::Owner>(r + 1));
    }
    table = keep(cells);
    expected = keep(tokens);
    if (prefix > 0) {  // what is in the pool already
      forward(Ints(rows.size(), 0), Ints(rows.size(), length), ids, positions, locations);
      monitor.begin_step(batch, {});
      monitor.end_step(batch, {});
    }
    Ints some_ids, some_positions, some_locations;
    for (Int r = 0; r < bs; ++r) {
      for (Int i = prefix; i < length; ++i) {
        const auto at = static_cast<std::size_t>(r * length + i);
        some_ids.push_back(ids[at]);
        some_positions.push_back(positions[at]);
        some_locations.push_back(locations[at]);
      }
    }
    forward(Ints(rows.size(), prefix), Ints(rows.size(), extend), some_ids, some_positions,
            some_locations);
    check(cudaDeviceSynchronize());
  }

  template <class T>
  void* keep(const std::vector<T>& v) {
    return arrays.emplace_back(v).data();
  }
  void forward(const Ints& prefix, const Ints& extend, const Ints& ids, const Ints& positions,
               const Ints& locations) {
    const auto view = [&](const Ints& v) {
      return TensorView(keep(v), DType::i64, {std::ssize(v)}, kGpu);
    };
    batch.rows = view(rows);
    batch.prefix_lens = view(prefix);
    batch.extend_lens = view(extend);
    batch.owners = TensorView(keep(owners), DType::u32, {bs}, kGpu);
    batch.input_ids = view(ids);
    batch.positions = view(positions);
    batch.out_cache_loc = view(locations);
    batch.req_to_token = TensorView(table, DType::i32, {bs + 1, length}, kGpu);
    batch.expected_tokens = TensorView(expected, DType::i32, {bs + 1, length}, kGpu);
  }

  Int bs, length;
  Monitor monitor;
  std::deque<Array> arrays;
  Ints rows, slots;
  std::vector<canary::Owner> owners;
  void* table = nullptr;
  void* expected = nullptr;
  canary::cuda::DeviceBatch batch;
};

struct Options {
  std::string json, commit = "unknown";
  int layers = 48, rounds = 31;
};

class Bench {
 public:
  Bench(Options options, std::string device)
      : options_(std::move(options)), device_(std::move(device)) {
    check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
    check(cudaEventCreate(&begin_));
    check(cudaEventCreate(&end_));
  }

  void row(const std::string& name, const Kv& kv, Int requests, Int prefix, Int extend,
           int in_graph, double goal_us) {
    Step step(kv, requests, prefix, extend);
    const Stream stream{stream_};
    step.monitor.begin_step(step.batch, stream);  // the first step loads kernels and takes memory
    step.monitor.end_step(step.batch, stream);
    check(cudaStreamSynchronize(stream_));
    std::size_t nodes = 0;
    const auto graph_of = [&](int steps, bool canary, bool between) {
      cudaGraph_t graph = nullptr;
      check(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeGlobal));
      for (int i = 0; i < steps; ++i) {
        if (between) overwrite();
        if (canary) step.monitor.begin_step(step.batch, stream);
        if (between) overwrite();
        if (canary) step.monitor.end_step(step.batch, stream);
      }
      check(cudaStreamEndCapture(stream_, &graph));
      check(cudaGraphGetNodes(graph, nullptr, &nodes));
      cudaGraphExec_t exec = nullptr;
      check(cudaGraphInstantiate(&exec, graph, 0));
      check(cudaGraphDestroy(graph));
      return exec;
    };
    // Sorted microseconds a step.
    const auto times_of = [&](bool canary, bool between) {
      const cudaGraphExec_t exec = graph_of(in_graph, canary, between);
      std::vector<double> us;
      for (int i = 0; i < options_.rounds + 2; ++i) {
        check(cudaEventRecord(begin_, stream_));
        check(cudaGraphLaunch(exec, stream_));
        check(cudaEventRecord(end_, stream_));
        check(cudaEventSynchronize(end_));
        float ms = 0;
        check(cudaEventElapsedTime(&ms, begin_, end_));
        if (i >= 2) us.push_back(1e3 * static_cast<double>(ms) / in_graph);
      }
      check(cudaGraphExecDestroy(exec));
      std::ranges::sort(us);
      return us;
    };
    const auto median_of = [](const std::vector<double>& us) { return us[us.size() / 2]; };
    const std::vector<double> us = times_of(true, false);
    const double median = median_of(us);
    const double between = median_of(times_of(true, true)) - median_of(times_of(false, true));
    const cudaGraphExec_t one = graph_of(1, true, false);
    const int steps = in_graph > 1 ? 1000 : 5;
    double host = 0;
    std::chrono::steady_clock::time_point start;
    for (int i = -steps / 5; i < steps; ++i) {
      if (i == 0) {
        check(cudaStreamSynchronize(stream_));
        host = 0;
        start = std::chrono::steady_clock::now();
      }
      const auto before = std::chrono::steady_clock::now();
      for (Int r = 0; r < requests; ++r) {
        // The slot of the last token is given back and handed out again.
        const Int slot = step.slots[static_cast<std::size_t>((r + 1) * step.length - 1)];
        const auto owner = static_cast<canary::Owner>(r + 1);
        step.monitor.on_free(0, {&slot, 1}, owner);
        step.monitor.on_alloc(0, {&slot, 1}, owner);
      }
      step.monitor.begin_replay(step.batch, stream);
      const auto launch = std::chrono::steady_clock::now();
      check(cudaGraphLaunch(one, stream_));
      const auto launched = std::chrono::steady_clock::now();
      const std::size_t found = step.monitor.poll().size();
      host += std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - before -
                                                        (launched - launch))
                  .count();
      if (found != 0) fmt::print(stderr, "{}: {} false alarms\n", name, found);
    }
    check(cudaStreamSynchronize(stream_));
    const double wall =
        std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start)
            .count() /
        steps;
    host /= steps;
    step.monitor.flush();
    const canary::Stats stats = step.monitor.stats();
    if (stats.violations != 0) fmt::print(stderr, "{}: false alarms\n", name);
    fmt::print(
        "{:24} {:10.2f} us a step in a graph (goal {:g}: {}), {} nodes; between {:.2f} us; "
        "replayed {:.2f} us, of it {:.2f} us on the host\n",
        name, median, goal_us,
        goal_us <= 0        ? "see the model's step"
        : median <= goal_us ? "reached"
                            : "missed",
        nodes, between, wall, host);
    std::fflush(stdout);
    check(cudaGraphExecDestroy(one));
    if (options_.json.empty()) return;
    std::ofstream(options_.json + "/canary-step-" + name + ".json") << fmt::format(
        "{{\"case\": \"step-{}\", \"median_us\": {:.3f}, \"min_us\": {:.3f}, \"nodes\": {}, "
        "\"between_us\": {:.3f}, \"replayed_us\": {:.3f}, \"host_us\": {:.3f}, \"layers\": {}, "
        "\"token_bytes\": {}, "
        "\"violations\": {}, \"device\": \"{}\", \"commit\": \"{}\"}}\n",
        name, median, us[0], nodes, between, wall, host, options_.layers,
        2 * kTokenBytes * options_.layers, stats.violations, device_, options_.commit);
  }

 private:
  void overwrite() { check(cudaMemsetAsync(other_.data(), 1, other_.bytes(), stream_)); }

  Options options_;
  std::string device_;
  Array other_{std::size_t{256} << 20};
  cudaStream_t stream_ = nullptr;
  cudaEvent_t begin_ = nullptr, end_ = nullptr;
};

}  // namespace

int main(int argc, char** argv) try {
  const bench::Arguments given(argc, argv, {"--json", "--commit", "--layers", "--rounds"});
  if (!given.fine()) return 2;
  Options options;
  options.json = given.text("--json");
  options.commit = given.text("--commit", options.commit);
  options.layers = given.count("--layers", options.layers);
  options.rounds = given.count("--rounds", options.rounds);
  cudaDeviceProp properties{};
  check(cudaGetDeviceProperties(&properties, 0));
  Bench bench(options, properties.name);
  const Kv kv(options.layers, 32 * 16384 + 64 * kPage);
  bench.row("decode1-context4096", kv, 1, 4096, 1, 20, 8);
  bench.row("decode64-context4096", kv, 64, 4096, 1, 20, 15);
  bench.row("prefill32x16384", kv, 32, 0, 16384, 1, 0);
  return 0;
} catch (const std::exception& e) {
  fmt::print(stderr, "{}\n", e.what());
  return 1;
}
