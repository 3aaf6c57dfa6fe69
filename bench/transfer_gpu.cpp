// What the canary adds to a KV transfer between two GPUs, and what rank agreement adds to a step.
//
//   transfer_gpu [--json DIR] [--commit C] [--rounds N]
//
// The transfer: 32 layers x 16384 tokens, 8 KV heads of 128 bf16 (4 KB a layer and token, 2.1 GB),
// pages of 64 tokens, in chunks of 1024 tokens as a chunked prefill produces them. `plain` sends
// the bytes. `watched` also takes the records out on the sending GPU, where they are stamped by
// now, sends them with the first chunk, and on the receiving GPU stamps them and verifies every
// byte of each chunk, on a stream of its own, while the next one is on its way; it is over when the
// last byte is verified. Both in turn, medians over rounds, timed on the receiving GPU. Pages that
// lie beside each other on both sides go as one piece (`pages_in_order`), or each page by itself.
//
// The step: the digests of 64 requests of 4096 tokens, one all-gather of them, and the result on
// the host; alone, and beside a forward on another stream. Needs two GPUs.
#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <fstream>
#include <numeric>
#include <stdexcept>
#include <string>
#include <vector>

#include <serinus/canary.h>
#include <serinus/canary_cuda.h>
#include <serinus/canary_ranks.h>
#include <serinus/kv_layout.h>

#include "bench/arguments.h"
#include "bench/busy.h"
#include "nccl_transport.h"
#include "ranks.h"

namespace {

using namespace distributed;
using serinus::DType;
using serinus::TensorView;
namespace canary = serinus::canary;
using canary::RequestDigest;

constexpr std::chrono::seconds kTimeout{30};
constexpr int kSender = 0, kReceiver = 1, kLayers = 32;
constexpr std::int64_t kTokens = 16384, kChunk = 1024, kPage = 64;
constexpr std::int64_t kPages = kTokens / kPage + 16;
constexpr int kRequests = 64;
constexpr std::int64_t kContext = 4096;  // tokens of each
constexpr std::int64_t kDigestBytes = kRequests * static_cast<std::int64_t>(sizeof(RequestDigest));
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

/// What a rank has on its GPU: a pool with the canary's memory beside it, and the tokens of some
/// requests in it, row by row. Memory lives as long as the process.
class Rank {
 public:
  Rank(NcclTransport& nccl, canary::Depth depth) : nccl_(nccl), depth_(depth) {
    int device = 0;
    check(cudaGetDevice(&device));
    device_ = {serinus::DeviceType::cuda, device};
    check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
  }

  canary::cuda::RingContent found() {
    std::vector<std::byte> copy(canary::cuda::ring_bytes(ring_.capacity));
    check(cudaDeviceSynchronize());
    check(cudaMemcpy(copy.data(), ring_.memory.data, copy.size(), cudaMemcpyDeviceToHost));
    return canary::cuda::read_ring(copy, ring_.capacity);
  }

 protected:
  std::uint8_t* allocate(std::int64_t bytes) {
    void* p = nullptr;
    check(cudaMalloc(&p, static_cast<std::size_t>(bytes) + 16));
    return static_cast<std::uint8_t*>(p);
  }
  TensorView u8(std::int64_t bytes) { return {allocate(bytes), DType::u8, {bytes}, device_}; }
  template <class T>
  TensorView upload(const std::vector<T>& items, DType type) {
    const auto n = static_cast<std::int64_t>(items.size());
    void* to = allocate(n * static_cast<std::int64_t>(sizeof(T)));
    check(cudaMemcpy(to, items.data(), items.size() * sizeof(T), cudaMemcpyHostToDevice));
    return {to, type, {n}, device_};
  }

