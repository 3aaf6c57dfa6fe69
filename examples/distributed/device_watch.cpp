#include "device_watch.h"

#include <cstddef>
#include <stdexcept>
#include <utility>

#include "mix.h"

namespace distributed {

using serinus::DType;
using serinus::TensorView;
using serinus::canary::Moment;
using serinus::canary::Reason;
using serinus::canary::VerifyPolicy;
using serinus::canary::Violation;
namespace cuda = serinus::canary::cuda;

namespace {

constexpr std::int64_t kMostTokens = 4096;  // of a batch

void check(cudaError_t error) {
  if (error != cudaSuccess) throw std::runtime_error(cudaGetErrorString(error));
}

std::int64_t size_of(auto span) {
  return static_cast<std::int64_t>(span.size());
}

}  // namespace

void* DeviceArray::reserve(std::size_t bytes) {
  if (bytes > bytes_) {
    check(cudaFree(std::exchange(data_, nullptr)));  // waits for who still reads it
    bytes_ = bytes * 2;
    check(cudaMalloc(&data_, bytes_));
  }
  return data_;
}

void* DeviceArray::put_bytes(const void* from, std::size_t bytes, cudaStream_t stream) {
  void* to = reserve(bytes == 0 ? 16 : bytes);
  if (bytes > 0) check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, stream));
  return to;
}

DeviceWatch::DeviceWatch(const serinus::canary::Options& options) : options_(options) {
  int device = 0;
  check(cudaGetDevice(&device));
  device_.index = device;
  check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
}

DeviceWatch::~DeviceWatch() {
  cudaStreamSynchronize(stream_);
  cudaStreamDestroy(stream_);
}

void DeviceWatch::add_pool(const serinus::canary::PoolSpec& spec, std::int64_t rows) {
  pool_ = cuda::describe_pool(spec, options_.depth, 0, rows);
  const std::int64_t n = spec.num_slots;
  const auto bytes_of = [this](DeviceArray& array, std::size_t bytes) {
    return TensorView(array.reserve(bytes), DType::u8, {static_cast<std::int64_t>(bytes)}, device_);
  };
  pool_.records = TensorView(records_.reserve(static_cast<std::size_t>(n) * sizeof(Record)),
                             DType::u8, {n, 32}, device_);
  pool_.ledger =
      TensorView(ledger_.reserve(static_cast<std::size_t>(n) * 20), DType::i32, {n, 5}, device_);
  pool_.state = bytes_of(state_, cuda::pool_state_bytes(pool_));
  ring_.capacity = options_.ring_capacity;
  ring_.memory = bytes_of(ring_memory_, cuda::ring_bytes(ring_.capacity));
  workspace_ = bytes_of(workspace_memory_, cuda::workspace_bytes(rows, kMostTokens, n));
  cuda::clear_ring(ring_, {stream_});
  cuda::init_pool(pool_, spec, {stream_});
  check(cudaStreamSynchronize(stream_));
}

void DeviceWatch::on_alloc(Slots slots, Owner owner) {
  cuda::on_alloc(pool_, ring_, slots_of(slots), owner, ++epoch_, {stream_});
}

void DeviceWatch::on_free(Slots slots, Owner owner) {
  cuda::on_free(pool_, ring_, slots_of(slots), owner, {stream_});
}

void DeviceWatch::on_store(Slots slots, std::span<Record> records, std::span<std::uint32_t>) {
  const TensorView to(some_records_.reserve(records.size_bytes() + 16), DType::u8,
                      {size_of(records), 32}, device_);
  cuda::on_store(pool_, ring_, slots_of(slots), to, {stream_});
  check(cudaMemcpyAsync(records.data(), to.data, records.size_bytes(), cudaMemcpyDeviceToHost,
                        stream_));
  check(cudaStreamSynchronize(stream_));
}

void DeviceWatch::on_load(std::span<const Record> records, Slots slots, Owner owner,
                          std::span<const std::uint32_t>) {
  const TensorView from(some_records_.put(records, stream_), DType::u8, {size_of(records), 32},
                        device_);
  const TensorView to = slots_of(slots);
  cuda::on_load(pool_, ring_, from, to, owner, {stream_});
  cuda::verify_slots(pool_, ring_, to, Moment::head, {stream_});
}

