// Dumps: what is written comes back, what was damaged before is named by a scan, and a file that
// lies is refused.
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include <serinus/canary_dump.h>
#include <serinus/error.h>

#include "canary/dump/format.h"
#include "mini_engine.h"

namespace serinus::canary {
namespace {

using testing::MiniEngine;
using testing::PoolBytes;
using testing::Rig;

/// A path of this test's own, removed afterwards.
struct TempFile {
  std::string path = (std::filesystem::temp_directory_path() /
                      ("serinus_dump_" + std::to_string(getpid()) + "_" +
                       ::testing::UnitTest::GetInstance()->current_test_info()->name()))
                         .string();
  ~TempFile() {
    std::error_code ignored;
    std::filesystem::remove(path, ignored);
  }
  std::string bytes() const {
    std::ifstream in(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }
};

Dump parse(std::string bytes) {
  return {std::make_unique<std::istringstream>(std::move(bytes)), "memory"};
}

/// With a checksum that fits again.
std::string resealed(std::string bytes) {
  dump::Checksum sum;
  const std::size_t n = bytes.size() - 8;
  sum.add(bytes.data(), n);
  const std::uint64_t value = sum.finish();
  std::memcpy(bytes.data() + n, &value, 8);
  return bytes;
}

Options with_digests(Format format = Format::serinus) {
  Options o;
  o.format = format;
  o.source_digests = format == Format::serinus;
  return o;
}

DumpRow row_of(const Rig& rig, Owner owner, std::int64_t length) {
  DumpRow r;
  r.owner = owner;
  r.row = owner;
  for (std::int64_t i = 0; i < length; ++i) {
    r.cells.push_back(rig.table[owner * Rig::kCells + static_cast<std::size_t>(i)]);
    r.tokens.push_back(static_cast<std::int32_t>(Rig::token_of(owner, i)));
  }
  return r;
}

/// Two requests, one of them gone, one prefix cached, and what a dump says of them.
struct Scene {
  Rig rig;
  TempFile file;
  std::vector<DumpRow> rows;

