// The canary's configuration, from a file, the environment, or SGLang's flags: as JSON, whose keys
// are the arguments of serinus.Monitor.
#include <nanobind/nanobind.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include <serinus/canary_config.h>

#include "bind.h"

namespace serinus::python {

namespace nb = nanobind;

namespace {

std::string read_config(const std::string& file,
                        const std::optional<std::map<std::string, std::string>>& environment) {
  canary::Environment look_up;
  if (environment) {
    look_up = [&](const char* name) -> const char* {
      const auto it = environment->find(name);
      return it == environment->end() ? nullptr : it->second.c_str();
    };
  }
  return canary::to_json(canary::read_config({}, file, look_up));
}

std::string from_flags(const std::string& kv_canary, const std::string& kv_canary_real_data,
                       std::int64_t kv_canary_sweep_interval) {
  return canary::to_json({.options = canary::options_from_flags(kv_canary, kv_canary_real_data,
                                                                kv_canary_sweep_interval),
                          .violations_file = {}});
}

}  // namespace

void bind_config(nb::module_& m) {
  using namespace nb::literals;
  m.def("read_config", &read_config, "file"_a, "environment"_a.none());
  m.def("config_from_sglang_flags", &from_flags);
}

}  // namespace serinus::python
