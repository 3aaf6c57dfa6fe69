// Any bytes as a scenario file: scenarios that run to their end, or an InputError.
#include <cstddef>
#include <cstdint>
#include <string>

#include <serinus/error.h>

#include "engine/scenario.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace serinus;
  try {
    const auto all =
        engine::parse_scenarios("fuzz", std::string(reinterpret_cast<const char*>(data), size));
    for (const engine::Scenario& s : all) {
      for (const auto format : {canary::Format::serinus, canary::Format::sglang}) {
        engine::run_scenario(s, format);
      }
    }
  } catch (const InputError&) {
  }
  return 0;
}