  explicit Scene(Options o = with_digests()) : rig(32, o) {
    rig.alloc(1, {5, 6, 7, 20});
    rig.run(1, 0, {5, 6, 7, 20});
    rig.alloc(2, {9, 10});
    rig.run(2, 0, {9, 10});
    rig.alloc(3, {11});  // EMPTY
    rig.alloc(4, {12});
    rig.run(4, 0, {12});
    rig.free({12}, 4);
    rows = {row_of(rig, 1, 4), row_of(rig, 2, 2)};
    EXPECT_TRUE(rig.monitor.poll().empty());
  }
  Dump dump(DumpBytes bytes = DumpBytes::all) {
    DumpOptions o;
    o.bytes = bytes;
    o.listed = {{0, 6}, {0, 6}, {0, 31}, {3, 6}};
    o.rows = rows;
    write_dump(rig.monitor, file.path, o);
    return Dump(file.path);
  }
  std::vector<Violation> found() { return scan(dump()).violations; }
};

TEST(Dump, HoldsWhatTheMonitorHolds) {
  Scene s;
  const Dump d = s.dump();
  EXPECT_EQ(d.format, Format::serinus);
  EXPECT_EQ(d.depth, Depth::all);
  EXPECT_EQ(d.step, 3u);
  ASSERT_EQ(d.pools.size(), 1u);
  const DumpPool& p = d.pools[0];
  EXPECT_EQ(p.spec.name, "kv");
  EXPECT_EQ(p.spec.layout.segments[1].name, "idx");
  EXPECT_EQ(p.spec.layout.segments[1].meaning, "12 bytes");
  EXPECT_EQ(p.spec.num_layers, 2);
  EXPECT_EQ(p.slots, (std::vector<std::int64_t>{0, 5, 6, 7, 9, 10, 11, 20}));
  EXPECT_EQ(p.byte_slots, p.slots);
  EXPECT_EQ(p.states[6], SlotState::empty);
  EXPECT_EQ(p.token_bytes, 2 * (24 + 12));
  for (std::size_t i = 0; i < p.slots.size(); ++i) {
    EXPECT_EQ(p.records[i], s.rig.record(p.slots[i]));
    std::vector<std::uint8_t> row(static_cast<std::size_t>(p.token_bytes));
    d.read_bytes(0, static_cast<std::int64_t>(i), 1, row.data());
    EXPECT_EQ(row[24], *s.rig.bytes.byte(p.slots[i], 1, 0));
    EXPECT_EQ(row[71], *s.rig.bytes.byte(p.slots[i], 3, 11));
  }
  EXPECT_EQ(p.events.back().slot, 12);
  EXPECT_EQ(p.events.back().event, (LedgerEvent{3, LedgerEventKind::free, 4}));
  ASSERT_EQ(d.rows.size(), 2u);
  EXPECT_EQ(d.rows[1].cells, (std::vector<std::int32_t>{9, 10}));

  const ScanResult r = scan(d);
  EXPECT_TRUE(r.violations.empty());
  EXPECT_EQ(r.slots, 8);
  EXPECT_EQ(r.written, 6);
  EXPECT_EQ(r.bytes_checked, 7);  // and the null slot
  EXPECT_EQ(r.cells, 6);
}

TEST(Dump, BytesOnRequest) {
  Scene s;
  EXPECT_EQ(s.dump(DumpBytes::listed).pools[0].byte_slots, std::vector<std::int64_t>{6});
  EXPECT_TRUE(s.dump(DumpBytes::none).pools[0].byte_slots.empty());
  EXPECT_EQ(scan(s.dump(DumpBytes::none)).bytes_checked, 0);
}

TEST(Scan, NamesTheDamagedByte) {
  Scene s;
  *s.rig.bytes.byte(6, 3, 2) ^= 0x20;  // layer 1, idx
  const std::vector<Violation> v = s.found();
  ASSERT_EQ(v.size(), 1u);
  EXPECT_EQ(v[0].reasons, Reason::kv_bytes);
  EXPECT_EQ(v[0].slot, 6);
  EXPECT_EQ(v[0].layer, 1);
  EXPECT_EQ(v[0].segment, "idx");
  EXPECT_EQ(v[0].stored_owner, 1u);
  ASSERT_EQ(v[0].events.size(), 1u);
  EXPECT_EQ(v[0].events[0].kind, LedgerEventKind::alloc);
}

TEST(Scan, TornTruncatedAndSideBufferLessCopies) {
  Scene s;
  // The tail of one token, a whole layer of another, the side buffer of a third.
  for (std::int64_t i = 12; i < 24; ++i) *s.rig.bytes.byte(5, 2, i) = 0;
  for (std::int64_t i = 0; i < 24; ++i) *s.rig.bytes.byte(7, 2, i) = 0;
  for (const std::size_t source : {1u, 3u}) {
    for (std::int64_t i = 0; i < 12; ++i) *s.rig.bytes.byte(20, source, i) = 0;
  }
  const std::vector<Violation> v = s.found();
  ASSERT_EQ(v.size(), 3u);
  EXPECT_EQ(v[0].slot, 5);
  EXPECT_EQ(v[1].slot, 7);
  EXPECT_EQ(v[2].slot, 20);
  EXPECT_EQ(v[0].segment + v[1].segment + v[2].segment, "kvkvidx");
  EXPECT_EQ(v[0].layer + v[1].layer, 2);
}

TEST(Scan, RecordsAgainstTheLedger) {
  {
    Scene s;
    s.rig.record(6).token ^= 1;
    const auto v = s.found();
    ASSERT_EQ(v.size(), 1u);  // and not its successor, which had the right predecessor
    EXPECT_EQ(names_of(v[0].reasons), "token+chain");
    EXPECT_EQ(v[0].request, 1u);
    EXPECT_EQ(v[0].prev_slot, 5);
  }
  {
    Scene s;
    s.rig.record(10).generation += 3;
    EXPECT_EQ(names_of(s.found().at(0).reasons), "foreign_write");
  }
  {
    Scene s;
    s.rig.record(10).position = 7;
    EXPECT_EQ(names_of(s.found().at(0).reasons), "position");
  }
  {
    Scene s;
    s.rig.record(11) = s.rig.record(5);  // written though nobody was to
    EXPECT_EQ(names_of(s.found().at(0).reasons), "foreign_write");
  }
  {
    Scene s;
    s.rig.record(12) = s.rig.record(5);  // in a free slot
    const auto v = s.found();
    ASSERT_EQ(v.size(), 1u);
    EXPECT_EQ(v[0].slot, 12);
    ASSERT_EQ(v[0].events.size(), 2u);
    EXPECT_EQ(v[0].events[1].kind, LedgerEventKind::free);
  }
  {
    Scene s;
    *s.rig.bytes.byte(0, 0, 0) ^= 1;
    EXPECT_EQ(names_of(s.found().at(0).reasons), "null_slot_dirty");
  }
}

TEST(Scan, TablesAgainstRecords) {
  const auto with_cell = [](std::size_t cell, std::int32_t slot) {
    Scene s;
    s.rows[0].cells[cell] = slot;
    return s.found();
  };
  auto v = with_cell(1, 10);  // another request's token of the same position
  ASSERT_EQ(v.size(), 1u);
  EXPECT_EQ(names_of(v[0].reasons), "token+chain");
  EXPECT_EQ(v[0].expected_position, 1);
  v = with_cell(1, 9);
  EXPECT_EQ(names_of(v.at(0).reasons), "token+position+chain");
  v = with_cell(2, 12);
  EXPECT_EQ(names_of(v.at(0).reasons), "stale");
  v = with_cell(2, 11);
  EXPECT_EQ(names_of(v.at(0).reasons), "stale");
  for (const std::int32_t wild : {-1, 32, 2147483647, -2147483647 - 1}) {
    v = with_cell(3, wild);
    ASSERT_EQ(v.size(), 1u);
    EXPECT_EQ(names_of(v[0].reasons), "out_of_range");
    EXPECT_EQ(v[0].expected_position, 3);
    EXPECT_EQ(v[0].row, 1);
  }
  Scene s;
  s.rows[0].tokens[2] += 1;  // the scheduler knows better
  EXPECT_EQ(names_of(s.found().at(0).reasons), "token+chain");
}

TEST(Scan, ALimitCountsTheRest) {
  Scene s;
  s.rows[0].cells = {-1, -2, -3, -4};
  const ScanResult r = scan(s.dump(), 3);
  EXPECT_EQ(r.violations.size(), 3u);
  EXPECT_EQ(r.more, 1);
}

TEST(Scan, PartialDepthAndNone) {
  Options o = with_digests();
  o.depth = Depth::partial;
  Scene s(o);
  EXPECT_TRUE(s.found().empty());
  *s.rig.bytes.byte(6, 0, 0) ^= 1;
  EXPECT_EQ(s.found().size(), 1u);
  o.depth = Depth::none;
  o.source_digests = false;
  Scene none(o);
  EXPECT_TRUE(none.found().empty());
  none.rig.record(6).chain ^= 1;
  EXPECT_FALSE(none.found().empty());
}

TEST(Dump, APoolWithoutBytesNeedsNoLayout) {
  Options o;
  o.depth = Depth::none;
  Monitor m(o);
  PoolSpec spec;
  spec.num_slots = 8;
  const int pool = m.add_pool(spec);
  m.on_alloc(pool, std::vector<std::int64_t>{3}, 1);
  const TempFile file;
  write_dump(m, file.path);
  const Dump dump(file.path);
  ASSERT_EQ(dump.pools.size(), 1u);
  EXPECT_EQ(dump.pools[0].slots, (std::vector<std::int64_t>{0, 3}));
  EXPECT_TRUE(scan(dump).violations.empty());
}

TEST(Dump, IsNotWrittenWhereNobodyCouldReadIt) {
  Options o;
  o.depth = Depth::none;
  o.event_capacity = 0;
  Monitor m(o);
  PoolSpec spec;
  spec.num_slots = 1;
  for (int i = 0; i < 256; ++i) m.add_pool(spec);
  const TempFile file;
  write_dump(m, file.path);
  EXPECT_EQ(Dump(file.path).pools.size(), 256u);
  m.add_pool(spec);
  const TempFile other{file.path + "2"};
  EXPECT_THROW(write_dump(m, other.path), InputError);
  EXPECT_FALSE(std::filesystem::exists(other.path));
}

// Without its pool's number the row would be walked in every other pool.
TEST(Dump, ARowOfAPoolThatIsGoneIsLeftOut) {
  Scene s;
  PoolBytes second(32, 1);
  const int gone = s.rig.monitor.add_pool(second.spec);
  s.rig.monitor.detach_pool(gone);
  DumpRow row = row_of(s.rig, 1, 1);
  row.pools = {gone};
  row.cells = {31};
  const TempFile file;
  DumpOptions options;
  options.rows = {&row, 1};
  write_dump(s.rig.monitor, file.path, options);
  const Dump dump(file.path);
  EXPECT_TRUE(dump.rows.empty());
  EXPECT_EQ(scan(dump).cells, 0);
}

// The rig's rows of 28 bytes do not suit the sglang format: one that does.
TEST(Scan, SglangFormat) {
  for (const Depth depth : {Depth::all, Depth::partial, Depth::none}) {
    Options o;
    o.format = Format::sglang;
    o.depth = depth;
    Rig rig(32, o);
    KvLayout layout;
    layout.name = "strips";
    layout.page_size = 4;
    layout.page_bytes = {4 * 48, 4 * 20};
    layout.segments = {{"a", SegmentRole::key, 0, 0, 48, 16, -1, ""},
                       {"b", SegmentRole::value, 0, 16, 48, 32, -1, ""},
                       {"c", SegmentRole::scale, 1, 0, 20, 20, -1, "is not fingerprinted"}};
    PoolBytes bytes(32, 2, layout);
    if (depth == Depth::none) bytes.spec.buffers.clear();
    Monitor m(o);
    m.add_pool(bytes.spec);
    rig.monitor = std::move(m);
    rig.bytes = std::move(bytes);
    rig.alloc(1, {5, 6, 7});
    rig.run(1, 0, {5, 6, 7});
    TempFile file;
    std::vector<DumpRow> rows = {row_of(rig, 1, 3)};
    const auto found = [&] {
      DumpOptions options;
      options.rows = rows;
      write_dump(rig.monitor, file.path, options);
      return scan(Dump(file.path));
    };
    ASSERT_TRUE(found().violations.empty()) << name_of(depth);
    if (depth != Depth::none) {
      EXPECT_EQ(found().bytes_checked, 3);
      *rig.bytes.byte(6, 0, 3) ^= 1;
      EXPECT_EQ(names_of(found().violations.at(0).reasons), "kv_bytes");
      *rig.bytes.byte(6, 0, 3) ^= 1;
      *rig.bytes.byte(6, 1, 31) ^= 1;  // beyond the first 16 bytes of the run
      EXPECT_EQ(found().violations.size(), depth == Depth::all ? 1u : 0u);
      *rig.bytes.byte(6, 1, 31) ^= 1;
    }
    rows[0].cells[1] = 7;
    EXPECT_EQ(names_of(found().violations.at(0).reasons), "token+position+chain");
  }
}

TEST(Scan, LongHistoriesAreClean) {
  for (const std::uint32_t seed : {1u, 2u}) {
    Options o;
    MiniEngine engine(seed, o);
    TempFile file;
    for (int i = 0; i < 400; ++i) {
      engine.step();
      if (i % 40 != 0) continue;
      std::vector<DumpRow> rows;
      for (auto& [owner, r] : engine.running) {
        DumpRow row;
        row.owner = owner;
        row.row = r.row;
        for (std::int64_t c = 0; c < r.done; ++c) {
          row.cells.push_back(engine.cell(r, c));
          row.tokens.push_back(static_cast<std::int32_t>(r.tokens[static_cast<std::size_t>(c)]));
        }
        row.pools = {0, 1};  // the draft pool holds other tokens
        rows.push_back(std::move(row));
      }
      DumpOptions options;
      options.rows = rows;
      write_dump(engine.monitor, file.path, options);
      const ScanResult r = scan(Dump(file.path));
      for (const Violation& v : r.violations) ADD_FAILURE() << to_text(v, "");
      EXPECT_GT(r.bytes_checked, 0);
    }
  }
}

TEST(Hostile, EveryCutIsRefused) {
  Scene s;
  s.dump();
  const std::string whole = s.file.bytes();
  for (std::size_t n = 0; n < whole.size(); n += n < 700 ? 1 : 13) {
    EXPECT_THROW(parse(whole.substr(0, n)), InputError) << n;
    // Also where the end fits what is left.
    if (n > 80) {
      EXPECT_THROW(parse(resealed(whole.substr(0, n))), InputError) << n;
    }
  }
  EXPECT_THROW(parse(whole + "x"), InputError);
}

TEST(Hostile, EveryFlippedByteIsNoticed) {
  Scene s;
  s.dump();
  const std::string whole = s.file.bytes();
  ASSERT_NO_THROW(parse(whole));
  for (std::size_t i = 0; i < whole.size(); ++i) {
    std::string bad = whole;
    bad[i] = static_cast<char>(bad[i] ^ 0x41);
    EXPECT_THROW(parse(bad), InputError) << i;
    try {  // with a checksum that fits it is a dump or an error, and a scan ends
      scan(parse(resealed(std::move(bad))));
    } catch (const InputError&) {
    }
  }
}

TEST(Hostile, ErrorsName) {
  Scene s;
  s.dump();
  std::string bytes = s.file.bytes();
  const auto message = [](const std::string& b) -> std::string {
    try {
      parse(b);
    } catch (const Error& e) {
      return e.id() + " " + e.what();
    }
    return "none";
  };
  EXPECT_EQ(message("SRN"), "SRN4401 memory is no sound pool dump: 3 bytes are no dump");
  bytes[8] = 9;
  EXPECT_EQ(message(bytes),
            "SRN4401 memory is no sound pool dump: its version is 9, this library reads 1");
  bytes[8] = 1;
  bytes[bytes.size() - 1] = static_cast<char>(bytes.back() ^ 1);
  EXPECT_NE(message(bytes).find("its checksum differs"), std::string::npos);
  EXPECT_THROW(Dump("/nonexistent/pool.dump"), InputError);
  EXPECT_THROW(write_dump(s.rig.monitor, "/nonexistent/pool.dump"), InputError);
  Options off;
  off.mode = Mode::none;
  Monitor none(off);
  EXPECT_THROW(write_dump(none, s.file.path + "2"), ValueError);
  EXPECT_FALSE(std::filesystem::exists(s.file.path + "2"));
}

}  // namespace
}  // namespace serinus::canary
