// A serving trace through the engine, with the canary on: `serinus replay` as a function.
#include "engine/replay.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <atomic>
#include <charconv>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <serinus/canary.h>

#include "base/raise.h"
#include "bind.h"
#include "engine/faults.h"
#include "engine/trace/trace.h"
#include "named.h"
#include "numbers.h"

namespace serinus::python {

namespace nb = nanobind;

namespace {

// "cpu", "cuda", "cuda:N".
Device device_named(const std::string& text) {
  if (text == "cpu") return {};
  Device device{DeviceType::cuda, 0};
  if (text == "cuda") return device;
  const char* const end = text.data() + text.size();
  if (text.starts_with("cuda:") && text.size() > 5) {
    const auto [rest, error] = std::from_chars(text.data() + 5, end, device.index);
    if (error == std::errc() && rest == end && device.index >= 0) return device;
  }
  raise(errors::Page::python_unknown_option,
        {{"name", "device"}, {"want", "cpu, cuda, cuda:N"}, {"got", "'" + text + "'"}});
}

engine::EngineOptions options_of(const nb::dict& given) {
  const auto number = [&](const char* name) { return number_in(name, given[name]); };
  engine::EngineOptions o;
  o.layout = text_in(given["layout"]);
  o.layers = number_in<int>("layers", given["layers"]);
  o.layout_options.heads = number("heads");
  o.layout_options.head_size = number("head_size");
  if (!given["dtype"].is_none()) {
    o.layout_options.dtype = kv_dtype_named(text_in(given["dtype"]));
  }
  o.page = number("page");
  o.pool_tokens = number("pool_tokens");
  o.window = number("window");
  o.draft_layers = number_in<int>("draft_layers", given["draft_layers"]);
  o.host_tokens = number("host_tokens");
  o.max_running = number("max_running");
  o.step_tokens = number("step_tokens");
  o.decode_tokens = number("decode_tokens");
  o.device = device_named(text_in(given["device"]));
  o.threads = number_in<int>("threads", given["threads"]);
  o.canary.records_per_step = number("budget");
  o.canary.format = named<canary::Format>(
      "format", text_in(given["format"]),
      {{"serinus", canary::Format::serinus}, {"sglang", canary::Format::sglang}});
  o.canary.verify = named<canary::VerifyPolicy>(
      "verify", text_in(given["verify"]),
      {{"rolling", canary::VerifyPolicy::rolling}, {"all", canary::VerifyPolicy::all}});
  o.canary.depth = named<canary::Depth>("real_data", text_in(given["real_data"]),
                                        {{"none", canary::Depth::none},
                                         {"partial", canary::Depth::partial},
                                         {"all", canary::Depth::all}});
  o.real_data = o.canary.depth != canary::Depth::none;
  return o;
}

nb::dict fault_of(const engine::InjectedFault& f) {
  nb::dict d;
  d["kind"] = f.kind;
  d["note"] = f.note;
  d["why"] = f.why;
  d["state"] = name_of(f.state);
  d["step"] = f.step;
  d["detected_step"] = f.detected_step;
  d["reasons"] = canary::names_of(f.reasons);
  d["pool"] = f.pool;
  d["slot"] = f.slot;
  return d;
}

nb::dict replay(const std::string& path, const nb::dict& given, const std::string& faults,
                std::uint64_t seed, std::int64_t requests, nb::handle progress) {
  const engine::EngineOptions options = options_of(given);
  engine::FaultSpec spec = engine::parse_fault_spec(faults);
  std::vector<engine::TraceRequest> trace;
  engine::TraceReader reader(path);
  for (engine::TraceRequest r;
       (requests == 0 || static_cast<std::int64_t>(trace.size()) < requests) && reader.next(r);)
    trace.push_back(std::move(r));

  std::optional<engine::FaultLab> lab;
  if (!spec.empty()) lab.emplace(std::move(spec), seed, static_cast<std::int64_t>(trace.size()));
  std::atomic<bool> stop{false};
  std::vector<std::pair<int, std::string>> violations;  // the fault that explains it, and its JSON
  engine::ReplayHooks hooks;
  hooks.stop = &stop;
  if (lab) hooks.injector = &*lab;
  hooks.violation = [&](const canary::Violation& v, const std::string& pool, int fault) {
    violations.emplace_back(fault, canary::to_json(v, pool));
  };
  std::optional<nb::python_error> failed;  // from the progress function, or Ctrl-C
  std::uint64_t calls = 0;
  hooks.progress = [&](const engine::ReplayProgress& p) {
    if (++calls % 16 != 0 || failed) return;
    const nb::gil_scoped_acquire acquire;
    try {
      if (PyErr_CheckSignals() != 0) throw nb::python_error();
      if (!progress.is_none()) progress(p.requests, p.total_requests, p.steps);
    } catch (nb::python_error& e) {
      failed.emplace(std::move(e));
      stop = true;
    }
  };

  engine::ReplayResult result;
  {
    const nb::gil_scoped_release release;
    result = engine::replay(trace, options, hooks);
  }
  if (failed) throw std::move(*failed);

  nb::dict out;
  out["requests"] = result.counters.requests;
  out["steps"] = result.steps;
  out["tokens_written"] = result.counters.tokens_written;
  out["prefix_hit_tokens"] = result.counters.prefix_hit_tokens;
  out["preemptions"] = result.counters.preemptions;
  out["records_verified"] = result.canary.records_verified;
  out["false_alarms"] = result.counters.false_alarms;
  out["seconds"] = result.seconds;
  out["canary_seconds"] = result.canary_seconds;
  nb::list fault_list;
  for (const engine::InjectedFault& f : result.faults) fault_list.append(fault_of(f));
  out["faults"] = fault_list;
  nb::list violation_list;
  for (const auto& [fault, json] : violations) violation_list.append(nb::make_tuple(fault, json));
  out["violations"] = violation_list;
  return out;
}

}  // namespace

void bind_replay(nb::module_& m) {
  using namespace nb::literals;
  m.def("replay", &replay, "path"_a, "options"_a, "faults"_a, "seed"_a, "requests"_a,
        "progress"_a.none());
}

}  // namespace serinus::python
