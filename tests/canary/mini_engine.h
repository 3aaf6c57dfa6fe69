// A serving engine in miniature, for long random histories: continuous batching, chunked prefill, a
// prefix trie with locks and eviction, duplicates freed on insert, preemption, aborts, a host tier,
// moves, a sliding-window pool and a draft pool. Everything it does is legal, so the canary must
// stay silent; the tests that inject faults know that what it says is about the fault.
#pragma once

#include <map>
#include <memory>
#include <random>
#include <set>
#include <vector>

#include "rig.h"

namespace serinus::canary::testing {

class MiniEngine {
 public:
  static constexpr Owner kCache = 0xFFFFFFFF;
  static constexpr std::int64_t kRows = 9, kCells = 48, kWindow = 5;

  MiniEngine(std::uint32_t seed, Options options, std::int64_t num_slots = 160)
      : rng(seed),
        monitor(options),
        full(num_slots, 2),
        swa(num_slots / 2, 1),
        draft(num_slots, 1),
        lut(static_cast<std::size_t>(num_slots)),
        table(kRows * kCells),
        expected(kRows * kCells, -1) {
    swa.spec.kind = PoolKind::swa;
    swa.spec.window = kWindow;
    swa.spec.full_to_swa = lut;
    draft.spec.kind = PoolKind::draft;
    for (PoolBytes* p : {&full, &swa, &draft}) {
      if (options.depth == Depth::none) p->spec.buffers.clear();
      monitor.add_pool(p->spec);
    }
    has_bytes = options.depth != Depth::none;
    for (std::int64_t s = 1; s < num_slots; ++s) free_full.push_back(s);
    for (std::int64_t s = 1; s < num_slots / 2; ++s) free_swa.push_back(s);
    for (std::int64_t r = 1; r < kRows; ++r) free_rows.push_back(r);
    root.token = 0;
  }

  /// One scheduler step.
  void step() {
    ++now;
    if (pick(3) == 0) admit();
    if (pick(12) == 0) abort_one();
    if (copies && pick(10) == 0) move_some();
    if (pick(25) == 0) evict(pick(20) + 1);
    Plan plan = schedule();
    const Batch batch = describe(plan);
    monitor.begin_step(batch);
    if (during_forward) during_forward();
    for (const Item& item : plan.items) {
      for (std::int64_t i = 0; i < item.extend; ++i) {
        const std::int64_t position = item.prefix + i;
        write(cell(*item.request, position), item.request->tokens[at(position)], position);
      }
    }
    monitor.end_step(batch);
    for (Item& item : plan.items) {
      Request& r = *item.request;
      r.done += item.extend;
      slide(r);
      if (r.done >= static_cast<std::int64_t>(r.tokens.size())) {
        insert(r);
        finish(r);
      } else if (pick(3) == 0) {
        insert(r);
      }
    }
  }

  struct Request {
    Owner owner = 0;
    std::int64_t row = 0;
    std::vector<std::uint32_t> tokens;  ///< prompt and everything it will generate
    std::int64_t done = 0;              ///< computed
    std::int64_t shared = 0;            ///< cells below are the cache's slots
  };

  Batch tables() {
    Batch b;
    b.req_to_token = TensorView(table.data(), DType::i32, {kRows, kCells});
    b.expected_tokens = TensorView(expected.data(), DType::i32, {kRows, kCells});
    return b;
  }
  std::int32_t& cell(const Request& r, std::int64_t position) {
    return table[static_cast<std::size_t>(r.row * kCells + position)];
  }
  std::int64_t pick(std::int64_t n) {
    return static_cast<std::int64_t>(rng() % static_cast<std::uint64_t>(n));
  }

  std::mt19937_64 rng;
  Monitor monitor;
  PoolBytes full, swa, draft;
  std::vector<std::int64_t> lut;
  std::vector<std::int32_t> table, expected;
  std::map<Owner, Request> running;
  std::function<void()> during_forward;
  bool copies = true;  ///< off: no moves and no new host copies, so that a fault stays where it is
  int loads = 0, preemptions = 0, evictions = 0, hits = 0, duplicates = 0, moves = 0;

 private:
  struct Node {
    std::uint32_t token = 0;
    std::int64_t slot = -1, position = -1;
    Node* parent = nullptr;
    int locks = 0;
    std::int64_t used = 0;
    std::map<std::uint32_t, std::unique_ptr<Node>> children;
  };
  struct Item {
    Request* request;
    std::int64_t prefix, extend;
  };
  struct Plan {
    std::vector<Item> items;
    std::vector<std::int64_t> rows, prefix, extend, ids, positions, locations, valid;
    std::vector<Owner> owners;
  };
  struct HostToken {
    Record records[3];
    std::vector<std::uint8_t> bytes[3];
    bool in_swa = false;
  };
  static std::size_t at(std::int64_t i) { return static_cast<std::size_t>(i); }

