// The reader of pool dumps: any bytes give a dump that can be scanned, or an InputError. Once as
// they are, once with a checksum that fits, so that the parser is reached.
#include <cstdint>
#include <cstring>
#include <memory>
#include <sstream>
#include <string>

#include <serinus/canary_dump.h>
#include <serinus/error.h>

#include "canary/dump/format.h"

using namespace serinus;

namespace {

void read_and_scan(std::string bytes) {
  try {
    const canary::Dump dump(std::make_unique<std::istringstream>(std::move(bytes)), "fuzz");
    const canary::ScanResult r = canary::scan(dump, 10);
    for (const canary::Violation& v : r.violations) canary::to_json(v, "pool");
  } catch (const InputError&) {
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  std::string bytes(reinterpret_cast<const char*>(data), size);
  read_and_scan(bytes);
  if (size < 8) return 0;
  canary::dump::Checksum sum;
  sum.add(bytes.data(), size - 8);
  const std::uint64_t value = sum.finish();
  std::memcpy(bytes.data() + size - 8, &value, 8);
  read_and_scan(std::move(bytes));
  return 0;
}
