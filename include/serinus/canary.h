// The KV canary: a 32-byte record beside every cached token, stamped when the token is written and
// re-checked while the engine runs. This header holds the vocabulary of both record formats, the
// hashes of the `serinus` format, and the Monitor that an engine attaches. The functions of the
// SGLang-compatible format are in canary_sglang.h. Formulas and bounds: docs/design/canary.md.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <serinus/error.h>
#include <serinus/kv_layout.h>
#include <serinus/tensor.h>

namespace serinus::canary {

namespace cuda {
struct DeviceBatch;  // canary_cuda.h
}

// ---------------------------------------------------------------- vocabulary

enum class Format : std::uint8_t {
  serinus,  ///< owner, generation, composable chain, digest of every byte
  sglang,   ///< bit-exact with SGLang's kv_canary
};

/// How much of a token's KV the digest covers.
enum class Depth : std::uint8_t {
  none,
  partial,  ///< the first and last 16 bytes of each source (sglang: the first 16)
  all,
};

/// When a check runs.
enum class Moment : std::uint8_t {
  head,   ///< before the forward: what happened between steps
  tail,   ///< after it: what the forward trampled
  sweep,  ///< over slots that no running request reads
};
inline constexpr std::size_t kNumMoments = 3;

/// What is wrong with a slot: a set of bits, since one fault can show in several ways.
enum class Reason : std::uint32_t {
  none = 0,
  token = 1u << 0,            ///< stored token is not the expected one
  position = 1u << 1,         ///< stored position is not the expected one
  chain = 1u << 2,            ///< does not continue its predecessor
  kv_bytes = 1u << 3,         ///< the KV bytes are not those that were stamped
  stale = 1u << 4,            ///< never written in this life, or the reader's slot was recycled
  foreign_write = 1u << 5,    ///< written by somebody who does not own the slot (any more)
  double_owner = 1u << 6,     ///< two live requests hold the slot
  out_of_range = 1u << 7,     ///< a slot, row, page or table index outside its table
  null_slot_dirty = 1u << 8,  ///< the reserved slot of a `clean` pool was written
  digest_differs_across_ranks = 1u << 9,
};
inline constexpr std::size_t kNumReasons = 10;  ///< reason i is the bit 1 << i
constexpr Reason operator|(Reason a, Reason b) noexcept {
  return static_cast<Reason>(static_cast<std::uint32_t>(a) | static_cast<std::uint32_t>(b));
}
constexpr Reason operator&(Reason a, Reason b) noexcept {
  return static_cast<Reason>(static_cast<std::uint32_t>(a) & static_cast<std::uint32_t>(b));
}
constexpr Reason& operator|=(Reason& a, Reason b) noexcept {
  return a = a | b;
}
constexpr bool any(Reason r) noexcept {
  return r != Reason::none;
}

const char* name_of(Format) noexcept;
const char* name_of(Depth) noexcept;
const char* name_of(Moment) noexcept;
/// "token+chain": the names in bit order, joined with '+'; "none" for no bit.
std::string names_of(Reason reasons);
/// The page of the error reference about one reason: of several bits the lowest; with none, the one
/// about violations in general.
const ErrorEntry& page_of(Reason reason);

/// A request, as the engine numbers it. 0 is nobody.
using Owner = std::uint32_t;

/// Slot 0 of a pool is never handed out. Padding may or may not write it.
enum class NullSlot : std::uint8_t {
  clean,    ///< nobody may write it: checked
  scratch,  ///< padding writes it: not checked
};

// ---------------------------------------------------------------- the serinus record

/// 32 bytes a slot. All zero = never written.
struct Record {
  std::uint32_t token = 0;
  std::uint32_t position = 0;
  Owner owner = 0;
  std::uint32_t generation = 0;  ///< the life of the slot in which it was written
  std::uint64_t chain = 0;       ///< over this token and all before it; never 0 in a valid record
  std::uint64_t kv_digest = 0;   ///< over the token's KV bytes; 0 with Depth::none
  friend bool operator==(const Record&, const Record&) = default;
};
static_assert(sizeof(Record) == 32);

/// What the allocator last announced about a slot, and the writer about its life: the second,
/// independent witness beside the record. 20 bytes a slot.
struct LedgerEntry {
  Owner owner = 0;               ///< who holds it now; 0 = free
  std::uint32_t generation = 0;  ///< epoch of the last on_alloc; compared modulo 2^32
  std::int32_t prev =
      -1;  ///< slot of the token before this one; -1 = first of its chain, -2 = unknown
  std::uint32_t written = 0;  ///< position + 1 once written in this life; 0 = EMPTY
  Owner previous_owner = 0;   ///< who allocated the life before this one
};
static_assert(sizeof(LedgerEntry) == 20);

/// The three states of a slot. EMPTY is no mismatch: it alarms only where a reader needs the slot.
enum class SlotState : std::uint8_t {
  free,     ///< nobody holds it
  empty,    ///< allocated, not written in this life
  written,  ///< allocated and stamped in this life
};
const char* name_of(SlotState) noexcept;

/// chain_next(kChainAnchor, token, 0) is the chain of a first token.
inline constexpr std::uint64_t kChainAnchor = 0x0ea75eed5e21175ull;

/// h' = h * R + f(token, position) mod 2^61 - 1. Result in [1, 2^61 - 1]: 2^61 - 1 stands for 0, so
/// that no chain is ever 0.
std::uint64_t chain_next(std::uint64_t h, std::uint32_t token, std::uint32_t position) noexcept;

/// Chains of `tokens` at positions first_position, first_position + 1, ...; out.size() ==
/// tokens.size(). Computed as a parallel scan; equal to repeated chain_next.
void chain_scan(std::uint64_t h, std::span<const std::uint32_t> tokens,
                std::uint32_t first_position, std::span<std::uint64_t> out);

/// One run of a token's bytes, as the digest sees it.
struct Source {
  const std::uint8_t* base = nullptr;
  std::int64_t buffer_bytes = 0;  ///< nothing at or beyond this offset is ever read
  std::int64_t page_stride = 0;
  std::int64_t offset = 0;
  std::int64_t token_stride = 0;
  std::int64_t bytes = 0;
  std::int64_t key_offset = 0;  ///< bytes of the sources before it: keys the hash, so order matters
};

/// The sources of a pool: every segment of every layer, in order. `buffers` is layer-major:
/// buffer b of layer l is buffers[l * layout.num_buffers() + b].
std::vector<Source> sources_of(const KvLayout& layout, int num_layers,
                               std::span<const KvBuffer> buffers);

/// Digest of the KV bytes of `slot`. Independent of where the slot lies; order-sensitive; binds
/// lengths. A slot outside a buffer reads nothing and returns nullopt. Depth::none gives 0.
std::optional<std::uint64_t> kv_digest(std::span<const Source> sources, std::int64_t page_size,
                                       std::int64_t slot, Depth depth) noexcept;

/// What one source adds to a digest, so that layers can be folded one by one, in any order:
/// kv_digest = digest_finish(sum of the contributions mod 2^61 - 1, depth).
std::optional<std::uint64_t> digest_contribution(const Source& source, std::int64_t page_size,
                                                 std::int64_t slot, Depth depth) noexcept;
/// a + b mod 2^61 - 1.
std::uint64_t digest_add(std::uint64_t a, std::uint64_t b) noexcept;
std::uint64_t digest_finish(std::uint64_t sum, Depth depth) noexcept;

/// What was announced about a slot.
enum class LedgerEventKind : std::uint8_t {
  alloc,       ///< handed to `owner`
  free,        ///< given back by `owner` (0 = not said)
  transfer,    ///< from `owner` to the owner `peer`
  moved_from,  ///< its content came from the slot `peer`
  moved_to,    ///< its content went to the slot `peer`
  store,       ///< its content was copied out
  load,        ///< content from elsewhere was put into it, for `owner`
};
const char* name_of(LedgerEventKind) noexcept;

struct LedgerEvent {
  std::uint64_t step = 0;
  LedgerEventKind kind = LedgerEventKind::alloc;
  Owner owner = 0;
  std::int64_t peer = -1;
  friend bool operator==(const LedgerEvent&, const LedgerEvent&) = default;
};
/// "alloc:7@12": what, by whom, in which step; "transfer:7>9@13", "moved_to:>40@14".
std::string to_text(const LedgerEvent& e);

// ---------------------------------------------------------------- violations

/// One fault at one slot. Values that a format does not know are -1 (or 0 for hashes).
struct Violation {
  Reason reasons = Reason::none;
  Moment moment = Moment::head;
  Format format = Format::serinus;
  int pool = 0;
  std::int64_t slot = -1;
  std::int64_t expected_position = -1, stored_position = -1;
  std::int64_t expected_token = -1, stored_token = -1;
  std::uint64_t expected_chain = 0, stored_chain = 0;
  std::uint64_t expected_digest = 0,
                stored_digest = 0;  ///< expected = of the bytes as they are now
  Owner expected_owner = 0, stored_owner = 0;
  std::uint32_t expected_generation = 0, stored_generation = 0;
  Owner request = 0;            ///< who reads or writes it; 0 in a sweep
  std::int64_t row = -1;        ///< request row
  int layer = -1;               ///< kv_bytes with Options::source_digests: the first damaged
  std::string segment;          ///< layer, and the segment of the layout within it
  std::int64_t prev_slot = -1;  ///< predecessor that the chain was checked against
  std::uint64_t first_step = 0, last_step = 0;
  std::uint64_t count = 1;  ///< sightings: one fault is one violation however often it is seen
  std::vector<LedgerEvent> events;  ///< the slot's last ones before it was first seen, oldest first
};
/// How many events a violation carries, at most.
inline constexpr std::size_t kEventsInAViolation = 4;

/// One line, key=value. Frozen format (tests/canary/report_test.cpp).
std::string to_text(const Violation& v, std::string_view pool_name);
/// One JSON object on one line. Frozen format.
std::string to_json(const Violation& v, std::string_view pool_name);

// ---------------------------------------------------------------- the monitor

enum class PoolKind : std::uint8_t { full, swa, draft };
const char* name_of(PoolKind) noexcept;

/// A pool of KV, described (never patched). The caller keeps all memory alive and at its place.
struct PoolSpec {
  std::string name = "kv";
  Device device{};  ///< where buffers and full_to_swa lie: a Monitor's pools all on one device
  PoolKind kind = PoolKind::full;
  KvLayout layout;
  int num_layers = 1;
  std::vector<KvBuffer> buffers;  ///< layer-major; empty with Depth::none
  std::int64_t num_slots = 0;     ///< slot numbers are [0, num_slots); slot 0 is the null slot
  NullSlot null_slot = NullSlot::clean;
  std::int64_t window = 0;  ///< swa: tokens a layer looks back
  std::span<const std::int64_t>
      full_to_swa;                 ///< swa: slot of the full pool -> slot of this pool, 0 = evicted
  int token_offset = 0;            ///< draft pools: slot p holds the KV of token p + 1
  std::int64_t table_rows = 4096;  ///< cuda: rows of req_to_token that on_attach() may name
};

enum class Mode : std::uint8_t {
  none,        ///< nothing runs
  log,         ///< violations are reported through poll() and the log callback
  raise,       ///< end_step() throws RuntimeError for what the step found
  quarantine,  ///< as log, and tainted() lists what to evict and prefill again
};
const char* name_of(Mode) noexcept;

enum class VerifyPolicy : std::uint8_t {
  rolling,  ///< in full what is newly reused, the rest in turn within the budget
  all,      ///< every prefix of every request at every step, as SGLang does
};

struct Options {
  Format format = Format::serinus;
  Depth depth = Depth::all;
  Mode mode = Mode::log;
  VerifyPolicy verify = VerifyPolicy::rolling;
  std::int64_t records_per_step = 4096;   ///< rolling budget, records
  std::int64_t bytes_per_step = 8 << 20;  ///< rolling budget, KV bytes hashed; a step checks at
                                          ///< least one cell a request and one slot a pool
  bool source_digests = false;  ///< keep 4 more bytes a slot and source: a kv_bytes violation then
                                ///< names the layer and segment (and so the head) that differs
  std::int64_t sweep_interval = 16;   ///< sglang format only: steps from sweep to sweep, 0 = never
  std::int64_t ring_capacity = 1024;  ///< distinct violations kept until polled; below 2^31
  std::int64_t event_capacity = 65536;  ///< ledger events kept a pool; 0 = none; below 2^31
  std::int64_t health_steps = 100;  ///< a pool that is in use and was not checked for so many steps
                                    ///< is reported by health(); 0 = never
  int threads = 1;
};

/// One forward, as the device tables describe it. Arrays have one entry a request, except where
/// noted.
struct Batch {
  std::span<const int> pools;          ///< which pools this forward reads and writes; empty = all
  std::span<const std::int64_t> rows;  ///< req_pool_indices; 0 = padding row
  std::span<const std::int64_t> prefix_lens;  ///< tokens already in the pool: these are checked
  std::span<const std::int64_t> extend_lens;  ///< tokens that this forward writes
  std::span<const Owner> owners;              ///< who the requests are
  TensorView req_to_token;                    ///< [rows, max_len] int32: slot of (row, position)
  // Flat over the extended tokens of all requests, in order:
  // (locations are slots of the full pool; < 0 = not written; entries beyond the sum of extend_lens
  // are padding, which may write a scratch null slot and nothing else)
  std::span<const std::int64_t> input_ids, positions, out_cache_loc;
  // Tree drafts (topk > 1): for each flat token the flat index of the token before it, an earlier
  // one of the same request; -1 = it follows the prefix. Empty: each token follows the one before
  // it. The chain goes along the tree, so that whichever path is accepted is a sound row.
  std::span<const std::int64_t> parents;
  // Independent truth, where the engine has it: checked as tokens are stamped, and at every check
  // after. Drafts that may yet be rejected are not known: valid_lens ends before them.
  TensorView expected_tokens;                ///< [rows, max_len] int32, or empty
  std::span<const std::int64_t> valid_lens;  ///< how much of each request's row above is known
};

struct Stats {
  std::uint64_t steps = 0, records_written = 0, records_verified = 0, bytes_digested = 0;
  std::uint64_t sweeps = 0;         ///< completed passes over all live slots
  std::uint64_t violations = 0;     ///< distinct
  std::uint64_t sightings = 0;      ///< with repeats
  std::uint64_t dropped = 0;        ///< violations that found the ring full: counted, never silent
  std::uint64_t out_of_range = 0;   ///< sglang format, which has no report for it: entries skipped
  std::uint64_t skipped_empty = 0;  ///< entries whose slot is EMPTY and not yet due
  std::int64_t live_slots = 0;      ///< allocated now, over all pools
  /// Every slot that is live now is checked again within so many steps (serinus format).
  std::int64_t sweep_bound_steps = 0;
  double seconds_head = 0, seconds_tail = 0, seconds_sweep = 0;
  std::array<std::uint64_t, kNumMoments> checks{};  ///< how often each Moment was run
  double last_sweep_time = 0;  ///< Unix time, s, at which the last of `sweeps` ended; 0 = none yet
};

/// What stats() says of one pool alone.
struct PoolStats {
  std::string name;
  PoolKind kind = PoolKind::full;
  std::int64_t num_slots = 0;
  std::int64_t live_slots = 0;  ///< allocated when the last step ended; 0 with format sglang
  /// Distinct violations by reason. One that shows in several ways counts under each of them.
  std::array<std::uint64_t, kNumReasons> violations{};
};

/// A check that stopped running: the pool is in use, and this moment has not looked at it since.
struct Stall {
  Moment moment = Moment::head;
  int pool = 0;
  std::uint64_t since_step = 0;  ///< of the first announcement that it has not looked at
  friend bool operator==(const Stall&, const Stall&) = default;
};
/// "kv-canary stopped running: moment=tail pool=draft since step=120".
std::string to_text(const Stall& s, std::string_view pool_name);

class FileSink;

/// What slots_of() says of a cell that leads out of the pool.
inline constexpr std::int64_t kNoSlot = -1;

/// What the sweep of the sglang format walks: the engine's prefix tree, flattened.
struct SweepEntry {
  std::int64_t slot = 0, position = 0, prev_slot = -1;
};

/// The canary of one engine: attach pools, announce what the allocator does, bracket every forward.
///
/// Threads: poll(), tainted(), stats(), pool_stats(), events(), pool_events(), health() and
/// log_to() may be called from any thread at any time. All other calls are made from one thread at
/// a time (which may change, with a lock or a join in between), add_pool() and moves before the
/// others begin. Several steps may be in flight: forwards of other requests may begin before this
/// one ends, and violations may be polled steps later.
///
/// Pools on a GPU (PoolSpec::device): announcements gather on the host and go along
/// with the next step, in its stream; the moments are launches, which nothing waits for. So what is
/// found arrives with a later poll(), Mode::raise throws at a later end_step(), and the seconds of
/// stats() are the host's. wait(), flush(), detach_pool(), on_store() and all that reads raw state
/// wait for the device. Streams may differ from step to step: a step waits, on the device, for
/// those before it that brought announcements. Tables lie on the GPU; the other arrays of a Batch
/// on the host, or all of them on the GPU, in a cuda::DeviceBatch. docs/design/canary_cuda.md has
/// more.
class Monitor {
 public:
  explicit Monitor(Options options);
  ~Monitor();
  Monitor(Monitor&&) noexcept;
  Monitor& operator=(Monitor&&) noexcept;

