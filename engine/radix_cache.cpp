#include "engine/radix_cache.h"

#include "base/raise.h"

namespace serinus::engine {

RadixCache::RadixCache(std::int64_t page_size, int lookahead)
    : page_size_(page_size), lookahead_(lookahead) {
  nodes_.emplace_back();  // the root: the empty prefix
}

template <class F>
void RadixCache::change(Node n, F&& f) {
  Entry& e = at(n);
  const bool leaf = is_leaf(e), host_leaf = is_host_leaf(e);
  const bool evictable = e.page >= 0 && e.locks == 0;
  const std::uint64_t used = e.last_use;
  f(e);
  const bool leaf_now = is_leaf(e), host_leaf_now = is_host_leaf(e);
  if (leaf && (!leaf_now || used != e.last_use)) leaves_.erase({used, n});
  if (leaf_now && (!leaf || used != e.last_use)) leaves_.insert({e.last_use, n});
  if (host_leaf && (!host_leaf_now || used != e.last_use)) host_leaves_.erase({used, n});
  if (host_leaf_now && (!host_leaf || used != e.last_use)) host_leaves_.insert({e.last_use, n});
  evictable_ += static_cast<int>(e.page >= 0 && e.locks == 0) - static_cast<int>(evictable);
}

void RadixCache::match(const RequestText& text, std::int64_t max_pages, std::vector<Node>& path) {
  ++clock_;
  bool host_only = false;
  for (std::int64_t i = 0; i < max_pages; ++i) {
    const auto it = by_key_.find(key(text, i));
    if (it == by_key_.end() || at(it->second).loading) return;
    host_only = host_only || at(it->second).page < 0;
    if (host_only && at(it->second).host_page < 0) return;
    change(it->second, [&](Entry& e) { e.last_use = clock_; });
    path.push_back(it->second);
  }
}

RadixCache::Inserted RadixCache::insert(Node parent, const RequestText& text, std::int64_t index,
                                        std::int64_t page) {
  const std::uint64_t k = key(text, index);
  const auto adopt = [&](Node n) {
    change(n, [&](Entry& e) {
      e.page = page;
      e.last_use = ++clock_;
    });
    ++on_device_;
    if (parent != kRoot) change(parent, [](Entry& e) { ++e.device_children; });
    return Inserted{n, true};
  };
  if (const auto it = by_key_.find(k); it != by_key_.end()) {
    const Node n = it->second;
    if (at(n).page >= 0) {
      change(n, [&](Entry& e) { e.last_use = ++clock_; });
      return {n, false};
    }
    if (at(n).loading) return {};
    return adopt(n);
  }
  Node n;
  if (unused_.empty()) {
    n = static_cast<Node>(nodes_.size());
    nodes_.emplace_back();
  } else {
    n = unused_.back();
    unused_.pop_back();
    at(n) = Entry{};
  }
  at(n).key = k;
  at(n).parent = parent;
  at(n).depth = index;
  by_key_.emplace(k, n);
  return adopt(n);
}

void RadixCache::lock(std::span<const Node> path) {
  for (const Node n : path) change(n, [](Entry& e) { ++e.locks; });
}

void RadixCache::unlock(std::span<const Node> path) {
  for (const Node n : path) change(n, [](Entry& e) { --e.locks; });
}

void RadixCache::remove(Node n) {
  by_key_.erase(at(n).key);
  unused_.push_back(n);
}

std::int64_t RadixCache::evict() {
  if (leaves_.empty()) return -1;
  const Node n = leaves_.begin()->second;
  const Node parent = at(n).parent;
  const std::int64_t page = at(n).page;
  change(n, [](Entry& e) { e.page = -1; });
  --on_device_;
  if (parent != kRoot) change(parent, [](Entry& e) { --e.device_children; });
  if (at(n).host_page < 0) remove(n);
  return page;
}

void RadixCache::set_host_page(Node n, std::int64_t host_page) {
  change(n, [&](Entry& e) { e.host_page = host_page; });
  if (at(n).parent != kRoot) change(at(n).parent, [](Entry& e) { ++e.host_children; });
}

void RadixCache::set_loaded(Node n, std::int64_t page) {
  change(n, [&](Entry& e) {
    e.loading = false;
    e.page = page;
  });
  ++on_device_;
  if (at(n).parent != kRoot) change(at(n).parent, [](Entry& e) { ++e.device_children; });
}

std::int64_t RadixCache::evict_host() {
  if (host_leaves_.empty()) return -1;
  const Node n = host_leaves_.begin()->second;
  const Node parent = at(n).parent;
  const std::int64_t host_page = at(n).host_page;
  change(n, [](Entry& e) { e.host_page = -1; });
  if (parent != kRoot) change(parent, [](Entry& e) { --e.host_children; });
  if (at(n).page < 0) remove(n);
  return host_page;
}

void RadixCache::check() const {
  const auto require = [](bool ok, const char* what) {
    if (!ok) raise(errors::Page::broken_invariant, {{"what", what}});
  };
  std::vector<std::int32_t> device(nodes_.size()), host(nodes_.size());
  std::int64_t evictable = 0, on_device = 0;
  for (const auto& [key, n] : by_key_) {
    const Entry& e = at(n);
    require(e.key == key, "a node under a wrong key");
    require(e.page >= 0 || e.host_page >= 0 || e.loading, "a node with nothing");
    evictable += e.page >= 0 && e.locks == 0;
    on_device += e.page >= 0;
    require(leaves_.contains({e.last_use, n}) == is_leaf(e), "the set of leaves");
    require(host_leaves_.contains({e.last_use, n}) == is_host_leaf(e), "the set of host leaves");
    if (e.parent == kRoot) continue;
    const Entry& p = at(e.parent);
    require(p.depth == e.depth - 1, "a child at a wrong depth");
    require(e.page < 0 || p.page >= 0, "a page on the device whose parent is not");
    require(e.host_page < 0 || p.host_page >= 0, "a page on the host whose parent is not");
    require(e.locks <= p.locks, "a locked page under one that is not");
    device[static_cast<std::size_t>(e.parent)] += e.page >= 0;
    host[static_cast<std::size_t>(e.parent)] += e.host_page >= 0;
  }
  for (const auto& [key, n] : by_key_) {
    require(at(n).device_children == device[static_cast<std::size_t>(n)], "children on the device");
    require(at(n).host_children == host[static_cast<std::size_t>(n)], "children on the host");
  }
  require(evictable == evictable_, "the count of evictable pages");
  require(on_device == on_device_, "the count of cached pages");
}

}  // namespace serinus::engine
