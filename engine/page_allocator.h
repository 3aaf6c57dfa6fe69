// Hands out pages of a pool. Deterministic: the same calls give the same pages.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace serinus::engine {

/// Who uses a page. Page 0, the null page, is reserved and never handed out.
enum class PageUse : std::uint8_t {
  free,
  request,  ///< private to the request that allocated it
  cached,   ///< belongs to the prefix cache; any number of requests may read it
  reserved,
};

class PageAllocator {
 public:
  /// `num_pages` counts page 0.
  explicit PageAllocator(std::int64_t num_pages);

  std::int64_t num_pages() const noexcept { return static_cast<std::int64_t>(use_.size()); }
  std::int64_t free_pages() const noexcept { return static_cast<std::int64_t>(free_.size()); }
  /// Pages that could ever be handed out at once.
  std::int64_t capacity() const noexcept { return num_pages() - 1; }

  /// Appends `count` pages to `out`, or none at all and returns false. The page freed last comes
  /// first, as in most engines: reuse is quick, which is what a canary has to stand.
  bool allocate(std::int64_t count, std::vector<std::int64_t>& out);
  /// A page that is not in use (a double free) is left alone and counted.
  void free(std::span<const std::int64_t> pages);
  /// The page now belongs to the prefix cache.
  void publish(std::int64_t page) { use_[static_cast<std::size_t>(page)] = PageUse::cached; }

  PageUse use(std::int64_t page) const noexcept { return use_[static_cast<std::size_t>(page)]; }
  std::int64_t double_frees() const noexcept { return double_frees_; }

 private:
  std::vector<PageUse> use_;
  std::vector<std::int64_t> free_;  // a stack
  std::int64_t double_frees_ = 0;
};

}  // namespace serinus::engine