  /// Returns the pool's number: 0, 1, ... Throws ValueError for an impossible description.
  int add_pool(PoolSpec spec);

  /// The pool's memory is about to go: nothing of it is read any more. It keeps its number; to name
  /// it afterwards is an error, and a batch that names no pools means the others. (Memory may also
  /// simply go before the Monitor does, if nothing is called in between but its destructor.)
  void detach_pool(int pool);

  // --- what the allocator does, in stream order
  /// `slots` now belong to `owner`, empty: a new life. A slot that still belongs to somebody:
  /// double_owner. A free slot whose record was written meanwhile: foreign_write.
  void on_alloc(int pool, std::span<const std::int64_t> slots, Owner owner);
  /// `slots` belong to nobody; their records are erased. A slot that is free already, or that
  /// somebody else than `owner` holds (where `owner` is given): double_owner.
  void on_free(int pool, std::span<const std::int64_t> slots, Owner owner = 0);
  /// `slots` change hands within their life, written or not: a request gives them to the prefix
  /// cache (which has an owner id of its own), or one request to another. The giver may go on
  /// reading what it wrote; only the taker may write. A slot that `from` does not hold:
  /// double_owner.
  void on_transfer(int pool, std::span<const std::int64_t> slots, Owner from, Owner to);
  /// `owner` now reads the cells [begin, end) of its table row, written by others: a prefix hit, or
  /// a row rewritten to the cache's slots after its own duplicates were freed. They are verified in
  /// full at the next head check of the owner, and reported as stale if one changes hands later.
  void on_attach(Owner owner, std::int64_t row, std::int64_t begin, std::int64_t end);
  /// `owner` reads nothing any more: finished, aborted or preempted.
  void on_release(Owner owner);
  /// Records travel with their bytes: slot from[i] was copied to to[i], which is allocated. The
  /// copies happen as if at once, so the two lists may overlap. Verified in full at the next head.
  void on_move(int pool, std::span<const std::int64_t> from, std::span<const std::int64_t> to);
  /// Copies the records of `slots` out, beside their bytes. A slot not written in this life gives
  /// zeros. `source_digests`, if given: num_sources(pool) words a slot (Options::source_digests).
  void on_store(int pool, std::span<const std::int64_t> slots, std::span<Record> records,
                std::span<std::uint32_t> source_digests = {});
  /// Bytes and records from another tier or machine were put into `slots`, which `owner` holds, in
  /// the order of their tokens. The records are stamped anew with the owner and the slot's life; a
  /// record of zeros leaves its slot EMPTY, so does one of a position beyond 2^31 - 1, which is
  /// reported (position). Verified in full at the next head. A slot that `owner` does not hold:
  /// foreign_write.
  void on_load(int pool, std::span<const Record> records, std::span<const std::int64_t> slots,
               Owner owner, std::span<const std::uint32_t> source_digests = {});

