// The second tier: pages copied to host memory, each token's bytes together with its record, so
// that what comes back can be checked.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include <serinus/canary.h>

namespace serinus::engine {

class HostTier {
 public:
  /// `pools[i]` = bytes of a token in pool i (0 without bytes).
  HostTier(std::int64_t num_pages, std::int64_t page_size,
           std::span<const std::int64_t> token_bytes);

  std::int64_t num_pages() const noexcept { return num_pages_; }
  /// A free page, or -1.
  std::int64_t take();
  void give(std::int64_t page) { free_.push_back(page); }

  std::span<std::uint8_t> bytes(int pool, std::int64_t page, std::int64_t token);
  /// Records of a page's tokens in a pool.
  std::span<canary::Record> records(int pool, std::int64_t page);

 private:
  struct Pool {
    std::int64_t token_bytes = 0;
    std::vector<std::uint8_t> bytes;
    std::vector<canary::Record> records;
  };
  std::int64_t num_pages_, page_size_;
  std::vector<Pool> pools_;
  std::vector<std::int64_t> free_;
};

}  // namespace serinus::engine
