#include "engine/request_text.h"

#include <algorithm>

#include "engine/mix.h"

namespace serinus::engine {

RequestText::RequestText(std::uint32_t number, std::int64_t input_length,
                         std::int64_t output_length, std::span<const std::int64_t> hash_ids,
                         std::int64_t block_tokens)
    : input_length_(input_length),
      output_length_(output_length),
      block_tokens_(std::max<std::int64_t>(block_tokens, 1)) {
  const std::int64_t full = block_tokens > 0 ? input_length / block_tokens : 0;
  const auto blocks =
      static_cast<std::size_t>(std::min(full, static_cast<std::int64_t>(hash_ids.size())));
  ids_.reserve(blocks);
  prefixes_.reserve(blocks);
  std::uint64_t prefix = mix(static_cast<std::uint64_t>(block_tokens_));
  for (std::size_t b = 0; b < blocks; ++b) {
    const std::uint64_t id = mix(static_cast<std::uint64_t>(hash_ids[b]));
    prefix = mix(prefix, id);
    ids_.push_back(id);
    prefixes_.push_back(prefix);
  }
  shared_length_ = static_cast<std::int64_t>(blocks) * block_tokens_;
  private_ids_ = mix(0x707269766174650aull, number);
  private_prefix_ = mix(prefix, private_ids_);
}

RequestText::Place RequestText::place(std::int64_t position) const noexcept {
  if (position >= shared_length_) return {private_ids_, private_prefix_, position - shared_length_};
  const auto block = static_cast<std::size_t>(position / block_tokens_);
  return {ids_[block], prefixes_[block], position % block_tokens_};
}

std::uint32_t RequestText::token(std::int64_t position) const noexcept {
  const Place p = place(position);
  const std::uint64_t h = mix(p.ids, static_cast<std::uint64_t>(p.offset));
  return static_cast<std::uint32_t>(((h >> 32) * kVocabulary) >> 32);
}

std::uint64_t RequestText::prefix_state(std::int64_t position) const noexcept {
  const Place p = place(position);
  return mix(p.prefix, static_cast<std::uint64_t>(p.offset));
}

}  // namespace serinus::engine
