// The second tier: stores and loads that are issued in one step and land in a later one.
#include <algorithm>

#include "engine/engine.h"
#include "engine/watched.h"

namespace serinus::engine {

// Stores are written through: what is published is copied, so that eviction costs nothing.
void Engine::issue_store(const Request& r, std::size_t first) {
  Transfer t;
  t.kind = Transfer::Kind::store;
  t.owner = r.owner;
  t.issued = step_;
  t.lands = step_ + options_.transfer_steps;
  std::size_t i = first;
  for (; i < r.path.size(); ++i) {
    const RadixCache::Node n = r.path[i];
    if (cache_.host_page(n) >= 0 || storing_.contains(n)) {
      if (!t.pages.empty()) break;
      continue;
    }
    const RadixCache::Node parent = cache_.parent(n);
    if (parent != RadixCache::kRoot && cache_.host_page(parent) < 0 && !storing_.contains(parent))
      break;
    std::int64_t host_page = host_->take();
    if (host_page < 0) host_page = cache_.evict_host();
    if (host_page < 0) break;
    storing_.insert(n);
    t.pages.push_back(cache_.page(n));
    t.host_pages.push_back(host_page);
  }
  if (t.pages.empty()) return;
  t.path.assign(r.path.begin(), r.path.begin() + static_cast<std::ptrdiff_t>(i));
  cache_.lock(t.path);
  transfers_.push_back(std::move(t));
}

// False where the pages for it cannot be had.
bool Engine::issue_load(Request& r, const std::vector<RadixCache::Node>& path,
                        std::size_t on_device) {
  Transfer t;
  t.kind = Transfer::Kind::load;
  t.owner = r.owner;
  t.issued = step_;
  t.lands = step_ + options_.transfer_steps;
  t.path = path;
  const auto nodes = std::span(path).subspan(on_device);
  cache_.lock(t.path);
  if (!take_pages(kCacheOwner, static_cast<std::int64_t>(nodes.size()), t.pages)) {
    cache_.unlock(t.path);
    return false;
  }
  for (const RadixCache::Node n : nodes) {
    t.host_pages.push_back(cache_.host_page(n));
    cache_.set_loading(n);
  }
  transfers_.push_back(std::move(t));
  return true;
}

void Engine::land(Transfer& t) {
  if (injector_ != nullptr) injector_->before_transfer(*this, t);
  if (t.kind == Transfer::Kind::store)
    land_store(t);
  else
    land_load(t);
  if (injector_ != nullptr) injector_->after_transfer(*this, t);
}

void Engine::land_store(Transfer& t) {
  const auto nodes = std::span(t.path).last(t.pages.size());
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    std::vector<std::int64_t> slots;
    slots_of(std::span(t.pages).subspan(i, 1), slots);
    for (std::size_t p = 0; p < pools_.size(); ++p) {
      const int pool = static_cast<int>(p);
      const KvPool& kv = pools_[p].kv;
      watched([&](canary::Monitor& m) {
        m.on_store(pool, slots, host_->records(pool, t.host_pages[i]));
      });
      for (std::int64_t token = 0; token < options_.page; ++token) {
        const std::int64_t slot = slots[static_cast<std::size_t>(token)];
        if (kv.has_bytes()) kv.read_token(slot, host_->bytes(pool, t.host_pages[i], token));
        if (!faults_.empty())
          faults_.carried(pool, slot, FaultLog::kHostPools + pool,
                          t.host_pages[i] * options_.page + token);
      }
    }
    storing_.erase(nodes[i]);
    cache_.set_host_page(nodes[i], t.host_pages[i]);
  }
  counters_.stored_tokens += static_cast<std::int64_t>(nodes.size()) * options_.page;
  cache_.unlock(t.path);
}

void Engine::land_load(Transfer& t) {
  const auto nodes = std::span(t.path).last(t.pages.size());
  std::vector<std::int64_t> slots;
  slots_of(t.pages, slots);
  for (std::size_t p = 0; p < pools_.size(); ++p) {
    const int pool = static_cast<int>(p);
    const KvPool& kv = pools_[p].kv;
    std::vector<canary::Record> records;
    for (std::size_t i = 0; i < nodes.size(); ++i) {
      const auto page_records = host_->records(pool, t.host_pages[i]);
      records.insert(records.end(), page_records.begin(), page_records.end());
      for (std::int64_t token = 0; token < options_.page; ++token) {
        const std::int64_t slot = t.pages[i] * options_.page + token;
        if (kv.has_bytes()) kv.write_token(slot, host_->bytes(pool, t.host_pages[i], token));
        if (!faults_.empty())
          faults_.carried(FaultLog::kHostPools + pool, t.host_pages[i] * options_.page + token,
                          pool, slot);
      }
    }
    watched([&](canary::Monitor& m) { m.on_load(pool, records, slots, kCacheOwner); });
  }
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    cache_.set_loaded(nodes[i], t.pages[i]);
    allocator_.publish(t.pages[i]);
  }
  // Whoever asked for it may have been aborted or preempted since; the pages then stay as cache.
  const auto it = std::find_if(running_.begin(), running_.end(), [&](const RequestPtr& r) {
    return r->owner == t.owner && r->phase == Request::Phase::loading;
  });
  if (it != running_.end()) {
    Request& r = **it;
    cache_.lock(nodes);
    r.path.insert(r.path.end(), nodes.begin(), nodes.end());
    r.pages.insert(r.pages.end(), t.pages.begin(), t.pages.end());
    r.phase = Request::Phase::running;
    attach(r);
  }
  cache_.unlock(t.path);
}

}  // namespace serinus::engine
