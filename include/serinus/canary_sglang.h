// The KV canary in SGLang's record format: bit-exact with SGLang's kv_canary, so that it can take
// its place and read its records. Plain functions over tensors that the caller owns; CPU tensors
// run on the CPU, CUDA tensors on the GPU. What is compatible and what is not:
// docs/design/canary_sglang.md.
//
// An outer step is: plan() once a pool, then verify() and write() before the forward (HEAD buffers)
// and again after it (TAIL buffers), with the same plans.
//
// All calls check their arguments first, in SGLang's order and with its messages, and leave every
// tensor untouched when they throw. CUDA calls are stream-ordered, allocate nothing, and can be
// captured in a graph; their plans' tails (beyond the valid entries) and the order of ring rows are
// unspecified there. On the CPU ring rows come in the order of the entries, and nothing depends on
// `threads` (0 = all that the machine has).
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <serinus/canary.h>
#include <serinus/tensor.h>

namespace serinus::canary::sglang {

// ---------------------------------------------------------------- constants

/// Hashed (splitmix64) it is the prev_hash of a first token.
inline constexpr std::uint64_t kChainAnchor = 0xC0FFEE1234567890u;
/// Slot 0: never verified; as a predecessor it means "unreachable: no chain test".
inline constexpr std::int64_t kPaddingSlot = 0;
/// Request row 0: plans nothing.
inline constexpr std::int64_t kPaddingRow = 0;
/// Any negative predecessor or seed: the chain starts here.
inline constexpr std::int64_t kChainHead = -1;
/// An expected token that is not compared.
inline constexpr std::int64_t kNoToken = -1;
/// What plan() puts where the table has no such cell: verify() and write() skip and count it. No
/// buffer is ever this large.
inline constexpr std::int64_t kOutOfRangeSlot = std::numeric_limits<std::int64_t>::max();

inline constexpr std::int64_t kSlotBytes = 32;
inline constexpr int kFieldsPerSlot = 4;
inline constexpr int kViolationFields = 8;
inline constexpr std::size_t kMaxRealKvSources = 4;
inline constexpr int kRealKvSourceFields = 3;      ///< page_size, num_bytes_per_token, read_bytes
inline constexpr std::int64_t kPartialBytes = 16;  ///< read of each source with PARTIAL
inline constexpr std::int64_t kMaxPlanRequests = 4096;
inline constexpr std::int64_t kScatterBatchBlock = 512;  ///< bs + 1 at most

/// Who launched a check: moment, half and pool of an endpoint.
enum class LaunchTag : std::uint8_t {
  head_k_full,
  head_v_full,
  tail_k_full,
  tail_v_full,
  sweep_k_full,
  sweep_v_full,
  head_k_swa,
  head_v_swa,
  tail_k_swa,
  tail_v_swa,
  sweep_k_swa,
  sweep_v_swa,
};
inline constexpr int kNumLaunchTags = 12;

/// "HEAD_K_FULL"; "unknown(12)" for a value that is no tag.
std::string name_of(LaunchTag tag);
std::string tag_name(std::int64_t value);

/// What a check found, in the last field of a ring row.
enum class FailReason : std::uint8_t {
  none = 0,
  verify_chain_hash = 1,
  verify_position = 2,
  verify_real_kv_hash = 4,
  write_token = 8,
  write_position = 16,
  verify_token = 32,
};
constexpr FailReason operator|(FailReason a, FailReason b) noexcept {
  return static_cast<FailReason>(static_cast<std::uint8_t>(a) | static_cast<std::uint8_t>(b));
}

/// How much of a slot's KV bytes is fingerprinted.
enum class RealKvHashMode : std::uint8_t {
  none = 0,
  partial = 1,  ///< the first 16 bytes of each source, whatever its read_bytes
  all = 2,      ///< read_bytes of each source
};

// ---------------------------------------------------------------- records and hashes

/// One slot's 32 bytes, little-endian.
struct Record {
  std::int64_t token = 0;
  std::int64_t position = 0;
  std::int64_t prev_hash = 0;     ///< chain hash of everything before this token
  std::int64_t real_kv_hash = 0;  ///< fingerprint of the slot's KV bytes, 0 when disabled
  friend bool operator==(const Record&, const Record&) = default;
};
static_assert(sizeof(Record) == kSlotBytes);

/// One row of the violation ring. The meaning of the fields depends on who wrote it: verify()
/// stores the record's values, write() the values being written.
struct ViolationRow {
  std::int64_t kernel_kind = 0;  ///< a LaunchTag
  std::int64_t slot = 0;
  std::int64_t position = 0;           ///< stored (verify) or actual (write)
  std::int64_t stored_token = 0;       ///< stored (verify) or actual (write)
  std::int64_t expected_token = 0;     ///< -1: none
  std::int64_t stored_chain_hash = 0;  ///< stored prev_hash, or the running hash before the token
  std::int64_t expected_aux = 0;       ///< expected prev_hash (verify), expected position (write)
  std::int64_t fail_reason_bits = 0;
  friend bool operator==(const ViolationRow&, const ViolationRow&) = default;
};
static_assert(sizeof(ViolationRow) == kViolationFields * sizeof(std::int64_t));

/// SplitMix64's finaliser, without the golden-ratio increment: a bijection, 0 stays 0.
std::uint64_t splitmix64(std::uint64_t x) noexcept;
/// splitmix64(splitmix64(splitmix64(a) ^ b) ^ c).
std::uint64_t splitmix64_mix3(std::uint64_t a, std::uint64_t b, std::uint64_t c) noexcept;
/// Hash of a slot, which is the prev_hash of its successor.
std::uint64_t chain_hash(const Record& record) noexcept;

/// Bytes of every slot in one buffer: slot s lies in row s / page_size, at byte
/// (s % page_size) * num_bytes_per_token. Trailing bytes of a row are never read.
struct RealKvSource {
  TensorView tensor;  ///< any dtype, [rows, width], dense within a row; rows may be strided
  std::int64_t page_size = 1;
  std::int64_t num_bytes_per_token = 0;  ///< a multiple of 16
  std::int64_t read_bytes = 0;           ///< a multiple of 16, at most num_bytes_per_token
};

/// Throws ValueError as SGLang's constructor of the class does.
void check(const RealKvSource& source);

/// Fold of one source's bytes of `slot`; nullopt where they do not lie wholly within its tensor
/// (nothing is read then).
std::optional<std::uint64_t> source_hash(const RealKvSource& source, RealKvHashMode mode,
                                         std::int64_t slot);
/// Fold over all sources, in order: what a record's real_kv_hash holds. 0 with mode none.
std::optional<std::uint64_t> real_kv_hash(std::span<const RealKvSource> sources,
                                          RealKvHashMode mode, std::int64_t slot);

/// Flips all bits of the slot's first byte: the fault that SGLang's perturbations inject.
/// Returns where; nullopt (and nothing changed) where that byte does not exist.
struct FlippedByte {
  std::int64_t row = 0, column = 0;
  std::uint8_t old_byte = 0, new_byte = 0;
};
std::optional<FlippedByte> flip_first_byte(const RealKvSource& source, std::int64_t slot);

// ---------------------------------------------------------------- plan

/// What verify() walks: four int64 arrays [verify_capacity] and two int32 [1].
struct VerifyPlan {
  TensorView verify_slot_indices;
  TensorView verify_expected_tokens;     ///< -1: not compared
  TensorView verify_expected_positions;  ///< of the slot's record
  TensorView verify_prev_slot_indices;   ///< < 0: chain head; 0: unreachable
  TensorView verify_num_valid;
  TensorView enable;  ///< 0: verify() does nothing but count its run
};

/// What write() walks.
struct WritePlan {
  TensorView write_offsets;  ///< int64 [write_req_capacity + 1], into the token arrays
  TensorView
      write_seed_slot_indices;      ///< int64 [write_req_capacity]: slot before the first, or < 0
  TensorView write_num_valid_reqs;  ///< int32 [1]
};

/// Throw ValueError for a capacity that is not positive.
void check_verify_capacity(std::int64_t verify_capacity);
void check_write_req_capacity(std::int64_t write_req_capacity);

/// Plans with memory of their own, on the CPU. Zero-filled; `enable` is 1.
class HostVerifyPlan {
 public:
  explicit HostVerifyPlan(std::int64_t verify_capacity);
  VerifyPlan view() noexcept;

