// What SGLang's host does around the canary's kernels, as plain functions: how large plans and
// token arrays are, what each forward mode feeds the plan, when checks run and when their results
// are seen, and the report on how far a sliding-window pool has drifted from the full one.
// Everything here runs on the CPU. Behaviour and texts: docs/design/canary_sglang.md.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <serinus/canary_sglang.h>

namespace serinus::canary::sglang {

// ---------------------------------------------------------------- capacities

/// What the server was started with.
struct CapacityInput {
  std::int64_t cuda_graph_max_bs = 0;                  ///< 0: no graphs
  std::int64_t req_to_token_pool_size = 0;             ///< rows of the request table
  std::int64_t max_seq_len_per_req = 1;                ///< columns of it
  std::int64_t pool_slot_count = 0;                    ///< slots of the KV pool
  std::int64_t max_prefill_tokens = 0;                 ///< of one forward
  std::optional<std::int64_t> chunked_prefill_size{};  ///< absent or negative: not chunked
  std::optional<std::int64_t> speculative_num_draft_tokens{};
};

struct LaunchCapacities {
  std::int64_t per_forward_verify_capacity = 0;       ///< entries of a verify plan
  std::int64_t per_forward_write_req_capacity = 0;    ///< requests of a write plan
  std::int64_t per_forward_write_entry_capacity = 0;  ///< tokens that one forward writes
  friend bool operator==(const LaunchCapacities&, const LaunchCapacities&) = default;
};

/// Sizes of everything that must not be allocated during a step. A verify plan has three entries a
/// slot, since shared prefixes let the sum of all prefixes exceed the pool. Throws ValueError for
/// sizes that are not positive (graph batch and draft tokens: negative), and where a product leaves
/// 63 bits.
LaunchCapacities launch_capacities(const CapacityInput& input);

/// Throws RuntimeError where a forward is larger than what was allocated for it.
void check_forward(const LaunchCapacities& capacities, std::int64_t batch_size,
                   std::int64_t num_tokens);

// ---------------------------------------------------------------- plan input

/// SGLang's forward modes. A step that mixes prefill chunks and decodes is `mixed`.
enum class ForwardMode : std::uint8_t {
  extend,
  decode,
  mixed,
  idle,
  target_verify,    ///< the target model scores draft_token_num drafts a request
  draft_extend_v2,  ///< the draft model catches up with what was accepted
  split_prefill,
  dllm_extend,
  prebuilt,  ///< runs no forward: no plan
};
const char* name_of(ForwardMode mode) noexcept;  ///< "TARGET_VERIFY"

/// A forward as the scheduler describes it; only what the mode needs has to be there.
struct ForwardInput {
  ForwardMode mode = ForwardMode::decode;
  std::int64_t batch_size = 0;              ///< under graph padding more than there are requests
  std::span<const std::int64_t> rows;       ///< req_pool_indices [batch_size]
  std::span<const std::int64_t> positions;  ///< decode, idle: one a request
  std::span<const std::int64_t> seq_lens;   ///< target_verify, draft_extend_v2
  std::span<const std::int64_t> extend_prefix_lens, extend_seq_lens;
  std::int64_t draft_token_num = 0;            ///< target_verify
  std::span<const std::int64_t> history_lens;  ///< prompt and output so far, where known
};

/// The plan's four arrays, of one length: the static capacity.
struct PlanLengths {
  std::span<std::int64_t> req_pool_indices, prefix_lens, extend_seq_lens, valid_lens;
};

/// Zeroes `out` and fills its first batch_size elements by the mode: which tokens are in the pool
/// already (these are verified) and how many the forward writes.
///
/// | mode | prefix_lens | extend_seq_lens |
/// |---|---|---|
/// | decode, idle | positions (requests beyond them: 0) | 1 |
/// | target_verify | seq_lens, not yet bumped | draft_token_num |
/// | draft_extend_v2 | seq_lens - extend_seq_lens: already bumped | extend_seq_lens |
/// | extend, mixed, split_prefill, dllm_extend | extend_prefix_lens | extend_seq_lens |
///
/// Throws NotImplementedError for `prebuilt`, RuntimeError where batch_size exceeds the capacity,
/// ValueError where an array that the mode needs is shorter than batch_size.
void fill_plan_lengths(const ForwardInput& input, const PlanLengths& out);

// ---------------------------------------------------------------- SWA divergence

/// How far the sliding-window pool's numbering has left the full pool's, at one moment.
struct SwaDivergence {
  std::int64_t forward_ct = 0;                ///< forwards until then
  std::int64_t verify_full = 0;               ///< entries verified so far in the full pool
  std::int64_t verify_swa = 0;                ///< and in the SWA pool
  std::int64_t swa_full_idx_divergence = 0;   ///< live cells whose SWA slot is another number
  std::int64_t swa_out_of_window_tokens = 0;  ///< live cells that have no SWA slot any more
  friend bool operator==(const SwaDivergence&, const SwaDivergence&) = default;
};

/// The last two numbers, over the cells (row, position < seq_len) of the batch. Padding rows are
/// not excluded, as in the original. `req_to_token` [rows, max_len] int32. Indices beyond the
/// mapping take its last entry; cells outside the table are not counted. Throws ValueError for
/// another table, an empty mapping, or lists of different lengths.
SwaDivergence swa_divergence(const TensorView& req_to_token,
                             std::span<const std::int64_t> full_to_swa_index_mapping,
                             std::span<const std::int64_t> req_pool_indices,
                             std::span<const std::int64_t> seq_lens);

/// `kv_canary_swa_divergence={"forward_ct":4,...}`, the line that log parsers look for.
std::string swa_divergence_line(const SwaDivergence& d);
/// Every such line in a log, in order. A last key that is missing is 0; lines that are cut off
/// elsewhere are passed over.
std::vector<SwaDivergence> find_swa_divergence(std::string_view log);

// ---------------------------------------------------------------- timeline

struct HostOptions {
  Mode mode = Mode::log;              ///< none, log or raise
  std::int64_t sweep_interval = 0;    ///< outer steps from sweep to sweep; 0 = never
  std::int64_t stats_interval = 100;  ///< outer steps from statistics line to line; <= 0 = never
  std::int64_t swa_divergence_interval = 0;  ///< likewise
  std::vector<LaunchTag> tags{};             ///< the endpoints that exist
  bool v_gate = false;                       ///< whether those of the V half are launched
};

/// A plan that found no room: its group's verification was skipped in that forward.
struct PlanOverflow {
  std::int64_t total = 0, capacity = 0;
};

/// What the device's counters say after an outer step.
struct DeviceState {
  std::int64_t violations = 0;                                           ///< violation_write_index
  std::span<const ViolationRow> ring;                                    ///< the whole ring
  std::span<const std::int64_t> kernel_run_counters, slot_run_counters;  ///< kNumLaunchTags each
  SwaDivergence divergence;
  std::span<const PlanOverflow> overflows;  ///< of this step's forwards
};

/// What becomes visible at the end of one outer step.
struct HostReport {
  std::vector<std::string> violations;  ///< report_text() of the rows not reported before
  std::vector<std::string> overflow_warnings;
  std::string stats_line;       ///< empty: not now
  std::string divergence_line;  ///< empty: not now
};

/// When SGLang's host looks. Every periodic reader copies asynchronously: what it stages at the end
/// of one outer step is read at the end of the next one. So a violation of step k (from 1) is
/// reported after step k + 1, with whatever the ring holds by then; and never, if there is no such
/// step.
class HostTimeline {
 public:
  explicit HostTimeline(HostOptions options) : options_(std::move(options)) {}