  /// A pool for the tokens of `requests` requests, as many of each, which lie in `slots`.
  void make_pool(canary::PoolSpec spec, std::int64_t requests,
                 const std::vector<std::int64_t>& slots) {
    const auto tokens = static_cast<std::int64_t>(slots.size()), each = tokens / requests;
    spec.device = device_;
    pool_ = canary::cuda::describe_pool(spec, depth_, 0, requests + 1);
    pool_.records =
        TensorView(allocate(spec.num_slots * 32), DType::u8, {spec.num_slots, 32}, device_);
    pool_.ledger =
        TensorView(allocate(spec.num_slots * 20), DType::i32, {spec.num_slots, 5}, device_);
    pool_.state = u8(static_cast<std::int64_t>(canary::cuda::pool_state_bytes(pool_)));
    ring_.capacity = 1024;
    ring_.memory = u8(static_cast<std::int64_t>(canary::cuda::ring_bytes(ring_.capacity)));
    workspace_ = u8(
        static_cast<std::int64_t>(canary::cuda::workspace_bytes(requests, tokens, spec.num_slots)));
    canary::cuda::clear_ring(ring_, {stream_});
    canary::cuda::init_pool(pool_, spec, {stream_});

    slots_ = upload(slots, DType::i64);
    std::vector<std::int32_t> table(static_cast<std::size_t>(each));  // row 0: nobody's
    table.insert(table.end(), slots.begin(), slots.end());
    std::vector<std::int64_t> rows, ids, positions;
    for (std::int64_t r = 1; r <= requests; ++r) rows.push_back(r);
    for (std::int64_t t = 0; t < tokens; ++t) {
      ids.push_back(t * 31 % 32000);
      positions.push_back(t % each);
    }
    const auto n = static_cast<std::size_t>(requests);
    batch_.rows = upload(rows, DType::i64);
    batch_.owners = upload(std::vector<std::uint32_t>(n, 1), DType::u32);
    batch_.prefix_lens = upload(std::vector<std::int64_t>(n, 0), DType::i64);
    batch_.extend_lens = upload(std::vector<std::int64_t>(n, each), DType::i64);
    batch_.req_to_token =
        TensorView(upload(table, DType::i32).data, DType::i32, {requests + 1, each}, device_);
    batch_.input_ids = upload(ids, DType::i64);
    batch_.positions = upload(positions, DType::i64);
    batch_.out_cache_loc = slots_;
    canary::cuda::on_alloc(pool_, ring_, slots_, 1, 1, {stream_});
  }
  void stamp() { canary::cuda::stamp(pool_, ring_, batch_, workspace_, {stream_}); }

  /// Both GPUs are here, with nothing to do.
  void align() {
    std::uint8_t mine = 0, all[2] = {};
    check(cudaStreamSynchronize(stream_));
    nccl_.all_gather({&mine, 1}, {all, 2});
  }

  NcclTransport& nccl_;
  canary::Depth depth_;
  serinus::Device device_;
  cudaStream_t stream_ = nullptr;  // the canary's, and a step's forward
  canary::cuda::DevicePool pool_;
  canary::cuda::DeviceRing ring_;
  canary::cuda::DeviceBatch batch_;
  TensorView workspace_, slots_;
  Event start_, end_;
};

class Transfer : public Rank {
 public:
  Transfer(NcclTransport& nccl, bool shuffled)
      : Rank(nccl, canary::Depth::all), pages_(kTokens / kPage), in_runs_(!shuffled) {
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
    buffers_ = spec.buffers;
    std::iota(pages_.begin(), pages_.end(), 1);
    if (shuffled) {  // every page's neighbour is elsewhere, and on the other side somewhere else
      for (std::size_t i = 0; i < pages_.size(); ++i) {
        std::swap(pages_[i],
                  pages_[(i * 97 + static_cast<std::size_t>(nccl.rank()) * 31) % pages_.size()]);
      }
    }
    std::vector<std::int64_t> slots;
    for (std::int64_t t = 0; t < kTokens; ++t) {
      slots.push_back(pages_[static_cast<std::size_t>(t / kPage)] * kPage + t % kPage);
    }
    make_pool(spec, 1, slots);
    travelling_ = TensorView(allocate(kTokens * 32), DType::u8, {kTokens, 32}, device_);
    if (nccl.rank() == kSender) stamp();
    check(cudaDeviceSynchronize());
  }

