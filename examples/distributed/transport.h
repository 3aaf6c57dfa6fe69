// How bytes get from one rank to another. Engines have a transport already (NCCL, NIXL, Mooncake,
// RDMA of their own); what they have in common is this small: runs of memory go to a peer, a fixed
// number of bytes is gathered from everybody, and a peer may be gone or silent.
#pragma once

#include <chrono>
#include <cstdint>
#include <span>

namespace distributed {

/// A run of bytes, in the kind of memory that the transport moves.
struct Segment {
  std::uint8_t* data = nullptr;
  std::int64_t bytes = 0;
};

/// The segment over an object: a message, a list of records.
template <class T>
Segment segment_of(std::span<T> items) {
  return {reinterpret_cast<std::uint8_t*>(const_cast<std::remove_const_t<T>*>(items.data())),
          static_cast<std::int64_t>(items.size_bytes())};
}

/// One rank's end. Every call returns when its part is done, or throws serinus::RuntimeError
/// (peer-lost, peer-silent) by its deadline: `timeout` from the start of the call. A transport that
/// has thrown is broken, as bytes may be missing in the middle: every later call throws.
class Transport {
 public:
  virtual ~Transport() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;  ///< ranks, this one included
  /// Sends the segments in order; the peer receives segments of the same lengths.
  virtual void send(int peer, std::span<const Segment> segments) = 0;
  virtual void receive(int peer, std::span<const Segment> segments) = 0;
  /// `mine` of every rank, in the order of ranks, into `all`: all.bytes == size() * mine.bytes.
  virtual void all_gather(Segment mine, Segment all) = 0;
};

}  // namespace distributed
