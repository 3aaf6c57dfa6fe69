#include "node.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "mix.h"

namespace distributed {

using serinus::DType;
using serinus::TensorView;
using serinus::canary::Moment;
using serinus::canary::Reason;
using serinus::canary::Record;
using serinus::canary::RequestDigest;
using serinus::canary::Source;
using serinus::canary::Violation;

serinus::KvLayout layout_of(const Model& model) {
  serinus::KvLayout layout = serinus::kv_layout("mha_hnd", {.page_size = model.page_size,
                                                            .heads = model.heads,
                                                            .head_size = model.head_size,
                                                            .dtype = DType::bf16});
  const int side = layout.num_buffers();
  layout.name = "mha_hnd with a side buffer";
  layout.page_bytes.push_back(model.page_size * model.side_bytes);
  layout.segments.push_back({"side", serinus::SegmentRole::index_key, side, 0, model.side_bytes,
                             model.side_bytes, -1, "an indexer's keys"});
  return layout;
}

std::uint32_t sample(std::span<const std::uint32_t> tokens) {
  std::uint64_t state = tokens.size();
  for (const std::uint32_t token : tokens.last(std::min<std::size_t>(tokens.size(), 4))) {
    state = mix(state, token);
  }
  return static_cast<std::uint32_t>(state % 32000);
}

std::vector<std::uint32_t> prompt_of(std::size_t length, std::uint32_t first) {
  std::vector<std::uint32_t> tokens = {first};
  while (tokens.size() < length) tokens.push_back(sample(tokens));
  return tokens;
}

serinus::canary::Options watch_options() {
  serinus::canary::Options o;
  o.records_per_step = 128;
  o.source_digests = true;
  return o;
}

Node::Node(const Model& m, std::int64_t pages, std::uint64_t seed, Memory& of)
    : model(m),
      layout(layout_of(m)),
      memory(of),
      monitor(watch_options()),
      free_pages_(static_cast<std::size_t>(pages - 1)),
      req_to_token_(make_table(0)),
      expected_tokens_(make_table(-1)) {
  for (int layer = 0; layer < model.layers; ++layer) {
    for (const std::int64_t page_bytes : layout.page_bytes) {
      const std::int64_t bytes = page_bytes * pages;
      buffers_.push_back({memory.allocate(bytes), bytes, page_bytes});
    }
  }
  sources_ = serinus::canary::sources_of(layout, model.layers, buffers_);

  serinus::canary::PoolSpec pool;
  pool.layout = layout;
  pool.num_layers = model.layers;
  pool.buffers = buffers_;
  pool.num_slots = pages * model.page_size;
  pool.device = memory.device();
  pool.table_rows = kRows;
  monitor.add_pool(pool);

  std::iota(free_pages_.begin(), free_pages_.end(), 1);  // page 0 holds the null slot
  std::ranges::sort(free_pages_, {}, [seed](std::int64_t page) {
    return mix(seed, static_cast<std::uint64_t>(page));
  });
}

bool Node::reserve(Request& request, std::int64_t tokens) {
  if (tokens > kCells || request.id >= kRows) return false;
  const auto pages = static_cast<std::size_t>((tokens + model.page_size - 1) / model.page_size);
  if (pages > request.pages.size() + free_pages_.size()) return false;
  while (request.pages.size() < pages) {
    const std::int64_t page = free_pages_.back();
    free_pages_.pop_back();
    request.pages.push_back(page);
    monitor.on_alloc(0, slots_of(std::span(&page, 1), 0, model.page_size), request.id);
  }
  // The table that attention would walk.
  const std::vector<std::int64_t> slots =
      slots_of(request.pages, 0, static_cast<std::int64_t>(pages) * model.page_size);
  write_row(req_to_token_, request.id, std::vector<std::int32_t>(slots.begin(), slots.end()));
  return true;
}

void Node::release(Request& request) {
  for (const std::int64_t page : request.pages) release_page(request, page);
  monitor.on_release(request.id);
  take();
  found_.erase(request.id);  // of this life
  request.pages.clear();
  request.cached = 0;
}

void Node::release_page(const Request& request, std::int64_t page) {
  monitor.on_free(0, slots_of(std::span(&page, 1), 0, model.page_size), request.id);
  free_pages_.push_back(page);
}

struct Node::Tables {
  std::vector<std::int64_t> rows, prefix, extend, ids, positions, locations, valid;
  std::vector<Owner> owners;
  serinus::canary::Batch batch;  // points to the vectors
};

Node::Tables Node::tables_of(std::span<const Request* const> requests) const {
  Tables t;
  for (const Request* r : requests) {
    const auto size = static_cast<std::int64_t>(r->tokens.size());
    t.rows.push_back(r->id);
    t.owners.push_back(r->id);
    t.prefix.push_back(r->cached);
    t.extend.push_back(size - r->cached);
    t.valid.push_back(size);
    const std::vector<std::int64_t> slots = slots_of(r->pages, r->cached, size - r->cached);
    t.locations.insert(t.locations.end(), slots.begin(), slots.end());
    for (std::int64_t i = r->cached; i < size; ++i) {
      t.positions.push_back(i);
      t.ids.push_back(r->tokens[static_cast<std::size_t>(i)]);
    }
  }
  t.batch.rows = t.rows;
  t.batch.owners = t.owners;
  t.batch.prefix_lens = t.prefix;
  t.batch.extend_lens = t.extend;
  t.batch.input_ids = t.ids;
  t.batch.positions = t.positions;
  t.batch.out_cache_loc = t.locations;
  t.batch.valid_lens = t.valid;
  t.batch.req_to_token = req_to_token_;
  t.batch.expected_tokens = expected_tokens_;
  return t;
}

void Node::forward(std::span<Request* const> requests) {
  for (const Request* r : requests) write_expected(*r);
  const Tables t = tables_of(requests);
  monitor.begin_step(t.batch);
  for (Request* r : requests) {
    const auto size = static_cast<std::int64_t>(r->tokens.size());
    const std::vector<std::int64_t> slots = slots_of(r->pages, 0, size);
    std::vector<std::uint8_t> bytes;
    for (std::int64_t cell = r->cached; cell < size; ++cell) {
      for (const Source& s : sources_) {
        bytes.resize(static_cast<std::size_t>(s.bytes));
        fill(*r, cell, s, bytes.data());
        memory.write(place_of(s, slots[static_cast<std::size_t>(cell)]), bytes.data(), s.bytes);
      }
    }
    r->cached = size;
  }
  monitor.end_step(t.batch);
}

Reason Node::verify(const Request& request) {
  const Request* one[] = {&request};
  write_expected(request);
  monitor.verify_now(Moment::head, request.id, request.id, 0, request.cached, tables_of(one).batch);
  take();
  return found_[request.id];
}

std::vector<Violation> Node::poll() {
  take();
  return std::exchange(found_since_poll_, {});
}

void Node::take() {
  monitor.wait();
  for (Violation& v : monitor.poll()) {
    found_[v.request] |= v.reasons;
    found_since_poll_.push_back(std::move(v));
  }
}

RequestDigest Node::digest(const Request& request) {
  return serinus::canary::request_digest(monitor, 0, request.id, request.id, request.cached,
                                         req_to_token_);
}

Greeting Node::greeting() const {
  return greeting_of(monitor.options(), monitor.pool(0));
}

std::int64_t Node::source_digests() const {
  return monitor.num_sources(0);
}

TensorView Node::make_table(std::int32_t value) {
  const std::vector<std::int32_t> cells(static_cast<std::size_t>(kRows * kCells), value);
  const Segment all = segment_of(std::span(cells));
  std::uint8_t* table = memory.allocate(all.bytes);
  memory.write(table, all.data, all.bytes);
  return {table, DType::i32, {kRows, kCells}, memory.device()};
}

void Node::write_row(const TensorView& table, Owner row, std::span<const std::int32_t> cells) {
  const Segment begin = segment_of(cells.first(std::min<std::size_t>(cells.size(), kCells)));
  memory.write(table.as<std::uint8_t>() + row * kCells * 4, begin.data, begin.bytes);
}

void Node::write_expected(const Request& request) {
  write_row(expected_tokens_, request.id,
            std::vector<std::int32_t>(request.tokens.begin(), request.tokens.end()));
}

std::vector<std::int64_t> Node::slots_of(std::span<const std::int64_t> pages, std::int64_t first,
                                         std::int64_t count) const {
  std::vector<std::int64_t> slots(static_cast<std::size_t>(count));
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t page = pages[static_cast<std::size_t>((first + i) / model.page_size)];
    slots[static_cast<std::size_t>(i)] = page * model.page_size + (first + i) % model.page_size;
  }
  return slots;
}

