// What was broken on purpose, where that may show, and whether it did. The engine asks it about
// every violation: one that no fault explains is a false alarm.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include <serinus/canary.h>

namespace serinus::engine {

enum class FaultState : std::uint8_t {
  pending,
  detected,
  masked,       ///< everything that it could show on was freed before a check could see it
  missed,       ///< could have been seen and was not
  not_visible,  ///< no record can see it; `why` says why
  not_placed,   ///< asked for, and never injected; `why` says why
};
inline constexpr std::size_t kFaultStates = 6;
const char* name_of(FaultState s) noexcept;

struct InjectedFault {
  std::string kind;  ///< class, e.g. "byte_flip"
  std::string note;  ///< what exactly, for the report
  std::string why;   ///< not_visible, not_placed and masked: the reason
  FaultState state = FaultState::pending;
  std::uint64_t step = 0, detected_step = 0;
  canary::Reason reasons = canary::Reason::none;  ///< of its first sighting
  int pool = -1;  ///< the first place that it was marked on; -1 = none
  std::int64_t slot = -1;
};

class FaultLog {
 public:
  /// Registers a fault; returns its number.
  int add(std::string kind, std::uint64_t step, std::string note);
  /// Registers one that was asked for and could not be injected.
  void add_not_placed(std::string kind, std::uint64_t step, std::string why);
  /// No record can see this one.
  void set_not_visible(int fault, std::string why);
  /// It was gone before a check could see it.
  void set_masked(int fault, std::string why);
  /// Why, should it turn out masked: else that its slots were freed.
  void set_reason_if_masked(int fault, std::string why);
  /// The fault may show on `slot` of `pool` during this life of the slot and `lives - 1` more.
  /// `slot` may be any number: an index out of range shows under the number that was read.
  void mark(int fault, int pool, std::int64_t slot, int lives = 1);
  /// Whether a fault is in force on that slot.
  bool marked(int pool, std::int64_t slot) const;
  /// The fault may show on anything that this request reads, until it is released.
  void mark_request(int fault, canary::Owner owner);
  /// It can show no more (e.g. it was mended); what was seen already stands.
  void unmark(int fault);

  // --- what the engine tells it
  bool empty() const noexcept { return faults_.empty(); }
  /// A life of these slots ends.
  void freed(int pool, std::span<const std::int64_t> slots, std::uint64_t step);
  void released(canary::Owner owner, std::uint64_t step);
  /// A record was written to `slot` on top of the one in `previous`: what is wrong with that one is
  /// bound into its chain (sglang format), and shows on a chain or a position at most.
  void follows(int pool, std::int64_t previous, std::int64_t slot);
  /// Bytes and records were copied: marks go along. Host copies are pools from kHostPools on.
  void carried(int from_pool, std::int64_t from, int to_pool, std::int64_t to);
  static constexpr int kHostPools = 1 << 16;
  /// The fault that explains `v` (the oldest, if several do; all are credited), or -1.
  int explain(const canary::Violation& v, std::uint64_t step);
  /// After the last check: what is still pending was missed, or masked.
  void finish();

  const std::vector<InjectedFault>& faults() const noexcept { return faults_; }

 private:
  struct Mark {
    int fault = 0;
    int lives = 1;
    bool on_host = false;                     ///< a copy there shows nothing until it is loaded
    bool follower = false;                    ///< only the chain up to here is touched
    std::uint64_t ended = ~std::uint64_t{0};  ///< step in which its last life ended
  };
  using Place = std::uint64_t;
  static Place place(int pool, std::int64_t slot) noexcept;
  static void end_lives(std::vector<Mark>& marks, std::uint64_t step);

  std::vector<InjectedFault> faults_;
  std::unordered_map<Place, std::vector<Mark>> places_;
  std::unordered_map<canary::Owner, std::vector<Mark>> requests_;
};

}  // namespace serinus::engine
