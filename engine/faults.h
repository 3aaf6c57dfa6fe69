// The fault lab: breaks a replay on purpose, at random but by a seed, in the ways in which engines
// break, and knows afterwards which faults were seen. Each class is described in
// docs/design/faults.md.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "engine/engine.h"
#include "engine/fault_injector.h"
#include "engine/random.h"

namespace serinus::engine {

enum class FaultClass : std::uint8_t {
  byte_flip,
  swapped_slots,
  remap,
  stale_page,
  write_after_free,
  double_handout,
  torn_transfer,
  truncated_transfer,
  side_buffer,
  wrong_position,
  wrong_token,
  draft_offset,
  pad_last_slot,
  pad_null_slot,
  misread_layout,
  addr_wrap32,
};
inline constexpr std::size_t kFaultClasses = 16;

struct FaultClassInfo {
  std::string_view name;
  std::string_view what;   ///< what goes wrong, in a few words
  std::string_view needs;  ///< what the configuration must have, empty = nothing
};
/// In the order of FaultClass.
std::span<const FaultClassInfo, kFaultClasses> fault_classes() noexcept;

/// How many faults of which class.
struct FaultSpec {
  std::map<FaultClass, std::int64_t> counts;
  std::int64_t all = 0;  ///< spread over the classes that the configuration has
  bool empty() const noexcept { return counts.empty() && all == 0; }
};

/// "all:200", "byte_flip:50,remap:10", "none". Throws ValueError listing the known classes for an
/// unknown one, and for a count that is none.
FaultSpec parse_fault_spec(std::string_view text);
/// What `--faults` takes, for --help.
std::string fault_spec_help();

/// Injects faults into a replay of `total_requests` requests.
class FaultLab : public FaultInjector {
 public:
  FaultLab(FaultSpec spec, std::uint64_t seed, std::int64_t total_requests);

  void step_begin(Engine& engine) override;
  void after_alloc(Engine& engine, canary::Owner owner, std::span<std::int64_t> pages) override;
  void before_free(Engine& engine, std::span<const std::int64_t> pages) override;
  void after_free(Engine& engine, std::span<const std::int64_t> pages) override;
  void table_write(Engine& engine, std::int64_t row, std::int64_t begin,
                   std::span<std::int32_t> slots) override;
  void before_transfer(Engine& engine, const Transfer& transfer) override;
  void after_transfer(Engine& engine, const Transfer& transfer) override;
  void before_head(Engine& engine, ForwardBatch& batch) override;
  void after_write(Engine& engine, ForwardBatch& batch) override;
  void drained(Engine& engine) override;

 private:
  struct Slot {
    int pool = 0;
    std::int64_t slot = 0;
    friend bool operator==(const Slot&, const Slot&) = default;
  };
  /// A fault that may still be waiting for its check when the replay ends.
  struct Placed {
    int fault = -1;
    Slot at;
    std::vector<std::uint8_t> bytes = {};       ///< the damaged bytes, if those are the fault
    std::optional<canary::Record> record = {};  ///< the foreign record, if that is the fault
    bool overwritten = false;                   ///< the slot's owner wrote there since
    bool needs_reader = false;  ///< the record agrees with itself: only a walk sees it
    bool read_again = false;    ///< another table row came to show the slot
  };
  struct Planned {
    double at = 0;  ///< share of the requests that have finished
    FaultClass kind = FaultClass::byte_flip;
  };
  /// Bytes of a transfer's destination as they were before it.
  struct Torn {
    FaultClass kind = FaultClass::torn_transfer;
    int pool = 0;
    std::int64_t page = 0;  ///< of the pool, or of the host
    bool to_host = false;
    std::vector<std::vector<std::uint8_t>> before = {};  ///< a token each
  };

  void plan(Engine& engine);
  bool due(FaultClass kind) const noexcept { return due_[static_cast<std::size_t>(kind)] > 0; }
  int placed(Engine& engine, FaultClass kind, std::string note);
  std::string why_not(const Engine& engine, FaultClass kind) const;

  std::optional<Slot> pick_written(Engine& engine);
  bool is_written(Engine& engine, Slot s) const;
  bool take(Engine& engine, Slot s);
  bool take_everywhere(Engine& engine, std::int64_t slot);
  std::optional<std::size_t> pick_request(const ForwardBatch& batch, std::int64_t prefix);
  std::int64_t pick_token(const ForwardBatch& batch, std::size_t& request);
  std::vector<Slot> everywhere(Engine& engine, std::int64_t slot) const;
  void mark(Engine& engine, int fault, std::int64_t slot, int lives = 1);
  const std::vector<bool>& covered_bytes(Engine& engine, int pool);
  bool is_covered(Engine& engine, int pool, std::span<const std::uint8_t> before,
                  std::span<const std::uint8_t> after);
  void written_over(std::span<const std::int64_t> slots);
  bool damage_bytes(Engine& engine, FaultClass kind, Slot s, const std::vector<std::uint8_t>& bytes,
                    std::string note);
  void bind_to_request(Engine& engine, int fault, canary::Owner owner);

  void flip(Engine& engine);
  void misread(Engine& engine);
  void damage_table(Engine& engine, const ForwardBatch& batch);
  void damage_batch(Engine& engine, ForwardBatch& batch);
  void follow(Engine& engine, const ForwardBatch& batch);
  void wrap_address(Engine& engine, ForwardBatch& batch);
  void land_late_write(Engine& engine, Slot s, const canary::Record& record,
                       const std::vector<std::uint8_t>& bytes, int waited);

  FaultSpec spec_;
  Random random_;
  std::int64_t total_requests_;
  bool planned_ = false;
  std::vector<Planned> waiting_;  // the next one last
  std::array<std::int64_t, kFaultClasses> due_{};
  std::vector<Placed> placed_;
  std::unordered_set<std::uint64_t> taken_;   // slots, in one life, that carry a fault
  std::unordered_set<std::int64_t> watched_;  // slots whose fault waits for a reader
  std::unordered_set<std::int64_t> late_;     // slots that were written late
  std::map<int, std::vector<bool>> covered_;  // by pool: the bytes of a token that a digest covers
  std::vector<std::int64_t> freed_pages_;     // the last ones
  std::optional<Torn> torn_;
};

}  // namespace serinus::engine
