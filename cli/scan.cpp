// `serinus scan`: a pool dump, or a bundle with one in it, checked in itself.
#include <fmt/format.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include <serinus/canary_dump.h>

#include "base/json.h"
#include "cli/bundle.h"
#include "cli/commands.h"

namespace serinus::cli {

namespace {

struct Arguments {
  std::string path;
  std::size_t limit = 100;
  bool json = false;
};

std::string layout_text(const canary::DumpPool& p) {
  return fmt::format("{} x {} layers, pages of {}", p.spec.layout.name, p.spec.num_layers,
                     p.spec.layout.page_size);
}

void print_text(const canary::Dump& dump, const canary::ScanResult& r, const std::string& file) {
  fmt::print("dump: {}, version {}, format {}, depth {}, step {}\n", file, dump.version,
             name_of(dump.format), name_of(dump.depth), dump.step);
  for (const canary::DumpPool& p : dump.pools) {
    fmt::print("pool {}: {}; holds slots {} of {}, bytes of {}, events {}\n",
               printable(p.spec.name), printable(layout_text(p), 200), p.slots.size(),
               p.spec.num_slots, p.byte_slots.size(), p.events.size());
  }
  fmt::print("checked: records {}, slots with bytes {}, table rows {}, their cells {}\n", r.written,
             r.bytes_checked, dump.rows.size(), r.cells);
  for (const canary::Violation& v : r.violations) {
    fmt::print("{}\n", canary::to_text(
                           v, printable(dump.pools[static_cast<std::size_t>(v.pool)].spec.name)));
  }
  if (r.more > 0) fmt::print("(and {} more; --limit shows them)\n", r.more);
  fmt::print("violations: {}\n", std::ssize(r.violations) + r.more);
}

void print_json(const canary::Dump& dump, const canary::ScanResult& r, const std::string& file) {
  using Json = nlohmann::ordered_json;
  Json pools = Json::array(), violations = Json::array();
  for (const canary::DumpPool& p : dump.pools) {
    pools.push_back({{"name", p.spec.name},
                     {"layout", p.spec.layout.name},
                     {"page_size", p.spec.layout.page_size},
                     {"layers", p.spec.num_layers},
                     {"num_slots", p.spec.num_slots},
                     {"slots", p.slots.size()},
                     {"slots_with_bytes", p.byte_slots.size()},
                     {"events", p.events.size()}});
  }
  for (const canary::Violation& v : r.violations) {
    violations.push_back(Json::parse(
        canary::to_json(v, printable(dump.pools[static_cast<std::size_t>(v.pool)].spec.name))));
  }
  const Json j = {{"file", file},
                  {"version", dump.version},
                  {"format", name_of(dump.format)},
                  {"depth", name_of(dump.depth)},
                  {"step", dump.step},
                  {"pools", pools},
                  {"records_checked", r.written},
                  {"slots_with_bytes_checked", r.bytes_checked},
                  {"cells_checked", r.cells},
                  {"violations", violations},
                  {"more", r.more}};
  // Names come from a file: they may be any bytes.
  fmt::print("{}\n", j.dump(2, ' ', false, Json::error_handler_t::replace));
}

int run(const Arguments& args) {
  std::string file = args.path;
  const bool is_bundle = std::filesystem::is_directory(file);
  if (is_bundle) file += std::string("/") + kBundleDump;
  const canary::Dump dump(file);
  const canary::ScanResult result = scan(dump, args.limit);
  if (args.json) {
    print_json(dump, result, file);
  } else {
    if (is_bundle) {
      std::ifstream config(args.path + "/" + kBundleConfig);
      std::string line;
      if (std::getline(config, line)) fmt::print("configuration: {}\n", printable(line, 2000));
      std::ifstream found(args.path + "/" + kBundleViolations);
      std::int64_t lines = 0;
      while (std::getline(found, line)) ++lines;
      fmt::print("violations while it ran: {}, in {}\n", lines, kBundleViolations);
    }
    print_text(dump, result, file);
  }
  return result.violations.empty() ? kFine : kViolation;
}

}  // namespace

void add_scan(CLI::App& app, int& exit_code) {
  auto args = std::make_shared<Arguments>();
  CLI::App* cmd = app.add_subcommand(
      "scan", "Check a pool dump: records against ledger, predecessors, bytes and table rows");
  cmd->add_option("PATH", args->path, "A dump, or the folder of `serinus replay --bundle`")
      ->required();
  cmd->add_option("--limit", args->limit, "Violations that are shown")->capture_default_str();
  cmd->add_flag("--json", args->json, "One JSON object on standard output");
  cmd->callback([args, &exit_code] { exit_code = run(*args); });
}

}  // namespace serinus::cli
