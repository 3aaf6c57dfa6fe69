// The canary over a pool in the memory of a GPU: records, ledger and verification by the kernels of
// serinus/canary_cuda.h, on a stream of their own. What an engine keeps on the device anyway
// (tables, lengths, slots) is copied there call by call here: an example for its clearness, not for
// speed.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <span>
#include <vector>

#include <serinus/canary_cuda.h>

#include "watch.h"

namespace distributed {

/// Device memory that grows with what is put into it.
class DeviceArray {
 public:
  DeviceArray() = default;
  ~DeviceArray() { cudaFree(data_); }
  DeviceArray(const DeviceArray&) = delete;
  DeviceArray& operator=(const DeviceArray&) = delete;

  /// A view of at least `bytes` bytes; what was there is lost where it had to grow.
  void* reserve(std::size_t bytes);
  template <class T>
  T* put(std::span<const T> items, cudaStream_t stream) {
    return static_cast<T*>(put_bytes(items.data(), items.size_bytes(), stream));
  }

 private:
  void* put_bytes(const void* from, std::size_t bytes, cudaStream_t stream);
  void* data_ = nullptr;
  std::size_t bytes_ = 0;
};

class DeviceWatch : public Watch {
 public:
  explicit DeviceWatch(const serinus::canary::Options& options);
  ~DeviceWatch() override;
  DeviceWatch(const DeviceWatch&) = delete;
  DeviceWatch& operator=(const DeviceWatch&) = delete;

  void add_pool(const serinus::canary::PoolSpec& spec, std::int64_t rows) override;
  void on_alloc(Slots slots, Owner owner) override;
  void on_free(Slots slots, Owner owner) override;
  void on_release(Owner) override {}  // nobody attached anything
  void on_store(Slots slots, std::span<Record> records, std::span<std::uint32_t>) override;
  void on_load(std::span<const Record> records, Slots slots, Owner owner,
               std::span<const std::uint32_t>) override;
  void begin_step(const Batch& batch) override;
  void end_step(const Batch& batch) override;
  void verify(const Batch& batch) override;
  std::uint64_t request_digest(const Batch& batch) override;
  void on_rank_digests(Owner owner, std::span<const std::uint64_t> digests) override;
  void flush() override;
  std::vector<serinus::canary::Violation> poll() override;
  std::int64_t source_digests() const override { return 0; }

 private:
  serinus::TensorView slots_of(Slots slots);
  serinus::canary::cuda::DeviceBatch upload(const Batch& batch);

  serinus::canary::Options options_;
  serinus::Device device_{serinus::DeviceType::cuda, 0};
  cudaStream_t stream_ = nullptr;
  serinus::canary::cuda::DevicePool pool_;
  serinus::canary::cuda::DeviceRing ring_;
  std::uint32_t epoch_ = 0;
  serinus::TensorView workspace_;
  DeviceArray records_, ledger_, state_, ring_memory_, workspace_memory_, slots_, some_records_;
  DeviceArray rows_, prefix_, extend_, owners_, table_, ids_, positions_, locations_, expected_,
      valid_;
  std::vector<serinus::canary::Reason> reported_;       // of each fault in the ring, so far
  std::vector<serinus::canary::Violation> from_ranks_;  // not polled yet
};

}  // namespace distributed
