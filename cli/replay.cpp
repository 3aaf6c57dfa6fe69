// `serinus replay`: a serving trace through the engine, with the canary on.
#include "engine/replay.h"

#include <fmt/format.h>
#include <sys/resource.h>

#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/raise.h"
#include "cli/bundle.h"
#include "cli/choice.h"
#include "cli/commands.h"
#include "cli/kv_dtype.h"
#include "cli/progress.h"
#include "cli/replay_report.h"
#include "cli/replay_watch.h"
#include "cli/serve_options.h"
#include "cli/stop_on_signal.h"
#include "engine/faults.h"

namespace serinus::cli {

namespace {

enum class RealData { none, partial, all };

struct Arguments {
  std::string trace;
  engine::EngineOptions options;
  engine::TraceOptions trace_options;
  canary::Format format = canary::Format::serinus;
  canary::VerifyPolicy verify = canary::VerifyPolicy::rolling;
  RealData real_data = RealData::all;
  std::int64_t budget = 2048;
  std::int64_t requests = 0;
  std::uint64_t seed = 1;
  std::string admit = "batch";
  std::string faults = "none";
  std::string report, bundle;
  bool json = false;
  bool no_canary = false;
  bool serve = false;
  serve::ServerOptions server = serve_options();
  double pace = 0;
  bool hold = false;
};

std::int64_t peak_rss_bytes() {
  struct rusage usage = {};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<std::int64_t>(usage.ru_maxrss) * 1024;
}

engine::EngineOptions engine_options(const Arguments& args) {
  engine::EngineOptions o = args.options;
  o.real_data = args.real_data != RealData::none;
  o.serial = args.admit == "serial";
  o.watch = !args.no_canary;
  o.canary.format = args.format;
  o.canary.verify = args.verify;
  o.canary.depth = args.real_data == RealData::none      ? canary::Depth::none
                   : args.real_data == RealData::partial ? canary::Depth::partial
                                                         : canary::Depth::all;
  o.canary.records_per_step = args.budget;
  return o;
}

int run(const Arguments& args) {
  ReplayRun run;
  run.trace = args.trace;
  run.seed = args.seed;
  run.options = engine_options(args);
  engine::FaultSpec faults = engine::parse_fault_spec(args.faults);
  if (args.no_canary && !faults.empty()) {
    raise(errors::Page::engine_option, {{"name", "faults"},
                                        {"want", "none with --no-canary: nobody would look"},
                                        {"got", args.faults}});
  }

  if (args.serve && args.no_canary) {
    raise(errors::Page::engine_option, {{"name", "serve"},
                                        {"want", "not given with --no-canary: nothing to see"},
                                        {"got", std::to_string(args.server.port)}});
  }

  std::vector<engine::TraceRequest> trace;
  engine::TraceReader reader(args.trace, args.trace_options);
  engine::TraceRequest request;
  while ((args.requests == 0 || static_cast<std::int64_t>(trace.size()) < args.requests) &&
         reader.next(request))
    trace.push_back(std::move(request));
  run.skipped_lines = reader.skipped();

  std::optional<ReportFolder> report;
  if (!args.report.empty()) report.emplace(args.report);

  if (args.no_canary && !args.bundle.empty()) {
    raise(errors::Page::engine_option, {{"name", "bundle"},
                                        {"want", "left out with --no-canary: it holds its records"},
                                        {"got", args.bundle}});
  }
  std::optional<Bundle> bundle;
  if (!args.bundle.empty()) bundle.emplace(args.bundle);

  std::optional<engine::FaultLab> lab;
  if (!faults.empty())
    lab.emplace(std::move(faults), args.seed, static_cast<std::int64_t>(trace.size()));

  std::optional<ReplayWatch> watch;
  if (args.serve) {
    watch.emplace(args.server, args.trace, args.pace);
    fmt::print(stderr, "serving {}\n", watch->url());
  }

  ProgressLine progress("requests");
  engine::ReplayHooks hooks;
  hooks.stop = &StopOnSignal::requested();
  if (lab) hooks.injector = &*lab;
  hooks.progress = [&](const engine::ReplayProgress& p) {
    progress.show(p.requests, p.total_requests, p.tokens, p.total_tokens, p.seconds);
  };
  if (bundle) hooks.snapshot = [&](engine::Engine& e) { bundle->snapshot(e); };
  constexpr int kShown = 20;
  int unexplained = 0;
  hooks.violation = [&](const canary::Violation& v, const std::string& pool, int fault) {
    if (report) report->add(v, pool, fault);
    if (watch) watch->add(v, pool, fault);
    if (bundle) bundle->add(v, pool, fault);
    if (fault >= 0 || ++unexplained > kShown) return;
    progress.end();
    fmt::print(stderr, "{}\n", canary::to_text(v, pool));
    if (unexplained == kShown) fmt::print(stderr, "(further ones only in the report)\n");
  };
  const auto tell = [&] {
    progress.end();
    run.peak_rss_bytes = peak_rss_bytes();
    if (report) report->finish(run);
    if (bundle) bundle->finish(summary_json(run, true));
    if (args.json) {
      fmt::print("{}\n", summary_json(run, false));
    } else {
      fmt::print("{}", summary_text(run));
      if (report) fmt::print("report: {}\n", report->page());
      if (bundle) fmt::print("bundle: {} (serinus scan opens it)\n", bundle->folder());
    }
  };
  // Whoever holds sees the summary first, and the engine stays to be asked.
  const bool hold = watch && args.hold;
  if (watch) {
    hooks.started = [&](engine::Engine& engine) { watch->begin(engine); };
    hooks.stepped = [&] { watch->stepped(); };
    hooks.finished = [&](const engine::ReplayResult& result) {
      watch->end();
      if (!hold) return;
      run.result = result;
      tell();
      std::fflush(stdout);
      if (!result.interrupted)
        fmt::print(stderr, "still serving {} (Ctrl-C ends it)\n", watch->url());
      watch->hold();
    };
  }
  {
    const StopOnSignal stop_on_signal;
    run.result = engine::replay(trace, run.options, hooks);
  }
  if (!hold) tell();
  const bool fine =
      run.result.counters.false_alarms == 0 && run.result.count(engine::FaultState::missed) == 0;
  return fine ? kFine : kViolation;
}

}  // namespace

void add_replay(CLI::App& app, int& exit_code) {
  auto args = std::make_shared<Arguments>();
  engine::EngineOptions& o = args->options;
  CLI::App* cmd = app.add_subcommand(
      "replay", "Replay a serving trace over a paged KV pool with a prefix cache, the canary on");
  cmd->add_option("TRACE", args->trace, "Trace: Mooncake or Qwen-Bailian JSONL, Azure CSV")
      ->required();
  cmd->add_option("--requests", args->requests, "The first N requests only, 0 = all")
      ->check(at_least(0))
      ->capture_default_str();
  add_choice(*cmd, "--trace-format", args->trace_options.format,
             {{"automatic", engine::TraceFormat::automatic},
              {"mooncake", engine::TraceFormat::mooncake},
              {"qwen", engine::TraceFormat::qwen},
              {"azure", engine::TraceFormat::azure}},
             "What the trace is, where its first line does not tell");
  cmd->add_flag("--skip-bad", args->trace_options.skip_bad,
                "Pass over malformed lines and count them, instead of stopping at the first");

  const char* pool = "Pool";
  cmd->add_option("--pool-tokens", o.pool_tokens, "Tokens that the pool holds")
      ->capture_default_str()
      ->group(pool);
  cmd->add_option("--page", o.page, "Tokens a page, 1 to 256")->capture_default_str()->group(pool);
  cmd->add_option("--layout", o.layout, "KV layout (serinus layouts lists them)")
      ->capture_default_str()
      ->group(pool);
  cmd->add_option("--layers", o.layers, "Layers")->capture_default_str()->group(pool);
  cmd->add_option("--heads", o.layout_options.heads, "KV heads, for the mha_* layouts")
      ->capture_default_str()
      ->group(pool);
  cmd->add_option("--head-size", o.layout_options.head_size, "Elements a head, for mha_*")
      ->capture_default_str()
      ->group(pool);
  add_kv_dtype(*cmd, o.layout_options.dtype)->group(pool);
  cmd->add_option("--window", o.window,
                  "A second pool of sliding-window layers of this many tokens")
      ->capture_default_str()
      ->group(pool);
  cmd->add_option("--draft-layers", o.draft_layers, "A draft model's pool of so many layers")
      ->capture_default_str()
      ->group(pool);
  cmd->add_option("--host-tokens", o.host_tokens, "A second tier of so many tokens in host memory")
      ->capture_default_str()
      ->group(pool);

  const char* schedule = "Schedule";
  cmd->add_option("--admit", args->admit, "batch; serial: one request at a time")
      ->check(CLI::IsMember({"batch", "serial"}))
      ->capture_default_str()
      ->group(schedule);
  cmd->add_option("--max-running", o.max_running, "Requests at a time, at most")
      ->capture_default_str()
      ->group(schedule);
  cmd->add_option("--step-tokens", o.step_tokens, "Tokens that a step computes, at most")
      ->capture_default_str()
      ->group(schedule);
  cmd->add_option("--decode-tokens", o.decode_tokens,
                  "Tokens that a request decodes a step (more than 1: as if drafts were accepted)")
      ->capture_default_str()
      ->group(schedule);
  add_device(*cmd, o.device,
             "Where the pool lies that the canary watches; the result does not "
             "depend on it")
      ->group(pool);
  cmd->add_option("--threads", o.threads, "Threads, 0 = all; the result does not depend on it")
      ->check(CLI::Range(0, 1024))
      ->capture_default_str()
      ->group(schedule);
  cmd->add_option("--seed", args->seed, "Same seed, same result")
      ->check(at_least(0))  // a negative one would wrap
      ->capture_default_str()
      ->group(schedule);

  const char* watch = "Canary";
  add_choice(*cmd, "--format", args->format,
             {{"serinus", canary::Format::serinus}, {"sglang", canary::Format::sglang}},
             "Record format")
      ->group(watch);
  add_choice(*cmd, "--verify", args->verify,
             {{"rolling", canary::VerifyPolicy::rolling}, {"all", canary::VerifyPolicy::all}},
             "rolling: in full what is newly reused, the rest in turn within the budget; all: "
             "every prefix at every step (what the sglang format always does)")
      ->group(watch);
  cmd->add_option("--budget", args->budget, "Records that a step re-checks (rolling)")
      ->check(at_least(1))
      ->capture_default_str()
      ->group(watch);
  add_choice(
      *cmd, "--real-data", args->real_data,
      {{"none", RealData::none}, {"partial", RealData::partial}, {"all", RealData::all}},
      "KV bytes: none at all; partial: first and last 16 bytes of each segment are digested; all")
      ->group(watch);
  cmd->add_flag("--no-canary", args->no_canary, "Replay without the canary, to see what it costs")
      ->group(watch);

  cmd->add_option("--faults", args->faults, "Break it on purpose: " + engine::fault_spec_help())
      ->default_str("none")
      ->group("Faults");

  const char* output = "Output";
  cmd->add_option("--report", args->report,
                  "Folder for violations (text, JSON lines), summary and a web page")
      ->group(output);
  cmd->add_option(
         "--bundle", args->bundle,
         "Folder for a bug report: records, ledger, table rows, configuration, violations, "
         "as they were after the step that found the first one")
      ->group(output);
  cmd->add_flag("--json", args->json, "One JSON object on standard output")->group(output);

  const char* live = "Live";
  CLI::Option* serve =
      cmd->add_option("--serve", args->server.port,
                      "Serve a live page and an HTTP API, on this port (0 = any free one)")
          ->check(CLI::Range(0, 65535).description(""))
          ->expected(0, 1)
          ->type_name("[PORT]")
          ->default_str(std::to_string(args->server.port))
          ->group(live);
  add_host_option(*cmd, args->server)->needs(serve)->group(live);
  cmd->add_option("--pace", args->pace,
                  "Steps a second at most, so that a person can follow; 0 = no limit")
      ->check(number_in(0, 1e6))
      ->capture_default_str()
      ->needs(serve)
      ->group(live);
  cmd->add_flag("--hold", args->hold, "Keep serving after the end, until Ctrl-C")
      ->needs(serve)
      ->group(live);
  cmd->callback([args, serve, &exit_code] {
    args->serve = serve->count() > 0;
    exit_code = run(*args);
  });
}

}  // namespace serinus::cli
