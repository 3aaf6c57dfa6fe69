// The project's own traces: a Mooncake-format trace with the statistics of a real one, so that a
// demo and its tests need no file from elsewhere.
#pragma once

#include <cstdint>
#include <ostream>

namespace serinus::engine {

struct TraceModel {
  std::int64_t requests = 780;
  std::uint64_t seed = 6;
};

/// Writes a trace: requests in bursts of about ten every three seconds, one system prompt that all
/// share, three of eight requests a later turn of an earlier conversation. Lengths follow the
/// quantiles of Mooncake's public conversation trace. The same model gives the same bytes on every
/// machine.
void generate_trace(const TraceModel& model, std::ostream& out);

}  // namespace serinus::engine
