// Whatever somebody pastes into `serinus explain`, the lookup answers with a page or with none.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include <serinus/error.h>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const serinus::ErrorEntry* found = serinus::find_error(text);
  // What is found is a page of the reference, and is found again by its own id.
  if (found != nullptr && serinus::find_error(found->id) != found) std::abort();
  return 0;
}
