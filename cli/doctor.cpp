// `serinus doctor`: what this machine and this build offer.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#ifdef SERINUS_DOCTOR_HIGHWAY
#include <hwy/targets.h>
#endif

#include <serinus/version.h>

#include "base/parallel.h"
#include "cli/commands.h"
#include "cli/terminal.h"
#include "gpu/device.h"
#include "serve/server.h"
#include "sparse_mla/cpu/kernels.h"

namespace serinus::cli {

namespace {

using Json = nlohmann::ordered_json;

struct Feature {
  std::string name;
  bool present = false;
};

// The CPU features that a backend is written for.
std::vector<Feature> cpu_features() {
#if defined(__x86_64__)
  return {{"AVX2", __builtin_cpu_supports("avx2") != 0 && __builtin_cpu_supports("fma") != 0},
          {"AVX-512", __builtin_cpu_supports("avx512f") != 0 &&
                          __builtin_cpu_supports("avx512bw") != 0 &&
                          __builtin_cpu_supports("avx512vl") != 0},
          {"AVX-512 bf16 dot products", __builtin_cpu_supports("avx512bf16") != 0}};
#else
  return {};
#endif
}

std::string cpu_model() {
  std::ifstream in("/proc/cpuinfo");
  for (std::string line; std::getline(in, line);) {
    const auto colon = line.find(": ");
    if (line.starts_with("model name") && colon != std::string::npos) return line.substr(colon + 2);
  }
  return "unknown";
}

// What Highway would run here: the best target that the build holds and the CPU has.
std::string simd_target() {
#ifdef SERINUS_DOCTOR_HIGHWAY
  const auto usable =
      static_cast<std::uint64_t>(hwy::SupportedTargets()) & static_cast<std::uint64_t>(HWY_TARGETS);
  // Better targets have lower bits.
  return hwy::TargetName(static_cast<std::int64_t>(usable & (~usable + 1)));
#else
  return "none (built without Highway)";
#endif
}

std::string cuda_version(int v) {
  return fmt::format("{}.{}", v / 1000, v % 1000 / 10);
}

std::int64_t memory_bytes() {
  return static_cast<std::int64_t>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGE_SIZE);
}

Json examine() {
  const gpu::Survey gpus = gpu::survey();
  Json features = Json::object();
  for (const Feature& f : cpu_features()) features[f.name] = f.present;
  Json paths = Json::array();
  for (const sparse_mla::Kernels* path : sparse_mla::cpu_paths()) paths.push_back(path->name);
  Json devices = Json::array();
  for (const gpu::DeviceInfo& d : gpus.devices) {
    devices.push_back({{"index", d.index},
                       {"name", d.name},
                       {"compute_capability", fmt::format("{}.{}", d.major, d.minor)},
                       {"multiprocessors", d.multiprocessors},
                       {"memory_bytes", d.memory_bytes},
                       {"usable", d.usable},
                       {"sparse_mla", d.sparse_mla}});
  }
  return {{"version", version_string()},
          {"cpu",
           {{"model", cpu_model()},
            {"cores", resolve_threads(0)},
            {"features", std::move(features)},
            {"simd_target", simd_target()},
            {"attention_paths", std::move(paths)}}},
          {"memory_bytes", memory_bytes()},
          {"cuda",
           {{"built", gpus.compiled},
            {"toolkit", gpus.compiled ? cuda_version(gpus.toolkit_version) : ""},
            {"driver", gpus.driver_version != 0 ? cuda_version(gpus.driver_version) : ""},
            {"problem", gpus.problem},
            {"devices", std::move(devices)}}},
          {"build",
           {{"type", SERINUS_BUILD_TYPE},
            {"compiler", SERINUS_COMPILER},
            {"http_server", serve::server_available()},
            {"sanitizers", SERINUS_SANITIZERS}}}};
}

std::string gibibytes(const Json& bytes) {
  return fmt::format("{:.1f} GiB", static_cast<double>(bytes.get<std::int64_t>()) / (1 << 30));
}

std::string as_text(const Json& j, const Style& style) {
  std::string out = style.bold(fmt::format("serinus {}\n", j["version"].get<std::string>()));
  const auto row = [&](std::string_view label, std::string_view text) {
    out += fmt::format("  {:<8} {}\n", label, text);
  };
  const auto mark = [&](bool good, std::string_view text) {
    return good ? fmt::format("{} {}", style.green("yes"), text)
                : fmt::format("{}  {}", style.red("no"), text);
  };
  const Json& cpu = j["cpu"];
  row("CPU", fmt::format("{}, {} cores", cpu["model"].get<std::string>(), cpu["cores"].get<int>()));
  for (const auto& [name, present] : cpu["features"].items()) {
    row("", mark(present.get<bool>(), name));
  }
  row("SIMD", "Highway target " + cpu["simd_target"].get<std::string>());
  row("", fmt::format("CPU attention, fastest first: {}",
                      fmt::join(cpu["attention_paths"].get<std::vector<std::string>>(), ", ")));
  row("memory", gibibytes(j["memory_bytes"]));
  const Json& cuda = j["cuda"];
  std::string versions = "not in this build";
  if (cuda["built"].get<bool>()) {
    const auto driver = cuda["driver"].get<std::string>();
    versions = fmt::format("built with {}, {}", cuda["toolkit"].get<std::string>(),
                           driver.empty() ? "no driver" : "driver serves " + driver);
  }
  row("CUDA", versions);
  for (const Json& d : cuda["devices"]) {
    row("GPU", mark(d["usable"].get<bool>(),
                    fmt::format("{}: {}, compute capability {}, {} multiprocessors, {}",
                                d["index"].get<int>(), d["name"].get<std::string>(),
                                d["compute_capability"].get<std::string>(),
                                d["multiprocessors"].get<int>(), gibibytes(d["memory_bytes"]))));
    if (!d["usable"].get<bool>()) continue;
    const int i = d["index"].get<int>();
    row("", d["sparse_mla"].get<bool>()
                ? fmt::format(
                      "runs: attend and replay --device cuda:{0}, bench sparse_mla --device {0}", i)
                : fmt::format("runs: replay --device cuda:{} (attend needs Hopper)", i));
  }
  if (cuda["devices"].empty()) row("GPU", cuda["problem"].get<std::string>());
  const Json& build = j["build"];
  row("HTTP", mark(build["http_server"].get<bool>(), "server (serinus serve, replay --serve)"));
  const auto sanitizers = build["sanitizers"].get<std::string>();
  row("build", fmt::format("{}, {}{}", build["type"].get<std::string>(),
                           build["compiler"].get<std::string>(),
                           sanitizers.empty() ? "" : ", sanitizers " + sanitizers));
  return out;
}

}  // namespace

void add_doctor(CLI::App& app, int& exit_code) {
  auto json = std::make_shared<bool>(false);
  CLI::App* cmd = app.add_subcommand("doctor", "What this machine offers: CPU, GPU, build options");
  cmd->add_flag("--json", *json, "Print JSON");
  cmd->callback([json, &exit_code] {
    const Json found = examine();
    const std::string out =
        *json ? found.dump(2) + "\n" : as_text(found, Style(output_has_colours()));
    std::fputs(out.c_str(), stdout);
    exit_code = kFine;
  });
}

}  // namespace serinus::cli