  void write(std::int64_t slot, std::uint32_t token, std::int64_t position) {
    if (!has_bytes) return;
    full.fill(slot, token, position);
    draft.fill(slot, token + 7, position);
    if (lut[at(slot)] != 0) swa.fill(lut[at(slot)], token, position);
  }

  bool allocate(Owner owner, std::int64_t n, std::vector<std::int64_t>& out, Owner keep) {
    while (static_cast<std::int64_t>(free_full.size()) < n ||
           static_cast<std::int64_t>(free_swa.size()) < n) {
      if (evict(n) > 0) continue;
      Request* victim = nullptr;
      for (auto& [o, r] : running) {
        if (o != keep && o != owner && !in_batch.contains(o)) victim = &r;
      }
      if (victim == nullptr) return false;
      ++preemptions;
      drop(*victim);
      running.erase(victim->owner);
    }
    std::vector<std::int64_t> swa_slots;
    for (std::int64_t i = 0; i < n; ++i) {
      out.push_back(take(free_full));
      swa_slots.push_back(take(free_swa));
      lut[at(out.back())] = swa_slots.back();
    }
    monitor.on_alloc(0, out, owner);
    monitor.on_alloc(1, swa_slots, owner);
    monitor.on_alloc(2, out, owner);
    return true;
  }
  std::int64_t take(std::vector<std::int64_t>& list) {
    std::swap(list[at(pick(static_cast<std::int64_t>(list.size())))], list.back());
    const std::int64_t s = list.back();
    list.pop_back();
    return s;
  }
  void release_swa(std::int64_t slot, Owner owner) {
    if (lut[at(slot)] == 0) return;
    monitor.on_free(1, std::vector<std::int64_t>{lut[at(slot)]}, owner);
    free_swa.push_back(lut[at(slot)]);
    lut[at(slot)] = 0;
  }
  void release(std::int64_t slot, Owner owner) {
    release_swa(slot, owner);
    for (const int pool : {0, 2}) monitor.on_free(pool, std::vector<std::int64_t>{slot}, owner);
    free_full.push_back(slot);
  }

  // ---- requests

  void admit() {
    if (free_rows.empty()) return;
    Request r;
    r.owner = ++last_owner;
    r.tokens = prompts.empty() || pick(3) == 0 ? std::vector<std::uint32_t>{}
                                               : prompts[at(pick(std::ssize(prompts)))];
    r.tokens.resize(std::min<std::size_t>(r.tokens.size(), at(pick(30) + 1)));
    while (static_cast<std::int64_t>(r.tokens.size()) < kCells - 8 && pick(12) != 0) {
      r.tokens.push_back(static_cast<std::uint32_t>(pick(3) + 1));
    }
    if (r.tokens.empty()) r.tokens.push_back(1);
    prompts.push_back(r.tokens);
    if (prompts.size() > 20) prompts.erase(prompts.begin());
    r.row = take(free_rows);
    Request& live = running[r.owner] = std::move(r);
    for (std::int64_t i = 0; i < kCells; ++i) {
      expected[at(live.row * kCells + i)] =
          i < std::ssize(live.tokens) ? static_cast<std::int32_t>(live.tokens[at(i)]) : -1;
    }
    // The device prefix, then what the host has beyond it.
    const std::int64_t limit = std::ssize(live.tokens) - 1;
    Node* node = &root;
    std::int64_t n = 0;
    while (n < limit && node->children.contains(live.tokens[at(n)])) {
      node = node->children[live.tokens[at(n)]].get();
      lock(node);
      cell(live, n++) = static_cast<std::int32_t>(node->slot);
    }
    n = load_back(live, node, n, limit);
    if (n > 0) {
      ++hits;
      monitor.on_attach(live.owner, live.row, 0, n);
    }
    live.done = live.shared = n;
  }