  /// One transfer; on the receiver, its time in us.
  double run(bool watched) {
    align();
    start_.record(nccl_.stream());
    start_.hold(stream_);
    if (watched && nccl_.rank() == kSender) {
      canary::cuda::on_store(pool_, ring_, slots_, travelling_, {stream_});
      stored_.record(stream_);
      stored_.hold(nccl_.stream());
    }
    for (std::int64_t first = 0; first < kTokens; first += kChunk) {
      std::vector<Segment> segments = chunk(first);
      if (watched && first == 0) {
        segments.push_back({travelling_.as<std::uint8_t>(), kTokens * 32});
      }
      if (nccl_.rank() == kSender) {
        nccl_.start_send(kReceiver, segments);
        continue;
      }
      nccl_.start_receive(kSender, segments);
      if (watched) {
        arrived_.record(nccl_.stream());
        arrived_.hold(stream_);
        const TensorView slots(slots_.as<std::int64_t>() + first, DType::i64, {kChunk}, device_);
        const TensorView records(travelling_.as<std::uint8_t>() + first * 32, DType::u8,
                                 {kChunk, 32}, device_);
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

  /// Bends one byte of the sender's pool: then the receiver must say so.
  void damage() {
    check(cudaMemset(buffers_[17].data + pages_[40] * buffers_[17].page_stride + 1234, 0x77, 1));
    check(cudaDeviceSynchronize());
  }

 private:
  /// The bytes of a chunk of tokens.
  std::vector<Segment> chunk(std::int64_t first) const {
    std::vector<Segment> segments;
    for (const serinus::KvBuffer& b : buffers_) {
      for (std::int64_t i = first / kPage; i < (first + kChunk) / kPage; ++i) {
        std::uint8_t* at = b.data + pages_[static_cast<std::size_t>(i)] * b.page_stride;
        if (in_runs_ && i > first / kPage) {
          segments.back().bytes += b.page_stride;
        } else {
          segments.push_back({at, b.page_stride});
        }
      }
    }
    return segments;
  }

  std::vector<std::int64_t> pages_;
  bool in_runs_;  // pages follow each other on both sides
  std::vector<serinus::KvBuffer> buffers_;
  TensorView travelling_;
  Event stored_, arrived_, checked_;
};

/// Of records alone: digests read nothing else.
class Agreement : public Rank {
 public:
  explicit Agreement(NcclTransport& nccl) : Rank(nccl, canary::Depth::none) {
    constexpr std::int64_t kAll = kRequests * kContext;
    canary::PoolSpec spec;
    spec.layout = serinus::kv_layout("mha_nhd", {.page_size = kPage, .heads = 8, .head_size = 128});
    spec.num_slots = kAll + kPage;
    std::vector<std::int64_t> slots;  // pages of one request lie all over the pool
    for (std::int64_t t = 0; t < kAll; ++t) {
      slots.push_back((1 + t / kPage * 1031 % (kAll / kPage)) * kPage + t % kPage);
    }
    make_pool(spec, kRequests, slots);
    stamp();
    batch_.prefix_lens = upload(
        std::vector<std::int64_t>(static_cast<std::size_t>(kRequests), kContext), DType::i64);
    check(cudaDeviceSynchronize());
    check(cudaMallocHost(reinterpret_cast<void**>(&on_host_), 2 * kDigestBytes));
  }

  enum class Part { gather, all };
  /// The time on the GPU of the all-gather, or of digests, all-gather and copy to the host; in us.
  /// Launched while the GPU is busy, so that nothing waits for the host.
  double alone(Part part) {
    align();
    serinus::bench::busy(spare_, kForwardRounds, nccl_.stream());
    start_.record(nccl_.stream());
    launch(part);
    end_.record(nccl_.stream());
    nccl_.finish(1 - nccl_.rank(), "measuring an agreement");
    return end_.us_since(start_);
  }
  /// A forward, with the ranks' agreement beside it or without; its time in us.
  double forward(bool agree) {
    align();
    start_.record(stream_);
    start_.hold(nccl_.stream());
    serinus::bench::busy(spare_, kForwardRounds, stream_);
    if (agree) {
      launch(Part::all);
      agreed_.record(nccl_.stream());
      agreed_.hold(stream_);
    }
    end_.record(stream_);
    nccl_.finish(1 - nccl_.rank(), "measuring a step");  // by its deadline
    return end_.us_since(start_);
  }
  /// What the last agreement brought.
  std::vector<canary::RankDifference> differences() const {
    return canary::compare_ranks(
        {reinterpret_cast<const RequestDigest*>(on_host_), 2 * std::size_t{kRequests}}, 2);
  }
  /// This rank's record of one token says something else.
  void damage() {
    check(cudaMemset(pool_.records.as<std::uint8_t>() + 32 * (3 * kPage + 5), 0x5a, 32));
    check(cudaDeviceSynchronize());
  }

 private:
  void launch(Part part) {
    if (part == Part::all) {
      canary::cuda::request_digests(pool_, batch_,
                                    TensorView(digests_, DType::u8, {kRequests, 32}, device_),
                                    {nccl_.stream()});
    }
    nccl_.start_all_gather({digests_, kDigestBytes}, {all_digests_, 2 * kDigestBytes});
    if (part == Part::gather) return;
    check(cudaMemcpyAsync(on_host_, all_digests_, 2 * kDigestBytes, cudaMemcpyDeviceToHost,
                          nccl_.stream()));
  }

  float* spare_ = reinterpret_cast<float*>(allocate(4));
  std::uint8_t* digests_ = allocate(kDigestBytes);
  std::uint8_t* all_digests_ = allocate(2 * kDigestBytes);
  std::uint8_t* on_host_ = nullptr;
  Event agreed_;
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
  Transfer transfer(nccl, shuffled);
  std::vector<double> plain, watched;
  for (int round = -2; round < options.rounds; ++round) {  // two to warm up
    const double a = transfer.run(false), b = transfer.run(true);
    if (round < 0) continue;
    plain.push_back(a);
    watched.push_back(b);
  }
  const canary::cuda::RingContent clean = transfer.found();
  if (nccl.rank() == kSender) transfer.damage();
  transfer.run(true);
  const canary::cuda::RingContent damaged = transfer.found();
  if (nccl.rank() != kReceiver) return true;
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

bool measure_step(NcclTransport& nccl, const Options& options) {
  Agreement agreement(nccl);
  std::vector<double> gather, all, forward, both;
  for (int round = -10; round < options.rounds * 10; ++round) {
    const double g = agreement.alone(Agreement::Part::gather),
                 a = agreement.alone(Agreement::Part::all), f = agreement.forward(false),
                 b = agreement.forward(true);
    if (round < 0) continue;
    gather.push_back(g);
    all.push_back(a);
    forward.push_back(f);
    both.push_back(b);
  }
  const std::size_t clean = agreement.differences().size();
  if (nccl.rank() == kSender) agreement.damage();
  agreement.alone(Agreement::Part::all);
  const std::size_t damaged = agreement.differences().size();
  if (nccl.rank() != kReceiver) return true;
  write_json(
      options, "rank_digest-64_requests",
      fmt::format("\"requests\": {}, \"tokens_each\": {}, \"bytes_a_rank\": {}, "
                  "\"all_gather_us\": {:.2f}, \"digests_and_all_gather_us\": {:.2f}, "
                  "\"forward_us\": {:.2f}, \"forward_with_all_us\": {:.2f}, "
                  "\"added_us\": {:.2f}, \"rounds\": {}",
                  kRequests, kContext, kDigestBytes, median(gather), median(all), median(forward),
                  median(both), median(both) - median(forward), all.size()));
  const bool good = clean == 0 && damaged == 1;
  if (!good) {
    fmt::print(
        "but the ranks did not agree as they should: {} differ without a fault, {} with "
        "one bent record\n",
        clean, damaged);
  }
  return good;
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  const serinus::bench::Arguments given(argc, argv, {"--json", "--commit", "--rounds"});
  if (!given.fine()) return 2;
  options.json = given.text("--json");
  options.commit = given.text("--commit", options.commit);
  options.rounds = given.count("--rounds", options.rounds);
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
    good = measure_step(nccl, options) && good;
    return good ? 0 : 1;
  });
}
