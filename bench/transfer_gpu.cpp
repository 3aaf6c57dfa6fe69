// What the canary adds to a KV transfer between two GPUs, and what rank agreement adds to a step.
//
//   transfer_gpu [--json DIR] [--commit C] [--rounds N]
//
// The transfer: 32 layers x 16384 tokens, 8 KV heads of 128 bf16 (4 KB a layer and token, 2.1 GB),
// pages of 64 tokens, in chunks of 1024 tokens as a chunked prefill produces them. `plain` sends
// the bytes. `watched` also takes the records out on the sending GPU, sends them behind each chunk,
// and on the receiving GPU stamps them and verifies every byte of the chunk, on a stream of its
// own, while the next chunk is on its way; it is over when the last byte is verified. Both in turn,
// medians over rounds, timed on the receiving GPU.
//
// The step: one all-gather of 64 requests' digests, alone, and beside a forward on another stream.
// Needs two GPUs.
#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <numeric>
#include <stdexcept>
#include <string>
#include <vector>

#include <serinus/canary.h>
#include <serinus/canary_cuda.h>
#include <serinus/kv_layout.h>

#include "agreement.h"
#include "bench/busy.h"
#include "nccl_transport.h"
#include "ranks.h"

namespace {

using namespace distributed;
using serinus::DType;
using serinus::TensorView;
namespace canary = serinus::canary;

constexpr std::chrono::seconds kTimeout{30};
constexpr int kSender = 0, kReceiver = 1, kLayers = 32;
constexpr std::int64_t kTokens = 16384, kChunk = 1024, kPage = 64;
constexpr std::int64_t kPages = kTokens / kPage + 16;
constexpr int kRequests = 64;
constexpr std::int64_t kDigestBytes = kRequests * static_cast<std::int64_t>(sizeof(RankDigest));
constexpr int kForwardRounds = 60000;

struct Options {
  std::string json, commit = "unknown";
  int rounds = 15;
};

void check(cudaError_t error) {
  if (error != cudaSuccess) throw std::runtime_error(cudaGetErrorString(error));
}

double median(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

class Event {
 public:
  Event() { check(cudaEventCreate(&event_)); }
  ~Event() { cudaEventDestroy(event_); }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  void record(cudaStream_t stream) { check(cudaEventRecord(event_, stream)); }
  void hold(cudaStream_t stream) { check(cudaStreamWaitEvent(stream, event_)); }
  double us_since(const Event& start) {
    check(cudaEventSynchronize(event_));
    float ms = 0;
    check(cudaEventElapsedTime(&ms, start.event_, event_));
    return 1000.0 * ms;
  }

 private:
  cudaEvent_t event_ = nullptr;
};

/// One rank's pool on its GPU, with the canary's memory beside it.
class Side {
 public:
  explicit Side(NcclTransport& nccl, bool shuffled) : nccl_(nccl) {
    int device = 0;
    check(cudaGetDevice(&device));
    device_.index = device;
    check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));

    canary::PoolSpec spec;
    spec.layout = serinus::kv_layout("mha_nhd", {.page_size = kPage, .heads = 8, .head_size = 128});
    spec.num_layers = kLayers;
    spec.num_slots = kPages * kPage;
    for (int layer = 0; layer < kLayers; ++layer) {
      for (const std::int64_t page_bytes : spec.layout.page_bytes) {
        std::uint8_t* data = allocate(page_bytes * kPages);
        check(cudaMemset(data, 0x11 * (nccl.rank() + 1),
                         static_cast<std::size_t>(page_bytes * kPages)));
        spec.buffers.push_back({data, page_bytes * kPages, page_bytes});
      }
    }
    spec_ = spec;
    pool_ = canary::cuda::describe_pool(spec, canary::Depth::all, 0, 2);
    pool_.records = u8(spec.num_slots * 32);
    pool_.records = TensorView(pool_.records.data, DType::u8, {spec.num_slots, 32}, device_);
    pool_.ledger =
        TensorView(allocate(spec.num_slots * 20), DType::i32, {spec.num_slots, 5}, device_);
    pool_.state = u8(static_cast<std::int64_t>(canary::cuda::pool_state_bytes(pool_)));
    ring_.capacity = 1024;
    ring_.memory = u8(static_cast<std::int64_t>(canary::cuda::ring_bytes(ring_.capacity)));
    workspace_ =
        u8(static_cast<std::int64_t>(canary::cuda::workspace_bytes(2, kTokens, spec.num_slots)));
    canary::cuda::clear_ring(ring_, {stream_});
    canary::cuda::init_pool(pool_, spec, {stream_});

    pages_.resize(kTokens / kPage);
    std::iota(pages_.begin(), pages_.end(), 1);
    if (shuffled) {  // every page's neighbour is elsewhere
      for (std::size_t i = 0; i < pages_.size(); ++i) {
        std::swap(pages_[i],
                  pages_[(i * 97 + static_cast<std::size_t>(nccl.rank()) * 31) % pages_.size()]);
      }
    }
    std::vector<std::int64_t> slots;
    for (std::int64_t t = 0; t < kTokens; ++t) {
      slots.push_back(pages_[static_cast<std::size_t>(t / kPage)] * kPage + t % kPage);
    }
    slots_ = upload(slots, DType::i64);
    travelling_ = TensorView(allocate(kTokens * 32), DType::u8, {kTokens, 32}, device_);
    canary::cuda::on_alloc(pool_, ring_, slots_, 1, 1, {stream_});
    if (nccl.rank() == kSender) stamp(slots);
    check(cudaDeviceSynchronize());
  }

