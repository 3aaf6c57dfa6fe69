// The door of canary_cuda.h: tensors are checked once and become plain parameters. No CUDA here, so
// that a build without it has the same door.
#include <algorithm>
#include <cstring>
#include <limits>
#include <string>
#include <tuple>
#include <vector>

#include <serinus/canary_cuda.h>

#include "base/checks.h"
#include "base/raise.h"
#include "canary/cuda/layout.h"
#include "canary/cuda/serinus/memory.h"
#include "canary/cuda/serinus/params.h"
#include "canary/serinus/digest.h"
#include "gpu/device.h"

namespace serinus::canary::cuda {

namespace {

struct PoolState {
  std::uint32_t* seals;
  std::uint8_t* marks;
  std::uint32_t* live;
  std::uint32_t* live_counts;
  std::uint32_t* contested;
  RowCursor* cursors;
  PoolWords* words;
  Piece* pieces;
  SourceRange* sources;
  Piece* pieces_in_order;  ///< source by source
  Strip* strips;
};

/// A partial digest takes the ends of a source, a full one its blocks.
std::int64_t num_pieces(const DevicePool& p) {
  return p.depth == Depth::partial ? p.num_sources : p.num_blocks;
}

PoolState place(Layout& l, const DevicePool& p) {
  const std::int64_t words = (p.num_slots + 31) / 32;
  return {l.take<std::uint32_t>(p.num_slots),
          l.take<std::uint8_t>(p.num_slots),
          l.take<std::uint32_t>(words),
          l.take<std::uint32_t>((p.num_slots + kChunk - 1) / kChunk),
          l.take<std::uint32_t>(words),
          l.take<RowCursor>(p.num_rows),
          l.take<PoolWords>(1),
          l.take<Piece>(num_pieces(p)),
          l.take<SourceRange>(p.num_sources),
          l.take<Piece>(num_pieces(p)),
          l.take<Strip>(p.num_strips)};
}

void check_tensor(std::string_view name, const TensorView& t, DType dtype, Device device) {
  check_dtype(name, t, dtype);
  check_device(name, t, device);
  check_contiguous(name, t);
  check_data(name, t);
  check_aligned(name, t, size_of(dtype));
}

/// Bytes that a function said it needs.
void check_memory(std::string_view name, const TensorView& t, std::size_t bytes, Device device) {
  check_tensor(name, t, DType::u8, device);
  check_aligned(name, t, kAlign);
  if (t.numel() < static_cast<std::int64_t>(bytes)) {
    raise(errors::Page::canary_memory_too_small, {{"name", std::string(name)},
                                                  {"want", std::to_string(bytes)},
                                                  {"got", std::to_string(t.numel())}});
  }
}

void check_vector(std::string_view name, const TensorView& t, DType dtype, std::int64_t n,
                  Device device) {
  Shapes().expect(name, t, {n});
  check_tensor(name, t, dtype, device);
}

Device device_of(const DevicePool& pool) {
  return pool.records.device;
}

PoolParams params(const DevicePool& p, const char* call) {
  const Device device = device_of(p);
  gpu::require_gpu(call, device);
  Shapes().expect("records", p.records, {p.num_slots, std::int64_t{sizeof(Record)}});
  check_tensor("records", p.records, DType::u8, device);
  check_aligned("records", p.records, kAlign);
  Shapes().expect("ledger", p.ledger,
                  {p.num_slots, std::int64_t{sizeof(LedgerEntry) / sizeof(std::int32_t)}});
  check_tensor("ledger", p.ledger, DType::i32, device);
  check_memory("state", p.state, pool_state_bytes(p), device);
  Layout layout(p.state.as<std::uint8_t>());
  const PoolState s = place(layout, p);
  PoolParams out;
  out.records = p.records.as<Record>();
  out.ledger = p.ledger.as<LedgerEntry>();
  out.seals = s.seals;
  out.marks = s.marks;
  out.live = s.live;
  out.live_counts = s.live_counts;
  out.contested = s.contested;
  out.cursors = s.cursors;
  out.words = s.words;
  out.pieces = s.pieces;
  out.pieces_in_order = s.pieces_in_order;
  out.strips = s.strips;
  out.num_slots = p.num_slots;
  out.num_rows = p.num_rows;
  out.slot_bytes = p.slot_bytes;
  out.page_size = static_cast<std::uint32_t>(p.page_size);
  out.num_pieces = static_cast<std::int32_t>(num_pieces(p));
  out.num_strips = static_cast<std::int32_t>(p.num_strips);
  out.number = p.number;
  out.depth = p.depth;
  out.clean_null = p.null_slot == NullSlot::clean;
  out.swa = p.kind == PoolKind::swa;
  out.window = out.swa ? p.window : 0;
  out.token_offset = p.token_offset;
  if (p.full_to_swa.numel() > 0 && p.full_to_swa.data != nullptr) {
    check_rank("full_to_swa", p.full_to_swa, 1, "(n)");
    check_tensor("full_to_swa", p.full_to_swa, DType::i64, device);
    out.full_to_swa = p.full_to_swa.as<const std::int64_t>();
    out.full_to_swa_size = p.full_to_swa.shape[0];
  }
  return out;
}

PoolState state_of(const DevicePool& pool) {
  Layout layout(pool.state.as<std::uint8_t>());
  return place(layout, pool);
}

std::int64_t ring_rows(std::int64_t capacity) {
  std::int64_t rows = 64;
  while (rows < 2 * capacity && rows < (std::int64_t{1} << 30)) rows *= 2;
  return rows;
}

RingParams params(const DeviceRing& ring, Device device) {
  check_memory("ring", ring.memory, ring_bytes(ring.capacity), device);
  Layout layout(ring.memory.as<std::uint8_t>());
  RingParams out;
  out.header = layout.take<RingHeader>(1);
  out.rows = layout.take<RingRow>(ring_rows(ring.capacity));
  out.mask = static_cast<std::uint64_t>(ring_rows(ring.capacity) - 1);
  out.capacity = static_cast<std::uint64_t>(std::max<std::int64_t>(0, ring.capacity));
  return out;
}

SlotList list_of(std::string_view name, const TensorView& slots, Device device) {
  check_rank(name, slots, 1, "(n)");
  check_tensor(name, slots, DType::i64, device);
  return {slots.as<const std::int64_t>(), slots.shape[0]};
}

TableParams table_of(std::string_view name, const TensorView& t, Device device) {
  check_rank(name, t, 2, "(rows, columns)");
  check_dtype(name, t, DType::i32);
  check_device(name, t, device);
  check_last_dim_contiguous(name, t);
  check_data(name, t);
  check_aligned(name, t, size_of(DType::i32));
  // No token has a later position.
  const std::int64_t width = std::min(t.shape[1], std::int64_t{kLastPosition});
  return {t.as<const std::int32_t>(), t.shape[0], width, t.strides[0]};
}

BatchParams params(const DeviceBatch& b, Device device) {
  BatchParams out;
  check_rank("rows", b.rows, 1, "(bs)");
  out.num_requests = b.rows.shape[0];
  const std::int64_t bs = out.num_requests;
  const auto words = [&](const char* name, const TensorView& t, std::int64_t n) {
    check_vector(name, t, DType::i64, n, device);
    return t.as<const std::int64_t>();
  };
  out.rows = words("rows", b.rows, bs);
  out.prefix_lens = words("prefix_lens", b.prefix_lens, bs);
  out.extend_lens = words("extend_lens", b.extend_lens, bs);
  check_vector("owners", b.owners, b.owners.dtype == DType::i32 ? DType::i32 : DType::u32, bs,
               device);
  out.owners = b.owners.as<const std::uint32_t>();
  out.table = table_of("req_to_token", b.req_to_token, device);
  check_rank("input_ids", b.input_ids, 1, "(tokens)");
  out.num_tokens = b.input_ids.shape[0];
  out.tokens = words("input_ids", b.input_ids, out.num_tokens);
  out.positions = words("positions", b.positions, out.num_tokens);
  out.locations = words("out_cache_loc", b.out_cache_loc, out.num_tokens);
  if (b.expected_tokens) out.expected = table_of("expected_tokens", *b.expected_tokens, device);
  if (b.parents) out.parents = words("parents", *b.parents, out.num_tokens);
  if (b.valid_lens) out.valid_lens = words("valid_lens", *b.valid_lens, bs);
  if (b.attached) {
    check_rank("attached", *b.attached, 3, "(rows, n, 24)");
    out.attached_rows = b.attached->shape[0];
    out.attached_each = b.attached->shape[1];
    Shapes().expect("attached", *b.attached,
                    {out.attached_rows, out.attached_each, std::int64_t{sizeof(AttachedCells)}});
    check_tensor("attached", *b.attached, DType::u8, device);
    check_aligned("attached", *b.attached, alignof(AttachedCells));
    out.attached = b.attached->as<const AttachedCells>();
  }
  if (b.due) {
    Shapes().expect("due", *b.due, {bs, 2});
    check_tensor("due", *b.due, DType::i64, device);
    out.due = b.due->as<const std::int64_t>();
  }
  return out;
}

Workspace place_workspace(Layout& l, std::int64_t tokens) {
  return {l.take<StampedToken>(tokens), l.take<ChainMap>((tokens + kStampTile - 1) / kStampTile),
          l.take<std::uint64_t>(std::min(tokens, kStampTile))};
}

int alignment_of(const Source& s) {
  const std::uint64_t bits = reinterpret_cast<std::uintptr_t>(s.base + s.offset) |
                             static_cast<std::uint64_t>(s.page_stride) |
                             static_cast<std::uint64_t>(s.token_stride);
  return bits % 16 == 0 ? 16 : bits % 8 == 0 ? 8 : bits % 4 == 0 ? 4 : 1;
}

// ---------------------------------------------------------------- where a slot's bytes lie

/// The tables in a pool's state; its pieces in the order of the sources.
struct Table {
  std::vector<Piece> pieces;
  std::vector<Strip> strips;
  std::vector<SourceRange> ranges;
  std::uint64_t length_sum = 0;
};

/// Slots begin at multiples of this in a line, of a strip that begins with `first`.
int step_in_line(const Piece& first) {
  const std::uint64_t bits = reinterpret_cast<std::uintptr_t>(first.base) |
                             static_cast<std::uint64_t>(first.page_stride) |
                             static_cast<std::uint64_t>(first.token_stride) | kStripRow;
  return static_cast<int>(bits & (~bits + 1));
}

/// Whether `more` bytes fit into what the first or the last row of a strip leaves, whatever comes
/// before it in its first line.
bool has_room(const Strip& strip, const Piece& first, std::int32_t more) {
  const auto padded = [](std::int32_t bytes) { return (bytes + 15) / 16 * 16; };
  const int step = strip.by_line != 0 ? step_in_line(first) : kStripRow;
  for (int lead = 0; lead < kStripRow; lead += step) {
    const int after = (kStripRow - (lead + padded(strip.bytes)) % kStripRow) % kStripRow;
    if (padded(more) > std::max(lead, after)) return false;
  }
  return true;
}

/// Strips of pieces, those that are alike side by side.
std::vector<Strip> strips_of(const std::vector<Piece>& pieces) {
  std::vector<Strip> strips;
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    const Piece& piece = pieces[i];
    if (!strips.empty() && strips.back().more < 0) {
      Strip& s = strips.back();
      const Piece& before = pieces[i - 1];
      const bool follows = before.base + before.bytes == piece.base &&
                           before.page_stride == piece.page_stride &&
                           before.token_stride == piece.token_stride && s.bytes % 16 == 0;
      if (follows && (s.bytes % kStripRow != 0 || piece.bytes % kStripRow != 0)) {
        s.bytes += piece.bytes;
        s.alignment = std::min(s.alignment, static_cast<std::int16_t>(piece.alignment));
        continue;
      }
      if (has_room(s, pieces[static_cast<std::size_t>(s.first)], piece.bytes)) {
        s.more = static_cast<std::int32_t>(i);
        continue;
      }
    }
    // Rows that are lines cost a row more, and part of a line more is asked for where they are not:
    // measured, that is worth it where slots begin at any 16 bytes, and not at any 64.
    const bool by_line = piece.alignment == 16 && step_in_line(piece) < 64;
    strips.push_back({.first = static_cast<std::int32_t>(i),
                      .bytes = piece.bytes,
                      .alignment = static_cast<std::int16_t>(piece.alignment),
                      .by_line = static_cast<std::int16_t>(by_line)});
  }
  std::ranges::sort(strips, {}, [](const Strip& s) {
    return std::tuple(-s.bytes, -s.alignment, s.more < 0, s.first);
  });
  return strips;
}

Table table_of(const PoolSpec& spec, Depth depth) {
  Table table;
  if (depth == Depth::none) return table;
  const std::vector<Source> sources = sources_of(spec.layout, spec.num_layers, spec.buffers);
  const std::vector<PreparedSource> prepared = prepare(sources);
  for (std::size_t i = 0; i < sources.size(); ++i) {
    const PreparedSource& s = prepared[i];
    table.length_sum = hash::canonical(table.length_sum + s.length_term);
    const auto first = static_cast<std::int32_t>(table.pieces.size());
    for (std::size_t block = 0; block < s.keys.size(); ++block) {
      const std::int64_t offset = static_cast<std::int64_t>(block) * hash::kBlock;
      const bool whole = depth == Depth::partial;
      table.pieces.push_back({.base = s.base + offset,
                              .page_stride = s.page_stride,
                              .token_stride = s.token_stride,
                              .keys = s.keys[block],
                              .bytes = static_cast<std::int32_t>(
                                  whole ? s.bytes : std::min(s.bytes - offset, hash::kBlock)),
                              .alignment = alignment_of(sources[i])});
      if (whole) break;
    }
    table.ranges.push_back(
        {first, static_cast<std::int32_t>(table.pieces.size()) - first, s.length_term});
  }
  if (depth == Depth::all) table.strips = strips_of(table.pieces);
  return table;
}

/// Their terms are added up, in any order; and neighbours that are alike are hashed side by side.
std::vector<Piece> sorted(std::vector<Piece> pieces) {
  std::ranges::sort(pieces, {},
                    [](const Piece& p) { return std::tuple(-p.bytes, -p.alignment, p.base); });
  return pieces;
}

}  // namespace

