#include "engine/kv_pool.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "gpu/async.h"

namespace serinus::engine {

namespace {

std::vector<KvPool::Gap> gaps_of(const KvLayout& layout) {
  std::vector<KvPool::Gap> gaps;
  for (int b = 0; b < layout.num_buffers(); ++b) {
    std::vector<std::pair<std::int64_t, std::int64_t>> used;
    for (const KvSegment& s : layout.segments) {
      if (s.buffer != b) continue;
      for (std::int64_t t = 0; t < layout.page_size; ++t)
        used.emplace_back(s.offset + t * s.token_stride, s.bytes);
    }
    std::sort(used.begin(), used.end());
    std::int64_t at = 0;
    for (const auto& [offset, bytes] : used) {
      if (offset > at) gaps.push_back({b, at, offset - at});
      at = std::max(at, offset + bytes);
    }
    const std::int64_t end = layout.page_bytes[static_cast<std::size_t>(b)];
    if (end > at) gaps.push_back({b, at, end - at});
  }
  return gaps;
}

}  // namespace

KvPool::KvPool(KvLayout layout, int num_layers, std::int64_t num_pages, bool real_data,
               Device device)
    : layout_(std::move(layout)), num_layers_(num_layers), num_pages_(num_pages), device_(device) {
  if (!real_data) return;
  for (int l = 0; l < num_layers; ++l) {
    for (const std::int64_t page_bytes : layout_.page_bytes) {
      memory_.emplace_back(static_cast<std::size_t>(page_bytes * num_pages));
      buffers_.push_back({memory_.back().as<std::uint8_t>(), page_bytes * num_pages, page_bytes});
    }
  }
  gaps_ = gaps_of(layout_);
  if (device.type == DeviceType::cpu) return;
  for (const KvBuffer& b : buffers_) {
    on_device_.emplace_back(device, b.data, static_cast<std::size_t>(b.bytes));
    device_buffers_.push_back(
        {static_cast<std::uint8_t*>(on_device_.back().data()), b.bytes, b.page_stride});
  }
  touched_ = std::make_unique<std::atomic<bool>[]>(static_cast<std::size_t>(num_pages));
}

void KvPool::send() const {
  if (touched_ == nullptr) return;
  const auto taken = [&](std::int64_t page) {
    return page < num_pages_ && touched_[static_cast<std::size_t>(page)].exchange(false);
  };
  for (std::int64_t page = 0; page < num_pages_; ++page) {
    if (!taken(page)) continue;
    const std::int64_t first = page;
    while (taken(page + 1)) ++page;
    for (std::size_t i = 0; i < buffers_.size(); ++i) {
      const KvBuffer& b = buffers_[i];
      gpu::copy_to_device(device_, device_buffers_[i].data + first * b.page_stride,
                          b.data + first * b.page_stride,
                          static_cast<std::size_t>((page + 1 - first) * b.page_stride), {});
    }
  }
}

void KvPool::read_token(std::int64_t slot, std::span<std::uint8_t> out) const {
  std::uint8_t* to = out.data();
  for (int l = 0; l < num_layers_; ++l) {
    for (const KvSegment& s : layout_.segments) {
      std::memcpy(to, at(l, s, slot), static_cast<std::size_t>(s.bytes));
      to += s.bytes;
    }
  }
}

void KvPool::write_token(std::int64_t slot, std::span<const std::uint8_t> bytes) const {
  const std::uint8_t* from = bytes.data();
  for (int l = 0; l < num_layers_; ++l) {
    for (const KvSegment& s : layout_.segments) {
      std::memcpy(at(l, s, slot), from, static_cast<std::size_t>(s.bytes));
      from += s.bytes;
    }
  }
}

}  // namespace serinus::engine