  /// One transfer; on the receiver, its time in us.
  double transfer(bool watched) {
    align();
    start_.record(nccl_.stream());
    start_.hold(stream_);
    for (std::int64_t first = 0; first < kTokens; first += kChunk) {
      const TensorView slots = part(slots_, first), records = part(travelling_, first);
      std::vector<Segment> segments = chunk(first);
      if (watched) segments.push_back({records.as<std::uint8_t>(), kChunk * 32});
      if (nccl_.rank() == kSender) {
        if (watched) {
          canary::cuda::on_store(pool_, ring_, slots, records, {stream_});
          stored_.record(stream_);
          stored_.hold(nccl_.stream());
        }
        nccl_.start_send(kReceiver, segments);
        continue;
      }
      nccl_.start_receive(kSender, segments);
      if (watched) {
        arrived_.record(nccl_.stream());
        arrived_.hold(stream_);
        canary::cuda::on_load(pool_, ring_, records, slots, 1, {stream_});
        canary::cuda::verify_slots(pool_, ring_, slots, canary::Moment::head, {stream_});
      }
    }
    checked_.record(stream_);
    checked_.hold(nccl_.stream());
    end_.record(nccl_.stream());
    nccl_.finish(1 - nccl_.rank(), "measuring a transfer");
    return end_.us_since(start_);
  }

  /// A step with `forward` beside, and with the all-gather or without; its time in us.
  double step(bool forward, bool gather) {
    align();
    start_.record(stream_);
    start_.hold(nccl_.stream());
    if (forward)
      serinus::bench::busy(static_cast<float*>(workspace_.data), kForwardRounds, stream_);
    if (gather) {
      nccl_.start_all_gather({digests_, kDigestBytes}, {all_digests_, 2 * kDigestBytes});
      arrived_.record(nccl_.stream());
      arrived_.hold(stream_);
    }
    end_.record(stream_);
    const double us = end_.us_since(start_);
    nccl_.finish(1 - nccl_.rank(), "measuring a step");
    return us;
  }

  /// What the receiver's canary found, which must be nothing, and how many tokens it verified.
  canary::cuda::RingContent found() {
    std::vector<std::byte> copy(canary::cuda::ring_bytes(ring_.capacity));
    check(cudaDeviceSynchronize());
    check(cudaMemcpy(copy.data(), ring_.memory.data, copy.size(), cudaMemcpyDeviceToHost));
    return canary::cuda::read_ring(copy, ring_.capacity);
  }
  /// Bends one byte of the sender's pool: then the receiver must say so.
  void damage() {
    check(cudaMemset(spec_.buffers[17].data + pages_[40] * spec_.buffers[17].page_stride + 1234,
                     0x77, 1));
    check(cudaDeviceSynchronize());
  }

