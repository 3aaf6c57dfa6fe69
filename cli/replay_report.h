// What a replay found, for people (text, a web page) and for programs (JSON).
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <serinus/canary.h>

#include "cli/report_file.h"
#include "engine/replay.h"

namespace serinus::cli {

struct ReplayRun {
  std::string trace;                ///< file name, as given
  std::uint64_t skipped_lines = 0;  ///< malformed ones that were passed over
  std::uint64_t seed = 0;
  engine::EngineOptions options;
  engine::ReplayResult result;
  std::int64_t peak_rss_bytes = 0;
};

/// A state as people read it: "not placed".
std::string words_of(engine::FaultState state);

/// Lines "name: value"; among them exactly "false alarms: N".
std::string summary_text(const ReplayRun& run);
/// One JSON object, on one line or indented.
std::string summary_json(const ReplayRun& run, bool indented);
/// One page that needs nothing beside it: pictures are inline SVG, light and dark follow the
/// reader.
std::string report_html(const ReplayRun& run, const std::vector<std::string>& violation_lines);

/// One JSON line: the violation, and which injected fault explains it (-1: none).
std::string violation_line(const canary::Violation& v, const std::string& pool, int fault);

/// Makes the folder where it does not exist; its name with a slash. Throws InputError (SRN4301).
std::string made_folder(const std::string& folder);

/// The folder of `--report`: violations.txt, violations.jsonl, summary.json, report.html. The files
/// are opened when it is made, so that a folder that cannot be written is known before the replay.
class ReportFolder {
 public:
  explicit ReportFolder(const std::string& folder);

  void add(const canary::Violation& v, const std::string& pool, int fault);
  /// Writes the rest; all files appear, or none that is not whole.
  void finish(const ReplayRun& run);
  const std::string& page() const noexcept { return page_; }

 private:
  std::string folder_, page_;
  ReportFile text_, lines_, summary_, html_;
  std::vector<std::string> first_;  // lines for the page
};

}  // namespace serinus::cli
