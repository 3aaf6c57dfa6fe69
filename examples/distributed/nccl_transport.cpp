#include "nccl_transport.h"

#include <algorithm>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <serinus/error.h>

namespace distributed {

namespace {
constexpr int kAnybody = -1;
constexpr const char *kJoining = "joining the communicator", *kSending = "sending to it",
                     *kReceiving = "receiving from it", *kGathering = "gathering from all ranks";
}  // namespace

NcclTransport::NcclTransport(SocketTransport& control, std::chrono::milliseconds timeout)
    : control_(control), rank_(control.rank()), size_(control.size()), timeout_(timeout) {
  try {
    join();
  } catch (...) {
    leave();
    throw;
  }
}

NcclTransport::~NcclTransport() {
  if (comm_ != nullptr && !broken_) {
    ncclResult_t state = ncclCommFinalize(comm_);
    const Deadline deadline = from_now();
    while (state == ncclInProgress && std::chrono::steady_clock::now() < deadline) {
      std::this_thread::yield();
      ncclCommGetAsyncError(comm_, &state);
    }
    if (state == ncclSuccess) ncclCommDestroy(std::exchange(comm_, nullptr));
  }
  leave();
}

void NcclTransport::join() {
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
    for (int peer = 1; peer < size_; ++peer) control_.send(peer, name);
  } else {
    control_.receive(0, name);
  }
  // Not blocking: a call that a lost peer would hold for ever comes back, and is polled.
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  check(ncclCommInitRankConfig(&comm_, size_, id, rank_, &config), kJoining);
  finish(from_now(), kAnybody, kJoining);
}

void NcclTransport::leave() noexcept {
  if (comm_ != nullptr) ncclCommAbort(std::exchange(comm_, nullptr));
  cudaFree(std::exchange(staging_, nullptr));
  if (stream_ != nullptr) cudaStreamDestroy(std::exchange(stream_, nullptr));
}

void NcclTransport::send(int peer, std::span<const Segment> segments) {
  const Deadline deadline = from_now();
  start(deadline, peer, segments, true);
  finish(deadline, peer, kSending);
}

void NcclTransport::receive(int peer, std::span<const Segment> segments) {
  const Deadline deadline = from_now();
  start(deadline, peer, segments, false);
  finish(deadline, peer, kReceiving);
}

void NcclTransport::start_send(int peer, std::span<const Segment> segments) {
  start(from_now(), peer, segments, true);
}

void NcclTransport::start_receive(int peer, std::span<const Segment> segments) {
  start(from_now(), peer, segments, false);
}

void NcclTransport::start(Deadline deadline, int peer, std::span<const Segment> segments,
                          bool out) {
  const char* doing = out ? kSending : kReceiving;
  require_whole(doing);
  check(ncclGroupStart(), doing);
  ncclResult_t result = ncclSuccess;
  for (const Segment& s : segments) {
    const auto bytes = static_cast<std::size_t>(s.bytes);
    result = out ? ncclSend(s.data, bytes, ncclUint8, peer, comm_, stream_)
                 : ncclRecv(s.data, bytes, ncclUint8, peer, comm_, stream_);
    if (result != ncclSuccess) break;
  }
  // Whatever happened: a group that stays open would swallow all later calls.
  const ncclResult_t ended = ncclGroupEnd();
  check(result, doing);
  check(ended, doing);
  settle(deadline, peer, doing);
}

void NcclTransport::all_gather(Segment mine, Segment all) {
  const Deadline deadline = from_now();
  require_whole(kGathering);
  if (staging_bytes_ < all.bytes) {
    check(cudaFree(std::exchange(staging_, nullptr)), kGathering);
    check(cudaMalloc(reinterpret_cast<void**>(&staging_), static_cast<std::size_t>(all.bytes)),
          kGathering);
    staging_bytes_ = all.bytes;
  }
  // In place: this rank's part lies where the result has it.
  std::uint8_t* own = staging_ + rank_ * mine.bytes;
  check(cudaMemcpyAsync(own, mine.data, static_cast<std::size_t>(mine.bytes),
                        cudaMemcpyHostToDevice, stream_),
        kGathering);
  start_all_gather(deadline, {own, mine.bytes}, {staging_, all.bytes});
  finish(deadline, kAnybody, kGathering);
  check(cudaMemcpyAsync(all.data, staging_, static_cast<std::size_t>(all.bytes),
                        cudaMemcpyDeviceToHost, stream_),
        kGathering);
  check(cudaStreamSynchronize(stream_), kGathering);
}

void NcclTransport::start_all_gather(Segment mine, Segment all) {
  start_all_gather(from_now(), mine, all);
}

void NcclTransport::start_all_gather(Deadline deadline, Segment mine, Segment all) {
  require_whole(kGathering);
  check(ncclAllGather(mine.data, all.data, static_cast<std::size_t>(mine.bytes), ncclUint8, comm_,
                      stream_),
        kGathering);
  settle(deadline, kAnybody, kGathering);
}

void NcclTransport::finish(int peer, const char* doing) {
  finish(from_now(), peer, doing);
}

NcclTransport::Deadline NcclTransport::from_now() const {
  return std::chrono::steady_clock::now() + timeout_;
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

void NcclTransport::finish(Deadline deadline, int peer, const char* doing) {
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
  int gone = kAnybody;
  for (int r = 0; r < size_; ++r) {
    if ((peer == kAnybody || peer == r) && r != rank_ && control_.has_hung_up(r)) gone = r;
  }
  const auto now = std::chrono::steady_clock::now();
  // What a peer sent before it went may still be on its way.
  if (gone != kAnybody) deadline = std::min(deadline, now + std::chrono::seconds(1));
  if (now < deadline) {
    std::this_thread::yield();
    return;
  }
  broken_ = true;
  ncclCommAbort(std::exchange(comm_, nullptr));  // no kernel goes on waiting
  if (gone != kAnybody) {
    serinus::raise(
        "peer-lost",
        {{"peer", std::to_string(gone)}, {"got", "its process hung up"}, {"doing", doing}});
  }
  // Of several nobody can tell which one it is.
  const std::string who = peer != kAnybody ? std::to_string(peer)
                          : size_ == 2     ? std::to_string(1 - rank_)
                                           : "0.." + std::to_string(size_ - 1);
  serinus::raise("peer-silent",
                 {{"peer", who}, {"got", std::to_string(timeout_.count())}, {"doing", doing}});
}

void NcclTransport::require_whole(const char* doing) {
  if (broken_) fail("an earlier call failed", doing);
}

void NcclTransport::check(cudaError_t error, const char* doing) {
  if (error != cudaSuccess) fail(cudaGetErrorString(error), doing);
}

void NcclTransport::check(ncclResult_t result, const char* doing) {
  if (result != ncclSuccess && result != ncclInProgress) fail(ncclGetErrorString(result), doing);
}

void NcclTransport::fail(const std::string& what, const char* doing) {
  broken_ = true;
  if (comm_ != nullptr) ncclCommAbort(std::exchange(comm_, nullptr));
  serinus::raise("nccl-failed", {{"rank", std::to_string(rank_)}, {"got", what}, {"doing", doing}});
}

}  // namespace distributed
