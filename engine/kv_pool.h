// The memory of one pool: a buffer for every buffer of the layout in every layer, pages in order.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include <serinus/kv_layout.h>

#include "engine/zeroed_memory.h"

namespace serinus::engine {

class KvPool {
 public:
  /// `num_pages` counts the null page 0. Without `real_data` there is no memory at all.
  KvPool(KvLayout layout, int num_layers, std::int64_t num_pages, bool real_data);

  const KvLayout& layout() const noexcept { return layout_; }
  int num_layers() const noexcept { return num_layers_; }
  std::int64_t num_slots() const noexcept { return num_pages_ * layout_.page_size; }
  bool has_bytes() const noexcept { return !buffers_.empty(); }
  /// Layer-major, as canary::PoolSpec wants them; empty without bytes.
  const std::vector<KvBuffer>& buffers() const noexcept { return buffers_; }
  const KvBuffer& buffer(int layer, int buffer) const noexcept {
    return buffers_[static_cast<std::size_t>(layer * layout_.num_buffers() + buffer)];
  }

  /// Where a segment of a slot lies.
  std::uint8_t* at(int layer, const KvSegment& segment, std::int64_t slot) const noexcept {
    const KvBuffer& b = buffer(layer, segment.buffer);
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
  std::vector<Gap> gaps_;
};

}  // namespace serinus::engine
