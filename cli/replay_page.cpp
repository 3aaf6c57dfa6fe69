// The web page of a replay: one file, inline SVG, no script, light and dark.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>

#include "cli/progress.h"
#include "cli/replay_report.h"
#include "serve/html_escape.h"

namespace serinus::cli {

namespace {

using engine::FaultState;
using engine::InjectedFault;
using engine::PoolMap;

constexpr std::string_view kStyle = R"css(
:root { color-scheme: light dark; --ink:#1d2429; --soft:#5d6b75; --paper:#fbfbf8; --card:#fff;
  --line:#dfe3e0; --idle:#a9cfc8; --read:#2f7f93; --request:#e0a100; --detected:#1a7f37; --missed:#d1242f;
  --masked:#8a8f98; --bar:#3c78b4; }
@media (prefers-color-scheme: dark) { :root { --ink:#e8ebe9; --soft:#9aa7ae; --paper:#14181b;
  --card:#1c2226; --line:#323b41; --idle:#33524e; --read:#3fa3b8; --request:#f2bd2c; --detected:#57d17a;
  --missed:#ff6b6b; --masked:#9aa0a8; --bar:#6aa9e6; } }
body { margin:0 auto; max-width:1080px; padding:32px 24px 64px; background:var(--paper);
  color:var(--ink); font:15px/1.5 system-ui,sans-serif; }
h1 { font-size:26px; margin:0 0 2px; overflow-wrap:anywhere; } h2 { font-size:18px; margin:36px 0 8px; }
p { margin:4px 0 12px; color:var(--soft); max-width:78ch; }
.cards { display:grid; grid-template-columns:repeat(auto-fill,minmax(190px,1fr)); gap:12px; margin:20px 0; }
.card, .figure { background:var(--card); border:1px solid var(--line); border-radius:10px; }
.card { padding:12px 14px; } .card b { display:block; font-size:21px; font-weight:600;
  font-variant-numeric:tabular-nums; } .card span { color:var(--soft); font-size:13px; }
.good b { color:var(--detected); } .bad b { color:var(--missed); }
.figure { padding:14px; overflow-x:auto; }
svg { display:block; width:100%; height:auto; } svg text { fill:var(--soft); font:12px system-ui,sans-serif; }
.idle { fill:var(--idle); } .read { fill:var(--read); } .request { fill:var(--request); } .bar { fill:var(--bar); }
.frame { fill:none; stroke:var(--line); } .detected { --c:var(--detected); }
.missed { --c:var(--missed); } .masked, .not_visible, .not_placed, .pending { --c:var(--masked); }
.dot { fill:var(--c); stroke:var(--card); stroke-width:1.5; } .hop { stroke:var(--c); stroke-width:2; }
.ring { fill:none; stroke:var(--c); stroke-width:2; }
table { border-collapse:collapse; width:100%; font-variant-numeric:tabular-nums; }
th, td { text-align:right; padding:5px 10px; border-bottom:1px solid var(--line); }
th { color:var(--soft); font-weight:500; font-size:13px; } th:first-child, td:first-child { text-align:left; }
td.words { text-align:left; color:var(--soft); }
pre { background:var(--card); border:1px solid var(--line); border-radius:10px; padding:12px;
  overflow-x:auto; font-size:12.5px; } .key { display:inline-block; width:11px; height:11px;
  border-radius:3px; margin:0 5px 0 14px; background:var(--k); } code { font-size:13px; }
)css";

double median(std::vector<std::uint64_t> v) {
  if (v.empty()) return 0;
  std::sort(v.begin(), v.end());
  return (static_cast<double>(v[(v.size() - 1) / 2]) + static_cast<double>(v[v.size() / 2])) / 2;
}

std::string card(std::string_view value, std::string_view name, std::string_view kind = "") {
  return fmt::format("<div class=\"card {}\"><b>{}</b><span>{}</span></div>\n", kind,
                     serve::html_escaped(value), serve::html_escaped(name));
}

std::string cards(const ReplayRun& run) {
  const engine::ReplayResult& r = run.result;
  const engine::Counters& c = r.counters;
  const auto share = [](double part, double whole) { return whole > 0 ? 100 * part / whole : 0; };
  std::string out = "<div class=\"cards\">\n";
  out += run.options.watch ? card(std::to_string(c.false_alarms), "false alarms",
                                  c.false_alarms == 0 ? "good" : "bad")
                           : card("off", "the canary");
  if (!r.faults.empty()) {
    const std::int64_t missed = r.count(FaultState::missed);
    out += card(fmt::format("{} of {}", r.count(FaultState::detected), r.faults.size()),
                "faults detected", missed == 0 ? "good" : "bad");
    out += card(std::to_string(missed), "visible faults missed", missed == 0 ? "good" : "bad");
  }
  out += card(grouped(c.requests), r.interrupted ? "requests, interrupted" : "requests");
  out += card(grouped(c.tokens_written), "tokens written");
  out += card(fmt::format("{:.1f} %", share(static_cast<double>(c.prefix_hit_tokens),
                                            static_cast<double>(c.input_tokens))),
              "of the input hit the prefix cache");
  out += card(grouped(static_cast<std::int64_t>(r.canary.records_verified)), "entries verified");
  out += card(bytes_text(static_cast<double>(r.canary.bytes_digested)), "of KV digested");
  out += card(grouped(static_cast<std::int64_t>(r.canary.sweeps)), "sweeps of the live slots");
  out += card(duration_text(r.canary_seconds),
              fmt::format("in the canary, {:.0f} % of {}", share(r.canary_seconds, r.seconds),
                          duration_text(r.seconds)));
  return out + "</div>\n";
}

// A layer of the map: cells of one share level as one path.
std::string map_layer(const std::vector<PoolMap::Column>& columns,
                      std::uint8_t PoolMap::Cell::* share_of, std::string_view name, double width,
                      double height) {
  constexpr int kLevels = 5;
  std::string out;
  for (int level = 1; level <= kLevels; ++level) {
    std::string path;
    for (std::size_t x = 0; x < columns.size(); ++x) {
      int run = 0;  // cells of this level so far, downwards
      for (int b = 0; b <= PoolMap::kBands; ++b) {
        bool here = false;
        if (b < PoolMap::kBands) {
          const PoolMap::Cell cell = columns[x].bands[static_cast<std::size_t>(b)];
          here = (cell.*share_of * kLevels + 127) / 255 == level;
        }
        if (here) {
          ++run;
        } else if (run > 0) {
          path +=
              fmt::format("M{:.1f} {:.1f}h{:.1f}v{:.1f}h-{:.1f}z", static_cast<double>(x) * width,
                          (b - run) * height, width + 0.5, run * height, width + 0.5);
          run = 0;
        }
      }
    }
    if (!path.empty())
      out += fmt::format("<path class=\"{}\" fill-opacity=\"{:.2f}\" d=\"{}\"/>\n", name,
                         0.9 * level / kLevels, path);
  }
  return out;
}

std::string pool_map(const ReplayRun& run) {
  const engine::ReplayResult& r = run.result;
  const auto& columns = r.pool_map.columns();
  if (columns.empty()) return "";
  constexpr double kLeft = 96, kWidth = 880, kHeight = 384;
  const auto steps = static_cast<double>(std::max<std::uint64_t>(r.steps, 1));
  // Columns are equally far apart in steps, and the last one ends at the last step.
  const double width =
      columns.size() > 1 ? kWidth * static_cast<double>(columns[1].step) / steps : kWidth;
  const double height = kHeight / PoolMap::kBands;
  const std::int64_t slots = (run.options.pool_tokens / run.options.page + 1) * run.options.page;
  std::string out = fmt::format(
      "<svg viewBox=\"0 0 {:.0f} {:.0f}\" role=\"img\" aria-label=\"Pool over time\">\n"
      "<g transform=\"translate({:.0f} 12)\">\n<clipPath id=\"box\"><rect width=\"{}\" "
      "height=\"{}\"/></clipPath>\n"
      "<g clip-path=\"url(#box)\" shape-rendering=\"crispEdges\">\n",
      kLeft + kWidth + 20, kHeight + 52, kLeft, kWidth, kHeight);
  out += map_layer(columns, &PoolMap::Cell::idle, "idle", width, height) +
         map_layer(columns, &PoolMap::Cell::read, "read", width, height) +
         map_layer(columns, &PoolMap::Cell::request, "request", width, height);
  out += "</g>\n";
  constexpr std::size_t kMaxFaults = 2000;
  for (std::size_t i = 0; i < r.faults.size() && i < kMaxFaults; ++i) {
    const InjectedFault& f = r.faults[i];
    if (f.pool != 0 || f.slot < 0 || f.slot >= slots) continue;
    const double x = kWidth * static_cast<double>(f.step) / steps;
    const double y = kHeight * static_cast<double>(f.slot) / static_cast<double>(slots);
    out += fmt::format("<g class=\"{}\"><title>{}: {}, step {}, slot {}</title>", name_of(f.state),
                       serve::html_escaped(f.kind), words_of(f.state), f.step, f.slot);
    if (f.state == FaultState::detected) {
      const double to = kWidth * static_cast<double>(f.detected_step) / steps;
      out += fmt::format(
          "<path class=\"hop\" d=\"M{:.1f} {:.1f}H{:.1f}\"/><circle class=\"ring\" cx=\"{:.1f}\" "
          "cy=\"{:.1f}\" r=\"5\"/>",
          x, y, to, to, y);
    }
    out += fmt::format("<circle class=\"dot\" cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"3.5\"/></g>\n", x, y);
  }
  out += fmt::format("<rect class=\"frame\" width=\"{}\" height=\"{}\"/>\n", kWidth, kHeight);
  for (int i = 0; i <= 4; ++i) {
    out += fmt::format("<text x=\"-8\" y=\"{:.0f}\" text-anchor=\"end\">{}</text>\n",
                       kHeight * i / 4 + 4, i == 0 ? "slot 0" : grouped(slots * i / 4));
    out += fmt::format("<text x=\"{:.0f}\" y=\"{:.0f}\" text-anchor=\"{}\">{}</text>\n",
                       kWidth * i / 4, kHeight + 20,
                       i == 0   ? "start"
                       : i == 4 ? "end"
                                : "middle",
                       i == 0 ? "step 0" : grouped(static_cast<std::int64_t>(r.steps) * i / 4));
  }
  return out + "</g></svg>\n";
}

std::string histogram(const std::vector<std::uint64_t>& latencies) {
  if (latencies.empty()) return "";
  std::vector<std::int64_t> buckets;  // 0, 1, 2-3, 4-7, ...
  for (const std::uint64_t l : latencies) {
    std::size_t b = 0;
    while (l >> b != 0) ++b;
    if (buckets.size() <= b) buckets.resize(b + 1);
    ++buckets[b];
  }
  const auto most = static_cast<double>(*std::max_element(buckets.begin(), buckets.end()));
  constexpr double kWidth = 980, kHeight = 200;
  const double step = std::min(90.0, kWidth / static_cast<double>(buckets.size()));
  std::string out = fmt::format(
      "<svg viewBox=\"0 0 1000 {:.0f}\" role=\"img\" aria-label=\"Detection latency\">\n<g "
      "transform=\"translate(10 20)\">\n",
      kHeight + 48);
  for (std::size_t b = 0; b < buckets.size(); ++b) {
    const double h = kHeight * static_cast<double>(buckets[b]) / most;
    const double x = static_cast<double>(b) * step;
    const std::uint64_t low = b == 0 ? 0 : std::uint64_t{1} << (b - 1);
    const std::uint64_t high = b == 0 ? 0 : (std::uint64_t{1} << b) - 1;
    out += fmt::format(
        "<rect class=\"bar\" x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\" "
        "rx=\"2\"/>\n",
        x + 3, kHeight - h, step - 6, h);
    if (buckets[b] > 0)
      out += fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"middle\">{}</text>\n",
                         x + step / 2, kHeight - h - 5, buckets[b]);
    out += fmt::format("<text x=\"{:.1f}\" y=\"{:.0f}\" text-anchor=\"middle\">{}</text>\n",
                       x + step / 2, kHeight + 18,
                       low == high ? fmt::format("{}", low) : fmt::format("{}–{}", low, high));
  }
  return out + "</g></svg>\n";
}

struct ClassRow {
  std::array<std::int64_t, engine::kFaultStates> by_state{};
  std::vector<std::uint64_t> latencies;
};

std::string detection_table(const std::vector<InjectedFault>& faults) {
  std::map<std::string, ClassRow> rows;
  for (const InjectedFault& f : faults) {
    ClassRow& row = rows[f.kind];
    ++row.by_state[static_cast<std::size_t>(f.state)];
    if (f.state == FaultState::detected) row.latencies.push_back(f.detected_step - f.step);
  }
  std::string out =
      "<table><tr><th>class</th><th>injected</th><th>detected</th><th>missed</th><th>masked</th>"
      "<th>not visible</th><th>not placed</th><th>latency, median</th><th>max</th></tr>\n";
  for (const auto& [kind, row] : rows) {
    const auto n = [&](FaultState s) { return row.by_state[static_cast<std::size_t>(s)]; };
    std::int64_t injected = -n(FaultState::not_placed);
    for (const std::int64_t of_state : row.by_state) injected += of_state;
    out += fmt::format(
        "<tr><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</"
        "td><td>{}</td></tr>\n",
        serve::html_escaped(kind), injected, n(FaultState::detected), n(FaultState::missed),
        n(FaultState::masked), n(FaultState::not_visible), n(FaultState::not_placed),
        row.latencies.empty() ? "–" : fmt::format("{:g}", median(row.latencies)),
        row.latencies.empty()
            ? "–"
            : std::to_string(*std::max_element(row.latencies.begin(), row.latencies.end())));
  }
  return out + "</table>\n";
}

std::string fault_list(const std::vector<InjectedFault>& faults) {
  constexpr std::size_t kMost = 400;
  std::string out =
      "<table><tr><th>fault</th><th>step</th><th>seen at</th><th>slot</th><th></th></tr>\n";
  for (std::size_t i = 0; i < faults.size() && i < kMost; ++i) {
    const InjectedFault& f = faults[i];
    const bool seen = f.state == FaultState::detected;
    out += fmt::format(
        "<tr><td>{} {}</td><td>{}</td><td>{}</td><td>{}</td><td class=\"words\">{}{}</td></tr>\n",
        i, serve::html_escaped(f.kind), f.step,
        seen ? std::to_string(f.detected_step) : words_of(f.state),
        f.slot < 0 ? "–" : std::to_string(f.slot), serve::html_escaped(f.note),
        seen ? " → " + canary::names_of(f.reasons)
             : (f.why.empty() ? "" : " (" + serve::html_escaped(f.why) + ")"));
  }
  return out + "</table>\n";
}

}  // namespace

std::string report_html(const ReplayRun& run, const std::vector<std::string>& violation_lines) {
  const engine::ReplayResult& r = run.result;
  const engine::EngineOptions& o = run.options;
  std::string out = fmt::format(
      "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">"
      "<title>Serinus replay</title>\n<style>{}</style></head><body>\n<h1>Replay of {}</h1>\n",
      kStyle, serve::html_escaped(run.trace));
  std::string beside;
  if (o.window > 0) beside += fmt::format(", an SWA pool with a window of {}", grouped(o.window));
  if (o.draft_layers > 0)
    beside +=
        fmt::format(", a draft pool of {} layer{}", o.draft_layers, o.draft_layers > 1 ? "s" : "");
  if (o.host_tokens > 0)
    beside += fmt::format(", a host tier of {} tokens", grouped(o.host_tokens));
  out += fmt::format(
      "<p>{} requests, {} steps; a pool of {} tokens in pages of {}, layout <code>{}</code>, {} "
      "layers{}; record format <code>{}</code>, seed {}.</p>\n",
      grouped(r.counters.requests), grouped(static_cast<std::int64_t>(r.steps)),
      grouped(o.pool_tokens), o.page, serve::html_escaped(o.layout), o.layers, beside,
      name_of(o.canary.format), run.seed);
  out += cards(run);
  out +=
      "<h2>The pool over time</h2>\n<p><span class=\"key\" "
      "style=\"--k:var(--read);margin-left:0\"></span>prefix cache, in use"
      "<span class=\"key\" style=\"--k:var(--idle)\"></span>prefix cache, idle"
      "<span class=\"key\" style=\"--k:var(--request)\"></span>private to a request";
  if (!r.faults.empty())
    out +=
        "<span class=\"key\" style=\"--k:var(--detected)\"></span>fault (dot) and its detection "
        "(ring)"
        "<span class=\"key\" style=\"--k:var(--missed)\"></span>missed"
        "<span class=\"key\" style=\"--k:var(--masked)\"></span>masked or not visible";
  out += "</p>\n<div class=\"figure\">" + pool_map(run) + "</div>\n";
  if (!r.faults.empty()) {
    const auto latencies = r.latencies();
    if (!latencies.empty())
      out +=
          "<h2>Detection latency</h2>\n<p>Steps from injection to the first report, and how many "
          "faults took "
          "so many.</p>\n"
          "<div class=\"figure\">" +
          histogram(latencies) + "</div>\n";
    out += "<h2>Detection by class</h2>\n<div class=\"figure\">" + detection_table(r.faults) +
           "</div>\n";
    out += "<h2>Every fault</h2>\n<div class=\"figure\">" + fault_list(r.faults) + "</div>\n";
  }
  if (!violation_lines.empty()) {
    out += fmt::format(
        "<h2>Violations</h2>\n<p>The first {}; all are in violations.txt and "
        "violations.jsonl.</p>\n<pre>",
        violation_lines.size());
    for (const std::string& line : violation_lines) out += serve::html_escaped(line) + "\n";
    out += "</pre>\n";
  }
  return out + "</body></html>\n";
}

}  // namespace serinus::cli
