// A pool dump: records, ledger, bytes and table rows of a Monitor in one file, for somebody who was
// not there. `serinus scan FILE` checks one. The file format: docs/design/dump.md.
#pragma once

#include <cstdint>
#include <functional>
#include <istream>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <serinus/canary.h>

namespace serinus::canary {

/// Whose KV bytes a dump holds. Records and ledger are always there for every slot in it.
enum class DumpBytes : std::uint8_t {
  none,
  listed,  ///< of DumpOptions::listed
  all,     ///< of every slot in the dump
};

/// One request's row of the table, as it stood.
struct DumpRow {
  Owner owner = 0;
  std::int64_t row = 0;
  std::vector<int> pools;            ///< that this row addresses; empty = all
  std::vector<std::int32_t> cells;   ///< slots of the full pool, by position
  std::vector<std::int32_t> tokens;  ///< what they should hold, -1 = not known; empty = no token is
};

struct DumpOptions {
  DumpBytes bytes = DumpBytes::all;
  std::vector<std::pair<int, std::int64_t>> listed{};  ///< (pool, slot) whose bytes are wanted
  std::span<const DumpRow> rows{};
};

/// Writes `path`, which appears when it is whole. A dump holds the null slot and every slot that is
/// allocated or has a record, of every
/// pool that is attached. To be called between steps, from the thread that announces. Throws
/// InputError where the file cannot be written, ValueError in Mode::none.
void write_dump(Monitor& monitor, const std::string& path, const DumpOptions& options = {});

/// A slot's announced event, with the slot.
struct SlotEvent {
  std::int64_t slot = -1;
  LedgerEvent event;
};

/// One pool as a dump holds it: arrays with one entry a slot, except where noted.
struct DumpPool {
  PoolSpec spec;  ///< without buffers
  std::vector<std::int64_t> full_to_swa;
  std::uint64_t null_digest = 0;    ///< of the null slot's bytes when the pool was attached
  std::vector<std::int64_t> slots;  ///< ascending
  std::vector<SlotState> states;
  std::vector<Record> records;                ///< sglang: of the tail buffer
  std::vector<LedgerEntry> ledger;            ///< serinus only
  std::vector<std::uint32_t> source_digests;  ///< num_sources a slot; empty where not kept
  std::vector<std::int64_t> byte_slots;       ///< ascending: whose bytes are there
  std::vector<SlotEvent> events;              ///< oldest first

  std::int64_t num_sources = 0;  ///< segments x layers
  std::int64_t token_bytes = 0;  ///< of one slot's row of bytes: layer by layer, segment by segment
  /// Index into the arrays, or -1.
  std::int64_t find(std::int64_t slot) const noexcept;
};

/// A dump that was read. Bytes stay in the file until they are asked for.
class Dump {
 public:
  /// Throws InputError where the file cannot be read, or is not what a dump must be: every length
  /// is checked against the file's before anything is allocated, and the checksum at the end.
  explicit Dump(const std::string& path);
  /// From a stream that can seek; `name` is for messages.
  Dump(std::unique_ptr<std::istream> stream, std::string name);

  std::uint32_t version = 0, record_version = 0;
  Format format = Format::serinus;
  Depth depth = Depth::all;
  std::uint64_t step = 0;
  std::vector<DumpPool> pools;
  std::vector<DumpRow> rows;

  /// Rows of bytes of pools[pool].byte_slots[first, first + n): n * token_bytes bytes.
  void read_bytes(int pool, std::int64_t first, std::int64_t n, std::uint8_t* out) const;

 private:
  void parse();

  std::unique_ptr<std::istream> stream_;
  std::string name_;
  std::vector<std::int64_t> bytes_at_;  // by pool: where its bytes begin
};

struct ScanResult {
  std::int64_t slots = 0;             ///< in the dump
  std::int64_t written = 0;           ///< of them: whose records were checked
  std::int64_t bytes_checked = 0;     ///< slots whose bytes were compared
  std::int64_t cells = 0;             ///< table cells walked
  std::vector<Violation> violations;  ///< at most one a slot (or cell without one), at most `limit`
  std::int64_t more = 0;              ///< beyond the limit
};

/// Checks a dump in itself: records against ledger, predecessor and bytes, the null slot, and every
/// row's cells against what they point to (position, token, chain, stale, out_of_range). Moment is
/// sweep for slots, head for cells. A dump of format sglang has no ledger: bytes and cells only.
ScanResult scan(const Dump& dump, std::size_t limit = 1000);

}  // namespace serinus::canary