RingParams params_of(const DeviceRing& ring) {
  return params(ring, ring.memory.device);
}
BatchParams params_of(const DeviceBatch& batch, Device device) {
  return params(batch, device);
}

// ---------------------------------------------------------------- memory

DevicePool describe_pool(const PoolSpec& spec, Depth depth, int number, std::int64_t num_rows) {
  const auto require = [&](bool ok, const std::string& problem) {
    if (!ok) raise(errors::Page::canary_pool, {{"name", spec.name}, {"got", problem}});
  };
  require(spec.num_slots >= 1 && spec.num_slots <= std::numeric_limits<std::int32_t>::max(),
          "num_slots " + std::to_string(spec.num_slots) + " is not in [1, 2^31)");
  require(spec.layout.page_size >= 1 && spec.layout.page_size <= 65536,
          "page_size " + std::to_string(spec.layout.page_size) + " is not in [1, 65536]");
  require(num_rows >= 0, "num_rows " + std::to_string(num_rows) + " is negative");
  DevicePool p;
  p.number = number;
  p.num_slots = spec.num_slots;
  p.page_size = spec.layout.page_size;
  p.num_rows = num_rows;
  p.depth = depth;
  p.kind = spec.kind;
  p.null_slot = spec.null_slot;
  p.window = spec.window;
  p.token_offset = spec.token_offset;
  if (depth == Depth::none) return p;
  const std::vector<Source> sources = sources_of(spec.layout, spec.num_layers, spec.buffers);
  for (const Source& s : sources) {
    // Slots at the ends of the first and the last page reach furthest.
    for (const std::int64_t slot :
         {std::int64_t{0}, std::min(spec.num_slots, p.page_size) - 1, spec.num_slots - 1,
          std::max<std::int64_t>(0, (spec.num_slots - 1) / p.page_size * p.page_size - 1)}) {
      require(holds(s, p.page_size, slot),
              "slot " + std::to_string(slot) + " does not lie within its buffers");
    }
    require(s.bytes < std::int64_t{1} << 31, "a source has 2^31 bytes a token or more");
    p.num_blocks += (s.bytes + hash::kBlock - 1) / hash::kBlock;
  }
  p.num_sources = static_cast<std::int64_t>(sources.size());
  p.num_strips = static_cast<std::int64_t>(table_of(spec, depth).strips.size());
  p.slot_bytes = digested_bytes(sources, depth);
  return p;
}

