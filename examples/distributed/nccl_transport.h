// The transport over NCCL: segments lie in the memory of this rank's GPU.
#pragma once

#include <cuda_runtime_api.h>
#include <nccl.h>

#include <chrono>
#include <span>
#include <string>

#include "socket_transport.h"
#include "transport.h"

namespace distributed {

/// Everything runs on a stream of its own, before whatever else the GPU has to do. A call returns
/// when the GPU is done with it; one that is not by the deadline aborts the communicator, so that
/// no kernel goes on waiting for a peer that is gone.
class NcclTransport : public Transport {
 public:
  /// The ranks of `control`, which outlives this, join a communicator, rank r with GPU r modulo
  /// their number. The current device is this rank's from here on.
  NcclTransport(SocketTransport& control, std::chrono::milliseconds timeout);
  ~NcclTransport() override;
  NcclTransport(const NcclTransport&) = delete;
  NcclTransport& operator=(const NcclTransport&) = delete;

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  void send(int peer, std::span<const Segment> segments) override;
  void receive(int peer, std::span<const Segment> segments) override;
  /// In host memory, as digests are: staged through the GPU's.
  void all_gather(Segment mine, Segment all) override;

  /// The two halves of send() and receive(), for who has other things to do meanwhile.
  void start_send(int peer, std::span<const Segment> segments);
  void start_receive(int peer, std::span<const Segment> segments);
  /// all_gather() of what lies on the GPU.
  void start_all_gather(Segment mine, Segment all);
  /// Waits for what was started; `peer` is who is blamed where it does not end.
  void finish(int peer, const char* doing);

  cudaStream_t stream() const noexcept { return stream_; }

 private:
  using Deadline = std::chrono::steady_clock::time_point;
  Deadline from_now() const;
  void join();
  void leave() noexcept;
  void check(cudaError_t error, const char* doing);
  void check(ncclResult_t result, const char* doing);
  void start(Deadline deadline, int peer, std::span<const Segment> segments, bool out);
  void start_all_gather(Deadline deadline, Segment mine, Segment all);
  void finish(Deadline deadline, int peer, const char* doing);
  /// Until NCCL has put on the stream what it was asked for.
  void settle(Deadline& deadline, int peer, const char* doing);
  /// Throws where the communicator is broken or the deadline over, which a peer that is gone (any
  /// one, where `peer` is -1) brings near: NCCL itself may wait for ever for one.
  void watch(Deadline& deadline, int peer, const char* doing);
  void require_whole(const char* doing);
  [[noreturn]] void fail(const std::string& what, const char* doing);

  SocketTransport& control_;
  int rank_, size_;
  std::chrono::milliseconds timeout_;
  cudaStream_t stream_ = nullptr;
  ncclComm_t comm_ = nullptr;
  std::uint8_t* staging_ = nullptr;
  std::int64_t staging_bytes_ = 0;
  bool broken_ = false;
};

}  // namespace distributed
