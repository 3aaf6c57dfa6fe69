// KV layouts as data.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <serinus/kv_layout.h>

#include "base/raise.h"
#include "bind.h"
#include "named.h"

namespace serinus::python {

namespace nb = nanobind;

namespace {

using namespace nb::literals;

// Within the bounds of a pool, where 64 bits hold every offset.
std::int64_t byte_of(const KvLayout& layout, const KvSegment& segment, std::int64_t slot,
                     std::optional<std::int64_t> page_stride) {
  constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max();
  const auto require = [&](const char* name, std::int64_t got, std::int64_t most) {
    if (got >= 0 && got <= most) return;
    raise(errors::Page::layout_option, {{"name", name},
                                        {"want", "in [0, " + std::to_string(most) + "]"},
                                        {"layout", layout.name},
                                        {"got", std::to_string(got)}});
  };
  require("segment.buffer", segment.buffer, layout.num_buffers() - 1);
  require("slot", slot, kMost);
  if (page_stride) require("page_stride", *page_stride, kMost);
  return byte_offset(
      layout, segment, slot,
      page_stride.value_or(layout.page_bytes[static_cast<std::size_t>(segment.buffer)]));
}

KvLayout layout_named(const std::string& name, std::int64_t page_size, std::int64_t heads,
                      std::int64_t head_size, const std::optional<std::string>& dtype,
                      const std::string& head_order) {
  KvLayoutOptions options;
  options.page_size = page_size;
  options.heads = heads;
  options.head_size = head_size;
  if (dtype) options.dtype = kv_dtype_named(*dtype);
  options.head_order = named<HeadOrder>(
      "head_order", head_order,
      {{"usual", HeadOrder::usual}, {"nhd", HeadOrder::nhd}, {"hnd", HeadOrder::hnd}});
  return kv_layout(name, options);
}

SegmentRole role_named(const std::string& word) {
  return named<SegmentRole>("role", word,
                            {{"key", SegmentRole::key},
                             {"value", SegmentRole::value},
                             {"latent", SegmentRole::latent},
                             {"rope", SegmentRole::rope},
                             {"scale", SegmentRole::scale},
                             {"index_key", SegmentRole::index_key},
                             {"index_scale", SegmentRole::index_scale}});
}

}  // namespace

void bind_layouts(nb::module_& m) {
  nb::class_<KvSegment>(m, "KvSegment")
      .def(
          "__init__",
          [](KvSegment* self, std::string name, const std::string& role, int buffer,
             std::int64_t offset, std::int64_t token_stride, std::int64_t bytes, int head,
             std::string meaning) {
            new (self) KvSegment{
                std::move(name),   role_named(role), buffer, offset, token_stride, bytes, head,
                std::move(meaning)};
          },
          nb::kw_only(), "name"_a, "role"_a, "buffer"_a = 0, "offset"_a, "token_stride"_a,
          "bytes"_a, "head"_a = -1, "meaning"_a = "")
      .def_ro("name", &KvSegment::name)
      .def_prop_ro("role", [](const KvSegment& s) { return name_of(s.role); })
      .def_ro("buffer", &KvSegment::buffer)
      .def_ro("offset", &KvSegment::offset)
      .def_ro("token_stride", &KvSegment::token_stride)
      .def_ro("bytes", &KvSegment::bytes)
      .def_ro("head", &KvSegment::head)
      .def_ro("meaning", &KvSegment::meaning);
  nb::class_<KvLayout>(m, "KvLayout")
      .def(
          "__init__",
          [](KvLayout* self, std::string name, std::int64_t page_size,
             std::vector<std::int64_t> page_bytes, std::vector<KvSegment> segments,
             std::string source) {
            KvLayout layout{std::move(name), page_size, std::move(page_bytes), std::move(segments),
                            std::move(source)};
            layout.validate();
            new (self) KvLayout(std::move(layout));
          },
          nb::kw_only(), "name"_a, "page_size"_a, "page_bytes"_a, "segments"_a, "source"_a = "")
      .def_ro("name", &KvLayout::name)
      .def_ro("page_size", &KvLayout::page_size)
      .def_ro("source", &KvLayout::source)
      .def_prop_ro("page_bytes",
                   [](const KvLayout& l) {
                     nb::list out;
                     for (const std::int64_t b : l.page_bytes) out.append(b);
                     return out;
                   })
      .def_prop_ro("segments",
                   [](const KvLayout& l) {
                     nb::list out;
                     for (const KvSegment& s : l.segments) out.append(nb::cast(s));
                     return out;
                   })
      .def_prop_ro("num_buffers", &KvLayout::num_buffers)
      .def_prop_ro("token_bytes", &KvLayout::token_bytes)
      .def("byte_offset", &byte_of, "segment"_a, "slot"_a, "page_stride"_a = nb::none(),
           "Byte of `segment` of slot `slot` in its buffer; page_stride in bytes, default dense.")
      .def("draw", &draw_byte_map, "width"_a = 72, "A map of one page's bytes.")
      .def("__repr__", [](const KvLayout& l) {
        return "KvLayout(" + l.name + ", page_size=" + std::to_string(l.page_size) +
               ", token_bytes=" + std::to_string(l.token_bytes()) + ")";
      });
  m.def("kv_layout", &layout_named, "name"_a, nb::kw_only(), "page_size"_a = 0, "heads"_a = 0,
        "head_size"_a = 0, "dtype"_a = nb::none(), "head_order"_a = "usual",
        "A layout by name. Raises serinus.ValueError for an unknown name or impossible option.");
  m.def("kv_layout_names", [] {
    nb::list names;
    for (const std::string_view n : kv_layout_names()) names.append(nb::str(n.data(), n.size()));
    return names;
  });
}

}  // namespace serinus::python