  std::vector<std::int64_t> slots, tokens, positions, prev_slots;
  std::int32_t num_valid = 0, enable = 1;
};
class HostWritePlan {
 public:
  explicit HostWritePlan(std::int64_t write_req_capacity);
  WritePlan view() noexcept;

  std::vector<std::int64_t> offsets, seeds;
  std::int32_t num_valid_reqs = 0;
};

/// Inputs of plan(): one entry a request; dense tensors on one device.
struct PlanInput {
  TensorView req_pool_indices;  ///< int64 [bs], 0 = padding; bs <= 4096 and <= write_req_capacity
  TensorView prefix_lens;       ///< int64 [bs]: tokens already in the pool; negative = 0
  TensorView extend_seq_lens;   ///< int64 [bs]: tokens that this step writes; negative = 0
  TensorView req_to_token;      ///< int32 [rows, max_len]: slot of (row, position)
  std::int64_t swa_window_size = 0;                       ///< 0: the whole prefix
  std::optional<TensorView> full_to_swa_index_mapping{};  ///< int64 [n]; required with a window
  std::int64_t verify_capacity = 0;                       ///< must be that of the verify plan
  /// int32 [rows, ctx]: the tokens as the scheduler knows them, and how many of each request.
  std::optional<TensorView> req_to_verify_expected_tokens{};
  std::optional<TensorView> req_to_verify_expected_tokens_valid_lens{};  ///< int64 [bs]
  std::int64_t kv_token_id_vs_position_offset = 0;  ///< 1 for a draft pool: slot p holds token p+1
};

/// Lists what the step must verify (every prefix, or its window) and where it will write. More
/// entries than verify_capacity: enable = 0 and no entry is stored; the write plan is unaffected.
void plan(const VerifyPlan& verify_plan_out, const WritePlan& write_plan_out,
          const PlanInput& input, Stream stream = {}, int threads = 1);

/// Slots of the full pool -> slots of the SWA pool, as plan() translates them: negative stays,
/// beyond the mapping takes its last entry. int64 tensors; `out` may be `slots`.
void translate_slots(const TensorView& slots, const TensorView& full_to_swa_index_mapping,
                     const TensorView& out, Stream stream = {});

/// Copies token histories into the expected-token pool: flat_in[offsets[r] + p] goes to
/// pool_out[req_pool_indices[r], p] (low 32 bits), for p within the pool's width.
/// flat_in, offsets [bs + 1], req_pool_indices [bs]: int64; pool_out int32 [rows, width].
void scatter_req_token_ids(const TensorView& flat_in, const TensorView& offsets,
                           const TensorView& req_pool_indices, const TensorView& pool_out,
                           Stream stream = {});

// ---------------------------------------------------------------- write and verify

/// One endpoint: the records, where to report, and the bytes to fingerprint.
struct VerifyOrWriteContext {
  TensorView canary_buf;  ///< uint8 [num_slots, stride >= 32]
  LaunchTag kernel_kind = LaunchTag::head_k_full;
  TensorView violation_ring;         ///< int64 [capacity, 8]: filled once, never overwritten
  TensorView violation_write_index;  ///< int32 [1]: violations found so far, stored or not
  TensorView slot_run_counter;       ///< int64 [1]: entries seen
  TensorView kernel_run_counter;     ///< int64 [1]: launches
  std::vector<RealKvSource> real_kv_sources;  ///< at most 4
  RealKvHashMode real_kv_hash_mode = RealKvHashMode::none;
  TensorView enable_chain_position_assert;  ///< int32 [1]: write() checks positions along a chain
  /// int64 [1], beyond SGLang's interface: entries that named a slot outside the buffer or outside
  /// a source (their own, their predecessor's, or their row's seed). They are skipped: counted in
  /// slot_run_counter, no row in the ring, nothing read or written.
  std::optional<TensorView> out_of_range_counter{};
  /// int64 [capacity of the ring], beyond SGLang's interface: what each row is about, an entry of
  /// the plan (verify) or a token of the input (write).
  std::optional<TensorView> violation_entries{};
};

/// Checks every entry of the plan against the records: chain (from the predecessor's record),
/// position, fingerprint, and the token where one is expected and check_verify_expected_token is
/// on. One ring row an entry at fault. Reads the buffer only.
void verify(const VerifyOrWriteContext& context, const VerifyPlan& plan,
            bool check_verify_expected_token, Stream stream = {}, int threads = 1);

/// Flat over the new tokens of all requests: int64 [n], dense.
struct WriteInput {
  TensorView input_ids, positions;
  TensorView out_cache_loc;  ///< slots; negative = not written
  bool enable_write_input_assert = false;
  std::optional<TensorView> expected_input_tokens{};  ///< both with the assert on, none with it off
  std::optional<TensorView> expected_input_positions{};
  /// The chain before each token, where the host knows the tokens, as chain_hashes() gives it: then
  /// none waits for the one before. The seeds' hashes are not read; of a token that is not written
  /// there may be anything.
  std::optional<TensorView> chain_hashes{};
};

/// The hashes of a run of new tokens on the host, for WriteInput::chain_hashes: `before` is the
/// hash of the token before the run, nothing where it begins a chain. Returns that of the run's
/// last token, the next run's `before`. Bit for bit what write() finds by itself. The spans are of
/// one length (SRN3210 where they are not).
std::optional<std::int64_t> chain_hashes(std::optional<std::int64_t> before,
                                         std::span<const std::int64_t> tokens,
                                         std::span<const std::int64_t> positions,
                                         std::span<std::int64_t> hashes);

/// Stamps the new tokens' slots. Records hold the actual values, whatever the checks say. The seeds
/// are read before anything is written.
void write(const VerifyOrWriteContext& context, const WritePlan& plan, const WriteInput& input,
           Stream stream = {}, int threads = 1);

// ---------------------------------------------------------------- sweep

enum class PrefixTreeKind : std::uint8_t { plain, swa, unified };

/// One node of the engine's prefix cache.
struct PrefixNode {
  std::span<const std::int64_t>
      slots{};                  ///< full-pool slots of its tokens; empty = not on the device
  std::int64_t key_length = 0;  ///< tokens of its key (unified: depth advances without slots)
  std::int64_t full_lock = 0;   ///< readers; plain trees have this one only
  std::int64_t swa_lock = 0;    ///< unified trees
  bool swa_resident = true;     ///< false: evicted from the SWA pool (tombstone)
  std::vector<std::int32_t> children{};  ///< indices into PrefixTree::nodes
};

/// nodes[0] is the root. A node has one parent.
struct PrefixTree {
  PrefixTreeKind kind = PrefixTreeKind::plain;
  bool has_swa_component = false;  ///< unified trees
  std::vector<PrefixNode> nodes;
};

struct SweepFilter {
  bool unlocked_only = false;
  bool swa_resident_only = false;
};

/// Every slot that the tree holds with its position and predecessor, depth first. Throws ValueError
/// for a child that does not exist or has two parents.
std::vector<SweepEntry> sweep_entries(const PrefixTree& tree, const SweepFilter& filter = {});

/// Full -> SWA numbering of slots and predecessors, where swa_window_size > 0; a mapping is
/// required then. Evicted slots become 0 and stay listed.
void translate_sweep(std::span<SweepEntry> entries, std::int64_t swa_window_size,
                     std::optional<std::span<const std::int64_t>> full_to_swa_index_mapping);

/// The plan of a sweep: capacity max(1, entries), tokens not compared.
HostVerifyPlan sweep_plan(std::span<const SweepEntry> entries);

// ---------------------------------------------------------------- report

/// Names of the set bits in order ("verify_chain_hash", ...), joined; "none" without a known bit.
std::string fail_reason_names(std::int64_t bits, std::string_view separator);

/// SGLang's text of a violation: seven lines, frozen, no newline at the end.
std::string report_text(const ViolationRow& row, std::int64_t total_violations, bool ring_overflow,
                        std::int64_t step_when_pumped);

// ---------------------------------------------------------------- token oracle

/// BLAKE2b-8 of the id, read as a little-endian int64.
std::int64_t request_id_hash(std::string_view request_id);
/// The token that the oracle's "model" emits for this request and position. Throws ValueError where
/// vocab_size is not positive.
std::int64_t oracle_token(std::int64_t request_id_hash, std::int64_t position,
                          std::int64_t vocab_size);

// ---------------------------------------------------------------- transfer (PD disaggregation)

/// One buffer that travels with a page: what SGLang's pools hand to the transfer engine.
struct TransferBuffer {
  std::uint64_t address = 0;
  std::int64_t bytes = 0;
  std::int64_t item_bytes = 0;  ///< of one page
  friend bool operator==(const TransferBuffer&, const TransferBuffer&) = default;
};

/// The entry of a canary buffer whose stride is 32.
TransferBuffer transfer_buffer(const TensorView& canary_buf, std::int64_t page_size);

/// k_head, K..., k_tail, v_head, V..., v_tail. Throws RuntimeError for an odd number of buffers.
std::vector<TransferBuffer> splice_kv(std::span<const TransferBuffer> buffers,
                                      const TransferBuffer& k_head, const TransferBuffer& k_tail,
                                      const TransferBuffer& v_head, const TransferBuffer& v_tail);
/// k_head, ..., k_tail: pools without a V half.
std::vector<TransferBuffer> splice_k(std::span<const TransferBuffer> buffers,
                                     const TransferBuffer& k_head, const TransferBuffer& k_tail);

}  // namespace serinus::canary::sglang