  // --- the moments
  void begin_step(const Batch& batch, Stream stream = {});  ///< head
  void end_step(const Batch& batch,
                Stream stream = {});  ///< tail: verifies, then stamps; then sweeps
  // Pools on a GPU, whose batch lies there, too. While `stream` is captured these two are launches
  // into the graph, and nothing else.
  void begin_step(const cuda::DeviceBatch& batch, Stream stream, std::span<const int> pools = {});
  void end_step(const cuda::DeviceBatch& batch, Stream stream, std::span<const int> pools = {});
  /// Before each launch of a graph that holds both: what was announced since, and the checks that
  /// are due for it. Of `batch` it reads the tables.
  void begin_replay(const cuda::DeviceBatch& batch, Stream stream, std::span<const int> pools = {});

  /// Verifies the cells [begin, end) of one request now, outside the budget, and the null slots.
  /// Only `pools`, the table and the expected tokens of `tables` are used; where it lists `owners`,
  /// the valid length of `owner` bounds the expected tokens, else all of the row counts as known.
  void verify_now(Moment moment, Owner owner, std::int64_t row, std::int64_t begin,
                  std::int64_t end, const Batch& tables, Stream stream = {});
  /// Stamps the batch's tokens outside a step: a write that lands late, or a lab's.
  void stamp_now(const Batch& batch, Stream stream = {});

