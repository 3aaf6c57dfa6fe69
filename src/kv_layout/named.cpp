// The named layouts, as data. Sources and byte maps: docs/design/kv_layouts.md.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <optional>

#include <serinus/kv_layout.h>

#include "base/raise.h"

namespace serinus {

namespace {

// A page of an MLA or indexer layout is one or two areas: the rows of its tokens, then (where
// `footer` pieces exist) as many rows of scales. Pieces lie in order without gaps; padding is a
// piece without a name.
struct Piece {
  std::string_view name;
  SegmentRole role;
  std::int64_t bytes;
  std::string_view meaning;
  bool footer = false;
};

struct Named {
  std::string_view name;
  std::int64_t usual_page;
  std::int64_t page_multiple;  // pages are padded to a multiple of this
  std::string_view source;
  std::array<Piece, 4> pieces;  // those of 0 bytes are not there
};

constexpr SegmentRole kPadding = SegmentRole::latent;  // the role of a piece without a name

constexpr Named kNamed[] = {
    {"fp8_656",
     64,
     1,
     "FlashMLA V3.2, vLLM fp8_ds_mla, SGLang DSA FP8",
     {{{"latent", SegmentRole::latent, 512, "512 x e4m3"},
       {"scale", SegmentRole::scale, 16, "4 x float32, one per 128 values"},
       {"rope", SegmentRole::rope, 128, "64 x bf16"}}}},
    {"dsv4_584",
     64,
     576,
     "DeepSeek-V4: FlashMLA MODEL1, SGLang, FlashInfer",
     {{{"latent", SegmentRole::latent, 448, "448 x e4m3"},
       {"rope", SegmentRole::rope, 128, "64 x bf16"},
       {"scale", SegmentRole::scale, 7, "7 x ue8m0, one per 64 values", true},
       {"", kPadding, 1, "", true}}}},
    {"mxfp8_528",
     64,
     512,
     "DeepSeek-V4.1 MXFP8: vLLM, FlashInfer",
     {{{"latent", SegmentRole::latent, 512, "512 x e4m3"},
       {"scale", SegmentRole::scale, 16, "16 x ue8m0, one per 32 values", true}}}},
    {"nvfp4_384",
     64,
     1,
     "DeepSeek-V4 NVFP4 on SM120: FlashInfer, SGLang",
     {{{"latent", SegmentRole::latent, 224, "448 x e2m1, two a byte"},
       {"rope", SegmentRole::rope, 128, "64 x bf16"},
       {"scale", SegmentRole::scale, 28, "28 x e4m3, one per 16 values", true},
       {"", kPadding, 4, "", true}}}},
    {"nvfp4_352",
     64,
     1,
     "NVFP4 DS-MLA on SM100: FlashMLA, vLLM",
     {{{"latent", SegmentRole::latent, 256, "512 x e2m1, two a byte"},
       {"rope", SegmentRole::rope, 64, "64 x e4m3"},
       {"scale", SegmentRole::scale, 32, "32 x e4m3, one per 16 values, permuted"}}}},
    {"fp8_576",
     64,
     1,
     "flat FP8 MLA: SGLang, and the workspace of the FP8 prefill",
     {{{"latent", SegmentRole::latent, 512, "512 x e4m3"},
       {"rope", SegmentRole::rope, 64, "64 x e4m3"}}}},
    {"bf16_1152",
     64,
     1,
     "bf16 MLA: SGLang, FlashInfer",
     {{{"latent", SegmentRole::latent, 1024, "512 x bf16"},
       {"rope", SegmentRole::rope, 128, "64 x bf16"}}}},
    {"dsa_indexer_132",
     64,
     1,
     "DeepSeek sparse attention's indexer keys: SGLang, vLLM",
     {{{"index_key", SegmentRole::index_key, 128, "128 x e4m3"},
       {"index_scale", SegmentRole::index_scale, 4, "1 x float32", true}}}},
    {"fp4_indexer_68",
     64,
     1,
     "DeepSeek-V4's FP4 indexer keys: SGLang",
     {{{"index_key", SegmentRole::index_key, 64, "128 x e2m1, two a byte"},
       {"index_scale", SegmentRole::index_scale, 4, "4 bytes of scale", true}}}},
};

// An mha_* layout is an order of the dimensions (half, page, head) over one buffer or two.
struct NamedMha {
  std::string_view name;
  std::string_view source;
  int buffers;  // 2: k and v apart; 1: both in every page
  bool packed;  // k and v of a head side by side: (…, 2 x head size)
  HeadOrder usual;
  bool order_settable;
};

constexpr NamedMha kNamedMha[] = {
    {"mha_nhd", "SGLang k_buffer and v_buffer, vLLM (2, blocks, ...)", 2, false, HeadOrder::nhd,
     false},
    {"mha_hnd", "vLLM and FlashInfer with HND strides", 2, false, HeadOrder::hnd, false},
    {"mha_blocks_first", "vLLM (blocks, 2, ...), FlashInfer (pages, 2, ...)", 1, false,
     HeadOrder::nhd, true},
    {"mha_packed", "vLLM 0.26 and up: k and v in the last dimension", 1, true, HeadOrder::hnd,
     true},
};

constexpr auto kNames = [] {
  std::array<std::string_view, std::size(kNamed) + std::size(kNamedMha)> names{};
  std::size_t i = 0;
  for (const Named& n : kNamed) names[i++] = n.name;
  for (const NamedMha& n : kNamedMha) names[i++] = n.name;
  return names;
}();

constexpr std::int64_t kMaxPage = 65536;
constexpr std::int64_t kMaxHeads = 1024;
constexpr std::int64_t kMaxHeadSize = 65536;
constexpr std::int64_t kUsualMhaPage = 16;

[[noreturn]] void raise_option(std::string_view layout, std::string_view option, std::string want,
                               std::string got) {
  raise(errors::Page::layout_option, {{"name", std::string(option)},
                                      {"want", std::move(want)},
                                      {"layout", std::string(layout)},
                                      {"got", std::move(got)}});
}

void check_range(std::string_view layout, std::string_view option, std::int64_t value,
                 std::int64_t high) {
  if (value >= 1 && value <= high) return;
  raise_option(layout, option, fmt::format("in [1, {}]", high), std::to_string(value));
}

void refuse(bool given, std::string_view layout, std::string_view option, std::string value) {
  if (given) raise_option(layout, option, "left out", std::move(value));
}

const char* name_of(HeadOrder o) noexcept {
  return o == HeadOrder::nhd ? "nhd" : o == HeadOrder::hnd ? "hnd" : "usual";
}

KvLayout make(const Named& named, const KvLayoutOptions& options) {
  refuse(options.heads != 0, named.name, "heads", std::to_string(options.heads));
  refuse(options.head_size != 0, named.name, "head_size", std::to_string(options.head_size));
  if (options.dtype) refuse(true, named.name, "dtype", serinus::name_of(*options.dtype));
  refuse(options.head_order != HeadOrder::usual, named.name, "head_order",
         name_of(options.head_order));
  KvLayout layout;
  layout.name = named.name;
  layout.source = named.source;
  layout.page_size = options.page_size != 0 ? options.page_size : named.usual_page;
  check_range(named.name, "page_size", layout.page_size, kMaxPage);

  std::int64_t row[2] = {0, 0};  // bytes of a token's row, and of its row in the footer
  for (const Piece& p : named.pieces) row[p.footer ? 1 : 0] += p.bytes;
  std::int64_t at[2] = {0, row[0] * layout.page_size};
  for (const Piece& p : named.pieces) {
    const int area = p.footer ? 1 : 0;
    if (!p.name.empty()) {
      layout.segments.push_back({.name = std::string(p.name),
                                 .role = p.role,
                                 .buffer = 0,
                                 .offset = at[area],
                                 .token_stride = row[area],
                                 .bytes = p.bytes,
                                 .head = -1,
                                 .meaning = std::string(p.meaning)});
    }
    at[area] += p.bytes;
  }
  const std::int64_t used = (row[0] + row[1]) * layout.page_size;
  layout.page_bytes = {(used + named.page_multiple - 1) / named.page_multiple *
                       named.page_multiple};
  return layout;
}

KvLayout make(const NamedMha& named, const KvLayoutOptions& options) {
  KvLayout layout;
  layout.name = named.name;
  layout.source = named.source;
  layout.page_size = options.page_size != 0 ? options.page_size : kUsualMhaPage;
  const DType dtype = options.dtype.value_or(DType::bf16);
  check_range(named.name, "page_size", layout.page_size, kMaxPage);
  check_range(named.name, "heads", options.heads, kMaxHeads);
  check_range(named.name, "head_size", options.head_size, kMaxHeadSize);
  if (dtype != DType::u8 && dtype != DType::e4m3 && dtype != DType::bf16 && dtype != DType::f32) {
    raise_option(named.name, "dtype", "uint8, float8_e4m3fn, bfloat16 or float32",
                 serinus::name_of(dtype));
  }
  const HeadOrder order = options.head_order != HeadOrder::usual ? options.head_order : named.usual;
  refuse(order != named.usual && !named.order_settable, named.name, "head_order", name_of(order));

  const std::int64_t bytes = options.head_size * size_of(dtype);  // of one head of k or v
  const std::int64_t cell = named.packed ? 2 * bytes : bytes;     // what lies side by side
  const std::int64_t half = options.heads * layout.page_size * bytes;
  const bool nhd = order == HeadOrder::nhd;
  for (const bool value : {false, true}) {
    for (std::int64_t h = 0; h < options.heads; ++h) {
      std::int64_t offset = h * (nhd ? cell : layout.page_size * cell);
      if (value && named.packed) offset += bytes;
      if (value && !named.packed && named.buffers == 1) offset += half;
      layout.segments.push_back(
          {.name = fmt::format("{}.head{}", value ? "v" : "k", h),
           .role = value ? SegmentRole::value : SegmentRole::key,
           .buffer = value ? named.buffers - 1 : 0,
           .offset = offset,
           .token_stride = nhd ? options.heads * cell : cell,
           .bytes = bytes,
           .head = static_cast<int>(h),
           .meaning = fmt::format("{} x {}", options.head_size, serinus::name_of(dtype))});
    }
  }
  layout.page_bytes.assign(static_cast<std::size_t>(named.buffers), 2 * half / named.buffers);
  return layout;
}

}  // namespace

std::span<const std::string_view> kv_layout_names() noexcept {
  return kNames;
}

KvLayout kv_layout(std::string_view name, const KvLayoutOptions& options) {
  if (const auto n = std::ranges::find(kNamed, name, &Named::name); n != std::end(kNamed)) {
    return make(*n, options);
  }
  if (const auto n = std::ranges::find(kNamedMha, name, &NamedMha::name);
      n != std::end(kNamedMha)) {
    return make(*n, options);
  }
  raise(errors::Page::unknown_layout, {{"name", "layout"},
                                       {"got", std::string(name.substr(0, 64))},
                                       {"known", fmt::format("{}", fmt::join(kNames, ", "))}});
}

}  // namespace serinus
