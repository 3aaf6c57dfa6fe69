// The memory of one pool: a buffer for every buffer of the layout in every layer, pages in order.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include <serinus/kv_layout.h>

#include "engine/zeroed_memory.h"
#include "gpu/memory.h"

namespace serinus::engine {

class KvPool {
 public:
  /// `num_pages` counts the null page 0. Without `real_data` there is no memory at all. On a GPU
  /// the pool is there, and what the host writes is a copy of it that send() brings over.
  KvPool(KvLayout layout, int num_layers, std::int64_t num_pages, bool real_data,
         Device device = {});

  const KvLayout& layout() const noexcept { return layout_; }
  int num_layers() const noexcept { return num_layers_; }
  std::int64_t num_slots() const noexcept { return num_pages_ * layout_.page_size; }
  bool has_bytes() const noexcept { return !buffers_.empty(); }
  /// Layer-major, as canary::PoolSpec wants them; empty without bytes.
  const std::vector<KvBuffer>& buffers() const noexcept { return buffers_; }
  /// The same on the pool's device.
  const std::vector<KvBuffer>& device_buffers() const noexcept {
    return on_device_.empty() ? buffers_ : device_buffers_;
  }
  /// Brings the pages that may have been written since to the device. Nothing to do on the CPU.
  void send() const;
  const KvBuffer& buffer(int layer, int buffer) const noexcept {
    return buffers_[static_cast<std::size_t>(layer * layout_.num_buffers() + buffer)];
  }

  /// Where a segment of a slot lies.
  std::uint8_t* at(int layer, const KvSegment& segment, std::int64_t slot) const noexcept {
    const KvBuffer& b = buffer(layer, segment.buffer);
    if (touched_ != nullptr) {
      touched_[static_cast<std::size_t>(slot / layout_.page_size)].store(true,
                                                                         std::memory_order_relaxed);
    }
    return b.data + byte_offset(layout_, segment, slot, b.page_stride);
  }

  /// Bytes of a token over all layers.
  std::int64_t token_bytes() const noexcept { return layout_.token_bytes() * num_layers_; }
  /// Copies the meaning bytes of a slot out, segment by segment, layer by layer: token_bytes() of
  /// them.
  void read_token(std::int64_t slot, std::span<std::uint8_t> out) const;
  void write_token(std::int64_t slot, std::span<const std::uint8_t> bytes) const;

  /// Runs of a page, per buffer, that belong to no segment: padding, whose content means nothing.
  struct Gap {
    int buffer = 0;
    std::int64_t offset = 0, bytes = 0;
  };
  const std::vector<Gap>& gaps() const noexcept { return gaps_; }

 private:
  KvLayout layout_;
  int num_layers_;
  std::int64_t num_pages_;
  std::vector<ZeroedMemory> memory_;
  std::vector<KvBuffer> buffers_;
  Device device_;
  std::vector<gpu::Memory> on_device_;
  std::vector<KvBuffer> device_buffers_;
  std::unique_ptr<std::atomic<bool>[]> touched_;  // pages, since the last send()
  std::vector<Gap> gaps_;
};

}  // namespace serinus::engine
