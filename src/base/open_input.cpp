#include "base/open_input.h"

#include <cerrno>
#include <system_error>

#include "base/json.h"
#include "base/raise.h"

namespace serinus {

std::ifstream open_input(const std::string& path) {
  if (path.find('\0') != std::string::npos) {
    raise(errors::Page::input_file_unreadable,
          {{"got", printable(path, 400)}, {"why", "the path holds a NUL"}});
  }
  errno = 0;
  std::ifstream in(path, std::ios::binary);
  if (!in) {
    const int why = errno;
    raise(errors::Page::input_file_unreadable,
          {{"got", path},
           {"why", why != 0 ? std::generic_category().message(why) : "it cannot be opened"}});
  }
  return in;
}

}  // namespace serinus
