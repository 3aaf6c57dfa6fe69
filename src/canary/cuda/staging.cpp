#include "canary/cuda/staging.h"

namespace serinus::canary::cuda {

namespace {

constexpr std::size_t kSmallestChunk = 64 << 10;  // bytes
constexpr int kChunks = 16;                       // to begin with: two a step in flight

}  // namespace

Staging::Staging(Device device) : device_(device) {
  for (int i = 0; i < kChunks; ++i) chunks_.emplace_back(device, kSmallestChunk);
}

Staging::Chunk& Staging::take(std::size_t bytes) {
  for (Chunk& c : chunks_) {
    if (c.host.bytes() >= bytes && c.read.done()) return c;
  }
  std::size_t room = kSmallestChunk;
  while (room < bytes) room *= 2;
  return chunks_.emplace_back(device_, room);
}

Staging::Parcel::~Parcel() {
  if (chunk_ == nullptr) return;
  try {
    chunk_->read.record(stream_);
  } catch (...) {  // NOLINT(bugprone-empty-catch): the device has failed, as the next launch says
  }
}

void Staging::Parcel::send() {
  const std::size_t bytes = staging_.scratch_.size();
  if (bytes == 0) return;
  chunk_ = &staging_.take(bytes);
  std::memcpy(chunk_->host.data(), staging_.scratch_.data(), bytes);
  gpu::copy_to_device(staging_.device_, chunk_->memory.data(), chunk_->host.data(), bytes, stream_);
}

}  // namespace serinus::canary::cuda