  std::int64_t load_back(Request& r, Node* node, std::int64_t n, std::int64_t limit) {
    while (n < limit) {
      const std::vector<std::uint32_t> key(r.tokens.begin(), r.tokens.begin() + n + 1);
      const auto found = host.find(key);
      if (found == host.end()) break;
      std::vector<std::int64_t> slot;
      if (!allocate(kCache, 1, slot, r.owner)) break;
      const HostToken& h = found->second;
      if (!h.in_swa) release_swa(slot[0], kCache);
      PoolBytes* pools[] = {&full, &swa, &draft};
      for (int p = 0; p < 3; ++p) {
        const std::int64_t to = p == 1 ? lut[at(slot[0])] : slot[0];
        if (p == 1 && to == 0) continue;
        if (has_bytes) put_bytes(*pools[p], to, h.bytes[p]);
        monitor.on_load(p, {&h.records[p], 1}, std::vector<std::int64_t>{to}, kCache);
      }
      ++loads;
      auto child = std::make_unique<Node>();
      child->token = r.tokens[at(n)];
      child->slot = slot[0];
      child->position = n;
      child->parent = node;
      Node* next = child.get();
      node->children[child->token] = std::move(child);
      node = next;
      lock(node);
      cell(r, n++) = static_cast<std::int32_t>(node->slot);
    }
    return n;
  }

  void lock(Node* node) {
    ++node->locks;
    node->used = now;
  }
  void unlock(const Request& r) {
    Node* node = &root;
    for (std::int64_t i = 0; i < r.shared; ++i) {
      node = node->children.at(r.tokens[at(i)]).get();
      --node->locks;
    }
  }

  /// Hands the computed tokens to the cache; what it has already is freed and taken from it.
  void insert(Request& r) {
    Node* node = &root;
    std::vector<std::int64_t> given, given_swa;
    const std::int64_t was = r.shared;
    for (std::int64_t i = 0; i < r.done; ++i) {
      const std::uint32_t token = r.tokens[at(i)];
      const std::int64_t slot = cell(r, i);
      const bool known = node->children.contains(token);
      if (!known) {
        auto child = std::make_unique<Node>();
        child->token = token;
        child->slot = slot;
        child->position = i;
        child->parent = node;
        node->children[token] = std::move(child);
        given.push_back(slot);
        if (lut[at(slot)] != 0) given_swa.push_back(lut[at(slot)]);
      }
      node = node->children[token].get();
      if (i < was) continue;
      lock(node);
      if (known) {
        ++duplicates;
        release(slot, r.owner);
        cell(r, i) = static_cast<std::int32_t>(node->slot);
      }
    }
    r.shared = r.done;
    if (!given.empty()) {
      monitor.on_transfer(0, given, r.owner, kCache);
      monitor.on_transfer(1, given_swa, r.owner, kCache);
      monitor.on_transfer(2, given, r.owner, kCache);
    }
    if (was < r.done) monitor.on_attach(r.owner, r.row, was, r.done);
  }

  void finish(Request& r) {
    unlock(r);
    monitor.on_release(r.owner);
    free_rows.push_back(r.row);
    running.erase(r.owner);
  }

  /// Aborted or preempted: what is not the cache's goes back. The caller erases the request.
  void drop(Request& r) {
    for (std::int64_t i = r.shared; i < r.done; ++i) release(cell(r, i), r.owner);
    unlock(r);
    monitor.on_release(r.owner);
    free_rows.push_back(r.row);
  }
  void abort_one() {
    if (running.empty()) return;
    auto victim = std::next(running.begin(), pick(std::ssize(running)));
    drop(victim->second);
    running.erase(victim);
  }

  void slide(Request& r) {
    for (std::int64_t i = r.shared; i < r.done - kWindow; ++i) release_swa(cell(r, i), r.owner);
  }

  void move_some() {
    for (auto& [owner, r] : running) {
      if (r.done - r.shared < 2) continue;
      const std::int64_t first = r.shared + pick(r.done - r.shared - 1);
      std::vector<std::int64_t> from, to, from_swa, to_swa;
      if (!allocate(owner, 2, to, owner)) return;
      for (std::int64_t i = 0; i < 2; ++i) {
        from.push_back(cell(r, first + i));
        const std::int64_t a = lut[at(from.back())], b = lut[at(to[at(i)])];
        if (has_bytes) {
          full.copy(from.back(), to[at(i)]);
          draft.copy(from.back(), to[at(i)]);
        }
        if (a == 0) {
          release_swa(to[at(i)], owner);
        } else {
          if (has_bytes) swa.copy(a, b);
          from_swa.push_back(a);
          to_swa.push_back(b);
        }
        cell(r, first + i) = static_cast<std::int32_t>(to[at(i)]);
      }
      monitor.on_move(0, from, to);
      monitor.on_move(1, from_swa, to_swa);
      monitor.on_move(2, from, to);
      for (const std::int64_t s : from) release(s, owner);
      ++moves;
      return;
    }
  }

  // ---- eviction and the host tier

