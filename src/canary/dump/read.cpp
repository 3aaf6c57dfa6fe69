// From a file that may say anything to a Dump.
#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <utility>

#include <serinus/error.h>
#include <serinus/version.h>

#include "base/open_input.h"
#include "base/raise.h"
#include "canary/dump/format.h"

namespace serinus::canary {

namespace {

[[noreturn]] void malformed(const std::string& file, const std::string& problem) {
  raise(errors::Page::dump_malformed, {{"file", file}, {"got", problem}});
}

/// Reads values and arrays, never beyond the file's end.
class Reader {
 public:
  Reader(std::istream& in, const std::string& name) : in_(in), name_(name) {
    in_.clear();
    in_.seekg(0, std::ios::end);
    const std::streamoff end = in_.tellg();
    if (!in_ || end < 0) fail("it has no end: a pipe cannot be read twice");
    size_ = end;
    in_.seekg(0);
    if (size_ < dump::kHeaderBytes + dump::kTrailerBytes) {
      fail(fmt::format("{} bytes are no dump", size_));
    }
  }

  [[noreturn]] void fail(const std::string& problem) const { malformed(name_, problem); }
  std::int64_t at() const noexcept { return at_; }
  std::int64_t left() const noexcept { return size_ - dump::kTrailerBytes - at_; }

  void raw(void* out, std::int64_t n, const char* what) {
    if (n > left()) fail(fmt::format("it ends within {}, at byte {}", what, at_));
    in_.read(static_cast<char*>(out), n);
    if (!in_) fail(fmt::format("it cannot be read at byte {}", at_));
    at_ += n;
  }
  void skip(std::int64_t n, const char* what) {
    if (n > left()) fail(fmt::format("it ends within {}, at byte {}", what, at_));
    at_ += n;
    in_.seekg(at_);
  }
  template <class T>
  T value(const char* what) {
    T v;
    raw(&v, sizeof v, what);
    return v;
  }
  /// A value in [low, high].
  template <class T>
  T value(const char* what, T low, T high) {
    const std::int64_t where = at_;
    const T v = value<T>(what);
    if (v < low || v > high) fail(fmt::format("{} is {} at byte {}", what, v, where));
    return v;
  }
  /// A length whose elements the rest of the file could hold.
  std::int64_t count(const char* what, std::int64_t element_bytes) {
    const std::int64_t where = at_;
    const auto n = value<std::uint64_t>(what);
    if (n > static_cast<std::uint64_t>(left() / element_bytes)) {
      fail(fmt::format("{} {} at byte {} are more than the file holds", n, what, where));
    }
    return static_cast<std::int64_t>(n);
  }
  template <class T>
  void array(std::vector<T>& out, std::int64_t n, const char* what) {
    if (n > left() / static_cast<std::int64_t>(sizeof(T))) {
      fail(fmt::format("it ends within {}, at byte {}", what, at_));
    }
    out.resize(static_cast<std::size_t>(n));
    raw(out.data(), n * static_cast<std::int64_t>(sizeof(T)), what);
  }
  std::string text(const char* what) {
    const auto n = value<std::uint32_t>(what, 0, dump::kMaxName);
    std::string s(n, '\0');
    raw(s.data(), n, what);
    return s;
  }

  /// Checking a layout costs as much as its page has runs: over all pools only so many.
  void spend_runs(std::int64_t page_size, std::int64_t segments) {
    if (page_size < 1 || page_size > runs_left_ / segments) {
      fail(fmt::format("{} segments in pages of {} tokens", segments, page_size));
    }
    runs_left_ -= page_size * segments;
  }

  /// The checksum of all before the trailer, against the trailer.
  void verify_checksum() {
    if (left() != 0) fail(fmt::format("{} bytes follow its end", left()));
    in_.seekg(0);
    dump::Checksum sum;
    std::vector<char> chunk(1 << 20);
    for (std::int64_t to_do = size_ - dump::kTrailerBytes; to_do > 0;) {
      const std::int64_t n = std::min<std::int64_t>(to_do, std::ssize(chunk));
      if (!in_.read(chunk.data(), n)) fail("it cannot be read");
      sum.add(chunk.data(), static_cast<std::size_t>(n));
      to_do -= n;
    }
    std::uint64_t want = 0;
    in_.read(reinterpret_cast<char*>(&want), sizeof want);
    if (!in_ || sum.finish() != want) {
      fail("its checksum differs: the file was damaged after it was written");
    }
  }