std::size_t pool_state_bytes(const DevicePool& pool) {
  Layout layout;
  place(layout, pool);
  return static_cast<std::size_t>(layout.bytes());
}

void init_pool(const DevicePool& pool, const PoolSpec& spec, Stream stream) {
  const PoolParams p = params(pool, "canary init_pool");
  const Device device = device_of(pool);
  const Table table = table_of(spec, pool.depth);
  clear(pool.records, stream);
  clear(pool.ledger, stream);
  clear(pool.state, stream);
  if (pool.source_digests.data != nullptr) clear(pool.source_digests, stream);
  const PoolState state = state_of(pool);
  const auto fill = [&](auto* to, const auto& from) {
    upload(to, std::as_bytes(std::span(from)), device, stream);
  };
  fill(state.pieces, sorted(table.pieces));
  fill(state.pieces_in_order, table.pieces);
  fill(state.strips, table.strips);
  fill(state.sources, table.ranges);
  upload(&p.words->length_sum, std::as_bytes(std::span(&table.length_sum, 1)), device, stream);
  launch_null_digest(p, device, stream);
}

std::size_t ring_bytes(std::int64_t capacity) {
  Layout layout;
  layout.take<RingHeader>(1);
  layout.take<RingRow>(ring_rows(capacity));
  return static_cast<std::size_t>(layout.bytes());
}

