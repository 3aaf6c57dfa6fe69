// A request: any bytes are refused, or are a head that the site answers with a status that it
// knows, a body, and nothing thrown.
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "serve/site.h"

using namespace serinus;

namespace {

serve::Feed& feed() {
  static serve::Feed f("fuzz");
  return f;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const serve::Site open({true, ""}, nullptr), watched({true, ""}, &feed()),
      locked({false, "0123456789abcdef"}, nullptr);
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  serve::Head head;
  if (const auto refusal = serve::parse_head(text, head)) {
    if (refusal->status < 400 || refusal->why.empty()) std::abort();
    // As a target alone, so that the site is reached by mutations of any kind.
    head = {};
    head.method = "GET";
    head.target = text;
  }
  for (const serve::Site* site : {&open, &watched, &locked}) {
    const serve::Response r = site->answer(head);
    const bool known = r.status == 200 || (r.status >= 400 && r.status < 500) || r.status == 503;
    if (!known || r.body.empty()) std::abort();
    if (site == &locked && r.status == 200 &&
        head.authorization.find("0123456789abcdef") == std::string::npos) {
      std::abort();
    }
  }
  return 0;
}
