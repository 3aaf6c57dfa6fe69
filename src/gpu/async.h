// What runs beside the host: page-locked memory, events, a stream of one's own, copies in stream
// order. No CUDA header here; without CUDA in the build, absent.cpp refuses.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

#include <serinus/tensor.h>

namespace serinus::gpu {

/// Host memory that a device copies from and to without the host's help. Not initialised.
class PinnedMemory {
 public:
  PinnedMemory(Device device, std::size_t bytes);
  ~PinnedMemory();
  PinnedMemory(PinnedMemory&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), bytes_(other.bytes_) {}
  PinnedMemory& operator=(PinnedMemory&&) = delete;

  std::byte* data() const noexcept { return static_cast<std::byte*>(data_); }
  std::size_t bytes() const noexcept { return bytes_; }

 private:
  void* data_ = nullptr;
  std::size_t bytes_ = 0;
};

/// A point in a stream. Done before it is recorded for the first time.
class Event {
 public:
  explicit Event(Device device);
  ~Event();
  Event(Event&& other) noexcept
      : device_(other.device_), handle_(std::exchange(other.handle_, nullptr)) {}
  Event& operator=(Event&&) = delete;

  void record(Stream stream);
  bool done() const;
  /// What comes later in `stream` waits for it; the host does not.
  void hold(Stream stream) const;

 private:
  Device device_;
  void* handle_ = nullptr;
};

/// A stream that waits for no other, the default stream included.
class OwnStream {
 public:
  explicit OwnStream(Device device);
  ~OwnStream();
  OwnStream(const OwnStream&) = delete;
  OwnStream& operator=(const OwnStream&) = delete;
  Stream get() const noexcept { return {handle_}; }

 private:
  void* handle_ = nullptr;
};

/// While it lives, this thread may allocate and ask for events although a stream is captured; what
/// it does is no part of the graph.
class BesideCapture {
 public:
  BesideCapture();
  ~BesideCapture();
  BesideCapture(const BesideCapture&) = delete;
  BesideCapture& operator=(const BesideCapture&) = delete;

 private:
  [[maybe_unused]] int mode_ = 0;  // without CUDA there is none
};

/// The capture that `stream` is in: a number of its own, or 0.
std::uint64_t capture_of(Device device, Stream stream);

void copy_to_device(Device device, void* to, const void* from, std::size_t bytes, Stream stream);
void copy_to_host(Device device, void* to, const void* from, std::size_t bytes, Stream stream);
/// Waits for all that the device has to do.
void synchronize(Device device);
/// Waits for what lies in `stream`.
void synchronize(Device device, Stream stream);

}  // namespace serinus::gpu