  /// Whether a sweep runs at the end of this outer step: at steps 0, N, 2N, ... (from 0).
  bool sweep_due() const noexcept;

  /// Ends the outer step, after the sweep if one was due. In Mode::raise throws RuntimeError with
  /// the texts of all new violations, once. In every mode throws RuntimeError where an endpoint's
  /// kernel counter stood still over 100 outer steps (sweeps count only where they are on). The
  /// step has ended all the same.
  HostReport end_outer_step(const DeviceState& now);

  /// Outer steps that have ended.
  std::int64_t steps() const noexcept { return steps_; }

 private:
  struct Staged {
    std::int64_t step = 0, protected_tokens = 0, violations = 0;
  };

  void report_violations(const DeviceState& now, HostReport& out);
  void check_health(const DeviceState& now);

  HostOptions options_;
  std::int64_t steps_ = 0, sweeps_ = 0, reported_ = 0;
  std::optional<std::int64_t> last_sweep_{};
  bool violation_staged_ = false, raised_ = false;
  std::optional<Staged> stats_{};
  std::optional<SwaDivergence> divergence_{};
  std::vector<PlanOverflow> overflows_;
  std::vector<std::int64_t> health_staged_, health_before_;
  std::int64_t health_step_ = 0;
};

}  // namespace serinus::canary::sglang
