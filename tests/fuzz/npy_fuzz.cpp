// The .npy reader: any bytes give a tensor whose shape its memory backs, or an InputError.
#include <cstdint>
#include <cstdlib>

#include <serinus/error.h>

#include "cli/tensor_files.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  try {
    const serinus::cli::Tensor t = serinus::cli::parse_npy({data, size}, "fuzz.npy");
    const auto bytes = static_cast<std::size_t>(t.view().numel() * size_of(t.dtype()));
    if (bytes != t.bytes().size() || bytes > size) std::abort();
  } catch (const serinus::InputError&) {
  }
  return 0;
}
