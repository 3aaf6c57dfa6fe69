#include "engine/page_allocator.h"

namespace serinus::engine {

PageAllocator::PageAllocator(std::int64_t num_pages)
    : use_(static_cast<std::size_t>(num_pages), PageUse::free) {
  use_[0] = PageUse::reserved;
  free_.reserve(use_.size());
  for (std::int64_t p = num_pages - 1; p >= 1; --p) free_.push_back(p);
}

bool PageAllocator::allocate(std::int64_t count, std::vector<std::int64_t>& out) {
  if (count > free_pages()) return false;
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t page = free_.back();
    free_.pop_back();
    use_[static_cast<std::size_t>(page)] = PageUse::request;
    out.push_back(page);
  }
  return true;
}

void PageAllocator::free(std::span<const std::int64_t> pages) {
  for (const std::int64_t page : pages) {
    PageUse& use = use_[static_cast<std::size_t>(page)];
    if (use == PageUse::free || use == PageUse::reserved) {
      ++double_frees_;
      continue;
    }
    use = PageUse::free;
    free_.push_back(page);
  }
}

}  // namespace serinus::engine
