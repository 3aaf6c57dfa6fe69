// Scenarios: how a KV cache goes wrong, told in a few lines. A scenario sets up small pools, says
// what the allocator, the forwards and the transfers do, and which reasons the canary must report.
// The language is described in docs/design/scenarios.md; the collection is engine/scenarios/.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <serinus/canary.h>

namespace serinus::engine {

/// Tokens that a request can have; the prefix cache as an owner, beside the requests A to Z.
inline constexpr std::int64_t kMaxTokens = 256;
inline constexpr canary::Owner kScenarioCache = 27;

/// Slots of one pool: "1,2,5..8" or "swa:3".
struct SlotList {
  int pool = 0;  ///< index in Scenario::pools
  std::vector<std::int64_t> slots;
};

/// Tokens [begin, end) of a request's text: "A.0" or "A.0..3".
struct TokenRange {
  canary::Owner request = 0;
  std::int64_t begin = 0, end = 0;
  std::int64_t size() const noexcept { return end - begin; }
};

/// One operation; which fields count depends on the verb (docs/design/scenarios.md).
struct ScenarioOp {
  enum class Verb : std::uint8_t {
    alloc,
    free,
    give,
    row,
    hit,
    release,
    write,
    bytes,
    flip,
    junk,
    host,
    store,
    load,
    evict,
    move,
    pad,
    map,
    verify,
    idle,
    sweep,
    issue,
    land,
    ranks,
    state,
  };
  std::string text;  ///< as it was written
  Verb verb = Verb::idle;
  int rank = 0;
  canary::Owner request = 0, other = 0;
  SlotList slots, to;
  TokenRange tokens;
  std::optional<TokenRange> as;          ///< write: tokens that the model was fed
  std::optional<std::int64_t> position;  ///< write: position of the first token
  bool wrap32 = false, raw = false, as_pages = false, swapped = false;
  std::vector<int> pools;                   ///< empty = all
  std::string name, source;                 ///< host copies; issued operations
  std::optional<int> source_pool;           ///< load: of which pool `source` is a copy
  std::optional<int> buffer;                ///< this buffer of the layout alone
  std::int64_t begin = 0, end = INT64_MAX;  ///< bytes of a token; cells of a row; counts
  int half = 0;                             ///< 1, 2: that half of the token's bytes alone
  std::optional<canary::Moment> moment;     ///< verify: left out = both
  canary::SlotState state = canary::SlotState::empty;  ///< state: what the slots must be in
  std::vector<ScenarioOp> issued;                      ///< issue: the operation
};

/// A reason, and the slots of which one at least must show it.
struct Expectation {
  canary::Reason reason = canary::Reason::none;
  SlotList at;
  bool anywhere = false;  ///< "@*": no slot is to blame
  std::string text;
};

struct ScenarioPool {
  std::string name;
  canary::PoolKind kind = canary::PoolKind::full;
  std::string layout =
      "fp8_656";           ///< names joined by '+' lie side by side, in buffers of their own
  std::int64_t slots = 8;  ///< the null slot included
  std::int64_t page = 1;
  int layers = 1;
  std::int64_t heads = 1, head_size = 16;  ///< mha_* layouts
  std::int64_t page_stride = 0;            ///< 0 = dense; far apart: a pool of virtual addresses
  std::int64_t window = 0;
  int token_offset = 0;
  canary::NullSlot null_slot = canary::NullSlot::clean;
};

struct Scenario {
  std::string place;  ///< "file:line"
  std::string id, fault_class, note;
  std::vector<std::string> reports;  ///< addresses of public reports of the class
  std::vector<ScenarioPool> pools;   ///< the first is the full pool
  int ranks = 1;
  canary::Depth depth = canary::Depth::all;
  std::vector<ScenarioOp> ops;
  std::vector<Expectation> expect;  ///< empty: no alarm at all may be raised
  std::vector<SlotList> also;       ///< slots that the fault touches besides: alarms there are due
};

/// The layout that a pool names. Throws ValueError where there is none such.
KvLayout layout_of(const ScenarioPool& pool);

/// All scenarios of a JSON Lines file. Throws InputError that names file, line and field.
std::vector<Scenario> read_scenarios(const std::string& path);
std::vector<Scenario> parse_scenarios(const std::string& name, std::string text);

/// What one record format saw of a scenario.
struct ScenarioOutcome {
  canary::Reason seen = canary::Reason::none;
  std::vector<std::string> missed;        ///< expectations that nothing met
  std::vector<std::string> false_alarms;  ///< violations at slots that no expectation names
  std::vector<std::string> violations;    ///< all, as report lines, with the operation they follow
  bool ok() const noexcept { return missed.empty() && false_alarms.empty(); }
};

/// Runs a scenario on real pools with a real monitor. Throws InputError where an operation is
/// impossible (a host copy that was never made), naming file, line and operation.
ScenarioOutcome run_scenario(const Scenario& scenario, canary::Format format);

}  // namespace serinus::engine