 private:
  std::istream& in_;
  const std::string& name_;
  std::int64_t size_ = 0, at_ = 0;
  std::int64_t runs_left_ = dump::kMaxRuns;
};

void check_ascending(const Reader& r, const std::vector<std::int64_t>& slots,
                     std::int64_t num_slots, const char* what) {
  std::int64_t before = -1;
  for (const std::int64_t slot : slots) {
    if (slot <= before || slot >= num_slots) {
      r.fail(fmt::format("{}: slot {} follows {} in a pool of {}", what, slot, before, num_slots));
    }
    before = slot;
  }
}

/// Without bytes to find a layout may be empty, as it is for a Monitor.
KvLayout read_layout(Reader& r, bool has_bytes) {
  KvLayout layout;
  layout.name = r.text("the layout's name");
  layout.source = r.text("the layout's source");
  layout.page_size = r.value<std::int64_t>("page_size");
  const std::uint32_t least = has_bytes ? 1 : 0;
  const auto buffers = r.value<std::uint32_t>("the number of buffers", least, dump::kMaxSegments);
  r.array(layout.page_bytes, buffers, "page_bytes");
  const auto segments = r.value<std::uint32_t>("the number of segments", least, dump::kMaxSegments);
  for (std::uint32_t i = 0; i < segments; ++i) {
    KvSegment s;
    s.name = r.text("a segment's name");
    s.meaning = r.text("a segment's meaning");
    s.role = static_cast<SegmentRole>(r.value<std::uint8_t>(
        "a segment's role", 0, static_cast<std::uint8_t>(SegmentRole::index_scale)));
    s.buffer = r.value<std::int32_t>("a segment's buffer");
    s.head = r.value<std::int32_t>("a segment's head");
    s.offset = r.value<std::int64_t>("a segment's offset");
    s.token_stride = r.value<std::int64_t>("a segment's stride");
    s.bytes = r.value<std::int64_t>("a segment's length");
    layout.segments.push_back(std::move(s));
  }
  if (!has_bytes) return layout;
  r.spend_runs(layout.page_size, segments);
  try {
    layout.validate();
  } catch (const Error& e) {
    r.fail(e.what());
  }
  return layout;
}

DumpPool read_pool(Reader& r, Format format, Depth depth, bool source_digests,
                   std::int64_t& bytes_at) {
  DumpPool p;
  p.spec.name = r.text("a pool's name");
  p.spec.kind = static_cast<PoolKind>(r.value<std::uint8_t>("a pool's kind", 0, 2));
  p.spec.null_slot = static_cast<NullSlot>(r.value<std::uint8_t>("the null slot's rule", 0, 1));
  p.spec.num_layers = r.value<std::int32_t>("num_layers", 1, dump::kMaxLayers);
  p.spec.token_offset = r.value<std::int32_t>("token_offset");
  p.spec.num_slots =
      r.value<std::int64_t>("num_slots", 1, std::numeric_limits<std::int32_t>::max());
  p.spec.window = r.value<std::int64_t>("window", 0, std::numeric_limits<std::int64_t>::max());
  p.null_digest = r.value<std::uint64_t>("the null slot's digest");
  p.spec.layout = read_layout(r, depth != Depth::none);
  if (std::ssize(p.spec.layout.page_bytes) > dump::kMaxBuffers / p.spec.num_layers) {
    r.fail(
        fmt::format("{} layers of {} buffers", p.spec.num_layers, p.spec.layout.page_bytes.size()));
  }
  if (depth != Depth::none) {
    p.num_sources = std::ssize(p.spec.layout.segments) * p.spec.num_layers;
    std::int64_t token_bytes = 0;
    for (const KvSegment& s : p.spec.layout.segments) {
      if (__builtin_add_overflow(token_bytes, s.bytes, &token_bytes)) r.fail("a token is too long");
    }
    if (__builtin_mul_overflow(token_bytes, std::int64_t{p.spec.num_layers}, &p.token_bytes)) {
      r.fail("a token is too long");
    }
  }
  r.array(p.full_to_swa, r.count("full_to_swa entries", 8), "full_to_swa");
  r.array(p.slots, r.count("slots", 8), "slots");
  check_ascending(r, p.slots, p.spec.num_slots, "slots");
  const std::int64_t n = std::ssize(p.slots);
  r.array(p.states, n, "states");
  if (std::ranges::any_of(p.states, [](SlotState s) { return s > SlotState::written; })) {
    r.fail("a slot's state does not exist");
  }
  r.array(p.records, n, "records");
  if (format == Format::serinus) r.array(p.ledger, n, "the ledger");
  if (source_digests) {
    std::int64_t words = 0;
    if (__builtin_mul_overflow(n, p.num_sources, &words)) r.fail("too many source digests");
    r.array(p.source_digests, words, "source digests");
  }
  r.array(p.byte_slots, r.count("slots with bytes", 8), "slots with bytes");
  check_ascending(r, p.byte_slots, p.spec.num_slots, "slots with bytes");
  if (!std::ranges::includes(p.slots, p.byte_slots)) r.fail("bytes of a slot without a record");
  bytes_at = r.at();
  std::int64_t bytes = 0;
  if (__builtin_mul_overflow(std::int64_t{std::ssize(p.byte_slots)}, p.token_bytes, &bytes)) {
    r.fail("more bytes than 63 bits count");
  }
  r.skip(bytes, "the bytes of a pool");
  const std::int64_t events = r.count("events", 32);
  for (std::int64_t e = 0; e < events; ++e) {
    SlotEvent event;
    event.slot = r.value<std::int64_t>("an event");
    event.event.step = r.value<std::uint64_t>("an event");
    event.event.peer = r.value<std::int64_t>("an event");
    event.event.owner = r.value<std::uint32_t>("an event");
    event.event.kind = static_cast<LedgerEventKind>(r.value<std::uint32_t>(
        "an event's kind", 0, static_cast<std::uint32_t>(LedgerEventKind::load)));
    p.events.push_back(event);
  }
  return p;
}

DumpRow read_row(Reader& r, std::uint32_t num_pools) {
  DumpRow row;
  row.owner = r.value<Owner>("a row's owner");
  row.row = r.value<std::int64_t>("a row's number");
  const auto n = r.value<std::uint32_t>("a row's number of pools", 0, num_pools);
  for (std::uint32_t k = 0; k < n; ++k) {
    const auto pool = r.value<std::uint32_t>("a row's pool", 0, num_pools - 1);
    row.pools.push_back(static_cast<int>(pool));
  }
  const std::int64_t cells = r.count("cells", 8);
  r.array(row.cells, cells, "cells");
  r.array(row.tokens, cells, "tokens");
  return row;
}

}  // namespace

std::int64_t DumpPool::find(std::int64_t slot) const noexcept {
  const auto at = std::ranges::lower_bound(slots, slot);
  return at != slots.end() && *at == slot ? at - slots.begin() : -1;
}

Dump::Dump(const std::string& path)
    : stream_(std::make_unique<std::ifstream>(open_input(path))), name_(path) {
  parse();
}

Dump::Dump(std::unique_ptr<std::istream> stream, std::string name)
    : stream_(std::move(stream)), name_(std::move(name)) {
  parse();
}

void Dump::parse() {
  Reader r(*stream_, name_);
  const auto h = r.value<dump::Header>("the header");
  if (std::memcmp(h.magic, dump::kMagic, sizeof h.magic) != 0) r.fail("it does not begin as one");
  if (h.version != kDumpVersion) {
    r.fail(fmt::format("its version is {}, this library reads {}", h.version, kDumpVersion));
  }
  if (h.format > 1 || h.depth > 2 || h.source_digests > 1 || h.num_pools > dump::kMaxPools) {
    r.fail("its header holds values that do not exist");
  }
  if (h.record_version != kRecordVersion) {
    r.fail(fmt::format("its records are of version {}, this library knows {}", h.record_version,
                       kRecordVersion));
  }
  version = h.version;
  record_version = h.record_version;
  format = static_cast<Format>(h.format);
  depth = static_cast<Depth>(h.depth);
  step = h.step;
  for (std::uint32_t i = 0; i < h.num_pools; ++i) {
    bytes_at_.push_back(0);
    pools.push_back(read_pool(r, format, depth, h.source_digests != 0, bytes_at_.back()));
  }
  for (DumpPool& p : pools) p.spec.full_to_swa = p.full_to_swa;
  for (std::uint32_t i = 0; i < h.num_rows; ++i) rows.push_back(read_row(r, h.num_pools));
  r.verify_checksum();
}

void Dump::read_bytes(int pool, std::int64_t first, std::int64_t n, std::uint8_t* out) const {
  const auto p = static_cast<std::size_t>(pool);
  stream_->clear();
  stream_->seekg(bytes_at_[p] + first * pools[p].token_bytes);
  stream_->read(reinterpret_cast<char*>(out), n * pools[p].token_bytes);
  if (!*stream_) malformed(name_, "its bytes cannot be read any more");
}

}  // namespace serinus::canary
