// What a request says, without ever being stored: token ids and prefix states by position, computed
// from the block ids of a trace. A trace names blocks, not tokens, so a token is a function of
// (block id, offset in the block), and the part that no other request can share (a partial last
// block, and the output) of (request, offset).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace serinus::engine {

/// Token ids lie in [0, kVocabulary).
inline constexpr std::uint32_t kVocabulary = 129280;

class RequestText {
 public:
  /// `number` makes the private part unique. `hash_ids` name blocks of `block_tokens` tokens of the
  /// input; ids beyond the input's full blocks are ignored, missing ones make the rest private.
  /// Equal ids after equal ids are equal text; ids after different ids are not.
  RequestText(std::uint32_t number, std::int64_t input_length, std::int64_t output_length,
              std::span<const std::int64_t> hash_ids, std::int64_t block_tokens);

  std::int64_t input_length() const noexcept { return input_length_; }
  std::int64_t output_length() const noexcept { return output_length_; }
  std::int64_t total_length() const noexcept { return input_length_ + output_length_; }

  /// Token id at `position`, any position >= 0.
  std::uint32_t token(std::int64_t position) const noexcept;
  /// A hash of all tokens up to and including `position`: equal for two requests iff (up to
  /// collisions of 64 bits) they share that prefix, as far as the trace can tell.
  std::uint64_t prefix_state(std::int64_t position) const noexcept;

 private:
  struct Place {
    std::uint64_t ids;     // seeds token ids: the block's id, or the request's
    std::uint64_t prefix;  // binds everything before the block, and the block
    std::int64_t offset;
  };
  Place place(std::int64_t position) const noexcept;

  std::int64_t input_length_, output_length_, block_tokens_;
  std::int64_t shared_length_;  // tokens in full blocks
  std::uint64_t private_ids_, private_prefix_;
  std::vector<std::uint64_t> ids_, prefixes_;  // a full block each
};

}  // namespace serinus::engine