void clear_ring(const DeviceRing& ring, Stream stream) {
  const Device device = ring.memory.device;
  gpu::require_gpu("canary clear_ring", device);
  launch_clear_ring(params(ring, device), device, stream);
}

void next_step(const DeviceRing& ring, Stream stream) {
  const Device device = ring.memory.device;
  gpu::require_gpu("canary next_step", device);
  launch_next_step(params(ring, device), device, stream);
}

void recycle_ring(const DeviceRing& ring, std::uint64_t number, Stream stream) {
  const Device device = ring.memory.device;
  gpu::require_gpu("canary recycle_ring", device);
  launch_recycle_ring(params(ring, device), number, device, stream);
}

RingContent read_ring(std::span<const std::byte> copy, std::int64_t capacity) {
  if (copy.size() < ring_bytes(capacity)) {
    raise(errors::Page::canary_memory_too_small, {{"name", "ring"},
                                                  {"want", std::to_string(ring_bytes(capacity))},
                                                  {"got", std::to_string(copy.size())}});
  }
  RingHeader header;
  std::memcpy(&header, copy.data(), sizeof header);
  std::vector<RingRow> rows(static_cast<std::size_t>(ring_rows(capacity)));
  Layout layout;
  layout.take<RingHeader>(1);
  std::memcpy(rows.data(), copy.data() + layout.bytes(), rows.size() * sizeof(RingRow));
  std::erase_if(rows, [](const RingRow& r) { return r.sequence == 0; });
  std::ranges::sort(rows, {}, &RingRow::sequence);
  RingContent content{header.counts, {}, {}, {}, header.next};
  for (const RingRow& r : rows) {
    Violation v;
    v.reasons = static_cast<Reason>(r.reasons);
    v.moment = static_cast<Moment>(r.moment);
    v.pool = static_cast<int>(r.pool);
    v.slot = r.slot;
    v.expected_position = r.expected_position;
    v.stored_position = r.stored_position;
    v.expected_token = r.expected_token;
    v.stored_token = r.stored_token;
    v.expected_chain = r.expected_chain;
    v.stored_chain = r.stored_chain;
    v.expected_digest = r.expected_digest;
    v.stored_digest = r.stored_digest;
    v.expected_owner = r.expected_owner;
    v.stored_owner = r.stored_owner;
    v.expected_generation = r.expected_generation;
    v.stored_generation = r.stored_generation;
    v.request = r.request;
    v.row = r.row;
    v.prev_slot = r.prev_slot;
    v.first_step = r.first_step;
    v.last_step = r.last_step;
    v.count = r.count;
    content.violations.push_back(std::move(v));
    content.numbers.push_back(r.sequence);
    content.sources.push_back(r.source > 0 ? r.source - 1 : r.source == 0 ? kNotNamed : kNotKnown);
  }
  return content;
}

