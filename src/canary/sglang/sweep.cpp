// Sweep: the walk over the engine's prefix tree.
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "base/raise.h"
#include "canary/sglang/records.h"

namespace serinus::canary::sglang {

namespace {

bool is_locked(const PrefixTree& tree, const PrefixNode& node, const SweepFilter& filter) {
  const bool by_swa =
      tree.kind == PrefixTreeKind::unified && tree.has_swa_component && filter.swa_resident_only;
  return (by_swa ? node.swa_lock : node.full_lock) > 0;
}

bool is_listed(const PrefixTree& tree, const PrefixNode& node, const SweepFilter& filter) {
  if (filter.unlocked_only && is_locked(tree, node, filter)) return false;
  return !filter.swa_resident_only || tree.kind == PrefixTreeKind::plain || node.swa_resident;
}

// Marks the node as somebody's child.
void claim(const PrefixTree& tree, std::int32_t node, std::vector<bool>& claimed) {
  if (!within(node, static_cast<std::int64_t>(tree.nodes.size())) ||
      claimed[static_cast<std::size_t>(node)]) {
    raise(errors::Page::canary_prefix_tree_malformed,
          {{"argument", "tree"},
           {"got", std::to_string(node)},
           {"size", std::to_string(tree.nodes.size())}});
  }
  claimed[static_cast<std::size_t>(node)] = true;
}

}  // namespace

std::vector<SweepEntry> sweep_entries(const PrefixTree& tree, const SweepFilter& filter) {
  std::vector<SweepEntry> entries;
  if (tree.nodes.empty()) return entries;
  // A node waits on the stack with where its parent's chain ended. Trees are as deep as their
  // longest conversation, so nothing recurses.
  struct Visit {
    std::int32_t node;
    std::int64_t depth, last_slot;
  };
  std::vector<bool> claimed(tree.nodes.size());
  claim(tree, 0, claimed);
  std::vector<Visit> stack{{0, 0, kChainHead}};
  while (!stack.empty()) {
    auto [index, depth, last_slot] = stack.back();
    stack.pop_back();
    const PrefixNode& node = tree.nodes[static_cast<std::size_t>(index)];
    const bool listed = index != 0 && is_listed(tree, node, filter);
    for (const std::int64_t slot : node.slots) {
      if (listed) entries.push_back({.slot = slot, .position = depth, .prev_slot = last_slot});
      last_slot = slot;
      depth = i64(u64(depth) + 1);
    }
    if (node.slots.empty() && tree.kind == PrefixTreeKind::unified)
      depth = i64(u64(depth) + u64(node.key_length));
    for (const std::int32_t child : node.children) claim(tree, child, claimed);
    for (auto child = node.children.rbegin(); child != node.children.rend(); ++child)
      stack.push_back({*child, depth, last_slot});
  }
  return entries;
}

void translate_sweep(std::span<SweepEntry> entries, std::int64_t swa_window_size,
                     std::optional<std::span<const std::int64_t>> full_to_swa_index_mapping) {
  if (swa_window_size <= 0) return;
  if (!full_to_swa_index_mapping || full_to_swa_index_mapping->empty()) {
    raise(errors::Page::canary_sweep_mapping_missing, {{"argument", "full_to_swa_index_mapping"}});
  }
  const std::int64_t* const mapping = full_to_swa_index_mapping->data();
  const auto size = static_cast<std::int64_t>(full_to_swa_index_mapping->size());
  for (SweepEntry& entry : entries) {
    entry.slot = translate(mapping, size, entry.slot);
    entry.prev_slot = translate(mapping, size, entry.prev_slot);
  }
}

HostVerifyPlan sweep_plan(std::span<const SweepEntry> entries) {
  HostVerifyPlan plan(std::max<std::int64_t>(1, static_cast<std::int64_t>(entries.size())));
  std::ranges::fill(plan.tokens, kNoToken);
  for (std::size_t i = 0; i < entries.size(); ++i) {
    plan.slots[i] = entries[i].slot;
    plan.positions[i] = entries[i].position;
    plan.prev_slots[i] = entries[i].prev_slot;
  }
  plan.num_valid = static_cast<std::int32_t>(entries.size());
  return plan;
}

}  // namespace serinus::canary::sglang
