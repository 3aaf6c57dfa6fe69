// KV layouts: where the bytes of a token lie in a pool, as data. The attention kernels and the
// canary read the same description, so they cannot disagree about it.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <serinus/tensor.h>

namespace serinus {

/// What the bytes of a segment are.
enum class SegmentRole : std::uint8_t { key, value, latent, rope, scale, index_key, index_scale };

/// Name in the docs and in JSON: "key", "index_scale". Static storage.
const char* name_of(SegmentRole r) noexcept;

/// A run of a token's bytes within a page: byte `offset + token * token_stride`, `bytes` long.
struct KvSegment {
  std::string name;  ///< unique in its layout: "latent", "rope", "k.head3"
  SegmentRole role = SegmentRole::latent;
  int buffer = 0;                 ///< which buffer of the layout it lies in
  std::int64_t offset = 0;        ///< bytes from the page's start to token 0's run
  std::int64_t token_stride = 0;  ///< bytes from one token's run to the next one's
  std::int64_t bytes = 0;         ///< length of the run; padding is in no segment
  int head = -1;                  ///< KV head, or -1 where heads do not apply
  std::string meaning;            ///< "512 x e4m3", "4 x float32, one per 128"
};

/// A layout is data: a name, a page, and segments. Everything else follows.
struct KvLayout {
  std::string name;
  std::int64_t page_size = 1;  ///< tokens a page
  std::vector<std::int64_t>
      page_bytes;  ///< per buffer: bytes from page to page when dense, padding included
  std::vector<KvSegment> segments;
  std::string source;  ///< who uses it

  int num_buffers() const noexcept { return static_cast<int>(page_bytes.size()); }
  /// Bytes of one token that mean something (and are hashed): the sum over segments.
  std::int64_t token_bytes() const noexcept;
  /// Throws ValueError where two segments overlap, leave their page, or name no buffer; also where
  /// page_size * segments is more than 2^22, which no real layout comes near.
  void validate() const;
};

/// How an mha_* layout orders the two inner dimensions of a page.
enum class HeadOrder : std::uint8_t {
  usual,  ///< what the layout's name says: mha_hnd and mha_packed hnd, the others nhd
  nhd,    ///< (page, heads, head size): the heads of a token lie side by side
  hnd,    ///< (heads, page, head size): the tokens of a head lie side by side
};

struct KvLayoutOptions {
  std::int64_t page_size = 0;                 ///< 1 to 65536 tokens; 0 = the layout's usual page
  std::int64_t heads = 0;                     ///< mha_* only, required there: 1 to 1024
  std::int64_t head_size = 0;                 ///< mha_* only, required there: 1 to 65536 elements
  std::optional<DType> dtype = std::nullopt;  ///< mha_* only: u8, e4m3, bf16 (the default) or f32
  HeadOrder head_order = HeadOrder::usual;    ///< mha_blocks_first and mha_packed only
};

/// A named layout: fp8_656, dsv4_584, mxfp8_528, nvfp4_384, nvfp4_352, fp8_576, bf16_1152,
/// dsa_indexer_132, fp4_indexer_68, mha_nhd, mha_hnd, mha_blocks_first, mha_packed.
/// The segments of the four mha_* layouts have the same names in the same order (k.head0, k.head1,
/// ..., v.head0, ...), so that a token has one digest whichever of them holds it.
/// Throws ValueError for an unknown name (listing the known ones) or an impossible option.
KvLayout kv_layout(std::string_view name, const KvLayoutOptions& options = {});

/// The names above, in that order.
std::span<const std::string_view> kv_layout_names() noexcept;

/// One buffer of a pool: memory that the caller owns. `page_stride` is the distance from page to
/// page (pages may be strided, e.g. interleaved over layers); 0 = the layout's dense page_bytes.
struct KvBuffer {
  std::uint8_t* data = nullptr;
  std::int64_t bytes = 0;
  std::int64_t page_stride = 0;
};

/// Byte offset of `segment` of slot `slot` in its buffer. 64-bit throughout; `slot >= 0`.
constexpr std::int64_t byte_offset(const KvLayout& layout, const KvSegment& segment,
                                   std::int64_t slot, std::int64_t page_stride) noexcept {
  return (slot / layout.page_size) * page_stride + segment.offset +
         (slot % layout.page_size) * segment.token_stride;
}

/// How many slots, counted from 0, lie whole within the buffers: the least over all of them.
/// `buffers` has num_buffers() entries a layer, layer-major, for any number of layers.
std::int64_t slots_in(const KvLayout& layout, std::span<const KvBuffer> buffers) noexcept;

/// A map of one page's bytes, drawn with box characters (UTF-8), at most `width` columns wide
/// (48 at least): each buffer's page, and under it one token of every part that holds more than one
/// segment. Throws as validate() does.
std::string draw_byte_map(const KvLayout& layout, int width = 72);

}  // namespace serinus