// ---------------------------------------------------------------- the life of a slot

void on_alloc(const DevicePool& pool, const DeviceRing& ring, const TensorView& slots, Owner owner,
              std::uint32_t epoch, Stream stream) {
  const PoolParams p = params(pool, "canary on_alloc");
  const Device device = device_of(pool);
  launch_alloc(p, params(ring, device), list_of("slots", slots, device), owner, epoch, device,
               stream);
}

void on_free(const DevicePool& pool, const DeviceRing& ring, const TensorView& slots, Owner owner,
             Stream stream) {
  const PoolParams p = params(pool, "canary on_free");
  const Device device = device_of(pool);
  launch_free(p, params(ring, device), list_of("slots", slots, device), owner, device, stream);
}

void on_transfer(const DevicePool& pool, const DeviceRing& ring, const TensorView& slots,
                 Owner from, Owner to, Stream stream) {
  const PoolParams p = params(pool, "canary on_transfer");
  const Device device = device_of(pool);
  launch_transfer(p, params(ring, device), list_of("slots", slots, device), from, to, device,
                  stream);
}

void announce(const DevicePool& pool, const DeviceRing& ring, const TensorView& list,
              Stream stream) {
  const PoolParams p = params(pool, "canary announce");
  const Device device = device_of(pool);
  check_rank("list", list, 2, "(n, 24)");
  Shapes().expect("list", list, {list.shape[0], std::int64_t{sizeof(Announcement)}});
  check_tensor("list", list, DType::u8, device);
  check_aligned("list", list, alignof(Announcement));
  launch_announce(p, params(ring, device), list.as<const Announcement>(), list.shape[0], device,
                  stream);
}

