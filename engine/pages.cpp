// Taking and giving pages: eviction, the allocators, the monitor and the SWA table in one place, so
// that they cannot disagree.
#include <algorithm>

#include "engine/engine.h"
#include "engine/watched.h"

namespace serinus::engine {

std::span<const std::int64_t> Engine::slots_of(std::span<const std::int64_t> pages,
                                               std::vector<std::int64_t>& slots) const {
  slots.clear();
  for (const std::int64_t page : pages) {
    for (std::int64_t i = 0; i < options_.page; ++i) slots.push_back(page * options_.page + i);
  }
  return slots;
}

bool Engine::take_pages(canary::Owner owner, std::int64_t count, std::vector<std::int64_t>& pages) {
  if (count == 0) return true;
  std::int64_t short_full = count - allocator_.free_pages();
  std::int64_t short_swa = swa_allocator_ ? count - swa_allocator_->free_pages() : 0;
  if (short_full > cache_.evictable_pages()) return false;
  std::vector<std::int64_t> evicted;
  while (short_full > 0 || short_swa > 0) {
    const std::int64_t page = cache_.evict();
    if (page < 0) break;
    evicted.push_back(page);
    --short_full;
    if (swa_allocator_ && full_to_swa_[static_cast<std::size_t>(page * options_.page)] != 0)
      --short_swa;
  }
  counters_.evicted_tokens += static_cast<std::int64_t>(evicted.size()) * options_.page;
  if (!evicted.empty()) give_pages(evicted);
  if (allocator_.free_pages() < count || (swa_allocator_ && swa_allocator_->free_pages() < count))
    return false;

  const std::size_t first = pages.size();
  allocator_.allocate(count, pages);
  const std::span<std::int64_t> taken = std::span(pages).subspan(first);
  std::vector<std::int64_t> swa;
  if (swa_allocator_) {
    swa_allocator_->allocate(count, swa);
    for (std::size_t i = 0; i < taken.size(); ++i) {
      for (std::int64_t t = 0; t < options_.page; ++t)
        full_to_swa_[static_cast<std::size_t>(taken[i] * options_.page + t)] =
            swa[i] * options_.page + t;
    }
  }
  if (injector_ != nullptr) injector_->after_alloc(*this, owner, taken);
  watched([&](canary::Monitor& m) {
    const auto slots = slots_of(taken, slots_scratch_);
    m.on_alloc(0, slots, owner);
    if (draft_pool_ >= 0) m.on_alloc(draft_pool_, slots, owner);
    if (swa_pool_ >= 0) m.on_alloc(swa_pool_, slots_of(swa, slots_scratch_), owner);
  });
  return true;
}

void Engine::give_pages(std::span<const std::int64_t> pages) {
  if (pages.empty()) return;
  if (injector_ != nullptr) injector_->before_free(*this, pages);
  give_swa(pages);
  const auto slots = slots_of(pages, slots_scratch_);
  watched([&](canary::Monitor& m) {
    m.on_free(0, slots);
    if (draft_pool_ >= 0) m.on_free(draft_pool_, slots);
  });
  faults_.freed(0, slots, step_);
  if (draft_pool_ >= 0) faults_.freed(draft_pool_, slots, step_);
  allocator_.free(pages);
  if (injector_ != nullptr) injector_->after_free(*this, pages);
}

void Engine::give_swa(std::span<const std::int64_t> pages) {
  if (!swa_allocator_) return;
  std::vector<std::int64_t> swa;
  for (const std::int64_t page : pages) {
    const auto cells = std::span(full_to_swa_)
                           .subspan(static_cast<std::size_t>(page * options_.page),
                                    static_cast<std::size_t>(options_.page));
    if (cells[0] == 0) continue;
    swa.push_back(cells[0] / options_.page);
    std::fill(cells.begin(), cells.end(), 0);
  }
  if (swa.empty()) return;
  std::vector<std::int64_t> slots;
  slots_of(swa, slots);
  watched([&](canary::Monitor& m) { m.on_free(swa_pool_, slots); });
  faults_.freed(swa_pool_, slots, step_);
  swa_allocator_->free(swa);
}

// The cache holds these pages from now on; `from` goes on reading them.
void Engine::hand_to_cache(std::span<const std::int64_t> pages, canary::Owner from) {
  if (pages.empty()) return;
  watched([&](canary::Monitor& m) {
    const auto slots = slots_of(pages, slots_scratch_);
    m.on_transfer(0, slots, from, kCacheOwner);
    if (draft_pool_ >= 0) m.on_transfer(draft_pool_, slots, from, kCacheOwner);
    if (swa_pool_ < 0) return;
    std::vector<std::int64_t> swa;
    for (const std::int64_t slot : slots) {
      if (const std::int64_t s = full_to_swa_[static_cast<std::size_t>(slot)]; s != 0)
        swa.push_back(s);
    }
    m.on_transfer(swa_pool_, swa, from, kCacheOwner);
  });
}

}  // namespace serinus::engine