  // --- ranks: what one rank has cached for a request, without slot numbers
  /// Digest over the length and the stored chains of the first `length` cells.
  std::uint64_t request_digest(std::int64_t row, std::int64_t length, const Batch& tables) const;
  /// Pools on a GPU: what `pool` holds of each request of the batch, its first prefix_lens cells,
  /// as request_digest() of canary_ranks.h says it; into `digests`, u8 [bs, 32] there, as a launch
  /// into `stream`, captured or not. After begin_step(), which brings what was announced.
  void request_digests(int pool, const cuda::DeviceBatch& batch, const TensorView& digests,
                       Stream stream) const;
  /// The digests that the ranks computed: unequal ones are digest_differs_across_ranks.
  void on_rank_digests(Owner owner, std::int64_t row, std::span<const std::uint64_t> digests);

  // --- what it found
  /// Takes the violations found since the last call. Never blocks.
  std::vector<Violation> poll();
  /// Pools on a GPU: waits for the checks launched so far, so that poll() then has all that they
  /// found. For the one check that a decision hangs on: verify_now(), wait(), poll(). It waits for
  /// the streams that the calls were given, as far as they were filled by then; once a moment has
  /// been captured in a graph, for the whole device: then not while something runs there that may
  /// never end, such as a receive.
  void wait();
  /// Runs what is still due (idle, shutdown), so that poll() then leaves nothing unreported.
  void flush();
  /// quarantine: slots and requests that a violation touched, since the last call.
  struct Tainted {
    std::vector<std::pair<int, std::int64_t>> slots;  ///< (pool, slot)
    std::vector<Owner> requests;
    bool complete = true;  ///< false: more than 64 x ring_capacity of either; evict everything
  };
  Tainted tainted();
  /// The last things announced about a slot, at most `n`, oldest first. From any thread.
  std::vector<LedgerEvent> events(int pool, std::int64_t slot,
                                  std::size_t n = kEventsInAViolation) const;
  Stats stats() const;
  /// By pool number. Current as of the last call of a moment or of flush().
  std::vector<PoolStats> pool_stats() const;
  /// Checks that stopped running, by pool and moment: slots were announced (alloc, load, move), and
  /// for more than Options::health_steps steps (or 64 times as many announcements, where no step
  /// comes at all) the moment did not look at that pool. Sweeps of the sglang format have their
  /// interval on top, so rare ones are no stall; where there are none they are not expected. Each
  /// stall is logged once, as a warning; nothing is ever thrown for it. From any thread.
  std::vector<Stall> health() const;
  /// Every violation is also written to `sink`, when it is first seen. Null: no more.
  void log_to(std::shared_ptr<FileSink> sink);

