// What the fuzz targets of the trace formats share.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include <serinus/error.h>

#include "engine/trace/trace.h"

namespace serinus::engine {

/// Any bytes as a trace of the format: read to the end, or an InputError.
inline int fuzz_trace(const std::uint8_t* data, std::size_t size, TraceFormat format) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  for (const bool skip_bad : {false, true}) {
    try {
      TraceReader reader("fuzz", text, {.format = format, .skip_bad = skip_bad});
      for (TraceRequest r; reader.next(r);) {
        if (r.input_length < 1 || r.output_length < 0) __builtin_trap();
      }
    } catch (const InputError&) {
    }
  }
  return 0;
}

}  // namespace serinus::engine
