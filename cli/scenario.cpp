// `serinus scenario`: runs scenarios and shows what each record format reports of them.
#include "engine/scenario.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cli/commands.h"

namespace serinus::cli {

namespace {

using canary::Format;
using engine::Scenario;
using engine::ScenarioOutcome;

struct Arguments {
  std::vector<std::string> files;
  std::string format = "serinus";
  bool json = false, verbose = false;
};

std::string joined(const std::vector<std::string>& words, const char* separator) {
  return fmt::format("{}", fmt::join(words, separator));
}

std::string expected(const Scenario& s) {
  if (s.expect.empty()) return "no alarm";
  std::vector<std::string> words;
  for (const engine::Expectation& e : s.expect) {
    std::string word = canary::names_of(e.reason);
    if (std::find(words.begin(), words.end(), word) == words.end())
      words.push_back(std::move(word));
  }
  return joined(words, " ");
}

std::string reported(const ScenarioOutcome& o) {
  if (o.seen == canary::Reason::none) return "nothing";
  std::string names = canary::names_of(o.seen);
  std::replace(names.begin(), names.end(), '+', ' ');
  return names;
}

std::string verdict(const ScenarioOutcome& o) {
  if (o.ok()) return "ok";
  std::vector<std::string> parts;
  if (!o.missed.empty()) parts.push_back("misses " + joined(o.missed, " "));
  if (!o.false_alarms.empty()) parts.push_back("false alarm: " + joined(o.false_alarms, ", "));
  return joined(parts, "; ");
}

struct Row {
  std::vector<std::string> cells;
  std::vector<std::string> details;
};

void print_table(const std::vector<Row>& rows) {
  std::vector<std::size_t> width;
  for (const Row& row : rows) {
    width.resize(std::max(width.size(), row.cells.size()));
    for (std::size_t i = 0; i < row.cells.size(); ++i) {
      width[i] = std::max(width[i], row.cells[i].size());
    }
  }
  for (const Row& row : rows) {
    std::string line;
    for (std::size_t i = 0; i < row.cells.size(); ++i) {
      const bool last = i + 1 == row.cells.size();
      line += last ? row.cells[i] : fmt::format("{:<{}}  ", row.cells[i], width[i]);
    }
    std::puts(line.c_str());
    for (const std::string& detail : row.details) std::printf("    %s\n", detail.c_str());
  }
}

nlohmann::ordered_json to_json(const Scenario& s, const std::vector<Format>& formats,
                               const std::vector<ScenarioOutcome>& outcomes) {
  nlohmann::ordered_json expect = nlohmann::ordered_json::array();
  for (const engine::Expectation& e : s.expect) expect.push_back(e.text);
  if (expect.empty()) expect.push_back("no_alarm");
  nlohmann::ordered_json j = {{"id", s.id},
                              {"class", s.fault_class},
                              {"place", s.place},
                              {"reports", s.reports},
                              {"expect", std::move(expect)}};
  for (std::size_t i = 0; i < formats.size(); ++i) {
    const ScenarioOutcome& o = outcomes[i];
    std::vector<std::string> seen;
    for (std::uint32_t bit = 1; bit != 0; bit <<= 1) {
      const auto r = static_cast<canary::Reason>(bit);
      if (any(o.seen & r)) seen.push_back(canary::names_of(r));
    }
    j[canary::name_of(formats[i])] = {{"ok", o.ok()},
                                      {"reported", seen},
                                      {"missed", o.missed},
                                      {"false_alarms", o.false_alarms},
                                      {"violations", o.violations}};
  }
  return j;
}

void run(const Arguments& args, int& exit_code) {
  std::vector<Scenario> scenarios;
  for (const std::string& file : args.files) {
    for (Scenario& s : engine::read_scenarios(file)) scenarios.push_back(std::move(s));
  }
  std::vector<Format> formats;
  if (args.format != "sglang") formats.push_back(Format::serinus);
  if (args.format != "serinus") formats.push_back(Format::sglang);

  std::vector<Row> table(1);
  table[0].cells = {"scenario", "class", "expected"};
  for (const Format f : formats)
    table[0].cells.push_back(std::string(canary::name_of(f)) + " reports");
  for (const Format f : formats)
    table[0].cells.push_back(std::string(canary::name_of(f)) + " verdict");
  std::vector<std::size_t> fine(formats.size());
  std::vector<std::string> missed_by_sglang;
  nlohmann::ordered_json json = nlohmann::ordered_json::array();
  for (const Scenario& s : scenarios) {
    std::vector<ScenarioOutcome> outcomes;
    Row row;
    row.cells = {s.id, s.fault_class, expected(s)};
    for (std::size_t i = 0; i < formats.size(); ++i) {
      outcomes.push_back(engine::run_scenario(s, formats[i]));
      const ScenarioOutcome& o = outcomes.back();
      fine[i] += o.ok() ? 1 : 0;
      row.cells.push_back(reported(o));
      if (args.verbose) {
        for (const std::string& v : o.violations) {
          row.details.push_back(fmt::format("{}: {}", canary::name_of(formats[i]), v));
        }
      }
      if (formats[i] == Format::sglang && !o.ok()) missed_by_sglang.push_back(s.id);
    }
    for (const ScenarioOutcome& o : outcomes) row.cells.push_back(verdict(o));
    table.push_back(std::move(row));
    if (args.json) json.push_back(to_json(s, formats, outcomes));
  }
  const bool all_fine = formats[0] == Format::sglang || fine[0] == scenarios.size();
  exit_code = all_fine ? kFine : kViolation;

  if (args.json) {
    nlohmann::ordered_json out = {{"scenarios", scenarios.size()}};
    for (std::size_t i = 0; i < formats.size(); ++i) {
      out[std::string(canary::name_of(formats[i])) + "_ok"] = fine[i];
    }
    out["results"] = std::move(json);
    std::puts(out.dump().c_str());
    return;
  }
  print_table(table);
  std::puts("");
  for (std::size_t i = 0; i < formats.size(); ++i) {
    std::printf("%s: %zu of %zu scenarios as expected\n", canary::name_of(formats[i]), fine[i],
                scenarios.size());
  }
  if (!missed_by_sglang.empty()) {
    std::printf("not as expected in the sglang format, which knows no owners: %s\n",
                joined(missed_by_sglang, ", ").c_str());
  }
}

}  // namespace

void add_scenario(CLI::App& app, int& exit_code) {
  auto args = std::make_shared<Arguments>();
  CLI::App* cmd = app.add_subcommand(
      "scenario", "Run fault scenarios and show what the canary reports of each");
  cmd->add_option("FILE", args->files, "Scenario files (JSON Lines, docs/design/scenarios.md)")
      ->required()
      ->type_name("FILE");
  cmd->add_option("--format", args->format, "Record format: serinus, sglang or both")
      ->check(CLI::IsMember({"serinus", "sglang", "both"}))
      ->capture_default_str();
  cmd->add_flag("--json", args->json, "One JSON object instead of the table");
  cmd->add_flag("-v,--verbose", args->verbose,
                "Show every violation, after the operation it follows");
  cmd->footer(
      "Expectations are the serinus format's: with --format sglang the table shows what that "
      "format "
      "misses,\nand the exit code is 0. A malformed file is named with line and field.\n\n" +
      app.get_footer());
  cmd->callback([args, &exit_code] { run(*args, exit_code); });
}

}  // namespace serinus::cli
