// Any bytes as a trace in the azure format: read to the end, or an InputError.
#include <cstddef>
#include <cstdint>
#include <string>

#include <serinus/error.h>

#include "engine/trace/trace.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace serinus::engine;
  const std::string text(reinterpret_cast<const char*>(data), size);
  for (const bool skip_bad : {false, true}) {
    try {
      TraceReader reader("fuzz", text, {.format = TraceFormat::azure, .skip_bad = skip_bad});
      for (TraceRequest r; reader.next(r);) {
        if (r.input_length < 1 || r.output_length < 0) __builtin_trap();
      }
    } catch (const serinus::InputError&) {
    }
  }
  return 0;
}
