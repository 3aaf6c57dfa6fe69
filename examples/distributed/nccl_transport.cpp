#include "nccl_transport.h"

#include <algorithm>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <serinus/error.h>

namespace distributed {

namespace {
constexpr const char *kJoining = "joining the communicator", *kSending = "sending to it",
                     *kReceiving = "receiving from it", *kGathering = "gathering from all ranks";
}  // namespace

NcclTransport::NcclTransport(SocketTransport& control, std::chrono::milliseconds timeout)
    : control_(control), rank_(control.rank()), size_(control.size()), timeout_(timeout) {
  int gpus = 0;
  check(cudaGetDeviceCount(&gpus), kJoining);
  check(cudaSetDevice(rank_ % gpus), kJoining);
  // Whatever else the GPU does, bytes go first: a transfer needs few SMs, but needs them soon.
  int least = 0, most = 0;
  check(cudaDeviceGetStreamPriorityRange(&least, &most), kJoining);
  check(cudaStreamCreateWithPriority(&stream_, cudaStreamNonBlocking, most), kJoining);

  ncclUniqueId id;
  const std::vector name = {segment_of(std::span(&id, 1))};
  if (rank_ == 0) {
    check(ncclGetUniqueId(&id), kJoining);
    for (int peer = 1; peer < size_; ++peer) control.send(peer, name);
  } else {
    control.receive(0, name);
  }
  // Not blocking: a call that a lost peer would hold for ever comes back, and is polled.
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  check(ncclCommInitRankConfig(&comm_, size_, id, rank_, &config), kJoining);
  finish(0, kJoining);
}

NcclTransport::~NcclTransport() {
  if (comm_ != nullptr) {
    ncclResult_t state = ncclCommFinalize(comm_);
    const auto deadline = std::chrono::steady_clock::now() + timeout_;
    while (state == ncclInProgress && std::chrono::steady_clock::now() < deadline) {
      std::this_thread::yield();
      ncclCommGetAsyncError(comm_, &state);
    }
    if (state == ncclSuccess) {
      ncclCommDestroy(comm_);
    } else {
      ncclCommAbort(comm_);
    }
  }
  cudaFree(staging_);
  if (stream_ != nullptr) cudaStreamDestroy(stream_);
}

void NcclTransport::send(int peer, std::span<const Segment> segments) {
  start_send(peer, segments);
  finish(peer, kSending);
}

void NcclTransport::receive(int peer, std::span<const Segment> segments) {
  start_receive(peer, segments);
  finish(peer, kReceiving);
}

void NcclTransport::start_send(int peer, std::span<const Segment> segments) {
  require_whole(kSending);
  check(ncclGroupStart(), kSending);
  for (const Segment& s : segments) {
    check(ncclSend(s.data, static_cast<std::size_t>(s.bytes), ncclUint8, peer, comm_, stream_),
          kSending);
  }
  check(ncclGroupEnd(), kSending);
  Deadline deadline = std::chrono::steady_clock::now() + timeout_;
  settle(deadline, peer, kSending);
}

void NcclTransport::start_receive(int peer, std::span<const Segment> segments) {
  require_whole(kReceiving);
  check(ncclGroupStart(), kReceiving);
  for (const Segment& s : segments) {
    check(ncclRecv(s.data, static_cast<std::size_t>(s.bytes), ncclUint8, peer, comm_, stream_),
          kReceiving);
  }
  check(ncclGroupEnd(), kReceiving);
  Deadline deadline = std::chrono::steady_clock::now() + timeout_;
  settle(deadline, peer, kReceiving);
}

void NcclTransport::all_gather(Segment mine, Segment all) {
  require_whole(kGathering);
  if (staging_bytes_ < all.bytes) {
    check(cudaFree(staging_), kGathering);
    staging_ = nullptr;
    check(cudaMalloc(reinterpret_cast<void**>(&staging_), static_cast<std::size_t>(all.bytes)),
          kGathering);
    staging_bytes_ = all.bytes;
  }
  // In place: this rank's part lies where the result has it.
  std::uint8_t* own = staging_ + rank_ * mine.bytes;
  check(cudaMemcpyAsync(own, mine.data, static_cast<std::size_t>(mine.bytes),
                        cudaMemcpyHostToDevice, stream_),
        kGathering);
  start_all_gather({own, mine.bytes}, {staging_, all.bytes});
  finish((rank_ + 1) % size_, kGathering);
  check(cudaMemcpyAsync(all.data, staging_, static_cast<std::size_t>(all.bytes),
                        cudaMemcpyDeviceToHost, stream_),
        kGathering);
  check(cudaStreamSynchronize(stream_), kGathering);
}

void NcclTransport::start_all_gather(Segment mine, Segment all) {
  require_whole(kGathering);
  check(ncclAllGather(mine.data, all.data, static_cast<std::size_t>(mine.bytes), ncclUint8, comm_,
                      stream_),
        kGathering);
  Deadline deadline = std::chrono::steady_clock::now() + timeout_;
  settle(deadline, (rank_ + 1) % size_, kGathering);
}

void NcclTransport::settle(Deadline& deadline, int peer, const char* doing) {
  for (;;) {
    ncclResult_t state = ncclSuccess;
    check(ncclCommGetAsyncError(comm_, &state), doing);
    check(state, doing);
    if (state == ncclSuccess) return;
    watch(deadline, peer, doing);
  }
}

void NcclTransport::finish(int peer, const char* doing) {
  Deadline deadline = std::chrono::steady_clock::now() + timeout_;
  settle(deadline, peer, doing);  // until then, an empty stream means nothing
  for (;;) {
    const cudaError_t stream = cudaStreamQuery(stream_);
    if (stream == cudaSuccess) return;
    if (stream != cudaErrorNotReady) check(stream, doing);
    watch(deadline, peer, doing);
  }
}

void NcclTransport::watch(Deadline& deadline, int peer, const char* doing) {
  ncclResult_t state = ncclSuccess;
  check(ncclCommGetAsyncError(comm_, &state), doing);
  check(state, doing);
  const bool gone = peer != rank_ && control_.has_hung_up(peer);
  const auto now = std::chrono::steady_clock::now();
  // What a peer sent before it went may still be on its way.
  if (gone) deadline = std::min(deadline, now + std::chrono::seconds(1));
  if (now < deadline) {
    std::this_thread::yield();
    return;
  }
  broken_ = true;
  ncclCommAbort(std::exchange(comm_, nullptr));  // no kernel goes on waiting
  if (gone) {
    serinus::raise(
        "peer-lost",
        {{"peer", std::to_string(peer)}, {"got", "its process hung up"}, {"doing", doing}});
  }
  serinus::raise("peer-silent", {{"peer", std::to_string(peer)},
                                 {"got", std::to_string(timeout_.count())},
                                 {"doing", doing}});
}

void NcclTransport::require_whole(const char* doing) {
  if (broken_) fail("an earlier call failed", doing);
}

void NcclTransport::check(cudaError_t error, const char* doing) {
  if (error != cudaSuccess) fail(cudaGetErrorString(error), doing);
}

void NcclTransport::check(ncclResult_t result, const char* doing) {
  if (result == ncclSuccess || result == ncclInProgress) return;
  const std::string what = ncclGetErrorString(result);
  if (comm_ != nullptr) ncclCommAbort(std::exchange(comm_, nullptr));
  fail(what, doing);
}

void NcclTransport::fail(const std::string& what, const char* doing) {
  broken_ = true;
  serinus::raise("nccl-failed", {{"rank", std::to_string(rank_)}, {"got", what}, {"doing", doing}});
}

}  // namespace distributed
