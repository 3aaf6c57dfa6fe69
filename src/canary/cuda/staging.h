// Bytes on their way to a GPU: gathered on the host, copied at once out of page-locked memory, and
// kept until what was launched behind the copy has read them. Nobody waits.
#pragma once

#include <cstddef>
#include <cstring>
#include <deque>
#include <initializer_list>
#include <span>
#include <vector>

#include <serinus/tensor.h>

#include "gpu/async.h"
#include "gpu/memory.h"

namespace serinus::canary::cuda {

class Staging {
 public:
  class Parcel;

  explicit Staging(Device device);

 private:
  /// Host and device memory of one copy; used again when the event has passed.
  struct Chunk {
    Chunk(Device device, std::size_t bytes)
        : host(device, bytes), memory(device, bytes), read(device) {}
    gpu::PinnedMemory host;
    gpu::Memory memory;
    gpu::Event read;
  };
  Chunk& take(std::size_t bytes);

  Device device_;
  std::deque<Chunk> chunks_;
  std::vector<std::byte> scratch_;
};

/// One copy, and what is launched until its end: one at a time.
class Staging::Parcel {
 public:
  Parcel(Staging& staging, Stream stream) : stream_(stream), staging_(staging) {
    staging_.scratch_.clear();
  }
  ~Parcel();
  Parcel(const Parcel&) = delete;
  Parcel& operator=(const Parcel&) = delete;

  Stream stream() const noexcept { return stream_; }

  // --- before send(): each gives the place of what it adds
  template <class T>
  std::size_t put(std::span<const T> values) {
    const std::size_t at = room(values.size_bytes());
    if (!values.empty()) {
      std::memcpy(staging_.scratch_.data() + at, values.data(), values.size_bytes());
    }
    return at;
  }
  template <class T>
  std::size_t put(const std::vector<T>& values) {
    return put(std::span<const T>(values));
  }
  std::size_t room(std::size_t bytes) {
    const std::size_t at = staging_.scratch_.size();
    staging_.scratch_.resize(at + (bytes + 15) / 16 * 16);
    return at;
  }
  void send();

  // --- after it
  TensorView view(std::size_t at, DType dtype, std::initializer_list<std::int64_t> shape) const {
    return {static_cast<std::byte*>(chunk_->memory.data()) + at, dtype, shape, staging_.device_};
  }
  const std::byte* host(std::size_t at) const { return chunk_->host.data() + at; }

 protected:
  const Stream stream_;

 private:
  Staging& staging_;
  Chunk* chunk_ = nullptr;
};

}  // namespace serinus::canary::cuda