std::size_t move_workspace_bytes(std::int64_t n) {
  return static_cast<std::size_t>(std::max<std::int64_t>(n, 0)) * sizeof(MovedSlot);
}

void on_move(const DevicePool& pool, const DeviceRing& ring, const TensorView& from,
             const TensorView& to, const TensorView& workspace, Stream stream) {
  const PoolParams p = params(pool, "canary on_move");
  const Device device = device_of(pool);
  const SlotList sources = list_of("from", from, device);
  check_vector("to", to, DType::i64, sources.count, device);
  check_memory("workspace", workspace, move_workspace_bytes(sources.count), device);
  launch_move(p, params(ring, device), sources, list_of("to", to, device),
              workspace.as<MovedSlot>(), device, stream);
}

void on_store(const DevicePool& pool, const DeviceRing& ring, const TensorView& slots,
              const TensorView& records, Stream stream) {
  const PoolParams p = params(pool, "canary on_store");
  const Device device = device_of(pool);
  const SlotList list = list_of("slots", slots, device);
  Shapes().expect("records", records, {list.count, std::int64_t{sizeof(Record)}});
  check_tensor("records", records, DType::u8, device);
  check_aligned("records", records, alignof(Record));
  launch_store(p, params(ring, device), list, records.as<Record>(), device, stream);
}

