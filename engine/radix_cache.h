// The prefix cache: a tree at page granularity. Every node is one full page of tokens, on the
// device, on the host, or both. A node's key is the hash of the whole prefix that it ends, so a
// child is found with one probe of one table, and no token is ever compared.
//
// Two sets are closed under "parent": the pages on the device, and those on the host. So eviction
// takes leaves only, the least recently used first.
#pragma once

#include <cstdint>
#include <set>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "engine/request_text.h"

namespace serinus::engine {

class RadixCache {
 public:
  using Node = std::int32_t;
  static constexpr Node kRoot = 0;

  /// With `lookahead` 1 a key binds the token after its page too: what a draft pool needs, whose
  /// slot p holds the KV of token p + 1.
  explicit RadixCache(std::int64_t page_size, int lookahead = 0);

  /// Appends the nodes of the longest cached prefix of `text`, first page first, at most
  /// `max_pages`: those on the device, then those only on the host. Marks them as used now.
  void match(const RequestText& text, std::int64_t max_pages, std::vector<Node>& path);

  struct Inserted {
    Node node = -1;        ///< -1: the page cannot be cached now (its node is being loaded)
    bool adopted = false;  ///< the node took `page`; otherwise it has its own and `page` is spare
  };
  /// Page number `index` of `text`, whose parent is `parent`, lies in `page` of the pool.
  Inserted insert(Node parent, const RequestText& text, std::int64_t index, std::int64_t page);

  /// A locked node is never evicted. Lock whole paths.
  void lock(std::span<const Node> path);
  void unlock(std::span<const Node> path);

  /// Takes the least recently used unlocked page off the device. Returns it, or -1 if there is
  /// none.
  std::int64_t evict();
  /// Pages that evict() would give, one after the other.
  std::int64_t evictable_pages() const noexcept { return evictable_; }
  std::int64_t cached_pages() const noexcept { return on_device_; }

  std::int64_t page(Node n) const noexcept { return at(n).page; }
  Node parent(Node n) const noexcept { return at(n).parent; }
  bool locked(Node n) const noexcept { return at(n).locks > 0; }
  std::int64_t page_size() const noexcept { return page_size_; }

  // --- the second tier
  std::int64_t host_page(Node n) const noexcept { return at(n).host_page; }
  bool loading(Node n) const noexcept { return at(n).loading; }
  void set_host_page(Node n, std::int64_t host_page);
  void set_loading(Node n) { at(n).loading = true; }
  void set_loaded(Node n, std::int64_t page);
  /// Takes the least recently used host copy away; returns its host page, or -1 if all are in use.
  std::int64_t evict_host();

  /// Every node on the device, for a sweep and for tests: (node, page), in no special order.
  template <class F>
  void for_each_on_device(F&& f) const {
    for (std::size_t i = 1; i < nodes_.size(); ++i) {
      if (nodes_[i].page >= 0) f(static_cast<Node>(i), nodes_[i].page);
    }
  }

  /// Position of a node's first token.
  std::int64_t position(Node n) const noexcept { return at(n).depth * page_size_; }

  /// Throws InternalError where the tree contradicts itself. For tests.
  void check() const;

 private:
  struct Entry {
    std::uint64_t key = 0;
    Node parent = -1;
    std::int64_t depth = -1;  ///< page number in its text
    std::int64_t page = -1, host_page = -1;
    std::int32_t locks = 0, device_children = 0, host_children = 0;
    bool loading = false;
    std::uint64_t last_use = 0;
  };
  Entry& at(Node n) noexcept { return nodes_[static_cast<std::size_t>(n)]; }
  const Entry& at(Node n) const noexcept { return nodes_[static_cast<std::size_t>(n)]; }
  bool is_leaf(const Entry& e) const noexcept {
    return e.page >= 0 && e.locks == 0 && e.device_children == 0;
  }
  bool is_host_leaf(const Entry& e) const noexcept {
    return e.host_page >= 0 && e.locks == 0 && e.host_children == 0 && !e.loading;
  }
  /// Changes an entry with the two leaf sets and the counts kept true.
  template <class F>
  void change(Node n, F&& f);
  void remove(Node n);

  std::uint64_t key(const RequestText& text, std::int64_t index) const noexcept {
    return text.prefix_state((index + 1) * page_size_ - 1 + lookahead_);
  }

  std::int64_t page_size_;
  int lookahead_;
  std::vector<Entry> nodes_;
  std::vector<Node> unused_;
  std::unordered_map<std::uint64_t, Node> by_key_;
  std::set<std::pair<std::uint64_t, Node>> leaves_, host_leaves_;  // by last use
  std::uint64_t clock_ = 0;
  std::int64_t evictable_ = 0, on_device_ = 0;
};

}  // namespace serinus::engine
