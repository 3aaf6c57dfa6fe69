#include <serinus/version.h>

namespace serinus {

const char* version_string() noexcept {
  return SERINUS_VERSION;
}

}  // namespace serinus