void on_load(const DevicePool& pool, const DeviceRing& ring, const TensorView& records,
             const TensorView& slots, Owner owner, Stream stream) {
  const PoolParams p = params(pool, "canary on_load");
  const Device device = device_of(pool);
  const SlotList list = list_of("slots", slots, device);
  Shapes().expect("records", records, {list.count, std::int64_t{sizeof(Record)}});
  check_tensor("records", records, DType::u8, device);
  check_aligned("records", records, alignof(Record));
  launch_load(p, params(ring, device), records.as<const Record>(), list, owner, device, stream);
}

// ---------------------------------------------------------------- the moments

std::size_t workspace_bytes(std::int64_t, std::int64_t tokens, std::int64_t) {
  Layout layout;
  place_workspace(layout, std::max<std::int64_t>(tokens, 0));
  return static_cast<std::size_t>(layout.bytes());
}

void verify(const DevicePool& pool, const DeviceRing& ring, const DeviceBatch& batch,
            const VerifyOptions& options, const TensorView&, Stream stream) {
  const PoolParams p = params(pool, "canary verify");
  const Device device = device_of(pool);
  const RingParams r = params(ring, device);
  const BatchParams b = params(batch, device);
  std::int64_t cells = b.num_requests * std::min(b.table.width, std::int64_t{1} << 31);
  std::int64_t records = 0;
  if (options.policy == VerifyPolicy::rolling) {
    records = std::max<std::int64_t>(options.records, 1);
    if (b.due == nullptr) cells = std::min(cells, records + b.num_requests);
  }
  const StepWork work{.moment = options.moment, .records = records};
  if (fits_step(b, work)) {
    launch_step(p, r, b, {}, work, device, stream);
  } else {
    launch_verify(p, r, b, options.moment, records, cells, device, stream);
  }
}

void end_step(const DevicePool& pool, const DeviceRing& ring, const DeviceBatch& batch,
              const VerifyOptions& options, std::int64_t sweep_slots, bool counts,
              const TensorView& workspace, Stream stream) {
  const BatchParams b = params(batch, device_of(pool));
  StepWork work{.moment = options.moment,
                .records = std::max<std::int64_t>(options.records, 1),
                .stamps = b.num_tokens > 0,
                .sweep_slots = std::clamp<std::int64_t>(sweep_slots, 1, pool.num_slots),
                .ends_step = counts};
  if (options.policy != VerifyPolicy::rolling || !fits_step(b, work)) {
    verify(pool, ring, batch, options, workspace, stream);
    stamp(pool, ring, batch, workspace, stream);
    sweep(pool, ring, sweep_slots, workspace, stream);
    if (counts) next_step(ring, stream);
    return;
  }
  const PoolParams p = params(pool, "canary end_step");
  const Device device = device_of(pool);
  check_memory("workspace", workspace, workspace_bytes(0, b.num_tokens, 0), device);
  Layout layout(workspace.as<std::uint8_t>());
  launch_step(p, params(ring, device), b, place_workspace(layout, b.num_tokens), work, device,
              stream);
}

void verify_slots(const DevicePool& pool, const DeviceRing& ring, const TensorView& slots,
                  Moment moment, Stream stream) {
  const PoolParams p = params(pool, "canary verify_slots");
  const Device device = device_of(pool);
  launch_verify_slots(p, params(ring, device), list_of("slots", slots, device), moment, device,
                      stream);
}

void stamp(const DevicePool& pool, const DeviceRing& ring, const DeviceBatch& batch,
           const TensorView& workspace, Stream stream) {
  const PoolParams p = params(pool, "canary stamp");
  const Device device = device_of(pool);
  const BatchParams b = params(batch, device);
  check_memory("workspace", workspace, workspace_bytes(0, b.num_tokens, 0), device);
  Layout layout(workspace.as<std::uint8_t>());
  launch_stamp(p, params(ring, device), b, place_workspace(layout, b.num_tokens), device, stream);
}