void DeviceWatch::begin_step(const Batch& batch) {
  cuda::verify(pool_, ring_, upload(batch),
               {Moment::head, options_.verify, options_.records_per_step / 4}, workspace_,
               {stream_});
}

void DeviceWatch::end_step(const Batch& batch) {
  const cuda::DeviceBatch on_device = upload(batch);
  cuda::verify(pool_, ring_, on_device,
               {Moment::tail, options_.verify, options_.records_per_step / 4}, workspace_,
               {stream_});
  cuda::stamp(pool_, ring_, on_device, workspace_, {stream_});
  cuda::sweep(pool_, ring_, options_.records_per_step / 2, workspace_, {stream_});
  cuda::next_step(ring_, {stream_});
}

void DeviceWatch::verify(const Batch& batch) {
  cuda::verify(pool_, ring_, upload(batch), {Moment::head, VerifyPolicy::all, 0}, workspace_,
               {stream_});
}

std::uint64_t DeviceWatch::request_digest(const Batch& batch) {
  const auto* table = batch.req_to_token.as<const std::int32_t>();
  const std::int32_t* row = table + batch.rows[0] * batch.req_to_token.strides[0];
  const std::vector<std::int64_t> slots(row, row + batch.prefix_lens[0]);
  std::vector<Record> records(slots.size());
  on_store(slots, records, {});
  std::uint64_t h = records.size();
  for (const Record& r : records) h = mix(h, r.chain);
  return h;
}

void DeviceWatch::on_rank_digests(Owner owner, std::span<const std::uint64_t> digests) {
  for (const std::uint64_t digest : digests) {
    if (digest == digests[0]) continue;
    Violation v;
    v.reasons = Reason::digest_differs_across_ranks;
    v.request = owner;
    v.expected_digest = digests[0];
    v.stored_digest = digest;
    from_ranks_.push_back(std::move(v));
    return;
  }
}

void DeviceWatch::flush() {
  cuda::sweep(pool_, ring_, pool_.num_slots, workspace_, {stream_});
}

std::vector<Violation> DeviceWatch::poll() {
  std::vector<std::byte> copy(cuda::ring_bytes(ring_.capacity));
  check(cudaMemcpyAsync(copy.data(), ring_.memory.data, copy.size(), cudaMemcpyDeviceToHost,
                        stream_));
  check(cudaStreamSynchronize(stream_));
  // The ring keeps what it holds; as with a Monitor, a fault is told once, and again with a new
  // reason.
  std::vector<Violation> found = std::exchange(from_ranks_, {});
  std::vector<Violation> all = cuda::read_ring(copy, ring_.capacity).violations;
  reported_.resize(all.size(), Reason::none);
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (all[i].reasons == reported_[i]) continue;
    reported_[i] = all[i].reasons;
    found.push_back(std::move(all[i]));
  }
  return found;
}

TensorView DeviceWatch::slots_of(Slots slots) {
  return {slots_.put(slots, stream_), DType::i64, {size_of(slots)}, device_};
}

cuda::DeviceBatch DeviceWatch::upload(const Batch& batch) {
  const auto list = [this](DeviceArray& array, auto items, DType type) {
    return TensorView(array.put(items, stream_), type, {size_of(items)}, device_);
  };
  const auto table = [this](DeviceArray& array, const TensorView& t) {
    const std::span cells(t.as<const std::int32_t>(), static_cast<std::size_t>(t.numel()));
    return TensorView(array.put(cells, stream_), DType::i32, {t.shape[0], t.shape[1]}, device_);
  };
  cuda::DeviceBatch b;
  b.rows = list(rows_, batch.rows, DType::i64);
  b.prefix_lens = list(prefix_, batch.prefix_lens, DType::i64);
  b.extend_lens = list(extend_, batch.extend_lens, DType::i64);
  b.owners = list(owners_, batch.owners, DType::u32);
  b.req_to_token = table(table_, batch.req_to_token);
  b.input_ids = list(ids_, batch.input_ids, DType::i64);
  b.positions = list(positions_, batch.positions, DType::i64);
  b.out_cache_loc = list(locations_, batch.out_cache_loc, DType::i64);
  b.expected_tokens = table(expected_, batch.expected_tokens);
  b.valid_lens = list(valid_, batch.valid_lens, DType::i64);
  return b;
}

}  // namespace distributed
