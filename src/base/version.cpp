#include <serinus/version.h>

namespace serinus {

const char* version_string() noexcept {
  return "0.1.0";
}

}  // namespace serinus
