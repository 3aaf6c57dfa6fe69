#include "canary/serinus/pool.h"

#include <algorithm>

namespace serinus::canary {

Pool::Pool(PoolSpec s, const Options& options)
    : spec(std::move(s)),
      raw_sources(options.depth == Depth::none
                      ? std::vector<Source>{}
                      : sources_of(spec.layout, spec.num_layers, spec.buffers)),
      sources(prepare(raw_sources)),
      slot_bytes(digested_bytes(raw_sources, options.depth)),
      records(spec.num_slots),
      ledger(spec.num_slots),
      seals(spec.num_slots),
      marks(spec.num_slots),
      source_digests(
          options.source_digests ? spec.num_slots * static_cast<std::int64_t>(sources.size()) : 0),
      live(static_cast<std::size_t>((spec.num_slots + 63) / 64)) {
  if (!sources.empty() && spec.null_slot == NullSlot::clean) {
    const std::int64_t slot = 0;
    digest_slots(sources, spec.layout.page_size, options.depth, {&slot, 1}, &null_digest);
  }
}

void Pool::set_live(std::int64_t slot, bool on) noexcept {
  std::uint64_t& word = live[static_cast<std::size_t>(slot >> 6)];
  const std::uint64_t bit = std::uint64_t{1} << (slot & 63);
  num_live += static_cast<int>(on) - static_cast<int>((word & bit) != 0);
  word = on ? word | bit : word & ~bit;
}

bool Pool::next_live(std::int64_t n, std::int64_t& cursor, std::vector<std::int64_t>& out) const {
  for (auto w = static_cast<std::size_t>(cursor >> 6); w < live.size(); ++w) {
    std::uint64_t word = live[w];
    if (static_cast<std::int64_t>(w) == cursor >> 6) word &= ~std::uint64_t{0} << (cursor & 63);
    for (; word != 0; word &= word - 1) {
      const std::int64_t slot = static_cast<std::int64_t>(w) * 64 + std::countr_zero(word);
      if (n-- == 0) {
        cursor = slot;
        return false;
      }
      out.push_back(slot);
    }
  }
  cursor = 0;
  return true;
}

bool Pool::claims(std::int64_t slot, Owner owner) const {
  if (contested.empty()) return false;
  const auto found = contested.find(slot);
  return found != contested.end() &&
         std::find(found->second.begin(), found->second.end(), owner) != found->second.end();
}

}  // namespace serinus::canary
