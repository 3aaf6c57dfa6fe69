// The .safetensors reader: any bytes give tensors that share out the file's data, or an InputError.
#include <cstdint>
#include <cstdlib>

#include <serinus/error.h>

#include "cli/tensor_files.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  try {
    std::size_t total = 0;
    for (const serinus::cli::Tensor& t : serinus::cli::parse_safetensors({data, size}, "fuzz")) {
      const auto bytes = static_cast<std::size_t>(t.view().numel() * size_of(t.dtype()));
      if (bytes != t.bytes().size()) std::abort();
      total += bytes;
    }
    if (total > size) std::abort();
  } catch (const serinus::InputError&) {
  }
  return 0;
}
