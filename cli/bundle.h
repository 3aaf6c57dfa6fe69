// The folder of `--bundle`: what a colleague needs to look at a violation somewhere else.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include <serinus/canary.h>

#include "cli/report_file.h"
#include "engine/engine.h"

namespace serinus::cli {

inline constexpr const char* kBundleDump = "pool.dump";
inline constexpr const char* kBundleConfig = "config.json";
inline constexpr const char* kBundleViolations = "violations.jsonl";
inline constexpr const char* kBundleSummary = "summary.json";

class Bundle {
 public:
  /// Makes the folder, and opens its files, so that one that cannot be written is known at once.
  explicit Bundle(const std::string& folder);

  void add(const canary::Violation& v, const std::string& pool, int fault);
  /// Dumps records, ledger, events and the rows of the running requests as they are now; the KV
  /// bytes too, where they are few, else those of the slots that violations named.
  void snapshot(engine::Engine& engine);
  void finish(const std::string& summary_json);
  const std::string& folder() const noexcept { return folder_; }

 private:
  std::string folder_;
  ReportFile config_, violations_, summary_;
  std::vector<std::pair<int, std::int64_t>> slots_;
};

}  // namespace serinus::cli
