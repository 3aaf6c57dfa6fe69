// KV layouts for C: a handle around a KvLayout.
#include "c_api/layouts.h"

#include <cstdint>
#include <string>
#include <vector>

#include <serinus/kv_layout.h>
#include <serinus_c.h>

#include "c_api/call.h"

using namespace serinus;

namespace {

SegmentRole role(std::int32_t value) {
  return c_api::one_of(
      "role", value,
      {SegmentRole::key, SegmentRole::value, SegmentRole::latent, SegmentRole::rope,
       SegmentRole::scale, SegmentRole::index_key, SegmentRole::index_scale});
}

const std::vector<std::string>& names() {
  static const std::vector<std::string> all(kv_layout_names().begin(), kv_layout_names().end());
  return all;
}

}  // namespace

size_t serinus_num_layouts(void) {
  return kv_layout_names().size();
}

const char* serinus_layout_name_at(size_t index) {
  const char* name = nullptr;
  c_api::call([&] {
    if (index < names().size()) name = names()[index].c_str();
  });
  return name;
}

serinus_status serinus_layout_create(const char* name, const serinus_layout_options* options,
                                     serinus_layout** layout) {
  return c_api::call([&] {
    c_api::required("layout", layout);
    KvLayoutOptions o;
    if (options != nullptr) {
      const serinus_layout_options given = c_api::read_struct("options", options);
      o.page_size = given.page_size;
      o.heads = given.heads;
      o.head_size = given.head_size;
      if (given.heads != 0) o.dtype = c_api::dtype("options.dtype", given.dtype);
    }
    *layout = new serinus_layout{kv_layout(&c_api::required("name", name), o)};
  });
}

serinus_status serinus_layout_create_custom(const char* name, int64_t page_size,
                                            const int64_t* page_bytes, size_t num_buffers,
                                            const serinus_segment* segments, size_t num_segments,
                                            serinus_layout** layout) {
  return c_api::call([&] {
    c_api::required("layout", layout);
    KvLayout l;
    l.name = &c_api::required("name", name);
    l.page_size = page_size;
    const auto pages = c_api::array("page_bytes", page_bytes, num_buffers);
    l.page_bytes.assign(pages.begin(), pages.end());
    for (const serinus_segment& s : c_api::array("segments", segments, num_segments)) {
      KvSegment& segment = l.segments.emplace_back();
      segment.name = &c_api::required("segment.name", s.name);
      segment.role = role(s.role);
      segment.buffer = s.buffer;
      segment.offset = s.offset;
      segment.token_stride = s.token_stride;
      segment.bytes = s.bytes;
      segment.head = s.head;
    }
    l.validate();
    *layout = new serinus_layout{std::move(l)};
  });
}

void serinus_layout_destroy(serinus_layout* layout) {
  delete layout;
}

const char* serinus_layout_name(const serinus_layout* layout) {
  return layout == nullptr ? nullptr : layout->layout.name.c_str();
}

int64_t serinus_layout_page_size(const serinus_layout* layout) {
  return layout == nullptr ? 0 : layout->layout.page_size;
}

int64_t serinus_layout_token_bytes(const serinus_layout* layout) {
  return layout == nullptr ? 0 : layout->layout.token_bytes();
}

size_t serinus_layout_num_buffers(const serinus_layout* layout) {
  return layout == nullptr ? 0 : layout->layout.page_bytes.size();
}

int64_t serinus_layout_page_bytes(const serinus_layout* layout, size_t buffer) {
  if (layout == nullptr || buffer >= layout->layout.page_bytes.size()) return 0;
  return layout->layout.page_bytes[buffer];
}

size_t serinus_layout_num_segments(const serinus_layout* layout) {
  return layout == nullptr ? 0 : layout->layout.segments.size();
}

serinus_status serinus_layout_segment(const serinus_layout* layout, size_t index,
                                      serinus_segment* segment) {
  return c_api::call([&] {
    const auto& segments = c_api::required("layout", layout).layout.segments;
    c_api::required("segment", segment);
    if (index >= segments.size())
      raise(errors::Page::c_unknown_value, {{"name", "index"},
                                            {"got", std::to_string(index)},
                                            {"want", std::to_string(segments.size()) + " - 1"}});
    const KvSegment& s = segments[index];
    *segment = {s.name.c_str(), static_cast<std::int32_t>(s.role),
                s.buffer,       s.offset,
                s.token_stride, s.bytes,
                s.head};
  });
}
