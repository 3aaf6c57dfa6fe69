#include "cli/replay_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>

#include "base/raise.h"
#include "cli/progress.h"

namespace serinus::cli {

namespace {

using engine::FaultState;
using engine::InjectedFault;
using Json = nlohmann::ordered_json;

struct ClassCounts {
  std::int64_t injected = 0, detected = 0, missed = 0, masked = 0, not_visible = 0;
  std::int64_t not_placed = 0;  ///< asked for, but not injected
};

std::map<std::string, ClassCounts> by_class(const std::vector<InjectedFault>& faults) {
  std::map<std::string, ClassCounts> classes;
  for (const InjectedFault& f : faults) {
    ClassCounts& c = classes[f.kind];
    c.injected += f.state != FaultState::not_placed;
    c.not_placed += f.state == FaultState::not_placed;
    c.detected += f.state == FaultState::detected;
    c.missed += f.state == FaultState::missed;
    c.masked += f.state == FaultState::masked;
    c.not_visible += f.state == FaultState::not_visible;
  }
  return classes;
}

ClassCounts total(const std::map<std::string, ClassCounts>& classes) {
  ClassCounts sum;
  for (const auto& [name, c] : classes) {
    sum.injected += c.injected;
    sum.detected += c.detected;
    sum.missed += c.missed;
    sum.masked += c.masked;
    sum.not_visible += c.not_visible;
    sum.not_placed += c.not_placed;
  }
  return sum;
}

double median(const std::vector<std::uint64_t>& sorted) {
  if (sorted.empty()) return 0;
  const std::size_t n = sorted.size();
  return (static_cast<double>(sorted[(n - 1) / 2]) + static_cast<double>(sorted[n / 2])) / 2;
}

double percent(double part, double whole) {
  return whole > 0 ? 100 * part / whole : 0;
}

Json to_json(const ClassCounts& c) {
  return {{"injected", c.injected}, {"detected", c.detected},       {"missed", c.missed},
          {"masked", c.masked},     {"not_visible", c.not_visible}, {"not_placed", c.not_placed}};
}

}  // namespace

std::string words_of(engine::FaultState state) {
  std::string words = name_of(state);
  std::ranges::replace(words, '_', ' ');
  return words;
}

std::string summary_text(const ReplayRun& run) {
  const engine::ReplayResult& r = run.result;
  const engine::Counters& c = r.counters;
  const canary::Stats& s = r.canary;
  std::string out;
  const auto line = [&out](const std::string& name, const std::string& value) {
    out += name + ": " + value + "\n";
  };
  line("trace", run.trace);
  line("requests", fmt::format("{} of {}{}", grouped(c.requests), grouped(r.requests),
                               r.interrupted ? " (interrupted)" : ""));
  if (run.skipped_lines > 0)
    line("malformed lines skipped", grouped(static_cast<std::int64_t>(run.skipped_lines)));
  line("tokens written", grouped(c.tokens_written));
  line("prefix hits", fmt::format("{} tokens ({:.1f} % of the input)", grouped(c.prefix_hit_tokens),
                                  percent(static_cast<double>(c.prefix_hit_tokens),
                                          static_cast<double>(c.input_tokens))));
  line("preemptions", grouped(c.preemptions));
  line("steps", grouped(static_cast<std::int64_t>(r.steps)));
  line("slots protected",
       fmt::format("{} written, {} live at the end",
                   grouped(static_cast<std::int64_t>(s.records_written)), grouped(s.live_slots)));
  line("entries verified",
       fmt::format("{} ({} of KV digested)", grouped(static_cast<std::int64_t>(s.records_verified)),
                   bytes_text(static_cast<double>(s.bytes_digested))));
  line("sweeps", grouped(static_cast<std::int64_t>(s.sweeps)));
  const auto classes = by_class(r.faults);
  const ClassCounts all = total(classes);
  const auto counts = [](const ClassCounts& k) {
    return fmt::format("{} injected, {} detected, {} missed, {} masked, {} not visible{}",
                       k.injected, k.detected, k.missed, k.masked, k.not_visible,
                       k.not_placed == 0 ? "" : fmt::format("; {} not placed", k.not_placed));
  };
  line("faults", counts(all));
  for (const auto& [name, k] : classes) line("  " + name, counts(k));
  const std::vector<std::uint64_t> latency = r.latencies();
  if (!latency.empty())
    line("detection latency",
         fmt::format("{:g} steps median, {} max", median(latency), latency.back()));
  std::map<std::string, std::int64_t> reasons;
  for (const InjectedFault& f : r.faults) {
    if (f.state == FaultState::not_visible || f.state == FaultState::masked ||
        f.state == FaultState::not_placed)
      ++reasons[fmt::format("{}, {}: {}", f.kind, words_of(f.state), f.why)];
  }
  for (const auto& [why, n] : reasons) line("  not seen", fmt::format("{} x {}", n, why));
  if (s.dropped > 0) line("violations dropped", grouped(static_cast<std::int64_t>(s.dropped)));
  line("false alarms", std::to_string(c.false_alarms));
  line("time", fmt::format("{}, of which {} ({:.0f} %) in the canary", duration_text(r.seconds),
                           duration_text(r.canary_seconds), percent(r.canary_seconds, r.seconds)));
  line("peak memory", bytes_text(static_cast<double>(run.peak_rss_bytes)));
  return out;
}

std::string summary_json(const ReplayRun& run, bool indented) {
  const engine::ReplayResult& r = run.result;
  const engine::Counters& c = r.counters;
  const canary::Stats& s = r.canary;
  const auto classes = by_class(r.faults);
  Json faults = to_json(total(classes));
  faults["by_class"] = Json::object();
  for (const auto& [name, k] : classes) faults["by_class"][name] = to_json(k);
  const std::vector<std::uint64_t> latency = r.latencies();
  Json j = {
      {"trace", run.trace},
      {"requests", c.requests},
      {"trace_requests", r.requests},
      {"interrupted", r.interrupted},
      {"skipped_lines", run.skipped_lines},
      {"false_alarms", c.false_alarms},
      {"tokens_written", c.tokens_written},
      {"input_tokens", c.input_tokens},
      {"prefix_hit_tokens", c.prefix_hit_tokens},
      {"host_hit_tokens", c.host_hit_tokens},
      {"rehit_tokens", c.rehit_tokens},
      {"deduplicated_tokens", c.deduplicated_tokens},
      {"evicted_tokens", c.evicted_tokens},
      {"stored_tokens", c.stored_tokens},
      {"preemptions", c.preemptions},
      {"steps", r.steps},
      {"slots_protected", s.records_written},
      {"live_slots", s.live_slots},
      {"entries_verified", s.records_verified},
      {"bytes_digested", s.bytes_digested},
      {"sweeps", s.sweeps},
      {"sweep_bound_steps", s.sweep_bound_steps},
      {"violations", s.violations},
      {"violations_dropped", s.dropped},
      {"seconds", r.seconds},
      {"canary_seconds", r.canary_seconds},
      {"peak_rss_bytes", run.peak_rss_bytes},
      {"seed", run.seed},
      {"faults", faults},
      {"detection_latency_steps",
       {{"count", latency.size()},
        {"median", median(latency)},
        {"max", latency.empty() ? 0 : latency.back()}}},
  };
  // A file name may hold any bytes; JSON may not.
  return j.dump(indented ? 2 : -1, ' ', false, Json::error_handler_t::replace);
}

std::string violation_line(const canary::Violation& v, const std::string& pool, int fault) {
  std::string object = canary::to_json(v, pool);
  object.pop_back();  // its closing brace
  return object + fmt::format(",\"fault\":{}}}\n", fault);
}

std::string made_folder(const std::string& folder) {
  std::error_code failed;
  std::filesystem::create_directories(folder, failed);
  if (failed || !std::filesystem::is_directory(folder, failed))
    raise(errors::Page::report_not_written,
          {{"got", folder}, {"why", failed ? failed.message() : "not a folder"}});
  return folder + "/";
}

ReportFolder::ReportFolder(const std::string& folder)
    : folder_(made_folder(folder)),
      page_(folder_ + "report.html"),
      text_(folder_ + "violations.txt"),
      lines_(folder_ + "violations.jsonl"),
      summary_(folder_ + "summary.json"),
      html_(page_) {}

void ReportFolder::add(const canary::Violation& v, const std::string& pool, int fault) {
  const std::string line =
      canary::to_text(v, pool) + (fault < 0 ? "" : fmt::format(" fault={}", fault));
  text_.write(line + "\n");
  lines_.write(violation_line(v, pool, fault));
  constexpr std::size_t kOnPage = 200;
  if (first_.size() < kOnPage) first_.push_back(line);
}

void ReportFolder::finish(const ReplayRun& run) {
  summary_.write(summary_json(run, true) + "\n");
  html_.write(report_html(run, first_));
  text_.finish();
  lines_.finish();
  summary_.finish();
  html_.finish();
}

}  // namespace serinus::cli