 private:
  std::uint8_t* allocate(std::int64_t bytes) {
    void* p = nullptr;
    check(cudaMalloc(&p, static_cast<std::size_t>(bytes) + 16));
    return static_cast<std::uint8_t*>(p);  // as long as the process: a benchmark
  }
  TensorView u8(std::int64_t bytes) { return {allocate(bytes), DType::u8, {bytes}, device_}; }
  template <class T>
  TensorView upload(const std::vector<T>& items, DType type) {
    const auto n = static_cast<std::int64_t>(items.size());
    void* to = allocate(n * static_cast<std::int64_t>(sizeof(T)));
    check(cudaMemcpy(to, items.data(), items.size() * sizeof(T), cudaMemcpyHostToDevice));
    return {to, type, {n}, device_};
  }
  /// The chunk's rows of a tensor of tokens.
  TensorView part(const TensorView& all, std::int64_t first) const {
    TensorView v = all;
    v.shape[0] = kChunk;
    v.data = all.as<std::uint8_t>() + first * all.strides[0] * serinus::size_of(all.dtype);
    return v;
  }
  void stamp(const std::vector<std::int64_t>& slots) {
    std::vector<std::int32_t> table(2 * kTokens);
    std::vector<std::int64_t> ids, positions;
    for (std::int64_t t = 0; t < kTokens; ++t) {
      table[static_cast<std::size_t>(kTokens + t)] =
          static_cast<std::int32_t>(slots[static_cast<std::size_t>(t)]);
      ids.push_back(t * 31 % 32000);
      positions.push_back(t);
    }
    canary::cuda::DeviceBatch batch;
    batch.rows = upload(std::vector<std::int64_t>{1}, DType::i64);
    batch.prefix_lens = upload(std::vector<std::int64_t>{0}, DType::i64);
    batch.extend_lens = upload(std::vector<std::int64_t>{kTokens}, DType::i64);
    batch.owners = upload(std::vector<std::uint32_t>{1}, DType::u32);
    const TensorView cells = upload(table, DType::i32);
    batch.req_to_token = TensorView(cells.data, DType::i32, {2, kTokens}, device_);
    batch.input_ids = upload(ids, DType::i64);
    batch.positions = upload(positions, DType::i64);
    batch.out_cache_loc = slots_;
    canary::cuda::stamp(pool_, ring_, batch, workspace_, {stream_});
  }
  /// The bytes of a chunk of tokens, pages that lie beside each other in one piece.
  std::vector<Segment> chunk(std::int64_t first) const {
    std::vector<Segment> segments;
    for (const serinus::KvBuffer& b : spec_.buffers) {
      for (std::int64_t i = first / kPage; i < (first + kChunk) / kPage; ++i) {
        std::uint8_t* at = b.data + pages_[static_cast<std::size_t>(i)] * b.page_stride;
        if (i > first / kPage && segments.back().data + segments.back().bytes == at) {
          segments.back().bytes += b.page_stride;
        } else {
          segments.push_back({at, b.page_stride});
        }
      }
    }
    return segments;
  }
  /// Both GPUs are here, with nothing to do.
  void align() {
    std::uint8_t mine = 0, all[2] = {};
    check(cudaStreamSynchronize(stream_));
    nccl_.all_gather({&mine, 1}, {all, 2});
  }

  NcclTransport& nccl_;
  serinus::Device device_{serinus::DeviceType::cuda, 0};
  cudaStream_t stream_ = nullptr;  // the canary's, and a step's forward
  canary::PoolSpec spec_;
  canary::cuda::DevicePool pool_;
  canary::cuda::DeviceRing ring_;
  TensorView workspace_, slots_, travelling_;
  std::vector<std::int64_t> pages_;
  std::uint8_t* digests_ = allocate(kDigestBytes);
  std::uint8_t* all_digests_ = allocate(2 * kDigestBytes);
  Event start_, end_, stored_, arrived_, checked_;
};

std::string device_name() {
  cudaDeviceProp properties{};
  int device = 0;
  check(cudaGetDevice(&device));
  check(cudaGetDeviceProperties(&properties, device));
  return properties.name;
}