  std::int64_t evict(std::int64_t n) {
    std::int64_t freed = 0;
    while (freed < n) {
      Node* oldest = nullptr;
      find_oldest(&root, oldest);
      if (oldest == nullptr) break;
      if (copies && pick(2) == 0) store(oldest);
      release(oldest->slot, kCache);
      oldest->parent->children.erase(oldest->token);
      ++freed;
      ++evictions;
    }
    return freed;
  }
  void find_oldest(Node* node, Node*& oldest) {
    for (auto& [t, child] : node->children) find_oldest(child.get(), oldest);
    if (node != &root && node->children.empty() && node->locks == 0 &&
        (oldest == nullptr || node->used < oldest->used)) {
      oldest = node;
    }
  }
  void store(const Node* node) {
    HostToken h;
    std::vector<std::uint32_t> key;
    for (const Node* k = node; k != &root; k = k->parent) key.insert(key.begin(), k->token);
    PoolBytes* pools[] = {&full, &swa, &draft};
    for (int p = 0; p < 3; ++p) {
      const std::int64_t slot = p == 1 ? lut[at(node->slot)] : node->slot;
      if (p == 1 && slot == 0) continue;
      if (p == 1) h.in_swa = true;
      monitor.on_store(p, std::vector<std::int64_t>{slot}, {&h.records[p], 1});
      if (has_bytes) h.bytes[p] = get_bytes(*pools[p], slot);
    }
    host[key] = std::move(h);
  }
  static std::vector<std::uint8_t> get_bytes(PoolBytes& p, std::int64_t slot) {
    std::vector<std::uint8_t> out;
    for (const Source& s : sources_of(p.spec.layout, p.spec.num_layers, p.spec.buffers)) {
      out.insert(out.end(), p.at(s, slot), p.at(s, slot) + s.bytes);
    }
    return out;
  }
  static void put_bytes(PoolBytes& p, std::int64_t slot, const std::vector<std::uint8_t>& bytes) {
    const std::uint8_t* from = bytes.data();
    for (const Source& s : sources_of(p.spec.layout, p.spec.num_layers, p.spec.buffers)) {
      std::memcpy(p.at(s, slot), from, at(s.bytes));
      from += s.bytes;
    }
  }

  // ---- batches

  Plan schedule() {
    Plan plan;
    in_batch.clear();
    std::vector<Owner> order;
    for (auto& [o, r] : running) {
      if (pick(4) != 0) order.push_back(o);
    }
    for (const Owner o : order) {
      const auto found = running.find(o);
      if (found == running.end()) continue;  // preempted meanwhile
      Request& r = found->second;
      in_batch.insert(o);
      const std::int64_t n =
          std::min<std::int64_t>(pick(2) == 0 ? 1 : pick(9) + 1, std::ssize(r.tokens) - r.done);
      std::vector<std::int64_t> slots;
      if (!allocate(o, n, slots, o)) {
        in_batch.erase(o);
        continue;
      }
      for (std::int64_t i = 0; i < n; ++i) {
        cell(r, r.done + i) = static_cast<std::int32_t>(slots[at(i)]);
      }
      plan.items.push_back({&r, r.done, n});
    }
    return plan;
  }

  Batch describe(Plan& p) {
    for (const Item& item : p.items) {
      p.rows.push_back(item.request->row);
      p.owners.push_back(item.request->owner);
      p.prefix.push_back(item.prefix);
      p.extend.push_back(item.extend);
      p.valid.push_back(std::ssize(item.request->tokens));
      for (std::int64_t i = 0; i < item.extend; ++i) {
        p.ids.push_back(item.request->tokens[at(item.prefix + i)]);
        p.positions.push_back(item.prefix + i);
        p.locations.push_back(cell(*item.request, item.prefix + i));
      }
    }
    if (pick(4) == 0) {  // a padded graph batch
      p.rows.push_back(0);
      p.owners.push_back(0);
      p.prefix.push_back(pick(1000));
      p.extend.push_back(0);
      p.valid.push_back(0);
    }
    Batch b = tables();
    b.rows = p.rows;
    b.owners = p.owners;
    b.prefix_lens = p.prefix;
    b.extend_lens = p.extend;
    b.input_ids = p.ids;
    b.positions = p.positions;
    b.out_cache_loc = p.locations;
    b.valid_lens = p.valid;
    return b;
  }

  bool has_bytes = true;
  Node root;
  std::vector<std::int64_t> free_full, free_swa, free_rows;
  std::vector<std::vector<std::uint32_t>> prompts;
  std::map<std::vector<std::uint32_t>, HostToken> host;
  std::set<Owner> in_batch;
  Owner last_owner = 0;
  std::int64_t now = 0;
};

}  // namespace serinus::canary::testing