void request_digests(const DevicePool& pool, const DeviceBatch& batch, const TensorView& digests,
                     Stream stream) {
  const PoolParams p = params(pool, "canary request_digests");
  request_digests(p, Format::serinus, batch, digests, device_of(pool), stream);
}

void request_digests(const PoolParams& pool, Format format, const DeviceBatch& batch,
                     const TensorView& digests, Device device, Stream stream) {
  const BatchParams b = params(batch, device);
  Shapes().expect("digests", digests, {b.num_requests, std::int64_t{sizeof(RequestDigest)}});
  check_tensor("digests", digests, DType::u8, device);
  check_aligned("digests", digests, alignof(RequestDigest));
  launch_request_digests(pool, format, b, digests.as<RequestDigest>(), device, stream);
}

void sweep(const DevicePool& pool, const DeviceRing& ring, std::int64_t slots, const TensorView&,
           Stream stream) {
  const PoolParams p = params(pool, "canary sweep");
  const Device device = device_of(pool);
  launch_sweep(p, params(ring, device), std::clamp<std::int64_t>(slots, 1, pool.num_slots), device,
               stream);
}

// ---------------------------------------------------------------- which source

namespace {

/// Pieces in the order of the sources.
PoolParams params_by_source(const DevicePool& pool, const char* call) {
  PoolParams p = params(pool, call);
  p.pieces = p.pieces_in_order;
  return p;
}

SourceParams source_params(const DevicePool& pool) {
  Shapes().expect("source_digests", pool.source_digests, {pool.num_slots, pool.num_sources});
  check_tensor("source_digests", pool.source_digests, DType::u32, device_of(pool));
  return {state_of(pool).sources, pool.num_sources, pool.source_digests.as<std::uint32_t>()};
}

std::uint32_t* words_of(const char* name, const TensorView& words, const DevicePool& pool,
                        std::int64_t n) {
  Shapes().expect(name, words, {n, pool.num_sources});
  check_tensor(name, words, DType::u32, device_of(pool));
  return words.as<std::uint32_t>();
}

}  // namespace

void stamp_sources(const DevicePool& pool, const DeviceBatch& batch, Stream stream) {
  const PoolParams p = params_by_source(pool, "canary stamp_sources");
  const Device device = device_of(pool);
  launch_stamp_sources(p, source_params(pool), params(batch, device), device, stream);
}

void name_sources(const DevicePool& pool, const DeviceRing& ring, Stream stream) {
  const PoolParams p = params_by_source(pool, "canary name_sources");
  const Device device = device_of(pool);
  launch_name_sources(p, source_params(pool), params(ring, device), device, stream);
}

void store_sources(const DevicePool& pool, const TensorView& slots, const TensorView& words,
                   Stream stream) {
  const PoolParams p = params_by_source(pool, "canary store_sources");
  const Device device = device_of(pool);
  const SlotList list = list_of("slots", slots, device);
  launch_take_sources(p, source_params(pool), list, words_of("words", words, pool, list.count),
                      device, stream);
}

void load_sources(const DevicePool& pool, const TensorView& words, const TensorView& slots,
                  Stream stream) {
  const PoolParams p = params_by_source(pool, "canary load_sources");
  const Device device = device_of(pool);
  const SlotList list = list_of("slots", slots, device);
  launch_load_sources(p, source_params(pool), words_of("words", words, pool, list.count), list,
                      device, stream);
}

void move_sources(const DevicePool& pool, const TensorView& from, const TensorView& to,
                  const TensorView& workspace, Stream stream) {
  const PoolParams p = params_by_source(pool, "canary move_sources");
  const Device device = device_of(pool);
  const SlotList list = list_of("from", from, device);
  check_vector("to", to, DType::i64, list.count, device);
  std::uint32_t* const words = words_of("workspace", workspace, pool, list.count);
  launch_take_sources(p, source_params(pool), list, words, device, stream);
  launch_move_sources(p, source_params(pool), list, list_of("to", to, device), words, device,
                      stream);
}

}  // namespace serinus::canary::cuda