void write_json(const Options& options, const std::string& name, const std::string& fields) {
  fmt::print("{}: {}\n", name, fields);
  if (options.json.empty()) return;
  std::ofstream(options.json + "/" + name + ".json")
      << fmt::format("{{{}, \"gpus\": 2, \"device\": \"{}\", \"commit\": \"{}\"}}\n", fields,
                     device_name(), options.commit);
}

bool measure_transfer(NcclTransport& nccl, const Options& options, bool shuffled) {
  Side side(nccl, shuffled);
  const bool speaks = nccl.rank() == kReceiver;
  std::vector<double> plain, watched;
  for (int round = -2; round < options.rounds; ++round) {  // two to warm up
    const double a = side.transfer(false), b = side.transfer(true);
    if (round < 0) continue;
    plain.push_back(a);
    watched.push_back(b);
  }
  const canary::cuda::RingContent clean = side.found();
  if (nccl.rank() == kSender) side.damage();
  side.transfer(true);
  const canary::cuda::RingContent damaged = side.found();
  if (!speaks) return true;
  const std::int64_t kv = kTokens * kLayers * 4096, records = kTokens * 32;
  const double p = median(plain), w = median(watched);
  write_json(options, shuffled ? "transfer-shuffled_pages" : "transfer-pages_in_order",
             fmt::format("\"layers\": {}, \"tokens\": {}, \"kv_bytes\": {}, \"record_bytes\": {}, "
                         "\"bytes_added\": {:.6f}, \"plain_us\": {:.1f}, \"watched_us\": {:.1f}, "
                         "\"time_added\": {:.5f}, \"gb_per_s\": {:.1f}, \"rounds\": {}",
                         kLayers, kTokens, kv, records,
                         static_cast<double>(records) / static_cast<double>(kv), p, w, w / p - 1,
                         static_cast<double>(kv) / p / 1000, options.rounds));
  const bool good =
      clean.violations.empty() &&
      clean.counts.records_verified >=
          static_cast<std::uint64_t>(kTokens) * static_cast<std::uint64_t>(options.rounds) &&
      damaged.violations.size() == 1;
  if (!good) {
    fmt::print(
        "but the canary did not do its work: {} reports without a fault, {} with one bent byte, "
        "{} records verified\n",
        clean.violations.size(), damaged.violations.size(), clean.counts.records_verified);
  }
  return good;
}

void measure_step(NcclTransport& nccl, const Options& options) {
  Side side(nccl, true);
  std::vector<double> alone, forward, both;
  for (int round = -10; round < options.rounds * 10; ++round) {
    const double a = side.step(false, true), f = side.step(true, false), b = side.step(true, true);
    if (round < 0) continue;
    alone.push_back(a);
    forward.push_back(f);
    both.push_back(b);
  }
  if (nccl.rank() != kReceiver) return;
  write_json(options, "rank_digest-64_requests",
             fmt::format("\"requests\": {}, \"bytes_a_rank\": {}, \"all_gather_us\": {:.2f}, "
                         "\"forward_us\": {:.2f}, \"forward_with_all_gather_us\": {:.2f}, "
                         "\"added_us\": {:.2f}, \"rounds\": {}",
                         kRequests, kDigestBytes, median(alone), median(forward), median(both),
                         median(both) - median(forward), alone.size()));
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string key = argv[i];
    if (key == "--json") options.json = argv[i + 1];
    if (key == "--commit") options.commit = argv[i + 1];
    if (key == "--rounds") options.rounds = std::max(1, std::atoi(argv[i + 1]));
  }
  return run_ranks(2, kTimeout, [&](SocketTransport& control) {
    int gpus = 0;
    if (cudaGetDeviceCount(&gpus) != cudaSuccess || gpus < 2) {
      if (control.rank() == kReceiver) fmt::print("transfer_gpu needs two GPUs: not run\n");
      return 0;
    }
    NcclTransport nccl(control, kTimeout);
    bool good = true;
    for (const bool shuffled : {false, true})
      good = measure_transfer(nccl, options, shuffled) && good;
    measure_step(nccl, options);
    return good ? 0 : 1;
  });
}