  /// Raw state, for tests, dumps and fault injection. Of a pool on a GPU: copies, good until the
  /// next call.
  std::span<Record> records(int pool);
  std::span<LedgerEntry> ledger(int pool);
  /// Puts a record where somebody else might have put it: the slot's seal and ledger stay. The slot
  /// exists.
  void set_record(int pool, std::int64_t slot, const Record& record);
  /// Slots, in this pool, of the first `length` cells of a row; kNoSlot where a cell leads out of
  /// it, 0 where it left the window. Shorter where the table is.
  std::vector<std::int64_t> slots_of(int pool, std::int64_t row, std::int64_t length,
                                     const TensorView& req_to_token) const;
  /// The pool's table as it is now; empty for one that has none.
  std::vector<std::int64_t> full_to_swa(int pool) const;
  /// The slot's bytes as the layout names them: segment by segment, layer by layer. Empty with
  /// Depth::none, and where there is no such slot.
  std::vector<std::uint8_t> slot_bytes(int pool, std::int64_t slot) const;
  /// num_sources(pool) words a slot; empty unless Options::source_digests.
  std::span<std::uint32_t> source_digests(int pool);
  /// Of the null slot's bytes when the pool was attached; 0 where they are not digested.
  std::uint64_t null_digest(int pool) const;
  /// Everything that the event ring holds of a pool, oldest first, with the slot.
  std::vector<std::pair<std::int64_t, LedgerEvent>> pool_events(int pool) const;
  int num_pools() const noexcept;  ///< detached ones included
  bool is_attached(int pool) const noexcept;
  const PoolSpec& pool(int pool) const;
  const Options& options() const noexcept;
  SlotState state(int pool, std::int64_t slot) const;  ///< free where there is no such slot
  /// Of the slot's KV bytes as they are now, as a record of this format would keep it; nullopt
  /// where there is no such slot.
  std::optional<std::uint64_t> digest_of(int pool, std::int64_t slot) const;
  std::int64_t num_sources(int pool) const;  ///< segments x layers that are hashed

  /// sglang format: where the sweep finds the prefix tree's slots.
  void set_sweep_source(int pool, std::function<void(std::vector<SweepEntry>&)> source);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace serinus::canary
