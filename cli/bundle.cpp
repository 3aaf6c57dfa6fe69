#include "cli/bundle.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include <serinus/canary_config.h>
#include <serinus/canary_dump.h>

#include "cli/replay_report.h"

namespace serinus::cli {

namespace {

constexpr std::int64_t kAllBytes = std::int64_t{64} << 20;

std::vector<canary::DumpRow> rows_of(engine::Engine& engine) {
  std::vector<canary::DumpRow> rows;
  for (const auto& r : engine.running()) {
    if (r->phase != engine::Request::Phase::running || r->row < 0) continue;
    canary::DumpRow row;
    row.owner = r->owner;
    row.row = r->row;
    const std::int32_t* const cells = engine.table().slots(r->row);
    const std::int32_t* const tokens = engine.table().tokens(r->row);
    row.cells.assign(cells, cells + r->length);
    row.tokens.assign(tokens, tokens + r->length);
    rows.push_back(std::move(row));
  }
  return rows;
}

}  // namespace

Bundle::Bundle(const std::string& folder)
    : folder_(made_folder(folder)),
      config_(folder_ + kBundleConfig),
      violations_(folder_ + kBundleViolations),
      summary_(folder_ + kBundleSummary) {}

void Bundle::add(const canary::Violation& v, const std::string& pool, int fault) {
  violations_.write(violation_line(v, pool, fault));
  constexpr std::size_t kListed = 4096;
  if (v.slot < 0 || slots_.size() >= kListed) return;
  slots_.emplace_back(v.pool, v.slot);
  if (v.prev_slot >= 0) slots_.emplace_back(v.pool, v.prev_slot);
}

void Bundle::snapshot(engine::Engine& engine) {
  canary::Monitor* const monitor = engine.monitor();
  if (monitor == nullptr) return;
  std::int64_t bytes = 0;
  for (const engine::EnginePool& p : engine.pools()) {
    bytes += p.kv.has_bytes() ? p.kv.num_slots() * p.kv.token_bytes() : 0;
  }
  const std::vector<canary::DumpRow> rows = rows_of(engine);
  canary::DumpOptions options;
  options.rows = rows;
  options.listed = slots_;
  options.bytes = bytes <= kAllBytes ? canary::DumpBytes::all : canary::DumpBytes::listed;
  canary::write_dump(*monitor, folder_ + kBundleDump, options);
  config_.write(canary::to_json(canary::Config{monitor->options(), {}}) + "\n");
}

void Bundle::finish(const std::string& summary_json) {
  summary_.write(summary_json + "\n");
  config_.finish();
  violations_.finish();
  summary_.finish();
}

}  // namespace serinus::cli
