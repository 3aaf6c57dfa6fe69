#include "engine/host_tier.h"

namespace serinus::engine {

HostTier::HostTier(std::int64_t num_pages, std::int64_t page_size,
                   std::span<const std::int64_t> token_bytes)
    : num_pages_(num_pages), page_size_(page_size) {
  for (const std::int64_t bytes : token_bytes) {
    const std::int64_t tokens = num_pages * page_size;
    pools_.push_back({bytes, std::vector<std::uint8_t>(static_cast<std::size_t>(tokens * bytes)),
                      std::vector<canary::Record>(static_cast<std::size_t>(tokens))});
  }
  for (std::int64_t p = num_pages - 1; p >= 0; --p) free_.push_back(p);
}

std::int64_t HostTier::take() {
  if (free_.empty()) return -1;
  const std::int64_t page = free_.back();
  free_.pop_back();
  return page;
}

std::span<std::uint8_t> HostTier::bytes(int pool, std::int64_t page, std::int64_t token) {
  Pool& p = pools_[static_cast<std::size_t>(pool)];
  return std::span(p.bytes).subspan(
      static_cast<std::size_t>((page * page_size_ + token) * p.token_bytes),
      static_cast<std::size_t>(p.token_bytes));
}

std::span<canary::Record> HostTier::records(int pool, std::int64_t page) {
  return std::span(pools_[static_cast<std::size_t>(pool)].records)
      .subspan(static_cast<std::size_t>(page * page_size_), static_cast<std::size_t>(page_size_));
}

}  // namespace serinus::engine
