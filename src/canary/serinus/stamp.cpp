// Writing: a record for every token that a forward put into the pool.
#include <algorithm>

#include "canary/serinus/backend.h"

namespace serinus::canary {

namespace {

/// One token on its way into a slot that exists, and what the scheduler says that it is.
struct Write {
  std::int64_t slot = 0;
  std::uint32_t token = 0, position = 0;
  std::int64_t expected_token = -1, expected_position = 0;
  std::int64_t parent = -1;  ///< in a tree: index of the write before it; -1 = the prefix

  /// A wrong input is stamped as it is, so that the chain goes on; but it is seen here first.
  Reason wrong_input() const noexcept {
    Reason r = Reason::none;
    if (position != expected_position) r |= Reason::position;
    if (expected_token >= 0 && token != expected_token) r |= Reason::token;
    return r;
  }
};

}  // namespace

void SerinusBackend::stamp(const Batch& batch, Stream) {
  const Table table = table_of(batch.req_to_token, "req_to_token");
  const Table expected = table_of(batch.expected_tokens, "expected_tokens");
  const auto flat = static_cast<std::int64_t>(batch.out_cache_loc.size());
  const Pool* full = nullptr;
  for (int pool = 0; pool < static_cast<int>(pools_.size()) && full == nullptr; ++pool) {
    if (is_attached(pool) && at(pool).spec.kind == PoolKind::full) full = &at(pool);
  }
  std::vector<Write> writes;
  std::vector<std::int64_t> slots;
  std::vector<std::uint64_t> digests, contributions;
  const bool is_tree = !batch.parents.empty();
  struct Node {
    std::int64_t cell = 0, write = -1;
  };
  std::vector<Node> nodes;            // of a request's tree, by token
  std::vector<std::uint64_t> chains;  // of its writes
  for (const int pool : pools_of(batch)) {
    Pool& p = at(pool);
    const auto sources = static_cast<std::int64_t>(p.sources.size());
    const bool mapped = p.spec.kind == PoolKind::swa && !p.spec.full_to_swa.empty();
    // Slot of this pool; -1 = not written here, -2 = reported.
    const auto place = [&](std::int64_t location, Owner owner, std::int64_t row,
                           std::int64_t position) -> std::int64_t {
      if (location < 0) return -1;
      std::int64_t slot = location;
      if (mapped) {
        const auto& map = p.spec.full_to_swa;
        const bool inside = location < static_cast<std::int64_t>(map.size());
        slot = inside ? map[static_cast<std::size_t>(location)] : location;
        if (inside && slot == 0) return -1;
        if (!inside) slot = p.spec.num_slots;
      }
      if (p.has(slot)) return slot;
      report_out_of_range(pool, mapped ? location : slot, Moment::tail, owner, row, position);
      return -2;
    };
    const auto write_to_null = [&](Owner owner, std::int64_t row) {
      if (p.spec.null_slot == NullSlot::scratch) return;
      Violation v = describe(pool, 0, Moment::tail, Reason::null_slot_dirty);
      v.request = owner;
      v.row = row;
      report(std::move(v));
    };
    const auto pad = [&](std::int64_t j, Owner owner, std::int64_t row) {
      const std::int64_t slot =
          place(batch.out_cache_loc[static_cast<std::size_t>(j)], owner, row, j);
      if (slot == 0) write_to_null(owner, row);
      if (slot <= 0) return;
      Violation v = describe(pool, slot, Moment::tail, Reason::foreign_write);
      v.request = owner;
      v.row = row;
      report(std::move(v));
    };

    std::int64_t k = 0;  // next of the flat tokens
    for (std::size_t i = 0; i < batch.rows.size(); ++i) {
      const std::int64_t row = batch.rows[i];
      const Owner owner = batch.owners[i];
      const std::int64_t begin = k;
      k = std::min(flat, k + std::clamp<std::int64_t>(batch.extend_lens[i], 0, flat));
      if (k - begin != batch.extend_lens[i]) {
        report_out_of_range(pool, -1, Moment::tail, owner, row, batch.extend_lens[i]);
      }
      if (row == 0) {
        for (std::int64_t j = begin; j < k; ++j) pad(j, owner, row);
        continue;
      }
      writes.clear();
      slots.clear();
      nodes.clear();
      const std::int64_t prefix =
          std::clamp<std::int64_t>(batch.prefix_lens[i], 0, std::int64_t{1} << 62);
      const std::int64_t known =
          expected.has_row(row) ? std::min(expected.columns, valid_len(batch, i, expected)) : 0;
      for (std::int64_t j = begin; j < k; ++j) {
        const auto at = static_cast<std::size_t>(j);
        const std::int64_t position = batch.positions[at];
        Node node{prefix + (j - begin), -1};
        std::int64_t parent = -1;
        if (is_tree) {
          const std::int64_t before = batch.parents[at];
          node.cell = prefix;
          if (before >= begin && before < j) {
            const Node& n = nodes[static_cast<std::size_t>(before - begin)];
            node.cell = n.cell + 1;
            parent = n.write;
          } else if (before != -1) {
            report_out_of_range(pool, -1, Moment::tail, owner, row, before);
          }
          nodes.push_back(node);
        }
        const std::int64_t slot = place(batch.out_cache_loc[at], owner, row, position);
        if (slot == 0) write_to_null(owner, row);
        if (slot <= 0) continue;
        if (position < 0 || position > kLastPosition) {
          Violation v = describe(pool, slot, Moment::tail, Reason::position);
          v.request = owner;
          v.row = row;
          v.stored_position = position;
          report(std::move(v));
          continue;
        }
        const std::int64_t cell = node.cell, told = cell + p.spec.token_offset;
        if (is_tree) nodes.back().write = std::ssize(writes);
        writes.push_back({slot, static_cast<std::uint32_t>(batch.input_ids[at]),
                          static_cast<std::uint32_t>(position),
                          told >= 0 && told < known ? expected.at(row, told) : -1, cell, parent});
        slots.push_back(slot);
      }
      if (sources > 0) {
        digest(p, slots, digests, options_.source_digests ? &contributions : nullptr);
        stats.bytes_digested +=
            static_cast<std::uint64_t>(p.slot_bytes) * static_cast<std::uint64_t>(slots.size());
      }

      std::uint64_t h = 0;
      std::int64_t last = -2;  // position that h is the chain of
      std::int64_t prev = -2;
      chains.resize(writes.size());
      for (std::size_t j = 0; j < writes.size(); ++j) {
        constexpr std::size_t kAhead = 16;
        if (j + kAhead < writes.size()) p.ask_for(writes[j + kAhead].slot);
        const Write& w = writes[j];
        if (is_tree) {
          last = -2;
          if (w.parent >= 0) {
            const auto before = static_cast<std::size_t>(w.parent);
            h = chains[before];
            last = writes[before].position;
            prev = writes[before].slot;
          }
        }
        if (w.position == 0) {
          h = kChainAnchor;
          prev = -1;
        } else if (last + 1 != w.position) {
          // The predecessor was written before this forward: the row says where.
          h = kChainAnchor;
          prev = -2;
          if (table.has_row(row) && w.position - 1 < table.columns) {
            const std::int64_t location = table.at(row, w.position - 1);
            const std::int64_t slot = place(location, owner, row, w.position - 1);
            if (slot > 0) prev = slot;
            // Where it left this pool's window, a full pool has the same chain.
            const Pool* from = slot > 0 ? &p : slot == -1 ? full : nullptr;
            const std::int64_t at = slot > 0 ? slot : location;
            if (from != nullptr && from->has(at) && from->records[at].chain != 0) {
              h = from->records[at].chain;
            }
          }
        }
        h = hash::chain_step(h, hash::token_term(w.token, w.position));
        last = w.position;
        chains[j] = h;
        LedgerEntry& e = p.ledger[w.slot];
        const bool owned = e.owner == owner && owner != 0;
        const bool claimed = !owned && p.claims(w.slot, owner);
        const Record r{w.token,
                       w.position,
                       owner,
                       owned || claimed ? e.generation : 0,
                       hash::chain_value(h),
                       sources > 0 ? digests[j] : 0};
        if (owned || claimed) {
          p.put(w.slot, r);
          e.written = w.position + 1;
          e.prev = static_cast<std::int32_t>(prev);
          for (std::int64_t s = 0; options_.source_digests && s < sources; ++s) {
            p.source_digests[w.slot * sources + s] = hash::source_word(
                contributions[j * static_cast<std::size_t>(sources) + static_cast<std::size_t>(s)]);
          }
        } else {
          // The forward wrote there all the same; the seal stays its owner's.
          p.records[w.slot] = r;
        }
        Reason reasons = w.wrong_input();
        if (!owned) reasons |= claimed ? Reason::double_owner : Reason::foreign_write;
        if (any(reasons)) {
          Violation v = describe(pool, w.slot, Moment::tail, reasons);
          v.request = owner;
          v.row = row;
          v.expected_position = w.expected_position;
          v.expected_token = w.expected_token;
          report(std::move(v));
        }
        prev = w.slot;
        ++stats.records_written;
      }
    }
    for (; k < flat; ++k) pad(k, 0, -1);
  }
}

}  // namespace serinus::canary
