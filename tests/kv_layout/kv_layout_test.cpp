// The addresses below are written by hand from the published byte maps, not computed.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include <serinus/error.h>
#include <serinus/kv_layout.h>

namespace serinus {
namespace {

constexpr std::int64_t kHuge = std::numeric_limits<std::int64_t>::max();

const KvSegment& segment(const KvLayout& layout, std::string_view name) {
  const auto s = std::ranges::find(layout.segments, name, &KvSegment::name);
  if (s == layout.segments.end()) throw std::out_of_range(std::string(name));
  return *s;
}

// Where slot `slot` of a segment lies in dense buffers.
std::int64_t at(const KvLayout& layout, std::string_view name, std::int64_t slot) {
  const KvSegment& s = segment(layout, name);
  return byte_offset(layout, s, slot, layout.page_bytes[static_cast<std::size_t>(s.buffer)]);
}

std::vector<std::string> names_and_bytes(const KvLayout& layout) {
  std::vector<std::string> out;
  for (const KvSegment& s : layout.segments) {
    out.push_back(s.name + ":" + std::to_string(s.bytes) + ":" + name_of(s.role));
  }
  return out;
}

using Names = std::vector<std::string>;

TEST(NamedLayout, Fp8_656) {
  const KvLayout l = kv_layout("fp8_656");
  EXPECT_EQ(l.page_size, 64);
  EXPECT_EQ(l.page_bytes, (std::vector<std::int64_t>{41984}));
  EXPECT_EQ(l.token_bytes(), 656);
  EXPECT_EQ(names_and_bytes(l), (Names{"latent:512:latent", "scale:16:scale", "rope:128:rope"}));
  EXPECT_EQ(at(l, "latent", 0), 0);
  EXPECT_EQ(at(l, "scale", 0), 512);
  EXPECT_EQ(at(l, "rope", 0), 528);
  EXPECT_EQ(at(l, "latent", 1), 656);
  EXPECT_EQ(at(l, "rope", 63), 41856);
  EXPECT_EQ(at(l, "latent", 64), 41984);
  EXPECT_EQ(at(l, "scale", 130), 85792);  // page 2 at 83968, token 2 at 1312, scale at 512
}

TEST(NamedLayout, Dsv4_584) {
  const KvLayout l = kv_layout("dsv4_584");
  EXPECT_EQ(l.page_size, 64);
  EXPECT_EQ(l.page_bytes, (std::vector<std::int64_t>{37440}));  // 37376 padded to 65 * 576
  EXPECT_EQ(l.token_bytes(), 583);                              // the eighth scale byte is padding
  EXPECT_EQ(names_and_bytes(l), (Names{"latent:448:latent", "rope:128:rope", "scale:7:scale"}));
  EXPECT_EQ(at(l, "latent", 0), 0);
  EXPECT_EQ(at(l, "rope", 0), 448);
  EXPECT_EQ(at(l, "scale", 0), 36864);
  EXPECT_EQ(at(l, "latent", 1), 576);
  EXPECT_EQ(at(l, "rope", 1), 1024);
  EXPECT_EQ(at(l, "scale", 1), 36872);
  EXPECT_EQ(at(l, "scale", 63), 37368);
  EXPECT_EQ(at(l, "latent", 64), 37440);
  EXPECT_EQ(at(l, "scale", 65), 74312);
  const KvLayout big = kv_layout("dsv4_584", {.page_size = 256});
  EXPECT_EQ(big.page_bytes, (std::vector<std::int64_t>{149760}));  // 149504 padded to 260 * 576
  EXPECT_EQ(at(big, "scale", 0), 147456);
  EXPECT_EQ(at(big, "scale", 255), 149496);
  EXPECT_EQ(at(big, "latent", 256), 149760);
}

TEST(NamedLayout, Mxfp8_528) {
  const KvLayout l = kv_layout("mxfp8_528");
  EXPECT_EQ(l.page_size, 64);
  EXPECT_EQ(l.page_bytes, (std::vector<std::int64_t>{33792}));  // 66 * 512, no padding
  EXPECT_EQ(l.token_bytes(), 528);
  EXPECT_EQ(names_and_bytes(l), (Names{"latent:512:latent", "scale:16:scale"}));
  EXPECT_EQ(at(l, "latent", 63), 32256);
  EXPECT_EQ(at(l, "scale", 0), 32768);
  EXPECT_EQ(at(l, "scale", 2), 32800);
  EXPECT_EQ(at(l, "latent", 64), 33792);
  EXPECT_EQ(kv_layout("mxfp8_528", {.page_size = 1}).page_bytes[0], 1024);
  EXPECT_EQ(kv_layout("mxfp8_528", {.page_size = 16}).page_bytes[0], 8704);  // 8448 padded
}

TEST(NamedLayout, Nvfp4_384) {
  const KvLayout l = kv_layout("nvfp4_384");
  EXPECT_EQ(l.page_size, 64);
  EXPECT_EQ(l.page_bytes, (std::vector<std::int64_t>{24576}));
  EXPECT_EQ(l.token_bytes(), 380);  // four of the 32 scale bytes are padding
  EXPECT_EQ(names_and_bytes(l), (Names{"latent:224:latent", "rope:128:rope", "scale:28:scale"}));
  EXPECT_EQ(at(l, "latent", 1), 352);
  EXPECT_EQ(at(l, "rope", 0), 224);
  EXPECT_EQ(at(l, "rope", 63), 22400);
  EXPECT_EQ(at(l, "scale", 0), 22528);
  EXPECT_EQ(at(l, "scale", 1), 22560);
  EXPECT_EQ(at(l, "scale", 63), 24544);
  EXPECT_EQ(at(l, "latent", 64), 24576);
}

TEST(NamedLayout, Nvfp4_352) {
  const KvLayout l = kv_layout("nvfp4_352");
  EXPECT_EQ(l.page_size, 64);
  EXPECT_EQ(l.page_bytes, (std::vector<std::int64_t>{22528}));
  EXPECT_EQ(l.token_bytes(), 352);
  EXPECT_EQ(names_and_bytes(l), (Names{"latent:256:latent", "rope:64:rope", "scale:32:scale"}));
  EXPECT_EQ(at(l, "latent", 1), 352);
  EXPECT_EQ(at(l, "rope", 1), 608);
  EXPECT_EQ(at(l, "scale", 1), 672);
  EXPECT_EQ(at(l, "scale", 64), 22848);
}

TEST(NamedLayout, Fp8_576) {
  const KvLayout l = kv_layout("fp8_576");
  EXPECT_EQ(l.page_bytes, (std::vector<std::int64_t>{36864}));
  EXPECT_EQ(l.token_bytes(), 576);
  EXPECT_EQ(names_and_bytes(l), (Names{"latent:512:latent", "rope:64:rope"}));
  EXPECT_EQ(at(l, "rope", 2), 1664);
  EXPECT_EQ(at(l, "latent", 65), 37440);
  // A flat pool is the same whatever the page.
  EXPECT_EQ(at(kv_layout("fp8_576", {.page_size = 1}), "latent", 65), 37440);
}

TEST(NamedLayout, Bf16_1152) {
  const KvLayout l = kv_layout("bf16_1152");
  EXPECT_EQ(l.page_bytes, (std::vector<std::int64_t>{73728}));
  EXPECT_EQ(l.token_bytes(), 1152);
  EXPECT_EQ(names_and_bytes(l), (Names{"latent:1024:latent", "rope:128:rope"}));
  EXPECT_EQ(at(l, "latent", 3), 3456);
  EXPECT_EQ(at(l, "rope", 3), 4480);
}

TEST(NamedLayout, DsaIndexer132) {
  const KvLayout l = kv_layout("dsa_indexer_132");
  EXPECT_EQ(l.page_bytes, (std::vector<std::int64_t>{8448}));
  EXPECT_EQ(l.token_bytes(), 132);
  EXPECT_EQ(names_and_bytes(l), (Names{"index_key:128:index_key", "index_scale:4:index_scale"}));
  EXPECT_EQ(at(l, "index_key", 63), 8064);
  EXPECT_EQ(at(l, "index_scale", 0), 8192);
  EXPECT_EQ(at(l, "index_scale", 63), 8444);
  EXPECT_EQ(at(l, "index_key", 64), 8448);
}

TEST(NamedLayout, Fp4Indexer68) {
  const KvLayout l = kv_layout("fp4_indexer_68");
  EXPECT_EQ(l.page_bytes, (std::vector<std::int64_t>{4352}));
  EXPECT_EQ(l.token_bytes(), 68);
  EXPECT_EQ(at(l, "index_key", 1), 64);
  EXPECT_EQ(at(l, "index_scale", 0), 4096);
  EXPECT_EQ(at(l, "index_scale", 63), 4348);
}

// Two heads of four bf16: 8 bytes a head; pages of two tokens.
constexpr KvLayoutOptions kSmall{.page_size = 2, .heads = 2, .head_size = 4};

TEST(NamedLayout, MhaNhd) {  // k: (pages, page, heads, size), v the same in a buffer of its own
  const KvLayout l = kv_layout("mha_nhd", kSmall);
  EXPECT_EQ(l.page_bytes, (std::vector<std::int64_t>{32, 32}));
  EXPECT_EQ(l.token_bytes(), 32);
  EXPECT_EQ(names_and_bytes(l),
            (Names{"k.head0:8:key", "k.head1:8:key", "v.head0:8:value", "v.head1:8:value"}));
  EXPECT_EQ(segment(l, "k.head1").buffer, 0);
  EXPECT_EQ(segment(l, "v.head1").buffer, 1);
  EXPECT_EQ(segment(l, "v.head1").head, 1);
  EXPECT_EQ(at(l, "k.head0", 0), 0);
  EXPECT_EQ(at(l, "k.head1", 0), 8);
  EXPECT_EQ(at(l, "k.head0", 1), 16);
  EXPECT_EQ(at(l, "k.head1", 3), 56);
  EXPECT_EQ(at(l, "v.head0", 2), 32);
}

TEST(NamedLayout, MhaHnd) {  // (pages, heads, page, size)
  const KvLayout l = kv_layout("mha_hnd", kSmall);
  EXPECT_EQ(l.page_bytes, (std::vector<std::int64_t>{32, 32}));
  EXPECT_EQ(at(l, "k.head0", 1), 8);
  EXPECT_EQ(at(l, "k.head1", 0), 16);
  EXPECT_EQ(at(l, "v.head1", 1), 24);
  EXPECT_EQ(at(l, "v.head1", 3), 56);
}

TEST(NamedLayout, MhaBlocksFirst) {  // (pages, 2, page, heads, size)
  const KvLayout l = kv_layout("mha_blocks_first", kSmall);
  EXPECT_EQ(l.page_bytes, (std::vector<std::int64_t>{64}));
  EXPECT_EQ(at(l, "k.head1", 1), 24);
  EXPECT_EQ(at(l, "v.head0", 0), 32);
  EXPECT_EQ(at(l, "v.head1", 1), 56);
  EXPECT_EQ(at(l, "k.head0", 2), 64);
  EXPECT_EQ(at(l, "v.head0", 3), 112);
  KvLayoutOptions hnd = kSmall;  // FlashInfer's (pages, 2, heads, page, size)
  hnd.head_order = HeadOrder::hnd;
  const KvLayout f = kv_layout("mha_blocks_first", hnd);
  EXPECT_EQ(at(f, "k.head1", 0), 16);
  EXPECT_EQ(at(f, "k.head0", 1), 8);
  EXPECT_EQ(at(f, "v.head1", 1), 56);
}

TEST(NamedLayout, MhaPacked) {  // (pages, heads, page, 2 * size), k then v
  const KvLayout l = kv_layout("mha_packed", kSmall);
  EXPECT_EQ(l.page_bytes, (std::vector<std::int64_t>{64}));
  EXPECT_EQ(at(l, "k.head0", 0), 0);
  EXPECT_EQ(at(l, "v.head0", 0), 8);
  EXPECT_EQ(at(l, "k.head0", 1), 16);
  EXPECT_EQ(at(l, "k.head1", 0), 32);
  EXPECT_EQ(at(l, "v.head1", 1), 56);
  EXPECT_EQ(at(l, "v.head1", 3), 120);
  KvLayoutOptions nhd = kSmall;  // (pages, page, heads, 2 * size)
  nhd.head_order = HeadOrder::nhd;
  const KvLayout n = kv_layout("mha_packed", nhd);
  EXPECT_EQ(at(n, "k.head1", 0), 16);
  EXPECT_EQ(at(n, "v.head1", 0), 24);
  EXPECT_EQ(at(n, "k.head0", 1), 32);
}

TEST(NamedLayout, MhaDtypes) {
  for (const auto& [dtype, bytes] : std::map<DType, std::int64_t>{
           {DType::u8, 1}, {DType::e4m3, 1}, {DType::bf16, 2}, {DType::f32, 4}}) {
    const KvLayout l = kv_layout("mha_nhd", {.heads = 8, .head_size = 128, .dtype = dtype});
    EXPECT_EQ(l.page_size, 16);
    EXPECT_EQ(l.token_bytes(), 2 * 8 * 128 * bytes);
  }
}

TEST(NamedLayout, NamesAreThoseOfTheIssueInOrder) {
  const std::vector<std::string_view> want{
      "fp8_656", "dsv4_584",         "mxfp8_528",       "nvfp4_384",      "nvfp4_352",
      "fp8_576", "bf16_1152",        "dsa_indexer_132", "fp4_indexer_68", "mha_nhd",
      "mha_hnd", "mha_blocks_first", "mha_packed"};
  const auto names = kv_layout_names();
  EXPECT_EQ(std::vector<std::string_view>(names.begin(), names.end()), want);
}

// Every layout with several pages, heads and orders.
std::vector<KvLayout> all_layouts() {
  std::vector<KvLayout> out;
  for (const std::string_view name : kv_layout_names()) {
    for (const std::int64_t page : {1, 2, 16, 64, 256}) {
      if (!name.starts_with("mha_")) {
        out.push_back(kv_layout(name, {.page_size = page}));
        continue;
      }
      for (const std::int64_t heads : {1, 3, 8}) {
        for (const HeadOrder order : {HeadOrder::usual, HeadOrder::nhd, HeadOrder::hnd}) {
          if (order != HeadOrder::usual && (name == "mha_nhd" || name == "mha_hnd")) continue;
          out.push_back(kv_layout(
              name, {.page_size = page, .heads = heads, .head_size = 5, .head_order = order}));
        }
      }
    }
  }
  return out;
}

TEST(Layout, EveryByteOfAPageBelongsToOneTokenOrIsPadding) {
  for (const KvLayout& l : all_layouts()) {
    SCOPED_TRACE(l.name + ", page " + std::to_string(l.page_size));
    EXPECT_NO_THROW(l.validate());
    std::vector<std::vector<int>> owner;
    for (const std::int64_t bytes : l.page_bytes) {
      owner.emplace_back(static_cast<std::size_t>(bytes), -1);
    }
    for (const KvSegment& s : l.segments) {
      for (std::int64_t t = 0; t < l.page_size; ++t) {
        for (std::int64_t i = 0; i < s.bytes; ++i) {
          int& o = owner[static_cast<std::size_t>(s.buffer)].at(
              static_cast<std::size_t>(s.offset + t * s.token_stride + i));
          ASSERT_EQ(o, -1) << s.name << " token " << t << " byte " << i;
          o = static_cast<int>(t);
        }
      }
    }
    // Padding is what the published layouts say, and nothing else.
    std::int64_t padding = 0;
    for (const auto& bytes : owner) padding += std::ranges::count(bytes, -1);
    std::int64_t want = 0;
    if (l.name == "dsv4_584") want = l.page_size + (576 - l.page_size * 584 % 576) % 576;
    if (l.name == "nvfp4_384") want = 4 * l.page_size;
    if (l.name == "mxfp8_528") want = (512 - l.page_size * 528 % 512) % 512;
    EXPECT_EQ(padding, want);
  }
}

TEST(Layout, SegmentsOfAllMhaLayoutsComeInOneOrder) {
  const KvLayout first = kv_layout("mha_nhd", kSmall);
  for (const std::string_view name : {"mha_hnd", "mha_blocks_first", "mha_packed"}) {
    EXPECT_EQ(names_and_bytes(kv_layout(name, kSmall)), names_and_bytes(first)) << name;
  }
}

TEST(Layout, SlotsPastFourGigabytes) {
  const KvLayout l = kv_layout("bf16_1152");
  EXPECT_EQ(at(l, "latent", 10'000'000), 11'520'000'000);
}

TEST(Layout, PagesMayBeInterleavedOverLayers) {
  const KvLayout l = kv_layout("fp8_656");
  EXPECT_EQ(byte_offset(l, segment(l, "scale"), 65, 61 * 41984), 61 * 41984 + 656 + 512);
}

std::int64_t slots(const KvLayout& l, std::vector<KvBuffer> buffers) {
  return slots_in(l, buffers);
}

TEST(SlotsIn, CountsWholeSlots) {
  std::uint8_t* const p = nullptr;
  const KvLayout flat = kv_layout("fp8_576", {.page_size = 1});
  EXPECT_EQ(slots(flat, {{p, 5760, 0}}), 10);
  EXPECT_EQ(slots(flat, {{p, 5759, 0}}), 9);
  EXPECT_EQ(slots(flat, {{p, 5760, 0}, {p, 1152, 0}}), 2);  // the least of the layers
  EXPECT_EQ(slots(flat, {{p, 575, 0}}), 0);
  EXPECT_EQ(slots(flat, {{p, -1, 0}}), 0);
  EXPECT_EQ(slots(flat, {}), 0);

  const KvLayout paged = kv_layout("dsv4_584");
  EXPECT_EQ(slots(paged, {{p, 3 * 37440, 0}}), 192);
  // Scales lie behind all rows: the last page holds a slot only where its scales are there too.
  EXPECT_EQ(slots(paged, {{p, 37440 + 36864, 0}}), 64);
  EXPECT_EQ(slots(paged, {{p, 37440 + 36864 + 7, 0}}), 65);
  EXPECT_EQ(slots(paged, {{p, 37440 + 36864 + 8 + 7, 0}}), 66);
  // The padding of the last page need not be there.
  EXPECT_EQ(slots(paged, {{p, 37375, 0}}), 64);
  EXPECT_EQ(slots(paged, {{p, 37374, 0}}), 63);
  // Strided pages.
  EXPECT_EQ(slots(paged, {{p, 100000 + 37375, 100000}}), 128);

  const KvLayout two = kv_layout("mha_nhd", kSmall);
  EXPECT_EQ(slots(two, {{p, 320, 0}, {p, 160, 0}}), 10);
  EXPECT_EQ(slots(two, {{p, kHuge, 1}, {p, kHuge, 1}}), kHuge);  // nonsense, but no overflow
}

TEST(SlotsIn, AgreesWithByteOffset) {
  for (const KvLayout& l : all_layouts()) {
    if (l.page_size > 16) continue;
    for (const std::int64_t bytes : {0, 1, 37, 500, 584, 1000, 12345, 20000}) {
      std::int64_t want = 0;
      const auto fits = [&](std::int64_t slot) {
        return std::ranges::all_of(l.segments, [&](const KvSegment& s) {
          const std::int64_t stride = l.page_bytes[static_cast<std::size_t>(s.buffer)];
          return byte_offset(l, s, slot, stride) + s.bytes <= bytes;
        });
      };
      while (fits(want)) ++want;
      const std::vector<KvBuffer> buffers(l.page_bytes.size(), {nullptr, bytes, 0});
      EXPECT_EQ(slots_in(l, buffers), want) << l.name << " " << l.page_size << " " << bytes;
    }
  }
}

template <class F>
std::string message_of(F f) {
  try {
    f();
  } catch (const ValueError& e) {
    return e.id() + " " + e.what();
  }
  return "nothing was raised";
}

std::string option_error(std::string_view name, const KvLayoutOptions& o) {
  return message_of([&] { kv_layout(name, o); });
}

TEST(Options, ImpossibleOnesAreRefused) {
  EXPECT_EQ(option_error("fp8_657", {}),
            "SRN1201 unknown KV layout fp8_657; known are fp8_656, dsv4_584, mxfp8_528, nvfp4_384, "
            "nvfp4_352, fp8_576, bf16_1152, dsa_indexer_132, fp4_indexer_68, mha_nhd, mha_hnd, "
            "mha_blocks_first, mha_packed");
  EXPECT_EQ(option_error("fp8_656", {.page_size = -1}),
            "SRN1202 page_size must be in [1, 65536] for layout fp8_656, got -1");
  EXPECT_EQ(option_error("fp8_656", {.page_size = kHuge}),
            "SRN1202 page_size must be in [1, 65536] for layout fp8_656, got 9223372036854775807");
  EXPECT_EQ(option_error("fp8_656", {.heads = 8}),
            "SRN1202 heads must be left out for layout fp8_656, got 8");
  EXPECT_EQ(option_error("fp8_656", {.head_size = 8}),
            "SRN1202 head_size must be left out for layout fp8_656, got 8");
  EXPECT_EQ(option_error("fp8_656", {.dtype = DType::bf16}),
            "SRN1202 dtype must be left out for layout fp8_656, got bfloat16");
  EXPECT_EQ(option_error("fp8_656", {.head_order = HeadOrder::hnd}),
            "SRN1202 head_order must be left out for layout fp8_656, got hnd");
  EXPECT_EQ(option_error("mha_nhd", {.head_size = 8}),
            "SRN1202 heads must be in [1, 1024] for layout mha_nhd, got 0");
  EXPECT_EQ(option_error("mha_nhd", {.heads = 8, .head_size = kHuge}),
            "SRN1202 head_size must be in [1, 65536] for layout mha_nhd, got 9223372036854775807");
  EXPECT_EQ(option_error("mha_nhd", {.heads = 8, .head_size = 8, .dtype = DType::i64}),
            "SRN1202 dtype must be uint8, float8_e4m3fn, bfloat16 or float32 for layout mha_nhd, "
            "got int64");
  EXPECT_EQ(option_error("mha_nhd", {.heads = 8, .head_size = 8, .head_order = HeadOrder::hnd}),
            "SRN1202 head_order must be left out for layout mha_nhd, got hnd");
  EXPECT_NO_THROW(kv_layout("mha_nhd", {.heads = 8, .head_size = 8, .head_order = HeadOrder::nhd}));
  EXPECT_NO_THROW(kv_layout(
      "mha_packed", {.page_size = 65536, .heads = 1024, .head_size = 65536, .dtype = DType::f32}));
}

KvLayout two_segments() {
  return {.name = "mine",
          .page_size = 4,
          .page_bytes = {80},
          .segments = {{.name = "a", .offset = 0, .token_stride = 20, .bytes = 12, .meaning = ""},
                       {.name = "b", .offset = 12, .token_stride = 20, .bytes = 8, .meaning = ""}},
          .source = "a test"};
}

template <class F>
std::string problem(F change) {
  KvLayout l = two_segments();
  change(l);
  return message_of([&] { l.validate(); });
}

TEST(Validate, FindsEveryContradiction) {
  EXPECT_EQ(problem([](KvLayout&) {}), "nothing was raised");
  const std::string start = "SRN1203 KV layout mine is impossible: ";
  EXPECT_EQ(problem([](KvLayout& l) { l.page_size = 0; }), start + "a page of 0 tokens");
  EXPECT_EQ(problem([](KvLayout& l) { l.segments.clear(); }), start + "it has no segment");
  EXPECT_EQ(problem([](KvLayout& l) { l.page_size = kHuge; }),
            start + "2 segments in pages of 9223372036854775807 tokens are too many");
  EXPECT_EQ(problem([](KvLayout& l) { l.page_bytes = {kHuge}; }),
            start + "buffer 0 has pages of 9223372036854775807 bytes");
  EXPECT_EQ(problem([](KvLayout& l) { l.segments[1].buffer = 1; }),
            start + "segment b lies in buffer 1 of 1");
  EXPECT_EQ(problem([](KvLayout& l) { l.segments[1].buffer = -1; }),
            start + "segment b lies in buffer -1 of 1");
  EXPECT_EQ(problem([](KvLayout& l) { l.segments[1].name = "a"; }),
            start + "two segments are named a");
  EXPECT_EQ(problem([](KvLayout& l) { l.segments[1].bytes = 0; }),
            start + "segment b is 0 bytes long in a page of 80");
  EXPECT_EQ(problem([](KvLayout& l) { l.segments[1].bytes = 9; }),
            start +
                "segment b leaves its page of 80 bytes (offset 12, 9 bytes a token, 20 bytes "
                "from token to token)");
  EXPECT_EQ(problem([](KvLayout& l) { l.segments[1].offset = 11; }),
            start + "segments a and b share byte 11 of a page of buffer 0");
  EXPECT_EQ(problem([](KvLayout& l) { l.segments[0].token_stride = 0; }),
            start + "segments a and a share byte 0 of a page of buffer 0");
  for (const std::int64_t hostile : {kHuge, -kHuge, std::int64_t{-1}, kHuge / 2}) {
    EXPECT_NE(problem([&](KvLayout& l) { l.segments[0].offset = hostile; }), "nothing was raised");
    EXPECT_NE(problem([&](KvLayout& l) { l.segments[0].bytes = hostile; }), "nothing was raised");
    EXPECT_NE(problem([&](KvLayout& l) { l.segments[0].token_stride = hostile; }),
              "nothing was raised");
  }
}

// Columns that a terminal shows: bytes that do not continue a UTF-8 character.
std::size_t columns(std::string_view line) {
  return static_cast<std::size_t>(
      std::ranges::count_if(line, [](char c) { return (c & 0xc0) != 0x80; }));
}

TEST(ByteMap, FitsTheWidthAndNamesEverySegment) {
  for (const int width : {48, 72, 100}) {
    for (const KvLayout& l : all_layouts()) {
      const std::string map = draw_byte_map(l, width);
      std::size_t begin = 0;
      while (begin < map.size()) {
        const std::size_t end = map.find('\n', begin);
        EXPECT_LE(columns(std::string_view(map).substr(begin, end - begin)),
                  static_cast<std::size_t>(width))
            << l.name << "\n"
            << map;
        begin = end + 1;
      }
    }
  }
  const std::string map = draw_byte_map(kv_layout("dsv4_584"));
  for (const char* word : {"latent", "rope", "scale", "448", "576", "36864", "37376", "37440"}) {
    EXPECT_NE(map.find(word), std::string::npos) << word << "\n" << map;
  }
}

TEST(ByteMap, IsDrawnLikeThis) {
  EXPECT_EQ(draw_byte_map(kv_layout("dsv4_584"), 72), R"(a page of 64 tokens: 37440 bytes
  ┌──────────────────────────────────────────────┬────────┬────────────┐
  │latent+rope                                   │scale   │░░░░░░░░░░░░│
  │64 x 576 B                                    │64 x 8 B│░░░░░░░░░░░░│
  └──────────────────────────────────────────────┴────────┴────────────┘
  0                                              36864    37376    37440
a token of latent+rope
  ┌───────────────────────────────────────────────┬────────────────────┐
  │latent                                         │rope                │
  │448 x e4m3                                     │64 x bf16           │
  └───────────────────────────────────────────────┴────────────────────┘
  0                                               448                576
a token of scale
  ┌─────────────────────────────────────────────────────────┬──────────┐
  │scale                                                    │░░░░░░░░░░│
  │7 x ue8m0, one per 64 values                             │░░░░░░░░░░│
  └─────────────────────────────────────────────────────────┴──────────┘
  0                                                         7          8
)");
}

TEST(ByteMap, RefusesWhatCannotBeDrawn) {
  KvLayout l = two_segments();
  l.segments[1].offset = 11;
  EXPECT_THROW(draw_byte_map(l), ValueError);
}

}  // namespace
}  // namespace serinus
