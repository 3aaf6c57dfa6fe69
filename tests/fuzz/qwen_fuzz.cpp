#include "trace_fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  return serinus::engine::fuzz_trace(data, size, serinus::engine::TraceFormat::qwen);
}