Segment Node::staging(std::int64_t bytes) {
  if (staging_.data == nullptr) {
    const std::int64_t most =
        std::max(kCells * (std::int64_t{sizeof(Record)} + 4 * source_digests()),
                 *std::ranges::max_element(layout.page_bytes));
    staging_ = {memory.allocate(most), most};
  }
  return {staging_.data, bytes};
}

Segment Node::part_of(int layer, int buffer, std::int64_t page, std::int64_t begin,
                      std::int64_t end) const {
  const serinus::KvBuffer& b =
      buffers_[static_cast<std::size_t>(layer * layout.num_buffers() + buffer)];
  return {b.data + page * b.page_stride + begin, end - begin};
}

std::uint8_t* Node::place_of(const Source& s, std::int64_t slot) const {
  return const_cast<std::uint8_t*>(s.base) + slot / model.page_size * s.page_stride + s.offset +
         slot % model.page_size * s.token_stride;
}

void Node::fill(const Request& request, std::int64_t cell, const Source& source,
                std::uint8_t* bytes) {
  const std::uint64_t token =
      mix(request.tokens[static_cast<std::size_t>(cell)], static_cast<std::uint64_t>(cell));
  const std::uint64_t state = mix(token, static_cast<std::uint64_t>(source.key_offset));
  for (std::int64_t i = 0; i < source.bytes; ++i) {
    bytes[i] =
        static_cast<std::uint8_t>(mix(state, static_cast<std::uint64_t>(i / 8)) >> (i % 8 * 8));
  }
}

std::vector<std::int64_t> Node::damaged(const Request& request) const {
  std::vector<std::int64_t> found;
  const std::vector<std::int64_t> slots = slots_of(request.pages, 0, request.cached);
  std::vector<std::uint8_t> is, should;
  for (std::int64_t cell = 0; cell < request.cached; ++cell) {
    const std::int64_t slot = slots[static_cast<std::size_t>(cell)];
    for (const Source& s : sources_) {
      is.resize(static_cast<std::size_t>(s.bytes));
      should.resize(is.size());
      memory.read(is.data(), place_of(s, slot), s.bytes);
      fill(request, cell, s, should.data());
      if (is == should) continue;
      found.push_back(slot);
      break;
    }
  }
  return found;
}

}  // namespace distributed
