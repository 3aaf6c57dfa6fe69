// The configuration reader: any bytes give settings that can be written and read back, or an
// InputError and nothing changed.
#include <cstdint>
#include <cstdlib>
#include <string>

#include <serinus/canary_config.h>
#include <serinus/error.h>

using namespace serinus;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string before = canary::to_json(canary::Config{});
  canary::Config config;
  try {
    canary::apply_json(config, {reinterpret_cast<const char*>(data), size}, "fuzz.json");
    canary::Config again;
    canary::apply_json(again, canary::to_json(config), "again.json");
    if (canary::to_json(again) != canary::to_json(config)) std::abort();
  } catch (const InputError&) {
    if (canary::to_json(config) != before) std::abort();
  }
  return 0;
}
